"""Blocking, activity timeouts, heartbeats, and rows that nobody needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from harvest.store import processes, progress, requests
from harvest.store.store import Store

_BLOCK = """
with open as materialized (
    select execution_id from harvest_executions where execution_id = $1 and closed_at is null for no key update
),
held as materialized (
    select execution_id from harvest_workflow_tasks
     where execution_id = any(array(select execution_id from open))
       and worker = $2 and attempt = $3 and state in (1, 3)
       for no key update
),
run as (
    update harvest_executions set blocked = $4
     where execution_id = any(array(select execution_id from held))
 returning execution_id
),
reason as (
    update harvest_execution_details
       set blocked = convert_to(json_build_object(
           'code', $4::text, 'message', $5::text,
           'since', coalesce(
               case when convert_from(blocked, 'UTF8')::json ->> 'code' = $4 and $6::int > 1
                    then convert_from(blocked, 'UTF8')::json ->> 'since' end,
               to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')),
           'count', $6::int,
           'next_try_at', to_char((clock_timestamp() + $7::float8 * interval '1 second') at time zone 'UTC',
                                  'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))::text, 'UTF8')
     where execution_id = any(array(select execution_id from run))
)
update harvest_workflow_tasks
   set state = 0, worker = null, sticky_worker = null, sticky_until = null,
       due = clock_timestamp() + $7::float8 * interval '1 second',
       sort_at = clock_timestamp() + $7::float8 * interval '1 second'
 where execution_id = any(array(select execution_id from run))
returning execution_id"""

_OVERDUE = """
select a.execution_id, a.seq, a.attempt, a.worker, a.state, a.strikes, a.heartbeat, a.started_at,
       a.schedule_to_close_at <= clock_timestamp() as closed_over,
       a.started_at + a.start_to_close * interval '1 second' <= clock_timestamp() as started_over,
       h.at as beat_at, h.at + a.heartbeat * interval '1 second' <= clock_timestamp() as beat_over,
       s.payload as scheduled, a.last_failure, a.name
  from harvest_activity_tasks a
  join harvest_events s on s.execution_id = a.execution_id and s.event_id = a.scheduled_event_id
  left join harvest_heartbeats h
    on h.execution_id = a.execution_id and h.seq = a.seq and h.attempt = a.attempt and a.state = 1
 where a.timeout_at <= statement_timestamp()
 order by a.timeout_at limit 200"""

_POSTPONE = """
update harvest_activity_tasks a
   set timeout_at = least(
       a.schedule_to_close_at, a.started_at + a.start_to_close * interval '1 second',
       h.at + a.heartbeat * interval '1 second')
  from harvest_heartbeats h
 where a.execution_id = $1 and a.seq = $2 and a.attempt = $3 and a.state = 1
   and h.execution_id = a.execution_id and h.seq = a.seq and h.attempt = a.attempt"""

_BEAT = """
with b as materialized (
    select * from unnest($1::uuid[], $2::int[], $3::int[], $4::bytea[]) as b(execution_id, seq, attempt, details)
     order by execution_id, seq
),
written as (
    insert into harvest_heartbeats (execution_id, seq, attempt, details)
    select execution_id, seq, attempt, details from b
        on conflict (execution_id, seq) do update
       set attempt = excluded.attempt, at = clock_timestamp(), details = excluded.details
     where harvest_heartbeats.attempt <= excluded.attempt
)
select 1"""

_ASKED = """
select b.execution_id, b.seq, b.attempt, a.execution_id is null as gone
  from unnest($1::uuid[], $2::int[], $3::int[]) as b(execution_id, seq, attempt)
  left join harvest_activity_tasks a
    on a.execution_id = b.execution_id and a.seq = b.seq and a.attempt = b.attempt and a.worker = $4
 where a.cancel_requested is not false"""

_SWEEP = (
    """delete from harvest_heartbeats where ctid = any(array(
         select h.ctid from harvest_heartbeats h
          where h.at < clock_timestamp() - interval '1 minute' and not exists (
              select from harvest_activity_tasks a where a.execution_id = h.execution_id and a.seq = h.seq)
          limit 1000))""",
    """delete from harvest_workers where ctid = any(array(
         select ctid from harvest_workers
          where status = 'stopped' and seen_at < clock_timestamp() - interval '1 day'
          order by worker limit 1000
            for update skip locked))""",
    """delete from harvest_dedupe where ctid = any(array(
         select ctid from harvest_dedupe where kind = 1 and created_at < clock_timestamp() - interval '25 hours'
          limit 1000))""",
    """delete from harvest_partition_journal where id = any(array(
         select id from harvest_partition_journal where at < clock_timestamp() - interval '30 days'
          order by at limit 1000))""",
    """delete from harvest_signin_links where expires_at < clock_timestamp() - interval '1 day'""",
    """delete from harvest_console_sessions where expires_at < clock_timestamp() - interval '1 day'""",
    requests.SWEEP,
    progress.SWEEP,
    processes.SWEEP,
)


class Overdue(Struct, frozen=True):
    """An activity task whose timeout has come; which of the four follows from the flags."""

    execution_id: UUID
    seq: int
    attempt: int
    worker: UUID | None
    running: bool
    strikes: int
    heartbeat: float | None
    closed_over: bool
    started_over: bool
    beat_at: datetime | None
    beat_over: bool
    scheduled: bytes
    last_failure: bytes | None
    name: str

    @property
    def is_alive(self) -> bool:
        """Whether only its heartbeat was due, and one has come since."""
        over = self.closed_over or self.started_over or self.beat_over
        return self.running and not over and self.beat_at is not None


async def block(
    store: Store, execution_id: UUID, worker: UUID, attempt: int, *, code: str, message: str, count: int, delay: float
) -> bool:
    """Put a run aside with its reason, to be tried again after `delay` seconds. False when the fence is lost."""
    text = message.encode("utf-8", "replace").decode().replace("\x00", "\\0")
    rows = await store.scan.write(_BLOCK, execution_id, worker, attempt, code, text, count, delay)
    return bool(rows)


async def overdue_activities(store: Store) -> list[Overdue]:
    """Activity tasks whose timeout has come, earliest first."""
    return [
        Overdue(
            execution_id=row["execution_id"],
            seq=row["seq"],
            attempt=row["attempt"],
            worker=row["worker"],
            running=row["state"] == 1,
            strikes=row["strikes"],
            heartbeat=row["heartbeat"],
            closed_over=bool(row["closed_over"]),
            started_over=bool(row["started_over"]),
            beat_at=row["beat_at"],
            beat_over=bool(row["beat_over"]),
            scheduled=row["scheduled"],
            last_failure=row["last_failure"],
            name=row["name"],
        )
        for row in await store.scan.fetch(_OVERDUE)
    ]


async def postpone(store: Store, execution_id: UUID, seq: int, attempt: int) -> None:
    """The attempt has shown that it is alive: its timeout counts from its last heartbeat."""
    await store.scan.write(_POSTPONE, execution_id, seq, attempt)


async def beat(store: Store, beats: Sequence[tuple[UUID, int, int, bytes]]) -> None:
    """Write the heartbeats of a process in one statement: (execution, seq, attempt, details)."""
    await store.scan.write(_BEAT, *(list(column) for column in zip(*beats, strict=True)))


async def asked_to_stop(
    store: Store, worker: UUID, running: Sequence[tuple[UUID, int, int]]
) -> list[tuple[UUID, int, int, bool]]:
    """Which running attempts (execution, seq, attempt) nobody waits for any more, and whether their task is gone."""
    rows = await store.scan.fetch(_ASKED, *(list(column) for column in zip(*running, strict=True)), worker)
    return [(row["execution_id"], row["seq"], row["attempt"], row["gone"]) for row in rows]


async def sweep(store: Store) -> None:
    """Delete what nobody needs any more, a bounded number of rows each."""
    for statement in _SWEEP:
        await store.scan.write(statement)
