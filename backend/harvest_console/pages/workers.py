"""`/workers`: every worker process with how it does, and what open work no worker has the code for."""

from __future__ import annotations

import asyncio
from typing import Any, Final, get_args
from uuid import UUID

from litestar import get
from msgspec import Struct

from harvest.errors import HarvestError
from harvest.operations import warmth, workers
from harvest.operations.warmth import WarmthWorker
from harvest.operations.worker_views import Health, Status, UncoveredDefinition, WorkerSummary
from harvest.operations.workers import WorkerFilter
from harvest.shards import Partial, Shards
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.pages.worker_words import WorkerState, health_shown, status_shown
from harvest_console.rendering import build_url, render, render_region

STATUSES: Final[tuple[Status, ...]] = get_args(Status)
HEALTHS: Final[tuple[Health, ...]] = get_args(Health)
# What the figures a second are of.
WINDOW: Final = "5m"
MOST_UNCOVERED: Final = 20


class Query(Struct, frozen=True, kw_only=True):
    """What the address of the list asks for."""

    queue: str = ""
    shard: int | None = None
    status: Status | None = None
    health: Health | None = None

    def filter(self) -> WorkerFilter:
        """The filter of operations."""
        return WorkerFilter(queue=self.queue or None, shard_id=self.shard, status=self.status, health=self.health)

    def parameters(self, **changed: Any) -> dict[str, Any]:
        """The parameters of an address."""
        values = {"queue": self.queue, "shard": self.shard, "status": self.status, "health": self.health}
        return values | changed

    @property
    def narrowed(self) -> bool:
        """Whether anything is filtered."""
        return self != Query()


class WorkerRow(Struct, frozen=True, kw_only=True):
    """A worker with what it decided of late: `rate` a second, `warm_share` of 1; None where nobody knows."""

    view: WorkerSummary
    status: WorkerState
    health: WorkerState | None
    rate: float | None
    warm_share: float | None


@get("/workers")
async def workers_page(
    request: AnyRequest, shards: Shards, queue: str = "", shard: str = "", status: str = "", health: str = ""
) -> Page:
    """The list with its filters."""
    query, problem = _query(queue, shard, status, health)
    base = base_path(request)

    def link(**changed: Any) -> str:
        return build_url(base, "/workers", **query.parameters(**changed))

    return render(
        request,
        "workers.html",
        section="workers",
        topics="list",
        problem=problem,
        shard_ids=shards.router.readable,
        status_chips=[
            (status_shown(word).word, word == query.status, link(status=None if word == query.status else word))
            for word in STATUSES
        ],
        health_chips=[
            (health_shown(word).word, word == query.health, link(health=None if word == query.health else word))
            for word in HEALTHS
        ],
        **await _context(shards, query, base),
    )


@get(FRAGMENTS + "/workers")
async def workers_region(
    request: AnyRequest, shards: Shards, queue: str = "", shard: str = "", status: str = "", health: str = ""
) -> Page:
    """The rows, read again."""
    query, _ = _query(queue, shard, status, health)
    return render_region(request, "regions/workers_update.html", **await _context(shards, query, base_path(request)))


def _query(queue: str, shard: str, status: str, health: str) -> tuple[Query, str]:
    """The query of an address. What is not right is left out and told, so that the filter bar stays usable."""
    problems = []
    number = int(shard) if shard.isascii() and shard.isdigit() and len(shard) <= 5 else None
    if shard and number is None:
        problems.append(f"{shard[:40]!r} is no shard.")
    known_status = next((word for word in STATUSES if word == status), None)
    if status and known_status is None:
        problems.append(f"{status[:40]!r} is no status.")
    known_health = next((word for word in HEALTHS if word == health), None)
    if health and known_health is None:
        problems.append(f"{health[:40]!r} is no health.")
    query = Query(queue=queue.strip(), shard=number, status=known_status, health=known_health)
    return query, " ".join(problems)


async def _context(shards: Shards, query: Query, base: str) -> dict[str, Any]:
    """What the region needs, on the page and when it is read again."""
    found, uncovered, decided = await asyncio.gather(
        workers.list_workers(shards, query.filter()), _uncovered(shards), decided_by_worker(shards)
    )
    return {
        "query": query,
        "found": found,
        "rows": [worker_row(one, decided) for one in found.rows],
        "alive": sum(one.health == "healthy" for one in found.rows),
        "stale": sum(one.health == "stale" for one in found.rows),
        "uncovered": uncovered[:MOST_UNCOVERED],
        "uncovered_left_out": max(0, len(uncovered) - MOST_UNCOVERED),
        "here_url": build_url(base, "/workers", **query.parameters()),
        "region_url": build_url(base, FRAGMENTS + "/workers", **query.parameters()),
    }


async def _uncovered(shards: Shards) -> list[UncoveredDefinition]:
    """What no living worker has; the list is shown without where that cannot be told."""
    try:
        found: Partial[UncoveredDefinition] = await workers.uncovered_definitions(shards)
    except HarvestError:
        return []
    return sorted(found.rows, key=lambda one: (-one.waiting, -one.open, one.kind, one.name, one.version))


async def decided_by_worker(shards: Shards) -> dict[UUID, WarmthWorker]:
    """What each worker decided in the last minutes; empty where that cannot be told."""
    try:
        found = await warmth.warmth(shards, WINDOW)
    except HarvestError:
        return {}
    return {one.worker: one for one in found.by_worker}


def worker_row(view: WorkerSummary, decided: dict[UUID, WarmthWorker]) -> WorkerRow:
    """A worker as it is listed; one that began within the window is reckoned from its start."""
    figures = decided.get(view.worker_id)
    seconds = min(warmth.WINDOWS[WINDOW], max(1.0, (view.seen_at - view.started_at).total_seconds()))
    return WorkerRow(
        view=view,
        status=status_shown(view.status),
        health=health_shown(view.health) if view.health else None,
        rate=None if figures is None or view.health != "healthy" else figures.decisions / seconds,
        warm_share=figures.warm_share if figures else None,
    )


handlers = [workers_page, workers_region]
