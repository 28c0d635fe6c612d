"""What a worker tells of itself: with each renewal of its lease, and once when it ends (reference 9.2)."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.worker.options import Counters

Ending = Literal["stopped", "drained", "lost"]


class Now(Struct, frozen=True, kw_only=True):
    """What a worker has at this moment: runs that it holds, activities that run, runs that it has parked.

    `lacks` are the definitions, `name/version`, that it was given tasks of and has no code for.
    """

    runs_held: int
    activities_running: int
    residents: int
    resident_bytes: int
    lacks: list[str]


class WorkerReport(Struct, frozen=True, kw_only=True):
    """How an incarnation went, from its start to its end.

    A cycle is a claim and what follows: a decision, or an attempt of an activity. `completed` are runs that closed
    and activities that completed here, `retried` attempts that are to be made again and runs that were put aside,
    `suspended` decisions after which the run waited, `failed` activities that failed for good.
    `active_cycles` are those that were cut off by the end.
    """

    worker: UUID
    name: str
    build: str
    ended: Ending
    seconds: float
    cycles_started: int
    active_cycles: int
    peak_active_cycles: int
    idle_polls: int
    completed: int
    retried: int
    suspended: int
    failed: int
    definitions_unavailable: int
    leases_lost: int
    infrastructure_errors: int
    backoffs: int


def telling(counters: Counters, now: Now) -> bytes:
    """What `harvest_workers.counters` keeps: the totals since the start, and under `now` what is so at this moment."""
    return msgspec.json.encode({**msgspec.structs.asdict(counters), "now": now})


def report_of(
    counters: Counters, *, worker: UUID, name: str, build: str, ended: Ending, seconds: float, active_cycles: int
) -> WorkerReport:
    """The report of an incarnation that is about to end."""
    return WorkerReport(
        worker=worker,
        name=name,
        build=build,
        ended=ended,
        seconds=round(seconds, 3),
        cycles_started=counters.claims + counters.activities_claimed + counters.activities_eager,
        active_cycles=active_cycles,
        peak_active_cycles=counters.peak_active_cycles,
        idle_polls=counters.idle_polls,
        completed=counters.closed + counters.activities_completed,
        retried=counters.activities_retried + counters.blocked,
        suspended=max(0, counters.passed - counters.closed),
        failed=counters.activities_failed,
        definitions_unavailable=counters.definitions_unavailable,
        leases_lost=counters.leases_lost,
        infrastructure_errors=counters.infrastructure_errors,
        backoffs=counters.backoffs,
    )
