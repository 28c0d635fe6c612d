"""`/workflows`: the list. Its whole state is in the address; filters and pages are links (console 2)."""

from __future__ import annotations

import asyncio
import unicodedata
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from litestar import get
from litestar.params import QueryParameter
from msgspec import Struct

from harvest import clock
from harvest.errors import CursorError, FilterError, HarvestError
from harvest.operations import definitions, listing, saved_views
from harvest.operations.listing import Counted, ListPage
from harvest.operations.saved_views import SavedView
from harvest.operations.views import ExecutionView
from harvest.shards import Shards
from harvest.store.filters import SEVERITIES
from harvest_console.pages.conditions import conditions
from harvest_console.pages.facets import facet_context
from harvest_console.pages.list_query import LIST, SIZES, Query, read_query
from harvest_console.pages.queries import input_text, link_text, read_instant
from harvest_console.pages.run_rows import columns_of, key_text, run_rows
from harvest_console.pages.saved_views import ViewRow, view_rows
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render, render_region
from harvest_console.rendering.preferences import read_preferences
from harvest_console.rendering.times import zone_named

MOST_NEW: Final = 100
AROUND: Final = 36
"""How many characters of a wrong expression are shown on each side of what is wrong."""

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
ShardIds = Annotated[list[int] | None, QueryParameter(name="shard")]


class Shown(Struct, frozen=True, kw_only=True):
    """One page of the list as read. `pinned` is set where it is the first page, held at what was the newest run."""

    page: ListPage
    stale_link: bool = False
    pinned: bool = False


class Wrong(Struct, frozen=True, kw_only=True):
    """Why an expression cannot be read, and the text around the place; `indent` is as wide as what is before it."""

    message: str
    before: str
    at: str
    after: str
    indent: str


@get("/workflows")
async def workflows_page(request: AnyRequest, shards: Shards, cursor: str = "", facet: str = "") -> Page:
    """The list with its filters."""
    query, problem = read_query(request.query_params.dict())
    base, wrong = base_path(request), _wrong(query)
    types, views, context = await asyncio.gather(
        _types(shards), saved_views.list_views(shards), _listed(shards, query, base, cursor, facet, wrong)
    )
    zone = zone_named(read_preferences(request.cookies).zone)
    saved = view_rows(views, base, query.query_string)
    return render(
        request,
        "workflows.html",
        query=query,
        problem=problem,
        wrong=wrong,
        base=base,
        types=types,
        views=views,
        saved=saved,
        view=_view(saved, query),
        after_text=input_text(query.after, zone),
        before_text=input_text(query.before, zone),
        chips=[_chip(query, word, base) for word in _offered(query)],
        severities=[_severity_chip(query, word, base) for word in SEVERITIES],
        conditions=conditions(query, base),
        blocked_url=query.url(base, blocked=None if query.blocked else "1"),
        clear_url=build_url(base, LIST, columns=list(query.columns)),
        unfiltered_url=query.url(base, filter=None),
        sizes=[(size, query.url(base, size=size)) for size in SIZES],
        section="workflows",
        topics="" if wrong else "list",
        **context,
    )


async def _listed(
    shards: Shards, query: Query, base: str, cursor: str, facet: str, wrong: Wrong | None
) -> dict[str, Any]:
    """The list, its count and the facets that are asked for; nothing by a filter that cannot be read."""
    if wrong:
        return {"total": None}
    shown, total, found = await asyncio.gather(
        _read(shards, query, cursor), _count(shards, query), _facets(shards, query, base, facet)
    )
    return {"total": total, **found, **_list_context(base, query, shown, cursor, fresh=None)}


async def _facets(shards: Shards, query: Query, base: str, facet: str) -> dict[str, Any]:
    return await facet_context(shards, query, base, facet) if facet else {"facet": ""}


@get(FRAGMENTS + "/workflows")
async def workflows_region(request: AnyRequest, shards: Shards, cursor: str = "", top: str = "") -> Page:
    """The rows that a tab shows, read again: what started after `top` is counted, never pushed under the pointer."""
    query, _ = read_query(request.query_params.dict())
    first = read_instant(top, "", "top")
    pinned = first if first is not None and query.order == "desc" and not cursor else None
    shown, fresh = await asyncio.gather(_read(shards, query, cursor, pinned), _fresh(shards, query, pinned))
    context = _list_context(base_path(request), query, shown, cursor, fresh=fresh, top=top)
    return render_region(request, "regions/list_update.html", query=query, **context)


@get(FRAGMENTS + "/workflows/missing")
async def missing_region(
    request: AnyRequest,
    shards: Shards,
    cursor: str = "",
    top: str = "",
    over: ShardIds = None,
    last: str = "",
    closed: str = "",
) -> Page:
    """What the shards that did not answer have of the page that a tab shows; no other shard is asked.

    `last` is the place of its last row; `closed` says that there are pages beyond it, which have what lies there.
    Where more has come than a page has room for, the tab reads the page anew.
    """
    query, _ = read_query(request.query_params.dict())
    asked = sorted(set(over or ()) & set(shards.router.readable))
    first = read_instant(top, "", "top")
    pinned = first if first is not None and query.order == "desc" and not cursor else None
    shown = await _read(shards, query, cursor, pinned, over=asked)
    base, found = base_path(request), shown.page.executions
    rows = _up_to(found.rows, last, query.order) if closed and last else found.rows
    more = shown.page.next_cursor is not None and len(rows) == len(found.rows)
    left = {"cursor": cursor or None, "top": top or None}
    return render_region(
        request,
        "regions/list_missing.html",
        query=query,
        answer=found,
        rows=run_rows(rows, query, columns_of(query, base), base),
        anew=bool(found.read) and (not last or more),
        region_url=query.url(base, FRAGMENTS + LIST, **left),
        here_url=query.url(base, cursor=cursor or None),
        retry_url=_retry_url(
            base, query, [shard.shard_id for shard in found.missing], last=last, closed=closed, **left
        ),
    )


def _up_to(runs: list[ExecutionView], last: str, order: str) -> list[ExecutionView]:
    """The runs that a list in this order has down to the place `last`."""
    if order == "asc":
        return [run for run in runs if key_text(run) <= last]
    return [run for run in runs if key_text(run) >= last]


def _retry_url(base: str, query: Query, missing: list[int], **more: Any) -> str:
    return query.url(base, FRAGMENTS + LIST + "/missing", shard=missing, **more)


def _wrong(query: Query) -> Wrong | None:
    """Why the expression cannot be read; None where it can."""
    if not query.expression:
        return None
    try:
        listing.row_filter(query.filter())
    except FilterError as error:
        return wrong_at(query.expression, int(error.fields.get("column", 1)), error.message)
    return None


def wrong_at(text: str, column: int, message: str) -> Wrong:
    """The text around a column, which counts from 1, on one line."""
    line = "".join(character if character.isprintable() else " " for character in text)
    at = min(max(column - 1, 0), len(line))
    before = line[max(0, at - AROUND) : at]
    if at > AROUND:
        before = "…" + before[1:]
    after = line[at + 1 : at + 1 + AROUND]
    if len(line) > at + 1 + AROUND:
        after = after[:-1] + "…"
    width = sum(_width(character) for character in before)
    return Wrong(message=message, before=before, at=line[at : at + 1] or " ", after=after, indent=" " * width)


def _width(character: str) -> int:
    """How many places a character takes in a line of fixed width."""
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


async def _read(
    shards: Shards, query: Query, cursor: str, pinned: datetime | None = None, over: list[int] | None = None
) -> Shown:
    """One page; an old or damaged cursor gives the first page and says so. `pinned` is what it begins with."""
    wanted = query.filter()
    from_there = listing.cursor_from(wanted, pinned) if pinned else cursor or None
    try:
        page = await listing.list_executions(shards, wanted, page_size=query.size, cursor=from_there, over=over)
    except CursorError:
        page = await listing.list_executions(shards, wanted, page_size=query.size, over=over)
        return Shown(page=page, stale_link=True)
    return Shown(page=page, pinned=pinned is not None)


async def _count(shards: Shards, query: Query) -> Counted | None:
    """How many there are, capped; the list is shown without when that cannot be told."""
    try:
        return await listing.count(shards, query.filter())
    except HarvestError:
        return None


async def _fresh(shards: Shards, query: Query, pinned: datetime | None) -> Counted | None:
    if pinned is None:
        return None
    try:
        return await listing.count(shards, query.filter(after=pinned + timedelta(microseconds=1)), cap=MOST_NEW)
    except HarvestError:
        return None


async def _types(shards: Shards) -> list[str]:
    """Names of workflow types, to choose from."""
    try:
        found = await definitions.registered(shards)
    except HarvestError:
        return []
    return sorted({one.name for one in found.rows if one.kind == "workflow"})


def _view(saved: list[ViewRow], query: Query) -> SavedView | None:
    """The saved view that is shown, if it is one."""
    shown = [row.view for row in saved if row.is_shown]
    return shown[0] if shown and query.query_string else None


def _offered(query: Query) -> list[str]:
    """The states that chips are drawn for: those of every day, and what the address names besides."""
    return [*OFFERED, *(word for word in query.states if word not in OFFERED)]


def _chip(query: Query, word: str, base: str) -> dict[str, Any]:
    on = word in query.states
    states = [one for one in query.states if one != word] if on else [*query.states, word]
    return {"word": word, "on": on, "url": query.url(base, state=states)}


def _severity_chip(query: Query, word: str, base: str) -> dict[str, Any]:
    on = word == query.severity
    return {"word": word, "on": on, "url": query.url(base, severity=None if on else word)}


def _list_context(
    base: str, query: Query, shown: Shown, cursor: str, *, fresh: Counted | None, top: str = ""
) -> dict[str, Any]:
    """What the list region needs, on the page and when it is read again."""
    page = shown.page
    runs, missing = page.executions.rows, [shard.shard_id for shard in page.executions.missing]
    cursor = "" if shown.stale_link else cursor
    newer = None if shown.pinned else page.previous_cursor
    columns = columns_of(query, base)
    top = top or link_text(_newest(runs, bool(missing))) or ""
    left = {"cursor": cursor or None, "top": top or None}
    return {
        "page": page,
        "columns": columns,
        "rows": run_rows(runs, query, columns, base),
        "stale_link": shown.stale_link,
        "fresh": fresh,
        "first_url": query.url(base),
        "here_url": query.url(base, cursor=cursor or None),
        "newer_url": query.url(base, cursor=newer) if newer else None,
        "older_url": query.url(base, cursor=page.next_cursor) if page.next_cursor else None,
        "turned_url": query.url(base, order="asc" if query.order == "desc" else None),
        "timeless_url": query.url(base, after=None, before=None),
        "region_url": query.url(base, FRAGMENTS + LIST, **left),
        "facets_url": query.url(base, FRAGMENTS + LIST + "/facets"),
        "retry_url": _retry_url(
            base,
            query,
            missing,
            last=key_text(runs[-1]) if runs else None,
            closed="1" if page.next_cursor else None,
            **left,
        ),
    }


def _newest(runs: list[ExecutionView], is_partial: bool) -> datetime | None:
    """What a page begins with. A missing shard may have newer runs, up to now, and they are no news when it comes."""
    first = runs[0].started_at if runs else None
    return max(first, clock.now()) if first and is_partial else first


handlers = [workflows_page, workflows_region, missing_region]
