"""Workers, what they measured and decisions, as rows: what would take a fleet and long to come about."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.shards import Shards
from harvest.store import decisions, rollups
from harvest.store.decisions import DecisionRow
from harvest.store.measures import BOUNDS, Share, Totals

_WORKER = """
insert into harvest_workers (worker, name, host, pid, build, queues, status, started_at, seen_at, lease_until, slots,
    workflow_slots, workflow_types, activity_types, scanned_at, counters, config, report, drain_requested_at)
values ($1, $2, 'host-a', 4711, $3, $4, $5, clock_timestamp() - $6::interval, clock_timestamp() - $7::interval,
    clock_timestamp() - $7::interval + interval '1 hour' * $8::int, 400, 2000, $9, $10, clock_timestamp(),
    $11, $12, $13, case when $14 then clock_timestamp() end)"""
_ROLLUP = """insert into harvest_rollups (worker, at, seconds, data)
values ($1, clock_timestamp() - $2::interval, 5, $3)"""


class Member(Struct, frozen=True, kw_only=True):
    """A worker. Heard of `seen_ago` seconds ago; its lease lives unless it is `stale` or stopped."""

    worker: UUID
    name: str
    status: str = "active"
    stale: bool = False
    build: str = "2026.11.3"
    queues: tuple[str, ...] = ("default",)
    started_ago: float = 3_600.0
    seen_ago: float = 1.0
    workflow_types: tuple[str, ...] = ("order_flow/1",)
    activity_types: tuple[str, ...] = ("charge",)
    counters: Mapping[str, object] = {}
    config: tuple[Mapping[str, object], ...] = ()
    report: Mapping[str, object] | None = None
    draining: bool = False


async def join(shards: Shards, member: Member, *shard_ids: int) -> None:
    """Write a worker on some shards, all of them if none is named."""
    for shard_id in shard_ids or shards.router.readable:
        await shards.store(shard_id).write.write(
            _WORKER,
            member.worker,
            member.name,
            member.build,
            list(member.queues),
            member.status,
            timedelta(seconds=member.started_ago),
            timedelta(seconds=member.seen_ago),
            0 if member.stale or member.status == "stopped" else 1,
            list(member.workflow_types),
            list(member.activity_types),
            msgspec.json.encode(member.counters),
            msgspec.json.encode(member.config) if member.config else None,
            msgspec.json.encode(member.report) if member.report is not None else None,
            member.draining,
        )


class Decided(Struct, frozen=True, kw_only=True):
    """Decisions of one sort."""

    count: int
    outcome: str = "hit"
    reason: str = ""
    source: str = "resident"
    bytes: int = 1_000
    workflow: str = "order_flow"
    queue: str = "default"


async def measured(
    shards: Shards, shard_id: int, worker: UUID, ago: float, *decided: Decided, residents: int = 0
) -> None:
    """Write what a worker measured in five seconds until `ago` seconds before now."""
    totals = Totals(gauges={("worker.residents",): residents, ("worker.resident_bytes",): residents * 3_000})
    for one in decided:
        spread = [0] * (len(BOUNDS) + 1)
        spread[10] = one.count
        totals.shares[one.workflow, one.queue, one.outcome, one.reason, one.source] = Share(
            count=one.count, sum=one.count / 1000, buckets=spread, events=one.count, bytes=one.bytes * one.count
        )
    await shards.store(shard_id).write.write(_ROLLUP, worker, timedelta(seconds=ago), rollups.encode(totals))


async def decide(shards: Shards, shard_id: int, execution_id: UUID, worker: UUID, count: int, at: datetime) -> None:
    """Write the last `count` decisions of a run: the first is cold, then warm ones, and one that is overtaken."""
    rows = []
    for number in range(1, count + 1):
        begun = at + timedelta(seconds=number)
        first, lost = number == 1, number == count and count > 2
        ms = [0.2, 0.9, 4.0 if first else 1.1, 6.0 if first else 1.4, 7.5, 12.0]
        notified, taken, loaded, driven, fence, committed = (begun + timedelta(milliseconds=each) for each in ms)
        rows.append(
            DecisionRow(
                execution_id=execution_id,
                number=number,
                epoch=None if first else 7,
                outcome="cold" if first else "declined" if lost else "hit",
                reason="first" if first else "overtaken" if lost else "",
                source="postgres" if first else "resident",
                answer="overtaken" if lost else "passed",
                events_loaded=40 if first else 2,
                bytes_loaded=9_800 if first else 310,
                woken_at=None if first else begun,
                notified_at=None if first else notified,
                taken_at=taken,
                loaded_at=loaded,
                driven_at=driven,
                fence_checked_at=fence,
                committed_at=committed,
            )
        )
    for start in range(0, len(rows), 100):
        await decisions.write(shards.store(shard_id), worker, rows[start : start + 100])
