"""What people and other processes write to a run: start, signal, cancel request, termination, deadlines.

Each is one statement that checks the state, appends with the next id, wakes the run, and writes its audit row. Lock
order: execution, workflow task, then the rows of a closing run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.store.audit import COLUMNS, AuditEntry
from harvest.store.pool import Connection, Record
from harvest.store.store import Store
from harvest.store.wakes import WAKE_TASKS

START_KEY, SIGNAL_KEY, ONCE_KEY = 1, 2, 3


def _audit(first: int, source: str) -> str:
    """The audit row of a statement, from the parameter `first` on, if `source` has a row."""
    types = {"id": "uuid", "shard_id": "int"}
    values = ", ".join(f"${first + i}::{types.get(name, 'text')}" for i, name in enumerate(COLUMNS))
    return f"""audit as (
    insert into harvest_audit_log ({", ".join(COLUMNS)}) select {values} where exists (select from {source})
)"""


def _audit_values(entry: AuditEntry) -> list[Any]:
    return [getattr(entry, name) for name in COLUMNS]


class NewExecution(Struct, frozen=True, kw_only=True):
    """A run to be inserted. `started` is the encoded WorkflowStarted; timeouts in seconds."""

    execution_id: UUID
    business_key: UUID
    workflow_name: str
    workflow_id: str
    version: int
    partition: int
    queue: str
    started: bytes
    input: bytes
    tenant: str = "default"
    priority: int = 0
    memo: bytes | None = None
    search_attributes: str | None = None
    execution_timeout: float | None = None


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


_START = """
with n as materialized (
    select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::int[], $6::smallint[], $7::text[],
                         $8::bytea[], $9::bytea[], $10::text[], $11::smallint[], $12::bytea[], $13::jsonb[],
                         $14::float8[])
      as n(execution_id, business_key, workflow_name, workflow_id, version, partition, queue, started, input, tenant,
           priority, memo, search_attributes, execution_timeout)
     order by business_key
),
created as (
    insert into harvest_executions
      (execution_id, business_key, root_id, first_execution_id, next_event_id, version, partition, tenant,
       workflow_name, workflow_id, queue, deadline_at)
    select execution_id, business_key, execution_id, execution_id, 2, version, partition, tenant,
           workflow_name, workflow_id, queue, clock_timestamp() + execution_timeout * interval '1 second'
      from n
        on conflict (business_key) where state < 10 do nothing
 returning execution_id
),
details as (
    insert into harvest_execution_details (execution_id, input, memo, search_attributes)
    select n.execution_id, n.input, n.memo, n.search_attributes
      from n join created c on c.execution_id = n.execution_id
),
first as (
    insert into harvest_events (execution_id, event_id, kind, payload)
    select n.execution_id, 1, 1, n.started from n join created c on c.execution_id = n.execution_id
),
task as (
    insert into harvest_workflow_tasks
      (execution_id, partition, priority, queue, workflow_name, version, sort_at)
    select n.execution_id, n.partition, n.priority, n.queue, n.workflow_name, n.version,
           clock_timestamp() + interval '30 seconds'
      from n join created c on c.execution_id = n.execution_id
)"""
_CREATED = "\nselect execution_id from created"
_START_AUDITED = _START + ",\n" + _audit(15, "created") + _CREATED
_START_MANY = _START + _CREATED

_KEYED = """
insert into harvest_dedupe (execution_id, kind, key) values ($1, 1, $2)
    on conflict (key) where kind = 1 do update set execution_id = excluded.execution_id, created_at = clock_timestamp()
    where harvest_dedupe.created_at < clock_timestamp() - interval '24 hours'
returning execution_id"""
_KEY_HOLDER = "select execution_id from harvest_dedupe where kind = 1 and key = $1"

_POINT_KEY = "update harvest_dedupe set execution_id = $1 where kind = 1 and key = $2"

_LATEST = """
select execution_id, state, workflow_name, workflow_id from harvest_executions
 where business_key = $1 order by started_at desc, execution_id desc limit 1"""

_APPEND = (
    """
with known as materialized (
    select state, partition from harvest_executions where execution_id = $1 for no key update
),
fresh as (
    insert into harvest_dedupe (execution_id, kind, key)
    select $1, $5::smallint, $4::text from known where $4::text is not null and state < 10
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
{_audit(6, "advanced")}
select k.state, k.partition, a.event_id, w.execution_id is not null as woken, w.holder,
       exists (select from harvest_dedupe where execution_id = $1 and kind = $5 and key = $4) as known_key
  from known k left join advanced a on true left join woken w on true"""
)

_CLOSE = f"""
with known as materialized (
    select state, partition from harvest_executions where execution_id = $1 for no key update
),
closed as (
    update harvest_executions
       set next_event_id = next_event_id + 1, state = $4, closed_at = clock_timestamp(), waiting = null, blocked = null
     where execution_id = $1 and closed_at is null
 returning execution_id, next_event_id - 1 as event_id
),
appended as (
    insert into harvest_events (execution_id, event_id, kind, payload)
    select execution_id, event_id, $2, $3 from closed
),
task_gone as (
    delete from harvest_workflow_tasks where execution_id = any(array(select execution_id from closed)) returning worker
),
tasks_gone as (
    delete from harvest_activity_tasks where execution_id = any(array(select execution_id from closed))
),
timers_gone as (
    delete from harvest_timers where execution_id = any(array(select execution_id from closed))
),
{_audit(5, "closed")}
select k.state, k.partition, c.event_id, exists (select from task_gone where worker is not null) as woken,
       (select worker from task_gone) as holder, false as known_key
  from known k left join closed c on true"""


async def start(connection: Connection, new: NewExecution, audit: AuditEntry) -> bool:
    """Insert one run with its audit row; False when an open run has the business key already."""
    rows = await connection.fetch(_START_AUDITED, *_columns([new]), *_audit_values(audit))
    return bool(rows)


async def start_many(store: Store, new: Sequence[NewExecution]) -> int:
    """Insert many runs in one statement; those whose business key is taken are left out. Returns how many began."""
    rows = await store.write.write(_START_MANY, *_columns(new), limit=30)
    return len(rows)


def _columns(new: Sequence[NewExecution]) -> list[list[Any]]:
    return [
        [n.execution_id for n in new],
        [n.business_key for n in new],
        [n.workflow_name for n in new],
        [n.workflow_id for n in new],
        [n.version for n in new],
        [n.partition for n in new],
        [n.queue for n in new],
        [n.started for n in new],
        [n.input for n in new],
        [n.tenant for n in new],
        [n.priority for n in new],
        [n.memo for n in new],
        [n.search_attributes for n in new],
        [n.execution_timeout for n in new],
    ]


async def take_start_key(connection: Connection, execution_id: UUID, key: str) -> UUID:
    """Claim an idempotency key of a start for 24 hours; returns the execution that holds it, ours if it was free."""
    row = await connection.fetchrow(_KEYED, execution_id, key)
    if row is None:
        row = await connection.fetchrow(_KEY_HOLDER, key)
    holder: UUID = row["execution_id"] if row else execution_id
    return holder


async def point_start_key(connection: Connection, execution_id: UUID, key: str) -> None:
    """The key stands for a run that was there before."""
    await connection.execute(_POINT_KEY, execution_id, key)


async def latest(connection: Connection, business_key: UUID) -> Record | None:
    """The newest run of a business key: execution_id, state, workflow_name, workflow_id."""
    row: Record | None = await connection.fetchrow(_LATEST, business_key)
    return row


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
    used, key_kind = (kind.word, ONCE_KEY) if once else (key, SIGNAL_KEY)
    rows = await store.write.write(_APPEND, execution_id, int(kind), payload, used, key_kind, *_audit_values(audit))
    return _answer(rows)


async def close(
    store: Store, execution_id: UUID, kind: EventKind, payload: bytes, state: State, audit: AuditEntry
) -> Appending:
    """End an open run at once: its terminal event, and away with its tasks and timers. No user code runs."""
    rows = await store.write.write(_CLOSE, execution_id, int(kind), payload, int(state), *_audit_values(audit))
    return _answer(rows)


async def close_on(
    connection: Connection, execution_id: UUID, kind: EventKind, payload: bytes, state: State, audit: AuditEntry
) -> Appending:
    """As `close`, in the caller's transaction."""
    rows = await connection.fetch(_CLOSE, execution_id, int(kind), payload, int(state), *_audit_values(audit))
    return _answer(rows)


def _answer(rows: Sequence[Record]) -> Appending:
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


_DEADLINES = """
with late as materialized (
    select execution_id, next_event_id, deadline_at from harvest_executions
     where deadline_at <= statement_timestamp() and state < 10
     order by deadline_at limit 200
       for no key update skip locked
),
closed as (
    update harvest_executions e
       set next_event_id = e.next_event_id + 1, state = $1, closed_at = clock_timestamp(), waiting = null,
           blocked = null
      from late l
     where e.execution_id = l.execution_id and e.execution_id = any(array(select execution_id from late))
 returning e.execution_id, e.partition, l.next_event_id as event_id, l.deadline_at
),
appended as (
    insert into harvest_events (execution_id, event_id, kind, payload)
    select execution_id, event_id, $2,
           convert_to('{"deadline":' || to_json(deadline_at)::text || '}', 'UTF8') from closed
),
task_gone as (
    delete from harvest_workflow_tasks where execution_id = any(array(select execution_id from closed))
    returning execution_id, worker
),
tasks_gone as (delete from harvest_activity_tasks where execution_id = any(array(select execution_id from closed))),
timers_gone as (delete from harvest_timers where execution_id = any(array(select execution_id from closed)))
select c.execution_id, c.partition, t.worker from closed c left join task_gone t on t.execution_id = c.execution_id"""


async def close_overdue(store: Store) -> list[tuple[UUID, int, UUID | None]]:
    """End runs past their deadline as TIMED_OUT; returns (execution, partition, the worker that held it)."""
    rows = await store.scan.write(_DEADLINES, int(State.TIMED_OUT), int(EventKind.WORKFLOW_EXECUTION_TIMED_OUT))
    return [(row["execution_id"], row["partition"], row["worker"]) for row in rows]


_TIMERS = (
    """
with due as materialized (
    select execution_id, seq, fires_at from harvest_timers
     where fires_at <= statement_timestamp() order by fires_at limit 500
       for update skip locked
),
open as materialized (
    select e.execution_id, e.next_event_id from harvest_executions e
     where e.execution_id = any(array(select execution_id from due)) and e.closed_at is null
       for no key update of e skip locked
),
numbered as materialized (
    select d.*,
           o.next_event_id + row_number() over (partition by d.execution_id order by d.fires_at, d.seq) - 1 as event_id
      from due d join open o on o.execution_id = d.execution_id
),
advanced as (
    update harvest_executions e set next_event_id = e.next_event_id + n.added
      from (select execution_id, count(*)::int as added from numbered group by execution_id) n
     where e.execution_id = n.execution_id
 returning e.execution_id, e.partition
),
appended as (
    insert into harvest_events (execution_id, event_id, kind, seq, payload)
    select execution_id, event_id, $1, seq, '{}' from numbered
),
gone as (
    delete from harvest_timers t using numbered n where t.execution_id = n.execution_id and t.seq = n.seq
),
woken as ("""
    + WAKE_TASKS.format(condition="t.execution_id = any(array(select execution_id from advanced))")
    + """
)
select a.execution_id, a.partition, w.holder from advanced a left join woken w on w.execution_id = a.execution_id"""
)
_NEXT_TIMER = "select min(fires_at) as at from harvest_timers"


async def fire_timers(store: Store) -> list[tuple[UUID, int, UUID | None]]:
    """Append TimerFired for what is due by the database's clock; returns (execution, partition, holder to wake)."""
    rows = await store.scan.write(_TIMERS, int(EventKind.TIMER_FIRED))
    return [(row["execution_id"], row["partition"], row["holder"]) for row in rows]


async def next_timer(store: Store) -> datetime | None:
    """When the next timer is due."""
    row = await store.scan.fetch_row(_NEXT_TIMER)
    return row["at"] if row else None


_BY_ID = "select state, workflow_name, workflow_id from harvest_executions where execution_id = $1"


async def by_id(connection: Connection, execution_id: UUID) -> Record | None:
    """State and business key of one run."""
    row: Record | None = await connection.fetchrow(_BY_ID, execution_id)
    return row


async def open_workflow_name(store: Store, execution_id: UUID) -> str | None:
    """The workflow type of an open run, or None where there is none."""
    row = await store.read.fetch_row(_BY_ID, execution_id)
    return row["workflow_name"] if row is not None and State(row["state"]).is_open else None
