"""`/workflows`: the list. Its whole state is in the address; filters and pages are links (console 2)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from litestar import get
from litestar.params import QueryParameter
from msgspec import Struct

from harvest.errors import CursorError, HarvestError, InvalidRequestError
from harvest.history.states import State
from harvest.operations import definitions, listing
from harvest.operations.listing import Counted, ListFilter, ListPage
from harvest.shards import Shards
from harvest_console.pages.queries import input_text, link_text, read_instant
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render, render_region
from harvest_console.rendering.preferences import read_preferences
from harvest_console.rendering.states import shown_state
from harvest_console.rendering.times import zone_named

SIZES: Final = (25, 50, 100, 200)
DEFAULT_SIZE: Final = 50
MOST_NEW: Final = 100
OFFERED: Final = (
    "RUNNING",
    "PAUSED",
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TERMINATED",
    "TIMED_OUT",
    "CONTINUED_AS_NEW",
)
States = Annotated[list[str] | None, QueryParameter(name="state")]


class Query(Struct, frozen=True, kw_only=True):
    """What the address of a list asks for, but for the page of it."""

    states: tuple[str, ...] = ()
    blocked: bool = False
    type: str = ""
    id: str = ""
    after: datetime | None = None
    before: datetime | None = None
    order: str = "desc"
    size: int = DEFAULT_SIZE

    def filter(self, *, before: datetime | None = None, after: datetime | None = None) -> ListFilter:
        """The filter of operations; `before` and `after` narrow it."""
        return ListFilter(
            states=self.states,
            blocked=self.blocked,
            workflow_name=self.type or None,
            workflow_id=self.id or None,
            started_after=max(filter(None, (self.after, after)), default=None),
            started_before=min(filter(None, (self.before, before)), default=None),
            order="asc" if self.order == "asc" else "desc",
        )

    def parameters(self, **changed: Any) -> dict[str, Any]:
        """The parameters of an address; those that say nothing are left out."""
        values: dict[str, Any] = {
            "state": list(self.states),
            "blocked": "1" if self.blocked else None,
            "type": self.type,
            "id": self.id,
            "after": link_text(self.after),
            "before": link_text(self.before),
            "order": self.order if self.order != "desc" else None,
            "size": self.size if self.size != DEFAULT_SIZE else None,
        }
        return values | changed

    @property
    def narrowed(self) -> bool:
        """Whether anything is filtered."""
        return bool(self.states or self.blocked or self.type or self.id or self.after or self.before)


class Shown(Struct, frozen=True, kw_only=True):
    """One page of the list as read, with what it takes to say how much there is."""

    page: ListPage
    stale_link: bool = False


@get("/workflows")
async def workflows_page(
    request: AnyRequest,
    shards: Shards,
    states: States = None,
    blocked: str = "",
    type: str = "",
    id: str = "",
    after: str = "",
    before: str = "",
    tz: str = "",
    order: str = "desc",
    size: int = DEFAULT_SIZE,
    cursor: str = "",
) -> Page:
    """The list with its filters."""
    query, problem = _query(states, blocked, type, id, after, before, tz, order, size)
    shown, counted, types = await asyncio.gather(_read(shards, query, cursor), _count(shards, query), _types(shards))
    zone = zone_named(read_preferences(request.cookies).zone)
    base = base_path(request)
    return render(
        request,
        "workflows.html",
        query=query,
        problem=problem,
        counted=counted,
        types=types,
        after_text=input_text(query.after, zone),
        before_text=input_text(query.before, zone),
        chips=[_chip(query, word, base) for word in _offered(query)],
        blocked_url=build_url(base, "/workflows", **query.parameters(blocked=None if query.blocked else "1")),
        clear_url=build_url(base, "/workflows"),
        sizes=[(size, build_url(base, "/workflows", **query.parameters(size=size))) for size in SIZES],
        section="workflows",
        topics="list",
        **_list_context(base, query, shown, cursor, fresh=None),
    )


@get(FRAGMENTS + "/workflows")
async def workflows_region(
    request: AnyRequest,
    shards: Shards,
    states: States = None,
    blocked: str = "",
    type: str = "",
    id: str = "",
    after: str = "",
    before: str = "",
    order: str = "desc",
    size: int = DEFAULT_SIZE,
    cursor: str = "",
    top: str = "",
) -> Page:
    """The rows that a tab shows, read again: what started after `top` is counted, never pushed under the pointer."""
    query, _ = _query(states, blocked, type, id, after, before, "", order, size)
    first = read_instant(top, "", "top")
    until = first + timedelta(microseconds=1) if first else None
    pinned = until is not None and query.order == "desc" and not cursor
    narrowed = query.filter(before=until) if pinned else query.filter()
    shown, fresh = await asyncio.gather(
        _read(shards, query, cursor, narrowed), _fresh(shards, query, until if pinned else None)
    )
    context = _list_context(base_path(request), query, shown, cursor, fresh=fresh, top=top)
    return render_region(request, "regions/list_update.html", query=query, **context)


def _query(
    states: list[str] | None,
    blocked: str,
    type: str,
    id: str,
    after: str,
    before: str,
    tz: str,
    order: str,
    size: int,
) -> tuple[Query, str]:
    """The query of an address. What is not right is left out and told, so that the filter bar stays usable."""
    known = [word.upper() for word in states or []]
    problems = [f"{word[:40]!r} is no state." for word in known if word not in State.__members__]
    times: dict[str, datetime | None] = {}
    for name, text in (("after", after), ("before", before)):
        try:
            times[name] = read_instant(text, tz, name)
        except InvalidRequestError as error:
            times[name] = None
            problems.append(error.message + ".")
    query = Query(
        states=tuple(dict.fromkeys(word for word in known if word in State.__members__)),
        blocked=blocked in ("1", "true"),
        type=type.strip(),
        id=id.strip(),
        after=times["after"],
        before=times["before"],
        order="asc" if order == "asc" else "desc",
        size=size if size in SIZES else DEFAULT_SIZE,
    )
    return query, " ".join(problems)


async def _read(shards: Shards, query: Query, cursor: str, narrowed: ListFilter | None = None) -> Shown:
    """One page; an old or damaged cursor gives the first page and says so."""
    wanted = narrowed or query.filter()
    try:
        page = await listing.list_executions(shards, wanted, page_size=query.size, cursor=cursor or None)
    except CursorError:
        page = await listing.list_executions(shards, wanted, page_size=query.size)
        return Shown(page=page, stale_link=True)
    return Shown(page=page)


async def _count(shards: Shards, query: Query) -> Counted | None:
    """How many there are, capped; the list is shown without when that cannot be told."""
    try:
        return await listing.count(shards, query.filter())
    except HarvestError:
        return None


async def _fresh(shards: Shards, query: Query, since: datetime | None) -> Counted | None:
    if since is None:
        return None
    try:
        return await listing.count(shards, query.filter(after=since), cap=MOST_NEW)
    except HarvestError:
        return None


async def _types(shards: Shards) -> list[str]:
    """Names of workflow types, to choose from."""
    try:
        found = await definitions.registered(shards)
    except HarvestError:
        return []
    return sorted({one.name for one in found.rows if one.kind == "workflow"})


def _offered(query: Query) -> list[str]:
    """The states that chips are drawn for: those of every day, and what the address names besides."""
    return [*OFFERED, *(word for word in query.states if word not in OFFERED)]


def _chip(query: Query, word: str, base: str) -> dict[str, Any]:
    on = word in query.states
    states = [one for one in query.states if one != word] if on else [*query.states, word]
    return {"word": word, "on": on, "url": build_url(base, "/workflows", **query.parameters(state=states))}


def _list_context(
    base: str, query: Query, shown: Shown, cursor: str, *, fresh: Counted | None, top: str = ""
) -> dict[str, Any]:
    """What the list region needs, on the page and when it is read again."""
    page = shown.page
    rows = page.executions.rows
    cursor = "" if shown.stale_link else cursor

    def link(**changed: Any) -> str:
        return build_url(base, "/workflows", **query.parameters(**changed))

    top = top or (link_text(rows[0].started_at) or "" if rows else "")
    other = "asc" if query.order == "desc" else None
    return {
        "page": page,
        "rows": [(row, shown_state(row.state, row.blocked.code if row.blocked else None)) for row in rows],
        "stale_link": shown.stale_link,
        "fresh": fresh,
        "first_url": link(),
        "here_url": link(cursor=cursor),
        "newer_url": link(cursor=page.previous_cursor) if page.previous_cursor else None,
        "older_url": link(cursor=page.next_cursor) if page.next_cursor else None,
        "turned_url": link(order=other),
        "timeless_url": link(after=None, before=None),
        "region_url": build_url(
            base, FRAGMENTS + "/workflows", **query.parameters(cursor=cursor or None, top=top or None)
        ),
    }


handlers = [workflows_page, workflows_region]
