"""Taking activity tasks, each with its ActivityStarted event (design 5, answers 4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.store.marks import Marks
from harvest.store.pausing import PUT_OFF
from harvest.store.picking import PICK, PICK_OF_SESSIONS, PICK_SUSPECT, columns, note
from harvest.store.pool import Record
from harvest.store.store import Store


class ClaimedActivity(Struct, frozen=True):
    """An activity attempt that this worker now runs; `scheduled` is the payload of its ActivityScheduled event.

    `due` is since when it could be taken, where it was taken from `queue` by this very call.
    """

    execution_id: UUID
    seq: int
    attempt: int
    workflow_name: str
    workflow_id: str
    partition: int
    scheduled: bytes
    last_details: bytes | None
    strikes: int
    queue: str = ""
    due: datetime | None = None


_ACTIVITIES = {
    "columns": "t.execution_id, t.seq, t.due",
    "table": "harvest_activity_tasks",
    "ahead": "1 second",
    "gate": "t.name = any({names}::text[]) and (t.session_worker is null or t.session_worker = $2)",
}

# An attempt of a paused run that failed meanwhile is found once, and put off until the resume.
_TAKE_ACTIVITIES = """
with picked as materialized ({pick}
),
open as materialized (
    select e.execution_id, e.next_event_id, e.workflow_name, e.workflow_id, e.partition
      from harvest_executions e
     where e.execution_id = any(array(select execution_id from picked)) and e.state is not distinct from 0
       and exists (select from harvest_workers w where w.worker = $2 and w.lease_until > clock_timestamp())
       for no key update of e skip locked
),
paused as materialized (
    select e.execution_id from harvest_executions e
     where e.execution_id = any(array(
               select execution_id from picked where execution_id <> all(array(select execution_id from open))))
       and e.state is not distinct from 1
       for no key update of e skip locked
),
put_off as (
    update harvest_activity_tasks a
       set due = a.due + {put_off}, sort_at = a.sort_at + {put_off}, timeout_at = a.timeout_at + {put_off},
           schedule_to_close_at = a.schedule_to_close_at + {put_off}
      from picked p
     where a.execution_id = any(array(select execution_id from paused))
       and a.execution_id = p.execution_id and a.seq = p.seq
),
numbered as materialized (
    select p.execution_id, p.seq, o.next_event_id, o.workflow_name, o.workflow_id, o.partition,
           row_number() over (partition by p.execution_id order by p.seq) as nth
      from picked p join open o on o.execution_id = p.execution_id
),
advanced as (
    update harvest_executions e set next_event_id = e.next_event_id + n.added
      from (select execution_id, count(*)::int as added from numbered group by execution_id) n
     where e.execution_id = n.execution_id
 returning e.execution_id
),
taken as (
    update harvest_activity_tasks a
       set state = 1, worker = $2, attempt = a.attempt + 1, started_at = clock_timestamp(),
           timeout_at = least(
               a.schedule_to_close_at,
               clock_timestamp() + least(a.start_to_close, a.heartbeat) * interval '1 second'
           )
      from numbered n
     where a.execution_id = n.execution_id and a.seq = n.seq
 returning a.execution_id, a.seq, a.attempt, a.scheduled_event_id, a.last_failure, a.strikes, n.workflow_name,
           n.workflow_id, n.partition, n.next_event_id + n.nth - 1 as event_id
),
started as (
    insert into harvest_events (execution_id, event_id, kind, seq, payload)
    select t.execution_id, t.event_id, {kind}, t.seq,
           convert_to(
               '{{"attempt":' || t.attempt || ',"worker":' || to_json({worker}::text)
               || coalesce(',"last_failure":' || convert_from(t.last_failure, 'UTF8'), '') || '}}', 'UTF8')
      from taken t
      join advanced x on x.execution_id = t.execution_id
)
select now() as asked_at, p.queue, p.priority, p.sort_at, p.due, t.execution_id, t.seq, t.attempt, t.strikes,
       t.workflow_name, t.workflow_id, t.partition, s.payload as scheduled, h.details as last_details
  from (select) always
  left join picked p on true
  left join taken t on t.execution_id = p.execution_id and t.seq = p.seq
  left join lateral (
    select * from harvest_events s where s.execution_id = t.execution_id and s.event_id = t.scheduled_event_id limit 1
  ) s on true
  left join lateral (
    select * from harvest_heartbeats h where h.execution_id = t.execution_id and h.seq = t.seq limit 1
  ) h on true
 order by p.priority desc, p.sort_at"""


def _take_activities(pick: str, first: int) -> str:
    """The statement; its parameters from `first` on are the names, the kind of ActivityStarted, the worker's name."""
    names, kind, worker = (f"${first + i}" for i in range(3))
    pick = pick.format(**_ACTIVITIES | {"gate": _ACTIVITIES["gate"].format(names=names)})
    return _TAKE_ACTIVITIES.format(pick=pick, kind=kind, worker=worker, put_off=PUT_OFF)


CLAIM_ACTIVITIES = _take_activities(PICK, 9)
CLAIM_SUSPECT_ACTIVITY = _take_activities(PICK_SUSPECT, 4)
CLAIM_OF_SESSIONS = _take_activities(PICK_OF_SESSIONS, 4)

_HELD_ACTIVITIES = """
select a.execution_id, a.seq, a.attempt, a.strikes, e.workflow_name, e.workflow_id, e.partition,
       s.payload as scheduled, h.details as last_details
  from harvest_activity_tasks a
 cross join lateral (select * from harvest_executions e where e.execution_id = a.execution_id limit 1) e
 cross join lateral (
    select * from harvest_events s where s.execution_id = a.execution_id and s.event_id = a.scheduled_event_id limit 1
  ) s
  left join lateral (
    select * from harvest_heartbeats h where h.execution_id = a.execution_id and h.seq = a.seq limit 1
  ) h on true
 where a.worker = $1 and a.state = 1"""


async def claim_activities(
    store: Store,
    worker: UUID,
    worker_name: str,
    queues: Sequence[str],
    names: Sequence[str],
    most: int,
    marks: Marks | None = None,
    *,
    suspects: bool = False,
    of_sessions: bool = False,
) -> list[ClaimedActivity]:
    """Take up to `most` due activity tasks a queue and record ActivityStarted for each, in one statement.

    `marks` and `suspects` are as for `claim`, but for the handicap: activities have none. `of_sessions`: those of the
    sessions that are open on this worker, and no others.
    """
    marks = marks or Marks()
    where = [] if suspects or of_sessions else columns(marks.seeks(queues))
    statement = CLAIM_SUSPECT_ACTIVITY if suspects else CLAIM_OF_SESSIONS if of_sessions else CLAIM_ACTIVITIES
    rows = await store.claim.write(
        statement, list(queues), worker, most, *where, list(names), int(EventKind.ACTIVITY_STARTED), worker_name
    )
    if where:
        note(marks, queues, most, rows)
    return [_activity(row) for row in rows if row["execution_id"] is not None]


async def held_activities(store: Store, worker: UUID) -> list[ClaimedActivity]:
    """The activity tasks that this worker holds by the database's account. Reads the whole table."""
    return [_activity(row) for row in await store.scan.fetch(_HELD_ACTIVITIES, worker)]


def _activity(row: Record) -> ClaimedActivity:
    return ClaimedActivity(
        execution_id=row["execution_id"],
        seq=row["seq"],
        attempt=row["attempt"],
        workflow_name=row["workflow_name"],
        workflow_id=row["workflow_id"],
        partition=row["partition"],
        scheduled=row["scheduled"],
        last_details=row["last_details"],
        strikes=row["strikes"],
        queue=row.get("queue") or "",
        due=row.get("due"),
    )
