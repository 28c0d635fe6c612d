"""The first page's figures: shards, workers, open and failed runs, the last acts (issue build 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import Raw, Struct

from harvest.operations.auditing import AuditView, list_audit
from harvest.operations.views import is_json
from harvest.shards import MissingShard, Partial, Shards
from harvest.store import overview as rows
from harvest.store.store import Store

LAST_ACTS = 8


class OldestOpen(Struct, frozen=True, kw_only=True):
    """The open run that began first."""

    execution_id: UUID
    workflow_name: str
    started_at: datetime


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker process as one shard knows it; `alive` while its lease lasts. `counters` are its own (answers 18)."""

    worker: UUID
    name: str
    host: str
    pid: int
    build: str
    queues: list[str]
    status: str
    started_at: datetime
    seen_at: datetime
    slots: int
    alive: bool
    counters: Raw


class ShardOverview(Struct, frozen=True, kw_only=True):
    """One shard. Counts end at `rows.CAP`, with the flag beside them; a shard that does not answer has none."""

    shard_id: int
    available: bool
    reason: str | None = None
    since: datetime | None = None
    open: int = 0
    open_capped: bool = False
    paused: int = 0
    paused_capped: bool = False
    blocked: int = 0
    blocked_capped: bool = False
    failed: int = 0
    failed_capped: bool = False
    oldest: OldestOpen | None = None
    workers: list[WorkerView] = []


class Overview(Struct, frozen=True, kw_only=True):
    """All shards, the workers of all of them (each once), and the newest acts."""

    status: str
    missing: tuple[MissingShard, ...]
    shards: list[ShardOverview]
    workers: list[WorkerView]
    open: int
    open_capped: bool
    paused: int
    paused_capped: bool
    blocked: int
    blocked_capped: bool
    failed: int
    failed_capped: bool
    oldest: OldestOpen | None
    acts: Partial[AuditView]


async def overview(shards: Shards) -> Overview:
    """Read every shard once. Never raises for a missing shard: it is in the answer, with why and since when."""

    async def read(store: Store) -> list[ShardOverview]:
        return [_shard(store.shard_id, await rows.overview(store))]

    answer, acts = await asyncio.gather(shards.fan_out(read), list_audit(shards, limit=LAST_ACTS))
    missing = [
        ShardOverview(shard_id=shard.shard_id, available=False, reason=shard.reason, since=shard.since)
        for shard in answer.missing
    ]
    found = answer.rows
    workers = {worker.worker: worker for shard in found for worker in sorted(shard.workers, key=lambda w: w.alive)}
    return Overview(
        status=answer.status,
        missing=answer.missing,
        shards=sorted((*found, *missing), key=lambda shard: shard.shard_id),
        workers=sorted(workers.values(), key=lambda worker: (not worker.alive, worker.name)),
        open=sum(shard.open for shard in found),
        open_capped=any(shard.open_capped for shard in found),
        paused=sum(shard.paused for shard in found),
        paused_capped=any(shard.paused_capped for shard in found),
        blocked=sum(shard.blocked for shard in found),
        blocked_capped=any(shard.blocked_capped for shard in found),
        failed=sum(shard.failed for shard in found),
        failed_capped=any(shard.failed_capped for shard in found),
        oldest=min((shard.oldest for shard in found if shard.oldest), key=lambda run: run.started_at, default=None),
        acts=acts.rows,
    )


def _shard(shard_id: int, found: rows.OverviewRows) -> ShardOverview:
    figures = found.figures
    oldest = None
    if figures["oldest_id"] is not None:
        oldest = OldestOpen(
            execution_id=figures["oldest_id"],
            workflow_name=figures["oldest_name"],
            started_at=figures["oldest_at"],
        )
    return ShardOverview(
        shard_id=shard_id,
        available=True,
        open=min(figures["open"], rows.CAP),
        open_capped=figures["open"] > rows.CAP,
        paused=min(figures["paused"], rows.CAP),
        paused_capped=figures["paused"] > rows.CAP,
        blocked=min(figures["blocked"], rows.CAP),
        blocked_capped=figures["blocked"] > rows.CAP,
        failed=min(figures["failed"], rows.CAP),
        failed_capped=figures["failed"] > rows.CAP,
        oldest=oldest,
        workers=[_worker(row) for row in found.workers],
    )


def _worker(row: Mapping[str, Any]) -> WorkerView:
    counters = row["counters"]
    fields = {name: row[name] for name in WorkerView.__struct_fields__ if name != "counters"}
    return WorkerView(**fields, counters=Raw(counters if counters and is_json(counters) else b"null"))
