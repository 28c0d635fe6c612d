"""How warm the fleet decides: shares by workflow type, queue and worker, reasons of cold, what was read.

Summed from the rows that each worker process writes every few seconds: no worker is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

from msgspec import Struct

from harvest import clock
from harvest.shards import MissingShard, Partial, Shards
from harvest.store import rollups
from harvest.store.decisions import ColdReason, DecisionOutcome
from harvest.store.measures import Share, Spread, Totals, new_spread
from harvest.store.rollups import Rollup
from harvest.store.store import Store

Window = Literal["5m", "1h", "24h"]
WINDOWS: Final[dict[Window, float]] = {"5m": 300.0, "1h": 3_600.0, "24h": 86_400.0}
_BUCKETS: Final[dict[Window, float]] = {"5m": 10.0, "1h": 60.0, "24h": 1_800.0}
_COARSE: Final = frozenset({"24h"})


class WarmthFigures(Struct, frozen=True, kw_only=True):
    """What was decided. `resident` counts by outcome, `reasons` what was not a hit by its reason.

    `warm_share` is that of hits among the decisions after each run's first, between 0 and 1; null where there were
    none. `events_loaded` and `bytes_loaded` are what was read of histories for it.
    """

    decisions: int = 0
    resident: dict[str, int] = {}
    reasons: dict[str, int] = {}
    warm_share: float | None = None
    events_loaded: int = 0
    bytes_loaded: int = 0


class WarmthGroup(WarmthFigures, frozen=True, kw_only=True):
    """The figures of one workflow type or queue."""

    name: str


class WarmthWorker(WarmthFigures, frozen=True, kw_only=True):
    """The figures of one worker process; `residents` are the runs it had in memory last, in about `resident_bytes`."""

    worker: UUID
    name: str
    residents: int
    resident_bytes: int


class WarmthBucket(WarmthFigures, frozen=True, kw_only=True):
    """The figures of one slice of the window that begins at `at`; `commits` are statements of several decisions."""

    at: datetime
    commits: int


class WarmthDuration(Struct, frozen=True, kw_only=True):
    """Milliseconds from when runs were taken until their code had run, by outcome; as far as buckets tell."""

    outcome: str
    count: int
    p50: float
    p95: float
    p99: float


class WarmthAnswerFields(WarmthFigures, frozen=True, kw_only=True):
    """All of the window on the shards that answered.

    `buckets` are `bucket_seconds` long, oldest first, without holes. Groups are ordered by their decisions, most first.
    """

    window: str
    since: datetime
    until: datetime
    durations: list[WarmthDuration]
    by_workflow: list[WarmthGroup]
    by_queue: list[WarmthGroup]
    by_worker: list[WarmthWorker]
    bucket_seconds: float
    buckets: list[WarmthBucket]


class Warmth(WarmthAnswerFields, frozen=True, kw_only=True):
    """The same; `status` and `missing` tell of the shards that did not answer."""

    status: str
    missing: tuple[MissingShard, ...]


async def fleet_totals(shards: Shards, since: Mapping[int, datetime]) -> Partial[Rollup]:
    """What all workers have measured since the instant given for each shard, else in the last minute, row by row.

    Never raises for a missing shard: it is named in the answer.
    """

    async def read(store: Store) -> list[Rollup]:
        until = await rollups.now(store)
        return await rollups.read(store, since.get(store.shard_id, until - timedelta(minutes=1)), until)

    return await shards.fan_out(read)


async def warmth(shards: Shards, window: Window = "1h") -> Warmth:
    """Sum the window up to now. Never raises for a missing shard: it is named in the answer."""
    length = timedelta(seconds=WINDOWS[window])

    async def read(store: Store) -> list[tuple[datetime, list[Rollup]]]:
        until = await rollups.now(store)
        return [(until, await rollups.read(store, until - length, until, coarse=window in _COARSE))]

    answer = await shards.fan_out(read)
    until = max((until for until, _ in answer.rows), default=clock.now())
    # Each shard's times count back from that shard's own now: their clocks may differ.
    aged = [(until - (shard_now - each.at), each) for shard_now, rows in answer.rows for each in rows]
    found = [rollup for _, rollup in aged]
    shares = [item for rollup in found for item in rollup.totals.shares.items()]
    return Warmth(
        window=window,
        since=until - length,
        until=until,
        status=answer.status,
        missing=answer.missing,
        **_figures(shares),
        durations=_durations(shares),
        by_workflow=_grouped(shares, 0),
        by_queue=_grouped(shares, 1),
        by_worker=_workers(found),
        bucket_seconds=_BUCKETS[window],
        buckets=_buckets(aged, until - length, _BUCKETS[window], int(WINDOWS[window] / _BUCKETS[window])),
    )


Shares = Sequence[tuple[tuple[str, ...], Share]]


def _figures(shares: Shares) -> dict[str, Any]:
    """The fields of WarmthFigures."""
    resident: dict[str, int] = {}
    reasons: dict[str, int] = {}
    first = 0
    for (_, _, outcome, reason, _), share in shares:
        resident[outcome] = resident.get(outcome, 0) + share.count
        if reason:
            reasons[reason] = reasons.get(reason, 0) + share.count
        first += share.count * (reason == ColdReason.FIRST)
    decisions = sum(resident.values())
    rest = decisions - first
    return {
        "decisions": decisions,
        "resident": _ordered(resident, DecisionOutcome),
        "reasons": _ordered(reasons, ColdReason),
        "warm_share": resident.get(DecisionOutcome.HIT, 0) / rest if rest else None,
        "events_loaded": sum(share.events for _, share in shares),
        "bytes_loaded": sum(share.bytes for _, share in shares),
    }


def _ordered(counts: dict[str, int], words: Iterable[str]) -> dict[str, int]:
    """Always in the words' own order; one of a newer release comes last."""
    known = [str(word) for word in words]
    return {word: counts[word] for word in (*known, *sorted(set(counts) - set(known))) if word in counts}


def _grouped(shares: Shares, place: int) -> list[WarmthGroup]:
    groups: dict[str, list[tuple[tuple[str, ...], Share]]] = {}
    for key, share in shares:
        groups.setdefault(key[place], []).append((key, share))
    found = [WarmthGroup(name=name, **_figures(theirs)) for name, theirs in groups.items()]
    return sorted(found, key=lambda group: (-group.decisions, group.name))


def _workers(found: Sequence[Rollup]) -> list[WarmthWorker]:
    """The gauges are of a worker's newest row: it has the same residents whichever shard it tells of them."""
    theirs: dict[UUID, list[Rollup]] = {}
    for rollup in found:
        theirs.setdefault(rollup.worker, []).append(rollup)
    workers = []
    for worker, rows in theirs.items():
        newest = max(rows, key=lambda row: row.at)
        workers.append(
            WarmthWorker(
                worker=worker,
                name=newest.name,
                residents=int(newest.totals.gauges.get(("worker.residents",), 0)),
                resident_bytes=int(newest.totals.gauges.get(("worker.resident_bytes",), 0)),
                **_figures([item for row in rows for item in row.totals.shares.items()]),
            )
        )
    return sorted(workers, key=lambda each: (each.name, each.worker))


def _durations(shares: Shares) -> list[WarmthDuration]:
    spreads: dict[str, Spread] = {}
    for (_, _, outcome, _, _), share in shares:
        spreads.setdefault(outcome, new_spread()).add(share)
    ordered = sorted(spreads.items(), key=lambda item: (item[0] != DecisionOutcome.HIT, item[0]))
    return [
        WarmthDuration(
            outcome=outcome,
            count=spread.count,
            **{f"p{part}": round(spread.quantile(part / 100) * 1_000, 4) for part in (50, 95, 99)},
        )
        for outcome, spread in ordered
    ]


def _buckets(
    aged: Sequence[tuple[datetime, Rollup]], since: datetime, seconds: float, count: int
) -> list[WarmthBucket]:
    """Each row is in the slice in which it began."""
    slices = [Totals() for _ in range(count)]
    for at, rollup in aged:
        began = (at - since).total_seconds() - rollup.seconds
        slices[min(max(int(began // seconds), 0), count - 1)].add(rollup.totals)
    return [
        WarmthBucket(
            at=since + timedelta(seconds=seconds * place),
            commits=int(each.counters.get(("commit.statements",), 0)),
            **_figures(list(each.shares.items())),
        )
        for place, each in enumerate(slices)
    ]
