"""Durable timers: firing what is due by the database's clock. Lock order: timers, execution, workflow task."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.store.store import Store
from harvest.store.wakes import WAKE_TASKS

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
 returning e.execution_id, e.partition, e.workflow_name, n.added
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
select a.execution_id, a.partition, a.workflow_name, a.added, w.holder
  from advanced a left join woken w on w.execution_id = a.execution_id"""
)
_NEXT_TIMER = "select min(fires_at) as at from harvest_timers"


class Fired(Struct, frozen=True):
    """A run of which so many timers have fired, and the worker to wake."""

    execution_id: UUID
    partition: int
    holder: UUID | None
    workflow_name: str
    timers: int


async def fire_timers(store: Store) -> list[Fired]:
    """Append TimerFired for what is due by the database's clock."""
    rows = await store.scan.write(_TIMERS, int(EventKind.TIMER_FIRED))
    return [
        Fired(row["execution_id"], row["partition"], row["holder"], row["workflow_name"], row["added"]) for row in rows
    ]


async def next_timer(store: Store) -> datetime | None:
    """When the next timer is due."""
    row = await store.scan.fetch_row(_NEXT_TIMER)
    return row["at"] if row else None
