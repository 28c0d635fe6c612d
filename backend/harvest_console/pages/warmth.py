"""`/warmth`: how often a decision finds its run in memory, why not, and what was read, over minutes or hours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, get_args
from uuid import UUID

from litestar import get
from msgspec import Struct

from harvest.errors import HarvestError
from harvest.operations import warmth as operations
from harvest.operations import workers
from harvest.operations.warmth import WINDOWS, Warmth, WarmthFigures, WarmthGroup, WarmthWorker, Window
from harvest.operations.worker_views import WorkerSummary
from harvest.shards import Shards
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.pages.warm_charts import KEYS, WORDS, Comings, bytes_chart, chart_rows, comings, outcomes_chart
from harvest_console.pages.warm_charts import span_of as chart_span
from harvest_console.pages.warm_words import Outcome, outcome_word, reason_word
from harvest_console.pages.worker_words import WorkerState, health_shown, status_shown
from harvest_console.rendering import build_url, render, render_region
from harvest_console.rendering.figures import share_text
from harvest_console.rendering.preferences import read_preferences
from harvest_console.rendering.times import zone_named

DEFAULT_WINDOW: Final[Window] = "5m"
WINDOW_WORDS: Final = {"5m": "5 minutes", "1h": "1 hour", "24h": "24 hours"}
# How often a window is read again: a slice of it is shorter than that.
PACES: Final = {"5m": "1s", "1h": "15s", "24h": "60s"}
GROUPS: Final = (("type", "Type"), ("queue", "Queue"), ("worker", "Worker"))
MOST_GROUPS: Final = 100


class GroupRow(Struct, frozen=True, kw_only=True):
    """One type, queue or worker: decisions a second, and shares of 1 among the decisions after each run's first.

    `read` are bytes a decision. `worker` and what is said of it are there for workers alone.
    """

    key: str
    name: str
    rate: float
    figures: WarmthFigures
    cold: float | None
    declined: float | None
    read: float | None
    worker: UUID | None = None
    state: WorkerState | None = None
    residents: int = 0
    resident_bytes: int = 0


class ReasonRow(Struct, frozen=True):
    """A reason why decisions were not warm, how many, and their part of all that were not."""

    name: str
    word: str
    count: int
    part: float


class DurationRow(Struct, frozen=True, kw_only=True):
    """How long it took from taking a run until its code had run, in milliseconds, by outcome."""

    outcome: Outcome
    count: int
    p50: float
    p95: float
    p99: float


@get("/warmth")
async def warmth_page(request: AnyRequest, shards: Shards, window: str = "", by: str = "") -> Page:
    """The whole page; a window or a group that means nothing is the default one."""
    context = await _context(request, shards, window, by)
    return render(request, "warmth.html", section="warmth", topics="list", **context)


@get(FRAGMENTS + "/warmth")
async def warmth_region(request: AnyRequest, shards: Shards, window: str = "", by: str = "") -> Page:
    """The figures, read again."""
    return render_region(request, "regions/warmth_update.html", **await _context(request, shards, window, by))


async def _context(request: AnyRequest, shards: Shards, window_text: str, by: str) -> dict[str, Any]:
    window = next((one for one in get_args(Window) if one == window_text), DEFAULT_WINDOW)
    by = by if by in dict(GROUPS) else GROUPS[0][0]
    found, fleet = await asyncio.gather(operations.warmth(shards, window), _fleet(shards))
    zone = zone_named(read_preferences(request.cookies).zone)
    span = chart_span(found, zone)
    moves = comings(fleet, found.since, found.until, span)
    base = base_path(request)
    place = {"window": window if window != DEFAULT_WINDOW else "", "by": by if by != GROUPS[0][0] else ""}

    def link(**changed: str) -> str:
        return build_url(base, "/warmth", **(place | changed))

    return {
        "found": found,
        # As the parts that tell of missing shards want it.
        "answered": {"missing": found.missing, "read": found.status != "unavailable"},
        "window": window,
        "window_word": WINDOW_WORDS[window],
        "windows": [(WINDOW_WORDS[one], one == window, link(window=one)) for one in get_args(Window)],
        "groups": [(word, key == by, link(by=key) + "#groups") for key, word in GROUPS],
        "by": by,
        "by_word": dict(GROUPS)[by],
        "rows": group_rows(found, by, fleet)[:MOST_GROUPS],
        "left_out": max(0, len(_groups(found, by)) - MOST_GROUPS),
        "rate": found.decisions / WINDOWS[window],
        "not_warm": sum(found.reasons.values()),
        "residents": sum(one.residents for one in _living(found, fleet)),
        "resident_bytes": sum(one.resident_bytes for one in _living(found, fleet)),
        "alive": sum(one.health == "healthy" for one in fleet),
        "reasons": reason_rows(found),
        "durations": [
            DurationRow(outcome=outcome_word(one.outcome), count=one.count, p50=one.p50, p95=one.p95, p99=one.p99)
            for one in found.durations
        ],
        "keys": [(key, WORDS[key]) for key in KEYS],
        "outcomes": outcomes_chart(found, span),
        "bytes": bytes_chart(found, span),
        "moves": moves,
        "told": told(found, moves),
        "chart_rows": chart_rows(found),
        "here_url": link(),
        "region_url": build_url(base, FRAGMENTS + "/warmth", **place),
        "pace": PACES[window],
    }


async def _fleet(shards: Shards) -> list[WorkerSummary]:
    """The workers of the last hour; the page does without when they cannot be read."""
    try:
        return (await workers.list_workers(shards)).rows
    except HarvestError:
        return []


def _groups(found: Warmth, by: str) -> Sequence[WarmthGroup | WarmthWorker]:
    if by == "queue":
        return found.by_queue
    return found.by_workflow if by == "type" else sorted(found.by_worker, key=lambda one: (-one.decisions, one.name))


def _living(found: Warmth, fleet: Sequence[WorkerSummary]) -> list[WarmthWorker]:
    """Workers that have something in memory now: one that is gone has not, whatever its last row says."""
    gone = {one.worker_id for one in fleet if one.health != "healthy"}
    return [one for one in found.by_worker if one.worker not in gone]


def group_rows(found: Warmth, by: str, fleet: Sequence[WorkerSummary]) -> list[GroupRow]:
    """The table of one grouping, busiest first."""
    states = {one.worker_id: _state(one) for one in fleet}
    seconds = (found.until - found.since).total_seconds()
    return [_row(one, seconds, states) for one in _groups(found, by)]


def _row(one: WarmthGroup | WarmthWorker, seconds: float, states: dict[UUID, WorkerState]) -> GroupRow:
    rest = one.decisions - one.reasons.get("first", 0)
    worker = one if isinstance(one, WarmthWorker) else None
    return GroupRow(
        key=str(worker.worker) if worker else one.name,
        name=one.name,
        rate=one.decisions / seconds,
        figures=one,
        cold=cold_after_first(one) / rest if rest > 0 else None,
        declined=one.resident.get("declined", 0) / rest if rest > 0 else None,
        read=one.bytes_loaded / one.decisions if one.decisions else None,
        worker=worker.worker if worker else None,
        state=states.get(worker.worker) if worker else None,
        residents=worker.residents if worker else 0,
        resident_bytes=worker.resident_bytes if worker else 0,
    )


def _state(one: WorkerSummary) -> WorkerState:
    return health_shown(one.health) if one.health == "stale" else status_shown(one.status)


def cold_after_first(figures: WarmthFigures) -> int:
    """Cold decisions without each run's first one, which nothing can make warm."""
    return max(0, figures.resident.get("cold", 0) - figures.reasons.get("first", 0))


def reason_rows(found: WarmthFigures) -> list[ReasonRow]:
    """Why decisions were not warm, the commonest first."""
    whole = sum(found.reasons.values())
    counted = sorted(found.reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return [ReasonRow(name, reason_word(name), count, count / whole) for name, count in counted if count]


def told(found: Warmth, moves: Sequence[Comings]) -> str:
    """What the chart shows, for who cannot see it."""
    shares = [1 - one.warm_share for one in found.buckets if one.warm_share is not None]
    if not shares:
        return "No decision after a run's first in this window."
    went = "; ".join(f"{one.text} at {one.at_text}" for one in moves)
    text = f"Between {share_text(min(shares))} and {share_text(max(shares))} of decisions were not warm."
    return f"{text} {went}." if went else text


handlers = [warmth_page, warmth_region]
