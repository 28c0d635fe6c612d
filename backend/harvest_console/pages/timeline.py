"""`/w/{execution_id}/timeline`: the steps of a run over time, drawn and as a table, window by window."""

from __future__ import annotations

from typing import Any, Final

from litestar import get
from msgspec import Struct

from harvest import clock
from harvest.history.ids import parse_execution_id
from harvest.operations import reading, timelines
from harvest.operations.timelines import Timeline
from harvest.operations.views import ExecutionDetail, is_open
from harvest.shards import Shards
from harvest_console.pages.drawing import WORDS, draw, step_name
from harvest_console.pages.frames import frame
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render, render_region
from harvest_console.rendering.preferences import read_preferences
from harvest_console.rendering.times import zone_named

WINDOW: Final = 80
# A longer timeline is not read again by itself: each reading goes through the whole history.
LIVE_STEPS: Final = 1_000
VIEWS: Final = ("drawing", "table")
_LAST: Final = 2**31 - 1


class Place(Struct, frozen=True):
    """Which window an address asks for, and how it is shown; without a `view`, as there is room."""

    view: str = ""
    after: int | None = None
    before: int | None = None


@get("/w/{execution:str}/timeline")
async def timeline_page(
    request: AnyRequest,
    shards: Shards,
    execution: str,
    view: str = "",
    after: int | None = None,
    before: int | None = None,
) -> Page:
    """One window: the last of an open run, the first of a closed one, unless the address names another.

    Raises ExecutionNotFoundError and ShardUnavailableError.
    """
    run = await reading.get(shards, parse_execution_id(execution))
    place = _place(view, after, before)
    found = await _read(shards, run, place)
    return render(request, "timeline.html", **frame(run, "timeline"), **_context(request, run, found, place))


@get(FRAGMENTS + "/w/{execution:str}/timeline")
async def timeline_region(
    request: AnyRequest,
    shards: Shards,
    execution: str,
    view: str = "",
    after: int | None = None,
    before: int | None = None,
) -> Page:
    """The same window again, of a run that goes on."""
    run = await reading.get(shards, parse_execution_id(execution))
    place = _place(view, after, before)
    found = await _read(shards, run, place)
    return render_region(request, "regions/timeline_update.html", **_context(request, run, found, place))


def _place(view: str, after: int | None, before: int | None) -> Place:
    """What an address asks for, without what means nothing."""
    return Place(
        view if view in VIEWS else "",
        None if after is None else min(max(0, after), _LAST),
        None if before is None else min(max(1, before), _LAST),
    )


async def _read(shards: Shards, run: ExecutionDetail, place: Place) -> Timeline:
    if place.after is not None or (place.before is None and not is_open(run.state)):
        return await timelines.timeline(shards, run.execution_id, after_step=place.after or 0, limit=WINDOW)
    return await timelines.timeline(shards, run.execution_id, before_step=place.before or _LAST, limit=WINDOW)


def _context(request: AnyRequest, run: ExecutionDetail, found: Timeline, place: Place) -> dict[str, Any]:
    """What the templates of a timeline need."""
    base = base_path(request)
    page = f"/w/{run.execution_id}/timeline"
    zone = zone_named(read_preferences(request.cookies).zone)
    at_end = found.next_cursor is None

    def link(view: str = place.view, **parameters: object) -> str:
        return build_url(base, page, view=view, **parameters) + "#timeline"

    where = {"after": place.after, "before": place.before}
    return {
        "found": found,
        "words": WORDS,
        "drawing": draw(found, zone=zone, now=clock.now()),
        "view": place.view,
        "run_url": build_url(base, f"/w/{run.execution_id}"),
        "live": is_open(found.state) and at_end and found.rollup.total_steps <= LIVE_STEPS,
        "fragment_url": build_url(base, FRAGMENTS + page, view=place.view, **where),
        "again_url": build_url(base, page, view=place.view, **where),
        "drawing_url": link("drawing", **where),
        "table_url": link("table", **where),
        "first_url": link(after=0) if found.steps_before else None,
        "earlier_url": link(before=found.previous_cursor) if found.previous_cursor is not None else None,
        "later_url": link(after=found.next_cursor) if found.next_cursor is not None else None,
        "last_url": link(before=_LAST) if found.next_cursor is not None else None,
        "slowest": [(step, step_name(step), link(after=step.step - 1)) for step in found.rollup.slowest],
    }


handlers = [timeline_page, timeline_region]
