"""What people see of the partitions of a shard: the map at one moment, and the journal of one partition."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.store.owner_mode import Switch
from harvest.store.partitions import LIVE
from harvest.store.pool import Record
from harvest.store.store import Store

MOST_FENCED: Final = 10_000
KNOWN_MINUTES: Final = 10
"""A worker that owns nothing is on the map for so long after its lease."""


class PartitionRow(Struct, frozen=True):
    """One partition as it is stored: its owner may have lost its lease."""

    partition: int
    owner: UUID | None
    epoch: int
    acquired_at: datetime | None
    heir: UUID | None


class OwnerRow(Struct, frozen=True):
    """A worker that owns partitions or is offered some, or that lives or did lately.

    `lease_until` is None once it has stopped.
    """

    worker: UUID
    name: str
    lease_until: datetime | None
    is_live_owner: bool


class MapRows(Struct, frozen=True):
    """The switch, the partitions by number, and the workers in the order of their start, all of one moment, `at`.

    `fenced` counts the stale commits that were refused in the last hour, to a cap.
    """

    switch: Switch
    at: datetime
    fenced: int
    partitions: list[PartitionRow]
    workers: list[OwnerRow]


_MOMENT: Final = f"""
select m.owner_mode, m.owner_mode_since, clock_timestamp() as at,
       (select coalesce(sum(coalesce(substring(j.detail from '^[0-9]+')::int, 1)), 0)::int
          from (select detail from harvest_partition_journal
                 where at > clock_timestamp() - interval '1 hour' and event = 'fenced' limit {MOST_FENCED}) j) as fenced
  from harvest_meta m"""
_PARTITIONS: Final = "select partition, owner, epoch, acquired_at, heir from harvest_partitions order by partition"
_WORKERS: Final = f"""
select w.worker, w.name, case when w.status <> 'stopped' then w.lease_until end as lease_until,
       coalesce({LIVE.format("w")}, false) as is_live_owner
  from harvest_workers w
 where w.lease_until > clock_timestamp() - interval '{KNOWN_MINUTES} minutes'
    or w.worker = any(array(select owner from harvest_partitions union select heir from harvest_partitions))
 order by w.started_at, w.worker"""
_JOURNAL: Final = """
select id, at, event, worker, worker_name, epoch, detail from harvest_partition_journal
 where partition = $1 and id < $2
 order by id desc limit $3"""


async def read_map(store: Store) -> MapRows:
    """Read it all from one snapshot."""
    async with (
        store.read.connection() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        moment = await connection.fetchrow(_MOMENT)
        partitions = await connection.fetch(_PARTITIONS)
        workers = await connection.fetch(_WORKERS)
    return MapRows(
        switch=Switch(moment["owner_mode"], moment["owner_mode_since"]),
        at=moment["at"],
        fenced=moment["fenced"],
        partitions=[PartitionRow(*row.values()) for row in partitions],
        workers=[OwnerRow(*row.values()) for row in workers],
    )


async def read_journal(store: Store, partition: int, before: int, limit: int) -> list[Record]:
    """The entries of a partition with ids below `before`, the newest first."""
    return await store.read.fetch(_JOURNAL, partition, before, limit)
