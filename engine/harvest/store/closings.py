"""Runs that end from outside: terminated, or past their deadline. No user code runs.

One statement appends the terminal event, takes the run's tasks and timers away, and writes what others are told: the
parent of a child, and the children that have a close policy. Lock order: execution, workflow task, then the rows of a
closing run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.history.data import WorkflowExecutionTimedOut, WorkflowTerminated
from harvest.history.endings import child_failed, failure_of_end
from harvest.history.events import encode_data
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.store.appends import Appending
from harvest.store.audit import AuditEntry, audit_part, audit_values
from harvest.store.commit_relations import CLOSE_POLICY, SHARD_OF
from harvest.store.pool import Connection, Record
from harvest.store.store import Store


class End(Struct, frozen=True):
    """A run to end: the data of its terminal event, and the CHILD_CLOSED delivery of a child that reports."""

    execution_id: UUID
    payload: bytes
    report: bytes | None


class TimedOut(Struct, frozen=True):
    """A run that its deadline has ended, and the worker that held it."""

    execution_id: UUID
    partition: int
    holder: UUID | None
    workflow_name: str


class Ended(Struct, frozen=True):
    """A run that was ended, the worker that held it, and whether deliveries to others were written."""

    execution_id: UUID
    event_id: int
    partition: int
    holder: UUID | None
    told: bool


_KNOWN: Final = """execution_id, state, partition, deadline_at, parent_id, first_execution_id, awaited, workflow_name,
       workflow_id"""
_LOCK = f"select {_KNOWN} from harvest_executions where execution_id = $1 for no key update"
_LATE = f"""
select {_KNOWN} from harvest_executions
 where deadline_at <= statement_timestamp() and state < 10 and state <> 1 order by deadline_at limit 200"""
_LOOK = f"select {_KNOWN} from harvest_executions where execution_id = any($1) and state < 10"

# What is deleted is what the statement's snapshot shows: a run that moved between the snapshot and its lock may have
# tasks and children that are not in it, and is left for the next call.
_END = (
    f"""
with n as materialized (
    select * from unnest($1::uuid[], $2::bytea[], $3::bytea[]) as n(execution_id, payload, report)
),
seen as materialized (
    select execution_id, next_event_id from harvest_executions where execution_id = any($1)
),
known as materialized (
    select execution_id, next_event_id from harvest_executions
     where execution_id = any($1) and closed_at is null order by execution_id
       for no key update skip locked
),
closed as (
    update harvest_executions e
       set next_event_id = e.next_event_id + 1, state = $5, closed_at = clock_timestamp(), waiting = null,
           blocked = null
      from n join known k on k.execution_id = n.execution_id
             join seen s on s.execution_id = k.execution_id and s.next_event_id = k.next_event_id
     where e.execution_id = n.execution_id and e.execution_id = any(array(select execution_id from known))
 returning e.execution_id, e.next_event_id - 1 as event_id, e.partition, e.parent_id, n.payload, n.report
),
appended as (
    insert into harvest_events (execution_id, event_id, kind, payload)
    select execution_id, event_id, $4, payload from closed
),
task_gone as (
    delete from harvest_workflow_tasks where execution_id = any(array(select execution_id from closed))
 returning execution_id, worker
),
tasks_gone as (delete from harvest_activity_tasks where execution_id = any(array(select execution_id from closed))),
timers_gone as (delete from harvest_timers where execution_id = any(array(select execution_id from closed))),
orphans as (
    delete from harvest_children where parent_execution_id = any(array(select execution_id from closed))
 returning child_execution_id, parent_execution_id, seq, close_policy
),
told as (
    insert into harvest_deliveries (kind, source_execution_id, source_seq, target_execution_id, target_shard, payload)
    select 2, c.execution_id, 0, c.parent_id, {SHARD_OF.format("c.parent_id")}, c.report
      from closed c where c.report is not null
     union all
    select 4, o.parent_execution_id, o.seq, o.child_execution_id, {SHARD_OF.format("o.child_execution_id")},
           {CLOSE_POLICY.format("o")}
      from orphans o where o.close_policy > 0
 returning source_execution_id
)""",
    """
select c.execution_id, c.event_id, c.partition, t.worker,
       c.execution_id = any(array(select source_execution_id from told)) as told
  from closed c left join task_gone t on t.execution_id = c.execution_id""",
)
_END_MANY = "".join(_END)
_END_AUDITED = f",\n{audit_part(6, 'closed')}".join(_END)


async def close(
    store: Store, execution_id: UUID, kind: EventKind, payload: bytes, state: State, audit: AuditEntry
) -> Appending:
    """End an open run at once: its terminal event, and away with its tasks and timers. No user code runs."""
    async with store.write.connection(writes=True) as connection, connection.transaction():
        return await close_on(connection, execution_id, kind, payload, state, audit)


async def close_on(
    connection: Connection, execution_id: UUID, kind: EventKind, payload: bytes, state: State, audit: AuditEntry
) -> Appending:
    """As `close`, in the caller's transaction. The lock comes first: what is deleted is seen when it is held."""
    known = await connection.fetchrow(_LOCK, execution_id)
    if known is None:
        return Appending(state=None, written=False)
    before = State(known["state"])
    if not before.is_open:
        return Appending(state=before, written=False, partition=known["partition"])
    values = _values([_end(known, payload, state)], kind, state)
    (row,) = await connection.fetch(_END_AUDITED, *values, *audit_values(audit))
    return Appending(
        state=before,
        written=True,
        # Whoever hears of it looks for what was written to others, too.
        woken=row["worker"] is not None or row["told"],
        holder=row["worker"],
        event_id=row["event_id"],
        partition=row["partition"],
    )


async def terminate_many(connection: Connection, execution_ids: Sequence[UUID], reason: str) -> list[Ended]:
    """Terminate those runs that are open and not locked at this moment, in one statement."""
    payload = encode_data(WorkflowTerminated(reason=reason))
    rows = await connection.fetch(_LOOK, list(execution_ids))
    ends = [_end(row, payload, State.TERMINATED) for row in rows]
    return await _end_many(connection, ends, EventKind.WORKFLOW_TERMINATED, State.TERMINATED)


async def close_overdue(store: Store) -> list[TimedOut]:
    """End runs past their deadline as TIMED_OUT."""
    async with store.scan.connection(writes=True) as connection:
        late = await connection.fetch(_LATE)
        ends = [
            _end(row, encode_data(WorkflowExecutionTimedOut(deadline=row["deadline_at"])), State.TIMED_OUT)
            for row in late
        ]
        ended = await _end_many(connection, ends, EventKind.WORKFLOW_EXECUTION_TIMED_OUT, State.TIMED_OUT)
    names = {row["execution_id"]: row["workflow_name"] for row in late}
    return [TimedOut(each.execution_id, each.partition, each.holder, names[each.execution_id]) for each in ended]


async def _end_many(connection: Connection, ends: list[End], kind: EventKind, state: State) -> list[Ended]:
    if not ends:
        return []
    rows = await connection.fetch(_END_MANY, *_values(ends, kind, state))
    return [
        Ended(row["execution_id"], row["event_id"], row["partition"], row["worker"], bool(row["told"])) for row in rows
    ]


def _end(known: Record, payload: bytes, state: State) -> End:
    """How a run ends, with what its parent is told if it is a child that reports."""
    report = None
    if known["awaited"] is not None and known["parent_id"] is not None:
        reason = msgspec.json.decode(payload, type=WorkflowTerminated).reason if state is State.TERMINATED else ""
        failure = failure_of_end(state, known["workflow_name"], known["workflow_id"], reason)
        report = child_failed(str(known["first_execution_id"] or known["execution_id"]), state, failure)
    return End(known["execution_id"], payload, report)


def _values(ends: list[End], kind: EventKind, state: State) -> list[Any]:
    return [
        [end.execution_id for end in ends],
        [end.payload for end in ends],
        [end.report for end in ends],
        int(kind),
        int(state),
    ]
