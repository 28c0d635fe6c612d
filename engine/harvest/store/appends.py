"""What people and other processes write to a run: a signal, an update, a cancel request.

Each is one statement that checks the state, appends with the next id, wakes the run, and writes its audit row. Lock
order: execution, workflow task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.store.audit import AuditEntry, audit_part, audit_values
from harvest.store.pool import Connection, Record
from harvest.store.store import Store
from harvest.store.wakes import WAKE_TASKS

# The kinds of idempotency keys: of starts, signals, acts that a run takes once, and updates.
START_KEY, SIGNAL_KEY, ONCE_KEY, UPDATE_KEY = 1, 2, 3, 4


class Appending(Struct, frozen=True):
    """The answer of an append: what state the run is in, whether it was written, and whom to wake.

    `holder` is the worker to wake, `woken` tells whether anybody needs to be.
    """

    state: State | None
    written: bool
    deduplicated: bool = False
    woken: bool = False
    holder: UUID | None = None
    event_id: int = 0
    partition: int = 0


# A key is that of a whole chain, but for acts that each run takes once: a repeated signal may find the next run.
_APPEND = (
    f"""
with known as materialized (
    select state, partition, next_event_id,
           case when $5 = {ONCE_KEY} then execution_id else coalesce(first_execution_id, execution_id) end as scope
      from harvest_executions where execution_id = $1 for no key update
),
fresh as (
    insert into harvest_dedupe (execution_id, kind, key, written_to, event_id)
    select scope, $5::smallint, $4::text, $1, next_event_id from known where $4::text is not null and state < 10
        on conflict do nothing
 returning 1
),
advanced as (
    update harvest_executions set next_event_id = next_event_id + 1
     where execution_id = $1 and closed_at is null and ($4::text is null or exists (select from fresh))
 returning execution_id, next_event_id - 1 as event_id
),
appended as (
    insert into harvest_events (execution_id, event_id, kind, payload)
    select execution_id, event_id, $2, $3 from advanced
),
woken as ("""
    + WAKE_TASKS.format(condition="t.execution_id = any(array(select execution_id from advanced))")
    + f"""
),
{audit_part(6, "advanced")}
select k.state, k.partition, a.event_id, w.execution_id is not null as woken, w.holder,
       (select true from harvest_dedupe d
         where d.execution_id = k.scope and d.kind = $5 and d.key = $4 limit 1) is not null as known_key
  from known k left join advanced a on true left join woken w on true"""
)


_NOTE_KEY = """
insert into harvest_dedupe (execution_id, kind, key, written_to, event_id) values ($1, $2, $3, $1, $4)"""


async def append(
    store: Store,
    execution_id: UUID,
    kind: EventKind,
    payload: bytes,
    audit: AuditEntry,
    *,
    key: str | None = None,
    once: bool = False,
) -> Appending:
    """Append an event to an open run and wake it. `once` refuses a second event of that kind, `key` a second use."""
    return appending_of(await store.write.write(_APPEND, *_values(execution_id, kind, payload, audit, key, once)))


async def append_on(
    connection: Connection,
    execution_id: UUID,
    kind: EventKind,
    payload: bytes,
    audit: AuditEntry,
    *,
    key: str | None = None,
) -> Appending:
    """As `append`, in the caller's transaction."""
    return appending_of(await connection.fetch(_APPEND, *_values(execution_id, kind, payload, audit, key, once=False)))


async def note_key(connection: Connection, execution_id: UUID, kind: EventKind, key: str, *, event_id: int) -> None:
    """A key was used for an event that was written with the start of a run, in the same transaction."""
    await connection.execute(_NOTE_KEY, execution_id, _key_kind(kind), key, event_id)


def _key_kind(kind: EventKind) -> int:
    return UPDATE_KEY if kind is EventKind.UPDATE_ADMITTED else SIGNAL_KEY


def _values(
    execution_id: UUID, kind: EventKind, payload: bytes, audit: AuditEntry, key: str | None, once: bool
) -> list[Any]:
    used, key_kind = (kind.word, ONCE_KEY) if once else (key, _key_kind(kind))
    return [execution_id, int(kind), payload, used, key_kind, *audit_values(audit)]


def appending_of(rows: Sequence[Record]) -> Appending:
    """The answer of a statement that appends one event to one run."""
    if not rows:
        return Appending(state=None, written=False)
    row = rows[0]
    state = State(row["state"])
    written = row["event_id"] is not None
    return Appending(
        state=state,
        written=written,
        # An open run that was not written to can only have refused the key: its row was locked before it was read.
        deduplicated=not written and (state.is_open or row["known_key"]),
        woken=row["woken"],
        holder=row["holder"],
        event_id=row["event_id"] or 0,
        partition=row["partition"],
    )
