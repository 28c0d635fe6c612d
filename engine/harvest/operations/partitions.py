"""The partitions of a shard: who owns which at what epoch, and how that came about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from harvest.errors import InvalidRequestError
from harvest.history.ids import PARTITIONS
from harvest.operations.asking import ask
from harvest.shards import Shards
from harvest.store import partition_map as rows
from harvest.store import rollups
from harvest.store.decisions import ColdReason, DecisionOutcome
from harvest.store.rollups import Rollup
from harvest.store.store import Store

MOST_ENTRIES: Final = 200
PACE_SECONDS: Final = 60.0
_NEWEST: Final = 2**63 - 1


class PartitionView(Struct, frozen=True, kw_only=True):
    """One partition. `owner` is who took it last: it is that worker's until `lease_expires_at`, the end of its lease.

    `heir` is whom it is being handed over to.
    """

    partition: int
    owner: UUID | None
    epoch: int
    acquired_at: datetime | None
    lease_expires_at: datetime | None
    heir: UUID | None


class OwnerView(Struct, frozen=True, kw_only=True):
    """A worker on the map. `held` counts the partitions that are its own now, `is_live` says whether it can take more.

    Workers come in the order of their start, with those that owned or could own lately, so that a place in the list
    stays a worker's while others come and go.
    """

    worker: UUID
    name: str
    held: int
    is_live: bool
    lease_expires_at: datetime | None


class PartitionMap(Struct, frozen=True, kw_only=True):
    """All partitions of a shard at the moment `as_of`, by number.

    `owned` counts those whose owner's lease lives. `target` is how many each of the `live_owners` aims at, null without
    one. `fenced_last_hour` counts stale commits that were refused.
    """

    shard_id: int
    status: Literal["complete"] = "complete"
    enabled: bool
    since: datetime | None
    as_of: datetime
    live_owners: int
    target: int | None
    owned: int
    fenced_last_hour: int
    owners: list[OwnerView]
    partitions: list[PartitionView]

    def is_owned(self, partition: PartitionView) -> bool:
        """Whether somebody owned it at that moment."""
        return partition.lease_expires_at is not None and partition.lease_expires_at > self.as_of


class JournalEntry(Struct, frozen=True, kw_only=True):
    """Something that befell a partition: acquired, released, expired or fenced. `epoch` is the one it had by then.

    `worker` is who had it or got it, `worker_name` what that worker was called.
    """

    id: int
    at: datetime
    event: str
    worker: UUID | None
    worker_name: str
    epoch: int
    detail: str


class PartitionJournal(Struct, frozen=True, kw_only=True):
    """A window of a partition's journal, newest first. `next_cursor` is the `before` of the window of older entries."""

    shard_id: int
    partition: int
    entries: list[JournalEntry]
    next_cursor: int | None


class Pace(Struct, frozen=True):
    """Decisions a second of the last minute, and the share of warm ones among those after a run's first, if any."""

    rate: float
    warm_share: float | None


async def partition_map(shards: Shards, shard_id: int) -> PartitionMap:
    """Who owns what on a shard. Raises ShardUnavailableError."""
    found = await ask(shards, shard_id, rows.read_map)
    leases = {worker.worker: worker.lease_until for worker in found.workers}
    partitions = [
        PartitionView(
            partition=row.partition,
            owner=row.owner,
            epoch=row.epoch,
            acquired_at=row.acquired_at,
            lease_expires_at=leases.get(row.owner) if row.owner else None,
            heir=row.heir,
        )
        for row in found.partitions
    ]
    held = Counter(each.owner for each in partitions if each.lease_expires_at and each.lease_expires_at > found.at)
    live = sum(worker.is_live_owner for worker in found.workers)
    return PartitionMap(
        shard_id=shard_id,
        enabled=found.switch.enabled,
        since=found.switch.since,
        as_of=found.at,
        live_owners=live,
        target=-(-PARTITIONS // live) if live else None,
        owned=held.total(),
        fenced_last_hour=found.fenced,
        owners=[
            OwnerView(
                worker=worker.worker,
                name=worker.name,
                held=held[worker.worker],
                is_live=worker.is_live_owner,
                lease_expires_at=worker.lease_until,
            )
            for worker in found.workers
        ],
        partitions=partitions,
    )


async def journal(
    shards: Shards, shard_id: int, partition: int, *, before: int | None = None, limit: int = 50
) -> PartitionJournal:
    """What befell a partition, newest first; `before` is the `next_cursor` of the window before this one.

    Raises InvalidRequestError, ShardUnavailableError.
    """
    if not 0 <= partition < PARTITIONS:
        raise InvalidRequestError(f"partition is {partition}; it must be 0 to {PARTITIONS - 1}", field="partition")
    if not 1 <= limit <= MOST_ENTRIES:
        raise InvalidRequestError(f"limit is {limit}; it must be 1 to {MOST_ENTRIES}", field="limit")

    async def read(store: Store) -> list[JournalEntry]:
        found = await rows.read_journal(store, partition, _NEWEST if before is None else before, limit + 1)
        return [JournalEntry(**{name: row[name] for name in JournalEntry.__struct_fields__}) for row in found]

    entries = await ask(shards, shard_id, read)
    return PartitionJournal(
        shard_id=shard_id,
        partition=partition,
        entries=entries[:limit],
        next_cursor=entries[limit - 1].id if len(entries) > limit else None,
    )


async def paces(shards: Shards, shard_id: int) -> dict[UUID | None, Pace]:
    """How fast each worker decides runs of a shard, as it wrote it down; None is for all of them together.

    Raises ShardUnavailableError.
    """

    async def read(store: Store) -> list[Rollup]:
        until = await rollups.now(store)
        return await rollups.read(store, until - timedelta(seconds=PACE_SECONDS), until)

    theirs: dict[UUID, list[Rollup]] = {}
    for rollup in await ask(shards, shard_id, read):
        theirs.setdefault(rollup.worker, []).append(rollup)
    each: dict[UUID | None, Pace] = {worker: _pace(found) for worker, found in theirs.items()}
    together = _pace([rollup for found in theirs.values() for rollup in found])
    each[None] = Pace(sum(pace.rate for pace in each.values()), together.warm_share)
    return each


def _pace(found: Sequence[Rollup]) -> Pace:
    seconds = sum(rollup.seconds for rollup in found)
    shares = [(key, share.count) for rollup in found for key, share in rollup.totals.shares.items()]
    decisions = sum(count for _, count in shares)
    later = decisions - sum(count for (_, _, _, reason, _), count in shares if reason == ColdReason.FIRST)
    hits = sum(count for (_, _, outcome, _, _), count in shares if outcome == DecisionOutcome.HIT)
    return Pace(decisions / seconds if seconds else 0.0, hits / later if later else None)
