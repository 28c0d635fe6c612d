"""`/w/{execution_id}/decisions`: how the last decisions of a run went, step by step, drawn and as a table."""

from __future__ import annotations

from typing import Any, Final

from litestar import get

from harvest.history.ids import parse_execution_id
from harvest.operations import decisions as operations
from harvest.operations import reading
from harvest.operations.decisions import Decisions
from harvest.operations.views import ExecutionDetail, is_open
from harvest.shards import Shards
from harvest_console.pages.frames import frame
from harvest_console.pages.steps import STAGES, draw
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.pages.warm_words import ANSWERS, OUTCOMES, REASONS, SOURCES
from harvest_console.rendering import build_url, render, render_region

WINDOW: Final = 25
VIEWS: Final = ("drawing", "table")
_LAST: Final = 2**31 - 1


@get("/w/{execution:str}/decisions")
async def decisions_page(
    request: AnyRequest, shards: Shards, execution: str, view: str = "", scale: str = "", before: int | None = None
) -> Page:
    """One window, newest first. Raises ExecutionNotFoundError and ShardUnavailableError."""
    run = await reading.get(shards, parse_execution_id(execution))
    found = await operations.decisions(shards, run.execution_id)
    context = _context(request, run, found, view, scale, before)
    return render(request, "decisions.html", **frame(run, "decisions"), **context)


@get(FRAGMENTS + "/w/{execution:str}/decisions")
async def decisions_region(
    request: AnyRequest, shards: Shards, execution: str, view: str = "", scale: str = "", before: int | None = None
) -> Page:
    """The same window again, of a run that goes on."""
    run = await reading.get(shards, parse_execution_id(execution))
    found = await operations.decisions(shards, run.execution_id)
    context = _context(request, run, found, view, scale, before)
    return render_region(request, "regions/decisions_update.html", run=run, **context)


def _context(
    request: AnyRequest, run: ExecutionDetail, found: Decisions, view: str, scale: str, before: int | None
) -> dict[str, Any]:
    """What the templates need; a place or a view that means nothing is left out."""
    view = view if view in VIEWS else ""
    each = scale == "each"
    before = None if before is None else min(max(1, before), _LAST)
    kept = sorted(found.attempts, key=lambda one: one.number, reverse=True)
    upto = [one for one in kept if before is None or one.number < before]
    shown, older = upto[:WINDOW], upto[WINDOW:]
    base, page = base_path(request), f"/w/{run.execution_id}/decisions"

    def link(**changed: Any) -> str:
        where = {"view": view, "scale": "each" if each else "", "before": before} | changed
        return build_url(base, page, **where) + "#decisions"

    newer = len(kept) - len(upto)
    back = kept[newer - WINDOW - 1].number if newer > WINDOW else None
    return {
        "found": found,
        "kept": len(kept),
        "drawing": draw(shown, each=each),
        "view": view,
        "each": each,
        "stages": STAGES,
        "words": {"outcome": OUTCOMES, "reason": REASONS, "source": SOURCES, "answer": ANSWERS},
        "is_open_run": is_open(run.state),
        "live": is_open(run.state) and before is None,
        "fragment_url": build_url(base, FRAGMENTS + page, view=view, scale="each" if each else ""),
        "drawing_url": link(view="drawing"),
        "table_url": link(view="table"),
        "same_url": link(scale=""),
        "each_url": link(scale="each"),
        "first_url": link(before=None),
        "newer_url": link(before=back) if newer else None,
        "older_url": link(before=shown[-1].number) if older else None,
    }


handlers = [decisions_page, decisions_region]
