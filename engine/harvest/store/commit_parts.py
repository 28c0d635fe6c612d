"""The statement of a commit, put together from parts: only what a batch needs is in it (design 4).

Each combination is prepared once a connection. The parts of runs that have to do with other runs are those of
`commit_relations`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from harvest.store import commit_relations as relations
from harvest.store import commit_sessions as sessions


class Needs(NamedTuple):
    """Which parts a batch needs beside the decisions and their events, in the order of their parameters."""

    merges: bool = False
    activities: bool = False
    timers: bool = False
    cancels: bool = False
    closes: bool = False
    children: bool = False
    deliveries: bool = False
    details: bool = False
    successors: bool = False
    cascades: bool = False
    sessions: bool = False
    session_ends: bool = False
    pins: bool = False


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
       and (t.owner_epoch is null
            or t.owner_generation = (select w.generation from harvest_workers w where w.worker = $9)
            or exists (
               select from harvest_partitions p
                where p.partition = t.partition and p.owner = $9 and p.epoch = t.owner_epoch))
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
       schedule_to_close_at, timeout_at, started_at{pin_columns})
    select n.execution_id, n.seq, n.eager, case n.eager when 1 then $9 end, n.eager, n.scheduled_event_id, n.queue,
           n.name, n.priority, n.start_to_close, n.heartbeat,
           clock_timestamp() + n.schedule_to_close * interval '1 second',
           clock_timestamp() + n.timeout_after * interval '1 second',
           case n.eager when 1 then clock_timestamp() end{pin_values}
      from unnest({0}::uuid[], {1}::int[], {2}::smallint[], {3}::int[], {4}::text[], {5}::text[], {6}::smallint[],
                  {7}::float8[], {8}::float8[], {9}::float8[], {10}::float8[])
        as n(execution_id, seq, eager, scheduled_event_id, queue, name, priority, start_to_close, heartbeat,
             schedule_to_close, timeout_after)
      join written w on w.execution_id = n.execution_id and w.state < 10{pinned}
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
       and x.execution_id = any(array(select execution_id from written where state >= 10)){unless_detailed}
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
_ANSWER = """
select execution_id, clock_timestamp() as now from written"""
_FIRST: Final = 16
_WIDTHS: Final = (3, 11, 3, 2, 3, *relations.WIDTHS, sessions.SESSIONS, sessions.ENDS, sessions.PINS)
_statements: dict[Needs, str] = {}


def statement(needs: Needs) -> str:
    """The SQL of a batch with these needs. The parameters of a part follow those of the parts before it."""
    if needs not in _statements:
        _statements[needs] = _assembled(needs)
    return _statements[needs]


def _assembled(needs: Needs) -> str:
    names = _parameters(needs)
    locked, written = [], [_WRITTEN]
    if needs.merges:
        locked.append(_MERGED)
        written.append(_MERGED_GONE)
    if needs.activities:
        written.append(_scheduled(names))
    if needs.timers:
        written.append(_TIMERS.format(*names.timers))
    if needs.cancels:
        locked.append(_CANCELLING.format(*names.cancels))
        written.append(_CANCELLED.format(*names.cancels))
    if needs.closes:
        locked.append(_CLOSING.format(unless_merged=_UNLESS_MERGED if needs.merges else ""))
        unless_detailed = f"\n       and n.execution_id <> all({names.details[0]})" if needs.details else ""
        written.append(_CLOSED.format(*names.closes, unless_detailed=unless_detailed))
    if needs.sessions:
        written.append(sessions.OPENED.format(*names.sessions))
    if needs.session_ends:
        written.append(sessions.ENDED.format(*names.session_ends))
    related = relations.Names(*names[5:10], closes=names.closes)
    return "".join([_DECIDED, *locked, _passed(needs), *written, *relations.parts(related), _ANSWER])


def _scheduled(names: _Parameters) -> str:
    """Activity tasks; few batches have one that belongs to a session."""
    has_pins = bool(names.pins)
    return _SCHEDULED.format(
        *names.activities,
        pin_columns=sessions.PIN_COLUMNS if has_pins else "",
        pin_values=sessions.PIN_VALUES if has_pins else "",
        pinned=sessions.PINNED.format(*names.pins) if has_pins else "",
    )


def _passed(needs: Needs) -> str:
    conditions = [
        (needs.merges, "d.merged = coalesce(m.found, 0)"),
        (needs.cancels, "d.execution_id <> all(array(select execution_id from cancelling_blocked))"),
        (needs.closes, "d.execution_id <> all(array(select execution_id from closing_blocked))"),
    ]
    return _PASSED.format(
        joins=_ALL_MERGED if needs.merges else "",
        conditions="".join(f"\n       and {condition}" for needed, condition in conditions if needed),
    )


class _Parameters(NamedTuple):
    """The names of each part's parameters; none where the part is not needed."""

    merges: list[str]
    activities: list[str]
    timers: list[str]
    cancels: list[str]
    closes: list[str]
    children: list[str]
    deliveries: list[str]
    details: list[str]
    successors: list[str]
    cascades: list[str]
    sessions: list[str]
    session_ends: list[str]
    pins: list[str]


def _parameters(needs: Needs) -> _Parameters:
    names, number = [], _FIRST
    for needed, width in zip(needs, _WIDTHS, strict=True):
        taken = width if needed else 0
        names.append([f"${number + n}" for n in range(taken)])
        number += taken
    return _Parameters(*names)
