"""The commit of decisions: one statement for a batch, against the exact history each of them saw (design 4).

Each step is one CTE fed by the one before: the fence rows, the execution rows at the expected `next_event_id`, the
activity tasks whose results are merged; then what passed is written. A table is reached by `key = any(array)`, and
nothing here waits for a lock: `SKIP LOCKED` leaves a row out, and its decision comes back as busy. What is checked
beside the key is written `is not distinct from`, which no index serves: before the first ANALYZE the planner would else
walk all the rows of a worker or of a state.

Lock order: workflow task, execution, activity tasks, timers. As it waits for none of them, this statement is
never part of a deadlock, in whatever order others lock.
"""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

from harvest.history.states import FIRST_CLOSED
from harvest.store.pool import Connection
from harvest.store.store import Store

HELD, PARKED, NEWS = 1, 2, 3


class Answer(IntEnum):
    """What became of one decision."""

    PASSED = 0
    MOVED = 1
    BUSY = 2
    FENCED = 3


Row = tuple[Any, ...]


class Batch:
    """The rows of one commit, filled decision by decision."""

    def __init__(self) -> None:
        self.bytes = 0
        self.rows = 0
        self.decisions: list[Row] = []
        self.events: list[Row] = []
        self.merges: list[Row] = []
        self.activities: list[Row] = []
        self.timers: list[Row] = []
        self.cancels: list[Row] = []
        self.closes: list[Row] = []

    @property
    def optional(self) -> tuple[list[Row], ...]:
        """The rows of the parts that a statement has only when it needs them, in their order."""
        return self.merges, self.activities, self.timers, self.cancels, self.closes

    def decision(
        self,
        execution_id: UUID,
        *,
        attempt: int,
        expected: int,
        next_event_id: int,
        state: int,
        task_state: int,
        merged: int,
        waiting: str | None,
    ) -> None:
        """One execution: its fence, the history it saw, and where it goes."""
        self.decisions.append((execution_id, attempt, expected, next_event_id, state, task_state, merged, waiting))

    def event(
        self, execution_id: UUID, event_id: int, kind: int, seq: int, at: datetime | None, payload: bytes
    ) -> None:
        """One event; `at` is given where the loop has already consumed it (design 3)."""
        self.events.append((execution_id, event_id, kind, seq, at, payload))
        self.bytes += len(payload)
        self.rows += 1

    def merge(self, execution_id: UUID, seq: int, attempt: int) -> None:
        """An activity whose result this decision brings along."""
        self.merges.append((execution_id, seq, attempt))

    def activity(
        self,
        execution_id: UUID,
        seq: int,
        *,
        eager: bool,
        scheduled_event_id: int,
        queue: str,
        name: str,
        priority: int,
        start_to_close: float | None,
        heartbeat: float | None,
        schedule_to_close: float | None,
        timeout_after: float | None,
    ) -> None:
        """A new activity task, already claimed when `eager`. Times in seconds from the commit."""
        self.activities.append(
            (
                execution_id,
                seq,
                1 if eager else 0,
                scheduled_event_id,
                queue,
                name,
                priority,
                start_to_close,
                heartbeat,
                schedule_to_close,
                timeout_after,
            )
        )
        self.rows += 1

    def timer(self, execution_id: UUID, seq: int, fires_at: datetime) -> None:
        """A new durable timer."""
        self.timers.append((execution_id, seq, fires_at))
        self.rows += 1

    def cancel(self, execution_id: UUID, seq: int) -> None:
        """A timer or activity that the workflow no longer waits for."""
        self.cancels.append((execution_id, seq))

    def close(self, execution_id: UUID, result: bytes | None, failure: bytes | None) -> None:
        """The run ends; what people read of it."""
        self.closes.append((execution_id, result, failure))
        self.bytes += len(result or b"") + len(failure or b"")


_DECIDED = """
with d as materialized (
    select *
      from unnest($1::uuid[], $2::int[], $3::int[], $4::int[], $5::smallint[], $6::smallint[], $7::int[], $8::text[])
      as d(execution_id, attempt, expected, next_event_id, state, task_state, merged, waiting)
),
held as materialized (
    select t.execution_id, t.attempt
      from harvest_workflow_tasks t
     where t.execution_id = any($1) and t.worker is not distinct from $9 and t.state in (1, 3)
       and exists (select from harvest_workers w where w.worker = $9 and w.lease_until > clock_timestamp())
       for no key update of t skip locked
),
fenced as materialized (
    select h.execution_id from held h join d on d.execution_id = h.execution_id and d.attempt = h.attempt
),
current as materialized (
    select e.execution_id, e.next_event_id
      from harvest_executions e
     where e.execution_id = any(array(select execution_id from fenced)) and e.state is not distinct from 0
       for no key update of e skip locked
),
ready as materialized (
    select c.execution_id from current c
      join d on d.execution_id = c.execution_id and d.expected = c.next_event_id
)"""
# A run of many activities leaves as many dead entries in the index until it is vacuumed: what is merged now is at their
# end, and without bounds each decision would walk over all of them.
_MERGED_SEQS: Final = (
    "(select min(seq) from unnest($17::int[]) as seq) and (select max(seq) from unnest($17::int[]) as seq)"
)
_MERGED = f""",
mine as materialized (
    select a.execution_id, a.seq
      from harvest_activity_tasks a
      join unnest($16::uuid[], $17::int[], $18::int[]) as m(execution_id, seq, attempt)
        on m.execution_id = a.execution_id and m.seq = a.seq and m.attempt = a.attempt
     where a.execution_id = any(array(select execution_id from ready))
       and a.seq between {_MERGED_SEQS}
       and a.worker is not distinct from $9 and a.state = 1
       for update of a skip locked
)"""
# What a decision cancels is decided by the state that the locked row has: a retry may have come since the snapshot.
_CANCELLING = """,
dropped_tasks as materialized (
    select a.execution_id, a.seq, a.state
      from harvest_activity_tasks a
      join unnest({0}::uuid[], {1}::int[]) as c(execution_id, seq)
        on c.execution_id = a.execution_id and c.seq = a.seq
     where a.execution_id = any({0}) and a.execution_id = any(array(select execution_id from ready))
       for update of a skip locked
),
dropped_timers as materialized (
    select t.execution_id, t.seq
      from harvest_timers t
      join unnest({0}::uuid[], {1}::int[]) as c(execution_id, seq)
        on c.execution_id = t.execution_id and c.seq = t.seq
     where t.execution_id = any({0}) and t.execution_id = any(array(select execution_id from ready))
       for update of t skip locked
),
cancelling_blocked as materialized (
    select execution_id from (
        select r.execution_id, 1 as n
          from (select execution_id, seq from harvest_activity_tasks where execution_id = any({0})
                 union all
                select execution_id, seq from harvest_timers where execution_id = any({0})) r
          join unnest({0}::uuid[], {1}::int[]) as c(execution_id, seq)
            on c.execution_id = r.execution_id and c.seq = r.seq
         union all
        select execution_id, -1 from dropped_tasks
         union all
        select execution_id, -1 from dropped_timers
    ) x group by execution_id having sum(n) <> 0
)"""
# What is left of a closing run beside what it merges: mostly nothing, and then nothing more is read.
_CLOSING = """,
closing as materialized (
    select d.execution_id from d join ready r on r.execution_id = d.execution_id where d.state >= 10
),
closing_tasks as materialized (
    select a.execution_id, a.seq from harvest_activity_tasks a
     where a.execution_id = any(array(select execution_id from closing)){unless_merged}
),
closing_timers as materialized (
    select execution_id from harvest_timers where execution_id = any(array(select execution_id from closing))
),
locked_tasks as materialized (
    select a.execution_id
      from harvest_activity_tasks a
      join closing_tasks c on c.execution_id = a.execution_id and c.seq = a.seq
     where a.execution_id = any(array(select execution_id from closing_tasks))
       for update of a skip locked
),
locked_timers as materialized (
    select execution_id from harvest_timers where execution_id = any(array(select execution_id from closing_timers))
       for update skip locked
),
closing_blocked as materialized (
    select execution_id from (
        select execution_id, 1 as n from closing_tasks
         union all
        select execution_id, 1 from closing_timers
         union all
        select execution_id, -1 from locked_tasks
         union all
        select execution_id, -1 from locked_timers
    ) x group by execution_id having sum(n) <> 0
)"""
_UNLESS_MERGED = """
       and not exists (select from mine m where m.execution_id = a.execution_id and m.seq = a.seq)"""
_PASSED = """,
passed as materialized (
    select d.* from d join ready r on r.execution_id = d.execution_id{joins}
     where true{conditions}
)"""
_ALL_MERGED = """
      left join (select execution_id, count(*) as found from mine group by execution_id) m
        on m.execution_id = d.execution_id"""
_WRITTEN = """,
written as (
    update harvest_executions e
       set next_event_id = p.next_event_id, decided_through = p.next_event_id - 1, state = p.state,
           waiting = p.waiting, blocked = null,
           closed_at = case when p.state >= 10 then clock_timestamp() end
      from passed p
     where e.execution_id = p.execution_id and e.execution_id = any(array(select execution_id from passed))
 returning e.execution_id, e.state, p.attempt
),
new_events as (
    insert into harvest_events (execution_id, event_id, kind, seq, written_by, at, payload)
    select n.execution_id, n.event_id, n.kind, n.seq, w.attempt, coalesce(n.at, clock_timestamp()), n.payload
      from unnest($10::uuid[], $11::int[], $12::smallint[], $13::int[], $14::timestamptz[], $15::bytea[])
        as n(execution_id, event_id, kind, seq, at, payload)
      join written w on w.execution_id = n.execution_id
),
task as (
    update harvest_workflow_tasks t
       set state = p.task_state, worker = case when p.task_state = 2 then null else t.worker end,
           sticky_worker = $9, strikes = 0
      from passed p
     where t.execution_id = p.execution_id and p.state < 10 and (t.state <> p.task_state or t.strikes > 0)
       and t.execution_id = any(array(select execution_id from written where state < 10))
)"""
_MERGED_GONE = f""",
merged_gone as (
    delete from harvest_activity_tasks a using mine m
     where a.execution_id = any(array(select execution_id from written))
       and a.seq between {_MERGED_SEQS}
       and a.execution_id = m.execution_id and a.seq = m.seq
)"""
_SCHEDULED = """,
new_activities as (
    insert into harvest_activity_tasks
      (execution_id, seq, state, worker, attempt, scheduled_event_id, queue, name, priority, start_to_close, heartbeat,
       schedule_to_close_at, timeout_at, started_at)
    select n.execution_id, n.seq, n.eager, case n.eager when 1 then $9 end, n.eager, n.scheduled_event_id, n.queue,
           n.name, n.priority, n.start_to_close, n.heartbeat,
           clock_timestamp() + n.schedule_to_close * interval '1 second',
           clock_timestamp() + n.timeout_after * interval '1 second',
           case n.eager when 1 then clock_timestamp() end
      from unnest({0}::uuid[], {1}::int[], {2}::smallint[], {3}::int[], {4}::text[], {5}::text[], {6}::smallint[],
                  {7}::float8[], {8}::float8[], {9}::float8[], {10}::float8[])
        as n(execution_id, seq, eager, scheduled_event_id, queue, name, priority, start_to_close, heartbeat,
             schedule_to_close, timeout_after)
      join written w on w.execution_id = n.execution_id and w.state < 10
)"""
_TIMERS = """,
new_timers as (
    insert into harvest_timers (execution_id, seq, fires_at)
    select n.execution_id, n.seq, n.fires_at
      from unnest({0}::uuid[], {1}::int[], {2}::timestamptz[]) as n(execution_id, seq, fires_at)
      join written w on w.execution_id = n.execution_id and w.state < 10
)"""
_CANCELLED = """,
timers_gone as (
    delete from harvest_timers t using dropped_timers c
     where t.execution_id = any(array(select execution_id from written where state < 10))
       and t.execution_id = c.execution_id and t.seq = c.seq
),
activities_gone as (
    delete from harvest_activity_tasks a using dropped_tasks c
     where a.execution_id = any(array(select execution_id from written where state < 10))
       and a.execution_id = c.execution_id and a.seq = c.seq and c.state = 0
),
activities_asked as (
    update harvest_activity_tasks a set cancel_requested = true from dropped_tasks c
     where a.execution_id = any(array(select execution_id from written where state < 10))
       and a.execution_id = c.execution_id and a.seq = c.seq and c.state = 1
)"""
_CLOSED = """,
closed as (
    update harvest_execution_details x set result = n.result, failure = n.failure
      from unnest({0}::uuid[], {1}::bytea[], {2}::bytea[]) as n(execution_id, result, failure)
     where x.execution_id = n.execution_id
       and x.execution_id = any(array(select execution_id from written where state >= 10))
),
task_gone as (
    delete from harvest_workflow_tasks
     where execution_id = any(array(select execution_id from written where state >= 10))
),
tasks_gone as (
    delete from harvest_activity_tasks
     where execution_id = any(array(
         select c.execution_id from closing_tasks c join written w on w.execution_id = c.execution_id))
),
all_timers_gone as (
    delete from harvest_timers
     where execution_id = any(array(
         select c.execution_id from closing_timers c join written w on w.execution_id = c.execution_id))
)"""
_OPTIONAL: Final = ((_SCHEDULED, 11), (_TIMERS, 3), (_CANCELLED, 2), (_CLOSED, 3))
_NO_EVENTS: Final[tuple[tuple[()], ...]] = ((), (), (), (), (), ())
_ANSWER = """
select execution_id, clock_timestamp() as now from written"""
_WHY = """
select t.execution_id, e.state, e.next_event_id,
       t.worker = $2 and t.attempt = d.attempt and t.state in (1, 3) and exists (
           select from harvest_workers w where w.worker = $2 and w.lease_until > clock_timestamp()) as is_held
  from unnest($1::uuid[], $3::int[]) as d(execution_id, attempt)
  left join harvest_workflow_tasks t on t.execution_id = d.execution_id and t.execution_id = any($1)
  left join harvest_executions e on e.execution_id = d.execution_id and e.execution_id = any($1)"""
_OVER = """
select m.execution_id from unnest($1::uuid[], $2::int[], $3::int[]) as m(execution_id, seq, attempt)
  left join harvest_activity_tasks a
    on a.execution_id = m.execution_id and a.seq = m.seq and a.attempt = m.attempt and a.worker = $4 and a.state = 1
   and a.execution_id = any($1)
 where a.execution_id is null"""
_statements: dict[tuple[bool, ...], str] = {}


def statement(needs: tuple[bool, ...]) -> str:
    """The SQL of a batch that merges, schedules, sets timers, cancels, closes; only what is needed is in it.

    Each combination is prepared once a connection. The parameters of a part follow those of the parts before it.
    """
    if needs in _statements:
        return _statements[needs]
    merges, _, _, cancels, closes = needs
    number = 19 if merges else 16
    written = [_WRITTEN, _MERGED_GONE] if merges else [_WRITTEN]
    locked = [_MERGED] if merges else []
    for needed, (part, width) in zip(needs[1:], _OPTIONAL, strict=True):
        if needed:
            names = [f"${number + i}" for i in range(width)]
            written.append(part.format(*names))
            if part is _CANCELLED:
                locked.append(_CANCELLING.format(*names))
            number += width
    if closes:
        locked.append(_CLOSING.format(unless_merged=_UNLESS_MERGED if merges else ""))
    conditions = [
        (merges, "d.merged = coalesce(m.found, 0)"),
        (cancels, "d.execution_id <> all(array(select execution_id from cancelling_blocked))"),
        (closes, "d.execution_id <> all(array(select execution_id from closing_blocked))"),
    ]
    passed = _PASSED.format(
        joins=_ALL_MERGED if merges else "",
        conditions="".join(f"\n       and {condition}" for needed, condition in conditions if needed),
    )
    _statements[needs] = "".join([_DECIDED, *locked, passed, *written, _ANSWER])
    return _statements[needs]


def parameters(worker: UUID, batch: Batch) -> list[Any]:
    """The values of a batch's statement, column by column."""
    events = zip(*batch.events, strict=True) if batch.events else _NO_EVENTS
    values = [*zip(*batch.decisions, strict=True), worker, *events]
    for rows in batch.optional:
        if rows:
            values.extend(zip(*rows, strict=True))
    return values


async def commit(store: Store, connection: Connection, worker: UUID, batch: Batch) -> dict[UUID, Answer]:
    """Commit a batch on `connection` and say what became of each decision."""
    needs = tuple(bool(rows) for rows in batch.optional)
    rows = await connection.fetch(statement(needs), *parameters(worker, batch))
    if rows:
        store.clock.observe(rows[0]["now"])
    answers = {row["execution_id"]: Answer.PASSED for row in rows}
    if len(answers) < len(batch.decisions):
        await _explain(connection, worker, batch, answers)
    return answers


async def _explain(connection: Connection, worker: UUID, batch: Batch, answers: dict[UUID, Answer]) -> None:
    """Tell moved, busy and fenced apart for what did not pass. A guess is safe: each is tried again or dropped."""
    left = [decision for decision in batch.decisions if decision[0] not in answers]
    ids = [decision[0] for decision in left]
    attempts = [decision[1] for decision in left]
    expected = {decision[0]: decision[2] for decision in left}
    for execution_id in ids:
        answers[execution_id] = Answer.FENCED
    for row in await connection.fetch(_WHY, ids, worker, attempts):
        if row["execution_id"] is None or not row["is_held"] or row["state"] is None:
            continue
        if row["state"] >= FIRST_CLOSED:
            continue
        moved = row["next_event_id"] != expected[row["execution_id"]]
        answers[row["execution_id"]] = Answer.MOVED if moved else Answer.BUSY
    merges = [merge for merge in batch.merges if answers[merge[0]] is Answer.BUSY]
    if merges:
        # A retry is no event: an attempt may be over although the history has not moved.
        for row in await connection.fetch(_OVER, *zip(*merges, strict=True), worker):
            answers[row["execution_id"]] = Answer.MOVED
