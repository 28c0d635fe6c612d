"""What became of activities, appended outside a decision: results, retries, and results that a decision bet on."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec import Struct

from harvest.store.store import Store
from harvest.store.wakes import WAKE_TASKS


class ActivityEnd(Struct, frozen=True):
    """The end of one activity: the event to append if the task is still at this attempt.

    `worker` is who must hold the task; None where the scanner ends a task nobody holds any more.
    """

    execution_id: UUID
    seq: int
    attempt: int
    worker: UUID | None
    kind: int
    payload: bytes


class LocalEnd(Struct, frozen=True):
    """The end of a local activity: the event to append while this worker holds the run at `attempt` of its task."""

    execution_id: UUID
    attempt: int
    seq: int
    kind: int
    payload: bytes


class ActivityRetry(Struct, frozen=True):
    """A failed attempt that will be tried again after `delay` seconds."""

    execution_id: UUID
    seq: int
    attempt: int
    worker: UUID | None
    delay: float
    failure: bytes | None
    strike: bool = False


class Appended(Struct, frozen=True):
    """Which ends were appended, by (execution, seq), and the holders to wake (None: anybody)."""

    done: set[tuple[UUID, int]]
    woken: dict[UUID, UUID | None]


_END = (
    """
with r as materialized (
    select * from unnest($1::uuid[], $2::int[], $3::int[], $4::uuid[], $5::smallint[], $6::bytea[])
      with ordinality as r(execution_id, seq, attempt, worker, kind, payload, nth)
),
mine as materialized (
    select r.*
      from r join harvest_activity_tasks a on a.execution_id = r.execution_id and a.seq = r.seq
     where a.execution_id = any($1) and a.attempt = r.attempt and a.worker is not distinct from r.worker
       for update of a skip locked
),
open as materialized (
    select e.execution_id, e.next_event_id from harvest_executions e
     where e.execution_id = any(array(select execution_id from mine)) and e.closed_at is null
       for no key update of e skip locked
),
tasks as materialized (
    select t.execution_id from harvest_workflow_tasks t
     where t.execution_id = any(array(select execution_id from open))
       for no key update of t skip locked
),
numbered as materialized (
    select m.*, o.next_event_id + row_number() over (partition by m.execution_id order by m.nth) - 1 as event_id
      from mine m
      join open o on o.execution_id = m.execution_id
      join tasks t on t.execution_id = m.execution_id
),
advanced as (
    update harvest_executions e set next_event_id = e.next_event_id + n.added
      from (select execution_id, count(*)::int as added from numbered group by execution_id) n
     where e.execution_id = n.execution_id
 returning e.execution_id
),
appended as (
    insert into harvest_events (execution_id, event_id, kind, seq, written_by, payload)
    select n.execution_id, n.event_id, n.kind, n.seq, n.attempt, n.payload
      from numbered n join advanced a on a.execution_id = n.execution_id
),
gone as (
    delete from harvest_activity_tasks a using numbered n
     where a.execution_id = any($1) and a.execution_id = n.execution_id and a.seq = n.seq
),
woken as ("""
    + WAKE_TASKS.format(condition="t.execution_id = any(array(select execution_id from advanced))")
    + """
)
select n.execution_id, n.seq, w.holder from numbered n left join woken w on w.execution_id = n.execution_id"""
)

_END_LOCAL = """
with r as materialized (
    select * from unnest($1::uuid[], $2::int[], $3::int[], $4::smallint[], $5::bytea[])
      with ordinality as r(execution_id, attempt, seq, kind, payload, nth)
),
held as materialized (
    select t.execution_id, t.attempt from harvest_workflow_tasks t
     where t.execution_id = any($1) and t.worker is not distinct from $6 and t.state in (1, 3)
       for no key update of t skip locked
),
open as materialized (
    select e.execution_id, e.next_event_id from harvest_executions e
     where e.execution_id = any(array(select execution_id from held)) and e.closed_at is null
       for no key update of e skip locked
),
numbered as materialized (
    select r.*, o.next_event_id + row_number() over (partition by r.execution_id order by r.nth) - 1 as event_id
      from r
      join held h on h.execution_id = r.execution_id and h.attempt = r.attempt
      join open o on o.execution_id = r.execution_id
),
advanced as (
    update harvest_executions e set next_event_id = e.next_event_id + n.added
      from (select execution_id, count(*)::int as added from numbered group by execution_id) n
     where e.execution_id = any($1) and e.execution_id = n.execution_id
)
insert into harvest_events (execution_id, event_id, kind, seq, payload)
select execution_id, event_id, kind, seq, payload from numbered"""

_RETRY = """
with r as materialized (
    select * from unnest($1::uuid[], $2::int[], $3::int[], $4::uuid[], $5::float8[], $6::bytea[], $7::smallint[])
      as r(execution_id, seq, attempt, worker, delay, failure, strike)
),
mine as materialized (
    select a.execution_id, a.seq, r.delay, r.failure, r.strike
      from r join harvest_activity_tasks a on a.execution_id = r.execution_id and a.seq = r.seq
     where a.execution_id = any($1) and a.attempt = r.attempt and a.worker is not distinct from r.worker
       for update of a skip locked
)
update harvest_activity_tasks a
   set state = 0, worker = null, started_at = null, timeout_at = a.schedule_to_close_at,
       due = clock_timestamp() + m.delay * interval '1 second',
       sort_at = clock_timestamp() + m.delay * interval '1 second',
       last_failure = coalesce(m.failure, a.last_failure), strikes = a.strikes + m.strike
  from mine m
 where a.execution_id = any($1) and a.execution_id = m.execution_id and a.seq = m.seq
returning a.execution_id, a.seq, a.due"""

_STILL = """
select a.execution_id, a.seq
  from unnest($1::uuid[], $2::int[], $3::int[], $4::uuid[]) as r(execution_id, seq, attempt, worker)
  join harvest_activity_tasks a
    on a.execution_id = r.execution_id and a.seq = r.seq and a.attempt = r.attempt
   and a.worker is not distinct from r.worker
  join harvest_executions e on e.execution_id = a.execution_id and e.closed_at is null"""


async def end_activities(store: Store, ends: Sequence[ActivityEnd]) -> Appended:
    """Append the ends whose task is still at its attempt, delete the tasks, wake the runs. All or nothing for each."""
    rows = await store.scan.write(
        _END,
        [end.execution_id for end in ends],
        [end.seq for end in ends],
        [end.attempt for end in ends],
        [end.worker for end in ends],
        [end.kind for end in ends],
        [end.payload for end in ends],
    )
    return Appended(
        done={(row["execution_id"], row["seq"]) for row in rows},
        woken={row["execution_id"]: row["holder"] for row in rows},
    )


async def end_locals(store: Store, worker: UUID, ends: Sequence[LocalEnd]) -> None:
    """Append the ends of local activities whose run this worker still holds. What is locked is left out: it runs again.

    An end that is appended twice, because an answer was lost, is ignored by replay.
    """
    await store.scan.write(
        _END_LOCAL,
        [end.execution_id for end in ends],
        [end.attempt for end in ends],
        [end.seq for end in ends],
        [end.kind for end in ends],
        [end.payload for end in ends],
        worker,
    )


async def retry_activities(store: Store, retries: Sequence[ActivityRetry]) -> set[tuple[UUID, int]]:
    """Put failed attempts back to pending with their delay; returns those that were still at their attempt."""
    rows = await store.scan.write(
        _RETRY,
        [retry.execution_id for retry in retries],
        [retry.seq for retry in retries],
        [retry.attempt for retry in retries],
        [retry.worker for retry in retries],
        [retry.delay for retry in retries],
        [retry.failure for retry in retries],
        [int(retry.strike) for retry in retries],
    )
    return {(row["execution_id"], row["seq"]) for row in rows}


async def still_at_attempt(store: Store, tasks: Sequence[ActivityEnd | ActivityRetry]) -> set[tuple[UUID, int]]:
    """Whose task is still at its attempt and holder, on an open run: the others are stale, these were only busy."""
    rows = await store.scan.fetch(
        _STILL,
        [task.execution_id for task in tasks],
        [task.seq for task in tasks],
        [task.attempt for task in tasks],
        [task.worker for task in tasks],
    )
    return {(row["execution_id"], row["seq"]) for row in rows}
