"""Holding a run and letting it go on: nothing of a paused run is claimed, decided or timed out.

What waits to be claimed is put off by so long that no claim and no timeout finds it, and is put back by the resume.
Lock order: execution, workflow task, activity tasks.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.store.audit import AuditEntry, audit_part, audit_values
from harvest.store.store import Store

PUT_OFF: Final = "interval '1000 years'"
# What is due later than this was put off.
_LONG_AWAY: Final = "clock_timestamp() + interval '500 years'"


class Paused(Struct, frozen=True):
    """What became of a pause or a resume.

    `state` is that of the run now, None where there is none. `at` is when the pause began that holds the run, or that
    ended with this resume, `event` its WorkflowExecutionPaused as it is encoded; `seconds` is how long a pause lasted
    that ended. `holder` is the worker to wake.
    """

    state: State | None
    written: bool
    at: datetime | None = None
    event: bytes | None = None
    seconds: float = 0.0
    holder: UUID | None = None
    partition: int = 0


# By itself first: the statement that follows sees every row that was written before the lock was given.
_LOCK: Final = "select state, partition from harvest_executions where execution_id = $1 for no key update"

_PAUSE: Final = f"""
with paused as (
    update harvest_executions set next_event_id = next_event_id + 1, state = {State.PAUSED}
     where execution_id = $1 and state = {State.RUNNING}
 returning execution_id, next_event_id - 1 as event_id
),
appended as (
    insert into harvest_events (execution_id, event_id, kind, payload)
    select execution_id, event_id, {EventKind.WORKFLOW_EXECUTION_PAUSED}, $2 from paused
 returning at, payload
),
held as materialized (
    select execution_id, worker from harvest_workflow_tasks
     where execution_id = any(array(select execution_id from paused))
       for no key update
),
task as (
    update harvest_workflow_tasks set state = 4, worker = null, sticky_until = null
     where execution_id = any(array(select execution_id from held))
),
activities as (
    update harvest_activity_tasks
       set due = due + {PUT_OFF}, sort_at = sort_at + {PUT_OFF}, timeout_at = timeout_at + {PUT_OFF},
           schedule_to_close_at = schedule_to_close_at + {PUT_OFF}
     where execution_id = any(array(select execution_id from paused)) and state = 0 and due < {_LONG_AWAY}
),
{audit_part(3, "paused")}
select a.at, a.payload as event, (select worker from held) as holder, 0.0::float8 as seconds from appended a"""

_RESUME: Final = f"""
with pause as materialized (
    select v.at, v.payload from harvest_events v
     where v.execution_id = $1 and v.kind = {EventKind.WORKFLOW_EXECUTION_PAUSED}
     order by v.event_id desc limit 1
),
resumed as (
    update harvest_executions
       set next_event_id = next_event_id + 1, state = {State.RUNNING},
           deadline_at = deadline_at + (clock_timestamp() - (select at from pause))
     where execution_id = $1 and state = {State.PAUSED}
 returning execution_id, next_event_id - 1 as event_id
),
appended as (
    insert into harvest_events (execution_id, event_id, kind, payload)
    select execution_id, event_id, {EventKind.WORKFLOW_EXECUTION_RESUMED}, $2 from resumed
 returning at
),
task as (
    update harvest_workflow_tasks t
       set state = 0, due = greatest(t.due, clock_timestamp()), sort_at = greatest(t.due, clock_timestamp()),
           sticky_until = case when exists (
               select from harvest_workers w
                where w.worker = t.sticky_worker and w.status = 'active' and w.lease_until > clock_timestamp()
           ) then clock_timestamp() + interval '5 seconds' end
     where t.execution_id = any(array(select execution_id from resumed)) and t.state = 4
 returning case when t.sticky_until > clock_timestamp() then t.sticky_worker end as holder
),
activities as (
    update harvest_activity_tasks
       set due = greatest(due - {PUT_OFF}, clock_timestamp()),
           sort_at = greatest(sort_at - {PUT_OFF}, clock_timestamp()),
           timeout_at = timeout_at - {PUT_OFF} + (clock_timestamp() - (select at from pause)),
           schedule_to_close_at =
               schedule_to_close_at - {PUT_OFF} + (clock_timestamp() - (select at from pause))
     where execution_id = any(array(select execution_id from resumed)) and state = 0 and due > {_LONG_AWAY}
),
{audit_part(3, "resumed")}
select p.at, p.payload as event, (select holder from task) as holder,
       extract(epoch from a.at - p.at)::float8 as seconds
  from appended a cross join pause p"""

_LAST_PAUSE: Final = f"""
select v.at, v.payload as event from harvest_events v
 where v.execution_id = $1 and v.kind = {EventKind.WORKFLOW_EXECUTION_PAUSED}
 order by v.event_id desc limit 1"""


async def pause(store: Store, execution_id: UUID, payload: bytes, audit: AuditEntry) -> Paused:
    """Hold a running run; `payload` is the encoded WorkflowExecutionPaused. A run that is held stays as it is."""
    return await _change(store, execution_id, _PAUSE, State.PAUSED, payload, audit)


async def resume(store: Store, execution_id: UUID, payload: bytes, audit: AuditEntry) -> Paused:
    """Let a paused run go on; `payload` is the encoded WorkflowExecutionResumed. One that runs stays as it is."""
    return await _change(store, execution_id, _RESUME, State.RUNNING, payload, audit)


async def _change(
    store: Store, execution_id: UUID, statement: str, then: State, payload: bytes, audit: AuditEntry
) -> Paused:
    async with store.write.connection(writes=True) as connection, connection.transaction():
        known = await connection.fetchrow(_LOCK, execution_id)
        if known is None:
            return Paused(state=None, written=False)
        row = await connection.fetchrow(statement, execution_id, payload, *audit_values(audit))
        if row is not None:
            return Paused(
                state=then,
                written=True,
                at=row["at"],
                event=row["event"],
                seconds=row["seconds"],
                holder=row["holder"],
                partition=known["partition"],
            )
        state = State(known["state"])
        before = await connection.fetchrow(_LAST_PAUSE, execution_id) if state is State.PAUSED else None
        if before is None:
            return Paused(state=state, written=False)
        return Paused(state=state, written=False, at=before["at"], event=before["event"])
