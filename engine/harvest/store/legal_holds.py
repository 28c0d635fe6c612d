"""Legal holds: a row for each run that must not be erased. Who sets one waits a little for an erasure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
from msgspec import Struct

from harvest.errors import RunBusyError
from harvest.store.audit import AuditEntry, audit_part, audit_values
from harvest.store.pool import Connection, Record
from harvest.store.store import Store

# Well below the limits of the pool: an erasure that takes longer is no outage of the shard.
LOCK_SECONDS: Final = 2
_COLUMNS: Final = "execution_id, reason, actor, set_at, hold_until"
# By itself first: the statement that follows sees what was written before the lock was given.
_LOCK: Final = "select partition from harvest_executions where execution_id = $1 for no key update"
_IN_FORCE: Final = f"""
    select {_COLUMNS} from harvest_legal_holds
     where execution_id = $1 and (hold_until is null or hold_until > clock_timestamp())
"""
_SET: Final = f"""
with held as (
    insert into harvest_legal_holds (execution_id, reason, actor, hold_until)
    values ($1, $2, $3, $4)
        on conflict (execution_id) do update
       set reason = excluded.reason, actor = excluded.actor, set_at = excluded.set_at, hold_until = excluded.hold_until
 returning {_COLUMNS}
),
{audit_part(5, "held")}
select {_COLUMNS} from held"""
_RELEASE: Final = f"""
with released as (
    delete from harvest_legal_holds
     where execution_id = $1 and (hold_until is null or hold_until > clock_timestamp())
 returning execution_id
),
{audit_part(2, "released")}
select execution_id from released"""


class Held(Struct, frozen=True):
    """The hold that is in force after a set, whether it is the one that was asked for, and the run's partition."""

    row: Record
    written: bool
    partition: int


class Released(Struct, frozen=True):
    """Whether there was a hold in force, and the run's partition."""

    released: bool
    partition: int


async def set_hold(
    store: Store, execution_id: UUID, reason: str, actor: str, hold_until: datetime | None, audit: AuditEntry
) -> Held | None:
    """Hold a run, audited in the same transaction; a hold that is in force stays as it is. None: no such run.

    Raises RunBusyError, ShardUnavailableError.
    """
    async with _locked(store, execution_id) as (connection, known):
        if known is None:
            return None
        before = await in_force_on(connection, execution_id)
        if before is not None:
            return Held(before, written=False, partition=known["partition"])
        row = await connection.fetchrow(_SET, execution_id, reason, actor, hold_until, *audit_values(audit))
        return Held(row, written=True, partition=known["partition"])


async def release(store: Store, execution_id: UUID, audit: AuditEntry) -> Released | None:
    """Take a hold away, audited in the same transaction. None: no such run. Raises as `set_hold` does."""
    async with _locked(store, execution_id) as (connection, known):
        if known is None:
            return None
        row = await connection.fetchrow(_RELEASE, execution_id, *audit_values(audit))
        return Released(row is not None, known["partition"])


@asynccontextmanager
async def _locked(store: Store, execution_id: UUID) -> AsyncIterator[tuple[Connection, Record | None]]:
    """A transaction that has locked a run, and its row."""
    async with store.write.connection(writes=True) as connection:
        try:
            async with connection.transaction():
                await connection.execute(f"set local lock_timeout = '{LOCK_SECONDS}s'")
                yield connection, await connection.fetchrow(_LOCK, execution_id)
        except asyncpg.LockNotAvailableError as error:
            raise RunBusyError(
                f"execution {execution_id} was locked for {LOCK_SECONDS} s, as while it is being erased; nothing was "
                "changed, try again",
                execution_id=str(execution_id),
            ) from error


async def in_force(store: Store, execution_id: UUID) -> Record | None:
    """The hold of a run, unless it has run out."""
    return await store.read.fetch_row(_IN_FORCE, execution_id)


async def in_force_on(connection: Connection, execution_id: UUID) -> Record | None:
    """As `in_force`, in the caller's transaction."""
    row: Record | None = await connection.fetchrow(_IN_FORCE, execution_id)
    return row
