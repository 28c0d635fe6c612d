"""Worker sessions: who runs the activities of each, and what becomes of one whose worker has gone (decision 0010).

A row is there from the commit that asks for a session until the session has ended and nothing of it is left to run.
Nothing here waits for a lock: what is locked elsewhere is left to the next look. Lock order: sessions, executions,
workflow tasks, activity tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID, uuid5

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.store.store import Store
from harvest.store.wakes import WAKE_TASKS

BROKEN_TYPE: Final = "SessionBroken"
MOST: Final = 200
_LIVES: Final = """exists (
           select from harvest_workers w
            where w.worker = s.worker and w.status <> 'stopped' and w.lease_until > clock_timestamp())"""

_LOOK = """
select count(*) as known,
       count(*) filter (where status = 'open' and worker = $1) as mine,
       count(*) filter (where status = 'pending' and queue = any($2) and expires_at > clock_timestamp()) as pending
  from harvest_worker_sessions"""

# The rows that an event is to be appended for are `free`; to be formatted with the sessions that may be.
_LOCKED = """
with wanted as materialized ({wanted}
),
open as materialized (
    select e.execution_id, e.next_event_id, e.partition from harvest_executions e
     where e.execution_id = any(array(select execution_id from wanted)) and e.closed_at is null
       for no key update of e skip locked
),
tasks as materialized (
    select t.execution_id from harvest_workflow_tasks t
     where t.execution_id = any(array(select execution_id from open))
       for no key update of t skip locked
)"""
_APPENDED = (
    """,
numbered as materialized (
    select i.*, o.next_event_id + row_number() over (partition by i.execution_id order by i.session, i.step, i.seq) - 1
           as event_id
      from items i join open o on o.execution_id = i.execution_id
),
advanced as (
    update harvest_executions e set next_event_id = e.next_event_id + n.added
      from (select execution_id, count(*)::int as added from numbered group by execution_id) n
     where e.execution_id = n.execution_id
 returning e.execution_id
),
appended as (
    insert into harvest_events (execution_id, event_id, kind, seq, written_by, payload)
    select n.execution_id, n.event_id, n.kind, n.seq, n.attempt, convert_to(n.payload, 'UTF8')
      from numbered n join advanced a on a.execution_id = n.execution_id
),
woken as ("""
    + WAKE_TASKS.format(condition="t.execution_id = any(array(select execution_id from advanced))")
    + """
)"""
)
_TAKE = (
    _LOCKED.format(
        wanted="""
    select s.session_id, s.execution_id, s.seq
      from harvest_worker_sessions s
     where s.status = 'pending' and s.queue = any($2) and s.expires_at > clock_timestamp()
       and exists (select from harvest_workers w
                    where w.worker = $1 and w.status = 'active' and w.lease_until > clock_timestamp())
     order by s.created_at
     limit $3
       for update of s skip locked"""
    )
    + f""",
free as materialized (
    select w.* from wanted w join tasks t on t.execution_id = w.execution_id
),
items as (
    select execution_id, seq, seq as session, 0 as step, {int(EventKind.SESSION_OPENED)} as kind, 0 as attempt,
           '{{"worker":' || to_json($4::text) || ',"worker_name":' || to_json($5::text) || '}}' as payload
      from free
)"""
    + _APPENDED
    + """,
opened as (
    update harvest_worker_sessions s
       set status = 'open', worker = $1, opened_at = clock_timestamp(),
           expires_at = coalesce(clock_timestamp() + s.execution_timeout * interval '1 second', 'infinity')
     where s.session_id = any(array(select session_id from free))
)
select f.session_id, o.partition, w.holder
  from free f join open o on o.execution_id = f.execution_id join woken w on w.execution_id = f.execution_id"""
)

# A session that was closed while something of it still ran is no news for its run, but what ran ends.
_BREAK = (
    _LOCKED.format(
        wanted=f"""
    select s.session_id, s.execution_id, s.seq, s.status,
           case when s.status = 'pending' then 'creation_timeout'
                when s.expires_at <= clock_timestamp() then 'execution_timeout' else 'worker_lost' end as reason,
           coalesce(w.name, '') as worker_name
      from harvest_worker_sessions s left join harvest_workers w on w.worker = s.worker
     where (s.status in ('pending', 'open') and s.expires_at <= clock_timestamp())
        or (s.status in ('open', 'closed') and not {_LIVES})
     order by s.session_id
     limit {MOST}
       for update of s skip locked"""
    )
    + f""",
theirs as materialized (
    select a.execution_id, a.seq, w.session_id
      from harvest_activity_tasks a join wanted w on w.execution_id = a.execution_id and w.session_id = a.session_id
     where a.execution_id = any(array(select execution_id from tasks))
),
running as materialized (
    select a.execution_id, a.seq, a.attempt, a.session_id
      from harvest_activity_tasks a join theirs t on t.execution_id = a.execution_id and t.seq = a.seq
     where a.execution_id = any(array(select execution_id from theirs))
       for update of a skip locked
),
blocked as (
    select session_id from (
        select session_id, 1 as n from theirs
         union all
        select session_id, -1 from running
    ) x group by session_id having sum(n) <> 0
),
free as materialized (
    select w.* from wanted w join tasks t on t.execution_id = w.execution_id
     where w.session_id <> all(array(select session_id from blocked))
),
items as (
    select execution_id, seq, seq as session, 0 as step, {int(EventKind.SESSION_BROKEN)} as kind, 0 as attempt,
           '{{"reason":' || to_json(reason) || ',"worker_name":' || to_json(worker_name) || '}}' as payload
      from free where status <> 'closed'
     union all
    select r.execution_id, r.seq, f.seq, 1, {int(EventKind.ACTIVITY_FAILED)}, r.attempt,
           '{{"failure":{{"type":"{BROKEN_TYPE}","message":"its session is broken: ' || replace(f.reason, '_', ' ')
           || '","non_retryable":true}},"attempt":' || greatest(1, r.attempt) || '}}'
      from running r join free f on f.session_id = r.session_id
)"""
    + _APPENDED
    + """,
stopped as (
    delete from harvest_activity_tasks a using running r
     where a.execution_id = any(array(select execution_id from free))
       and a.execution_id = r.execution_id and a.seq = r.seq
       and r.session_id = any(array(select session_id from free))
),
gone as (
    delete from harvest_worker_sessions where session_id = any(array(select session_id from free))
)
select f.session_id, f.status, o.partition, w.execution_id is not null as woken, w.holder
  from free f join open o on o.execution_id = f.execution_id left join woken w on w.execution_id = f.execution_id"""
)
# Single rows are looked up by `limit 1`, else a whole table may be hashed (decision 0007).
_SWEEP = f"""
with over as materialized (
    select s.session_id from harvest_worker_sessions s
     where (select true from harvest_executions e
             where e.execution_id = s.execution_id and e.closed_at is null limit 1) is null
        or (s.status = 'closed' and (
               select true from harvest_activity_tasks a
                where a.execution_id = s.execution_id and a.session_id = s.session_id limit 1) is null)
     order by s.session_id
     limit {MOST}
       for update of s skip locked
)
delete from harvest_worker_sessions where session_id = any(array(select session_id from over))"""


class Look(Struct, frozen=True):
    """What one look at a shard's sessions showed: all there are, those open on this worker, those that it may take."""

    known: int
    mine: int
    pending: int


class Told(Struct, frozen=True):
    """A run that an event of a session was appended to: its partition, and whom to wake (None: anybody)."""

    session_id: UUID
    partition: int
    holder: UUID | None


def session_id(execution_id: UUID, seq: int) -> UUID:
    """The id of the session that command `seq` of a run asks for."""
    return uuid5(execution_id, f"session:{seq}")


async def look(store: Store, worker: UUID, queues: Sequence[str]) -> Look:
    """Count the sessions of a shard."""
    row: Any = (await store.scan.fetch(_LOOK, worker, list(queues)))[0]
    return Look(known=row["known"], mine=row["mine"], pending=row["pending"])


async def take(store: Store, worker: UUID, worker_name: str, queues: Sequence[str], most: int) -> list[Told]:
    """Open up to `most` of the sessions that wait for a worker of these queues, the oldest first."""
    rows = await store.scan.write(_TAKE, worker, list(queues), most, worker.hex, worker_name)
    return [Told(row["session_id"], row["partition"], row["holder"]) for row in rows]


async def break_lost(store: Store) -> list[Told]:
    """Break what has no worker any more or has run out of time, and end what of it still runs; at most 200."""
    rows = await store.scan.write(_BREAK)
    return [Told(row["session_id"], row["partition"], row["holder"]) for row in rows if row["woken"]]


async def sweep(store: Store) -> None:
    """Remove what has ended, with its run or by itself, once nothing of it runs."""
    await store.scan.write(_SWEEP)
