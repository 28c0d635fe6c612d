"""`/shards`: whether each shard is ready for work; `/shards/{shard_id}`: one of them; `/shards/add`: adding one."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from litestar import get
from msgspec import Struct

from harvest.errors import ShardUnavailableError
from harvest.history.ids import RESERVED_SHARD
from harvest.operations import add_shard, shard_health, workers
from harvest.operations.add_shard import Checklist
from harvest.operations.canary import Probe
from harvest.operations.shard_health import QueueHealth, ReasonCode, ShardReadiness
from harvest.operations.workers import WorkerFilter
from harvest.shards import Shards
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.pages.worker_words import WorkerState, health_shown, status_shown
from harvest_console.rendering import build_url, render, render_region

READINESS: Final = {
    "ready": WorkerState("Ready", "completed"),
    "degraded": WorkerState("Degraded", "blocked"),
    "unavailable": WorkerState("Unavailable", "failed"),
}
ROLES: Final = {
    "writable": WorkerState("Writable", "running"),
    "readable": WorkerState("Readable only", "paused"),
    "candidate": WorkerState("Not read yet", "unknown"),
}
CHECKS: Final = {
    "done": WorkerState("Done", "completed"),
    "waiting": WorkerState("Waiting", "paused"),
    "blocked": WorkerState("Blocked", "failed"),
    "yours": WorkerState("Yours to check", "unknown"),
}
# What mends each reason; the message beside it says how it is here.
REMEDIES: Final = {
    ReasonCode.NO_LIVE_WORKER: "Start a worker that covers it: one without --shard covers every shard with a database.",
    ReasonCode.WORKER_QUEUE_UNCOVERED: "Start a worker for the queue, or give --queue to one that covers the shard.",
    ReasonCode.SCHEMA_MIGRATION_MISSING: "Run harvest migrate run against it.",
    ReasonCode.UNREACHABLE: "Look at its server. Nothing is placed elsewhere meanwhile; what it has goes on when it is "
    "back.",
    ReasonCode.NO_POOL: "Name its database in HARVEST_DATABASE_URLS of this console.",
    ReasonCode.WRONG_SHARD: "Correct the numbers in HARVEST_DATABASE_URLS.",
}
MOST_LISTED: Final = 100


class ShardRow(Struct, frozen=True, kw_only=True):
    """A shard as it is listed. `probe` is the one of its probes that does worst."""

    view: ShardReadiness
    role: WorkerState
    readiness: WorkerState
    probe: Probe | None
    remedies: list[tuple[str, str]]


class QueueRow(Struct, frozen=True, kw_only=True):
    """A queue of a shard with its probes; either may be missing."""

    name: str
    health: QueueHealth | None
    probe: Probe | None


class StepRow(Struct, frozen=True, kw_only=True):
    """A step of the runbook with the words for its state and for those of its checks."""

    view: add_shard.Step
    state: WorkerState
    checks: list[tuple[add_shard.Check, WorkerState]]


@get("/shards")
async def shards_page(request: AnyRequest, shards: Shards) -> Page:
    """Every shard."""
    return render(request, "shards.html", section="shards", topics="list", **await _listed(request, shards))


@get(FRAGMENTS + "/shards")
async def shards_region(request: AnyRequest, shards: Shards) -> Page:
    """The table, read again."""
    return render_region(request, "regions/shards_update.html", **await _listed(request, shards))


@get("/shards/{shard_id:int}")
async def shard_page(request: AnyRequest, shards: Shards, shard_id: int) -> Page:
    """One shard, whether it answers or not. Raises ShardUnavailableError for one that nobody knows."""
    return render(request, "shard.html", section="shards", topics="list", **await _shard(request, shards, shard_id))


@get(FRAGMENTS + "/shards/{shard_id:int}")
async def shard_region(request: AnyRequest, shards: Shards, shard_id: int) -> Page:
    """The same, read again."""
    return render_region(request, "regions/shard_update.html", **await _shard(request, shards, shard_id))


@get("/shards/add")
async def add_page(request: AnyRequest, shards: Shards, candidate: str = "") -> Page:
    """The runbook of adding a shard, each step as it stands now."""
    return render(
        request, "shards_add.html", section="shards", topics="list", **await _steps(request, shards, candidate)
    )


@get(FRAGMENTS + "/shards/add")
async def add_region(request: AnyRequest, shards: Shards, candidate: str = "") -> Page:
    """The steps, looked at again."""
    return render_region(request, "regions/shards_add_update.html", **await _steps(request, shards, candidate))


async def _listed(request: AnyRequest, shards: Shards) -> dict[str, Any]:
    found = await shard_health.health(shards, with_bytes=True)
    base = base_path(request)
    return {
        "found": found.partial,
        "overall": READINESS[found.overall_readiness],
        "rows": [_row(one) for one in found.shards],
        "observed_at": found.observed_at,
        "probed": any(one.canary for one in found.shards),
        "probing": request.app.state.settings.canary,
        "here_url": build_url(base, "/shards"),
        "region_url": build_url(base, FRAGMENTS + "/shards"),
    }


async def _shard(request: AnyRequest, shards: Shards, shard_id: int) -> dict[str, Any]:
    if shard_id >= RESERVED_SHARD or (shard_id not in shards.router.readable and shard_id not in shards.stores):
        raise ShardUnavailableError(
            f"shard {shard_id} is not one of this deployment", shard_id=shard_id, reason="not configured"
        )
    found, told = await asyncio.gather(
        shard_health.health(shards, shard_id, with_bytes=True),
        workers.list_workers(shards, WorkerFilter(shard_id=shard_id)),
    )
    shard = next(each for each in found.shards if each.shard_id == shard_id)
    there = [one for one in told.rows if one.status != "stopped"]
    base, page = base_path(request), f"/shards/{shard_id}"
    return {
        "row": _row(shard),
        "queues": _queues(shard),
        "told": told,
        "workers": [
            (one, status_shown(one.status), health_shown(one.health) if one.health else None)
            for one in there[:MOST_LISTED]
        ],
        "workers_left_out": max(0, len(there) - MOST_LISTED),
        "observed_at": found.observed_at,
        "here_url": build_url(base, page),
        "region_url": build_url(base, FRAGMENTS + page),
    }


async def _steps(request: AnyRequest, shards: Shards, candidate: str) -> dict[str, Any]:
    text = candidate.strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else None
    problem = ""
    if text and (number is None or number >= RESERVED_SHARD):
        problem = f"{text[:40]!r} is no number of a shard: they are numbered 0 to {RESERVED_SHARD - 1}."
        number = None
    chosen = add_shard.suggested(shards) if number is None else number
    found = await add_shard.checklist(shards, chosen)
    base = base_path(request)
    return {
        "found": found,
        "steps": _step_rows(found),
        "candidate": chosen,
        "problem": problem,
        "has_page": chosen in shards.router.readable or chosen in shards.stores,
        "here_url": build_url(base, "/shards/add", candidate=chosen),
        "region_url": build_url(base, FRAGMENTS + "/shards/add", candidate=chosen),
    }


def _row(view: ShardReadiness) -> ShardRow:
    return ShardRow(
        view=view,
        role=ROLES[view.role],
        readiness=READINESS[view.readiness],
        probe=max(view.canary, key=_trouble, default=None),
        remedies=[(code.value, REMEDIES[code]) for code in view.reason_codes],
    )


def _trouble(probe: Probe) -> tuple[bool, bool, float]:
    """Those without any success last come first, then stale ones, then the slow."""
    return probe.last_success_at is None, probe.stale, probe.last_roundtrip_ms or 0.0


def _queues(view: ShardReadiness) -> list[QueueRow]:
    health = {one.queue: one for one in view.queues}
    probes = {one.queue: one for one in view.canary}
    return [
        QueueRow(name=name, health=health.get(name), probe=probes.get(name))
        for name in sorted(health.keys() | probes.keys())
    ]


def _step_rows(found: Checklist) -> list[StepRow]:
    return [
        StepRow(view=step, state=CHECKS[step.state], checks=[(check, CHECKS[check.state]) for check in step.checks])
        for step in found.steps
    ]


handlers = [shards_page, shards_region, add_page, add_region, shard_page, shard_region]
