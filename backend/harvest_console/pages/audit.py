"""`/audit`: who did what to what, newest first, merged over the shards (answers 11)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from litestar import get
from msgspec import Struct

from harvest.errors import CursorError, InvalidRequestError
from harvest.operations.auditing import AuditFilter, AuditView, list_audit
from harvest.operations.paging import Page as Keyset
from harvest.shards import Shards
from harvest_console.pages.acts import act_rows
from harvest_console.pages.queries import input_text, link_text, read_instant
from harvest_console.pages.types import AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render
from harvest_console.rendering.preferences import read_preferences
from harvest_console.rendering.times import zone_named

PAGE_SIZE: Final = 50
STATUSES: Final = (("", "All"), ("succeeded", "Succeeded"), ("failed", "Failed"))


class Query(Struct, frozen=True, kw_only=True):
    """What the address of the page asks for."""

    actor: str = ""
    operation: str = ""
    target: str = ""
    status: str = ""
    since: datetime | None = None
    until: datetime | None = None

    def filter(self) -> AuditFilter:
        """The filter of operations."""
        return AuditFilter(
            actor=self.actor or None,
            operation=self.operation or None,
            target_id=self.target or None,
            status=self.status or None,
            since=self.since,
            until=self.until,
        )

    def parameters(self, **changed: Any) -> dict[str, Any]:
        """The parameters of an address."""
        values: dict[str, Any] = {
            "who": self.actor,
            "operation": self.operation,
            "target": self.target,
            "status": self.status,
            "since": link_text(self.since),
            "until": link_text(self.until),
        }
        return values | changed

    @property
    def narrowed(self) -> bool:
        """Whether anything is filtered."""
        return any((self.actor, self.operation, self.target, self.status, self.since, self.until))


@get("/audit")
async def audit_page(
    request: AnyRequest,
    shards: Shards,
    who: str = "",
    operation: str = "",
    target: str = "",
    status: str = "",
    since: str = "",
    until: str = "",
    tz: str = "",
    cursor: str = "",
) -> Page:
    """The log with its filters."""
    problem = ""
    try:
        times = (read_instant(since, tz, "since"), read_instant(until, tz, "until"))
    except InvalidRequestError as error:
        problem, times = error.message, (None, None)
    query = Query(
        actor=who.strip(),
        operation=operation.strip(),
        target=target.strip(),
        status=status if status in dict(STATUSES) else "",
        since=times[0],
        until=times[1],
    )
    page, stale = await _read(shards, query, cursor)
    base = base_path(request)
    zone = zone_named(read_preferences(request.cookies).zone)

    def link(**changed: Any) -> str:
        return build_url(base, "/audit", **query.parameters(**changed))

    return render(
        request,
        "audit.html",
        section="audit",
        query=query,
        problem=problem,
        since_text=input_text(query.since, zone),
        until_text=input_text(query.until, zone),
        page=page,
        acts=act_rows(page.rows.rows, base),
        stale_link=stale,
        chips=[(text, value == query.status, link(status=value)) for value, text in STATUSES],
        here_url=link(cursor="" if stale else cursor),
        newer_url=link(cursor=page.previous_cursor) if page.previous_cursor else None,
        older_url=link(cursor=page.next_cursor) if page.next_cursor else None,
    )


async def _read(shards: Shards, query: Query, cursor: str) -> tuple[Keyset[AuditView], bool]:
    """One page; an old or damaged cursor gives the first page and says so."""
    try:
        return await list_audit(shards, query.filter(), limit=PAGE_SIZE, cursor=cursor or None), False
    except CursorError:
        return await list_audit(shards, query.filter(), limit=PAGE_SIZE), True


handlers = [audit_page]
