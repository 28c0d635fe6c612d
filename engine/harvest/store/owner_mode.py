"""The switch of owner mode on a shard, and the guard that keeps claims without an owner's token out (decision 0009).

The guard is a trigger, put in place by the switch and asleep while owner mode is off. Waking it and putting it to sleep
lock the task table against writers, not readers: for no longer than a wait of `LOCK_SECONDS`, and one transaction.

Lock order: the row of `harvest_meta`, the task table, partitions by number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
from msgspec import Struct

from harvest.errors import NotTableOwnerError, OwnerModeBusyError
from harvest.store import audit
from harvest.store.audit import AuditEntry
from harvest.store.partitions import LIVE
from harvest.store.pool import Connection, Record
from harvest.store.store import Store

LOCK_SECONDS: Final = 2.0
"""How long the switch waits for the commits under way; what comes meanwhile waits behind it."""


class Switch(Struct, frozen=True):
    """Whether owner mode is on, and since when."""

    enabled: bool
    since: datetime | None


class FleetWorker(Struct, frozen=True):
    """A living worker, as far as owner mode looks at it. Types are `name/version`.

    `scanned_seconds` is how long ago its owner loop was at work: None for a release that knows no owners, or before its
    first look. `workflow_slots` is None where it does not tell.
    """

    worker: UUID
    name: str
    build: str
    queues: tuple[str, ...]
    workflow_slots: int | None
    workflow_types: tuple[str, ...]
    activity_types: tuple[str, ...]
    scanned_seconds: float | None
    is_live_owner: bool


class Readiness(Struct, frozen=True):
    """One look at a shard: its switch, and its living workers by name."""

    switch: Switch
    fleet: list[FleetWorker]


_SWITCH: Final = "select owner_mode, owner_mode_since from harvest_meta"
_FLEET: Final = f"""
select w.worker, w.name, w.build, w.queues, w.workflow_slots, w.workflow_types, w.activity_types,
       extract(epoch from clock_timestamp() - w.scanned_at)::float8 as scanned_seconds,
       coalesce({LIVE.format("w")}, false) as is_live_owner
  from harvest_workers w
 where w.status = 'active' and w.lease_until > clock_timestamp()
 order by w.name, w.worker"""

# Everybody who takes a task sets its state from pending to held. What has no owner's token takes nothing, whatever
# release wrote the statement; whether a token is true is asked by every commit.
_GUARD: Final = (
    """
    create or replace function harvest_refuse_unowned() returns trigger language plpgsql as $$
    begin
        return null;
    end $$
    """,
    """
    create or replace trigger harvest_owned_claims before update of state on harvest_workflow_tasks
       for each row when (old.state = 0 and new.state = 1 and new.owner_epoch is null)
       execute function harvest_refuse_unowned()
    """,
    "alter table harvest_workflow_tasks enable trigger harvest_owned_claims",
)
_HAS_GUARD: Final = """
select from pg_trigger where tgrelid = 'harvest_workflow_tasks'::regclass and tgname = 'harvest_owned_claims'"""
_UNGUARD: Final = "alter table harvest_workflow_tasks disable trigger harvest_owned_claims"

# What a living worker took before the switch, it finishes as it began. The death of a worker is blamed by who frees all
# that it held; here its tasks are freed alone, before an owner would have to wait for that.
_REPEND: Final = """
update harvest_workflow_tasks t
   set state = 0, worker = null, sticky_worker = null, sticky_until = null, due = clock_timestamp(),
       sort_at = clock_timestamp()
 where t.state in (1, 3) and t.owner_epoch is null and not exists (
           select from harvest_workers w
            where w.worker = t.worker and w.status <> 'stopped' and w.lease_until > clock_timestamp())"""
# Nobody commits meanwhile. What an owner has taken becomes a claim like any other; what was taken under an epoch that
# has passed can never be committed, and is free.
_DISOWN: Final = """
update harvest_workflow_tasks t
   set owner_epoch = null,
       state = case when x.is_held then t.state else 0 end,
       worker = case when x.is_held then t.worker end,
       due = case when x.is_held then t.due else clock_timestamp() end,
       sort_at = case when x.is_held then t.sort_at else clock_timestamp() end
  from (select h.execution_id, p.epoch = h.owner_epoch and p.owner is not distinct from h.worker as is_held
          from harvest_workflow_tasks h join harvest_partitions p on p.partition = h.partition
         where h.state in (1, 3) and h.owner_epoch is not null) x
 where t.execution_id = x.execution_id"""
_TURN_ON: Final = "update harvest_meta set owner_mode = true, owner_mode_since = clock_timestamp()"
_TURN_OFF: Final = "update harvest_meta set owner_mode = false, owner_mode_since = null"
_RELEASE_ALL: Final = """
with owned as materialized (
    select partition, owner, epoch from harvest_partitions where owner is not null order by partition for update
),
freed as (
    update harvest_partitions p
       set owner = null, epoch = p.epoch + 1, acquired_at = null, heir = null, offered_at = null, accepted = false,
           residents = null
      from owned o where p.partition = o.partition
)
insert into harvest_partition_journal (partition, event, worker, worker_name, epoch, detail)
select o.partition, 'released', o.owner, coalesce(w.name, ''), o.epoch, 'owner mode was turned off'
  from owned o left join harvest_workers w on w.worker = o.owner"""


async def readiness(store: Store) -> Readiness:
    """Read the switch and the living workers on one connection."""
    async with store.read.connection() as connection:
        return await _look(connection, _SWITCH)


@asynccontextmanager
async def switching(store: Store) -> AsyncIterator[tuple[Connection, Readiness]]:
    """A transaction in which nobody else turns owner mode on or off, with what it stands on.

    Raises OwnerModeBusyError, NotTableOwnerError, ShardUnavailableError.
    """
    async with store.write.connection(writes=True) as connection:
        try:
            async with connection.transaction():
                await connection.execute(f"set local lock_timeout = '{LOCK_SECONDS}s'")
                yield connection, await _look(connection, f"{_SWITCH} for update")
        except asyncpg.LockNotAvailableError as error:
            raise OwnerModeBusyError(
                f"shard {store.shard_id} was too busy: its tasks could not be locked in {LOCK_SECONDS:g} s, and "
                "nothing was changed; try again",
                shard_id=store.shard_id,
            ) from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise NotTableOwnerError(
                f"the database user of shard {store.shard_id} does not own its tables, so it cannot put up or take "
                f"down the guard of owner mode: {error}",
                shard_id=store.shard_id,
            ) from error


async def _look(connection: Connection, switch: str) -> Readiness:
    row = await connection.fetchrow(switch)
    fleet = [_worker(each) for each in await connection.fetch(_FLEET)]
    return Readiness(Switch(row["owner_mode"], row["owner_mode_since"]), fleet)


def _worker(row: Record) -> FleetWorker:
    return FleetWorker(
        worker=row["worker"],
        name=row["name"],
        build=row["build"],
        queues=tuple(sorted(row["queues"])),
        workflow_slots=row["workflow_slots"],
        workflow_types=tuple(sorted(row["workflow_types"])),
        activity_types=tuple(sorted(row["activity_types"])),
        scanned_seconds=row["scanned_seconds"],
        is_live_owner=row["is_live_owner"],
    )


async def turn_on(connection: Connection, entry: AuditEntry) -> datetime:
    """Put up the guard, free what dead workers held, and set the switch; returns the time of it."""
    await _lock_tasks(connection)
    for statement in _GUARD:
        await connection.execute(statement)
    await connection.execute(_REPEND)
    await connection.execute(_TURN_ON)
    await audit.insert_many(connection, [entry])
    since: datetime = await connection.fetchval("select owner_mode_since from harvest_meta")
    return since


async def turn_off(connection: Connection, entry: AuditEntry) -> None:
    """Clear the switch, take the guard down, and leave every partition without an owner, at a new epoch."""
    await _lock_tasks(connection)
    if await connection.fetch(_HAS_GUARD):
        await connection.execute(_UNGUARD)
    await connection.execute(_DISOWN)
    await connection.execute(_RELEASE_ALL)
    await connection.execute(_TURN_OFF)
    await audit.insert_many(connection, [entry])


async def _lock_tasks(connection: Connection) -> None:
    """Wait for the commits under way before any partition is locked: they lock partitions and hold tasks."""
    await connection.execute("lock table harvest_workflow_tasks in share row exclusive mode")
