"""Workers: their lease on each shard, what they have registered, and what becomes of one that is lost (design 5)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec import Struct

from harvest.history.limits import STRIKES
from harvest.store.pool import Connection
from harvest.store.store import Store

LEASE_SECONDS = 10.0
RENEW_SECONDS = 3.0


class WorkerRow(Struct, frozen=True):
    """How a process introduces itself to a shard."""

    worker: UUID
    name: str
    host: str
    pid: int
    build: str
    queues: tuple[str, ...]
    slots: int


class DefinitionRow(Struct, frozen=True):
    """A workflow or activity that a worker has the code for."""

    kind: str
    name: str
    version: int
    build: str
    input_schema: bytes
    output_schema: bytes
    signals: bytes
    description: str


_REGISTER = f"""
insert into harvest_workers (worker, name, host, pid, build, queues, slots, lease_until)
values ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + interval '{LEASE_SECONDS} seconds')"""

_RENEW = f"""
with renewed as (
    update harvest_workers
       set lease_until = clock_timestamp() + interval '{LEASE_SECONDS} seconds', seen_at = clock_timestamp(), counters = $2
     where worker = $1 and status <> 'stopped'
 returning worker
)
select (select watched_until > clock_timestamp() from harvest_meta) as watched from renewed"""

_DEFINITIONS = """
insert into harvest_definitions
  (kind, name, version, build, worker, input_schema, output_schema, signals, description, seen_at)
select n.*, clock_timestamp() from (
    select kind, name, version, build, $9::uuid as worker, input_schema, output_schema, signals, description
      from unnest($1::text[], $2::text[], $3::int[], $4::text[], $5::bytea[], $6::bytea[], $7::bytea[], $8::text[])
        as n(kind, name, version, build, input_schema, output_schema, signals, description)
     order by kind, name, version, build
) n
    on conflict (kind, name, version, build) do update
       set worker = excluded.worker, input_schema = excluded.input_schema, output_schema = excluded.output_schema,
           signals = excluded.signals, description = excluded.description, seen_at = excluded.seen_at"""

# A build that did not put these runs aside tries them once more.
_ANOTHER_BUILD = """
update harvest_workflow_tasks t set strikes = 0, due = clock_timestamp()
  from harvest_executions e
 where e.execution_id = t.execution_id and e.blocked is not null and e.state < 10 and t.state = 0
   and t.queue = any($2) and (t.strikes < 3 or e.build <> $1)
   and t.execution_id in (
       select execution_id from harvest_workflow_tasks where state = 0 and (strikes >= 3 or due > clock_timestamp()) limit 10000)"""

_STOP = """
with stopped as (
    update harvest_workers set status = 'stopped', lease_until = clock_timestamp() where worker = $1 returning worker
),
workflows as (
    update harvest_workflow_tasks
       set state = 0, worker = null, sticky_worker = null, sticky_until = null, due = clock_timestamp(),
           sort_at = clock_timestamp()
     where worker = $1
),
activities as (
    update harvest_activity_tasks
       set state = 0, worker = null, started_at = null, timeout_at = schedule_to_close_at, due = clock_timestamp(),
           sort_at = clock_timestamp()
     where worker = $1
)
update harvest_workflow_tasks set sticky_worker = null, sticky_until = null
 where state = 0 and sticky_worker = $1"""

_DRAIN = "update harvest_workers set status = 'draining' where worker = $1 and status = 'active'"

# Marks expired workers and frees what they held, with a strike each. The worker row is locked first, so that a renewal
# and this never both win; rows that are locked elsewhere are left to the next look.
_LOST = f"""
with lost as materialized (
    select worker, build from harvest_workers
     where lease_until < clock_timestamp() and status <> 'stopped'
     order by worker limit 10
       for update skip locked
),
marked as (
    update harvest_workers w set status = 'stopped' from lost l where w.worker = l.worker
),
held as materialized (
    select t.execution_id, l.build from harvest_workflow_tasks t join lost l on l.worker = t.worker
     where t.worker = any(array(select worker from lost))
     order by t.execution_id
       for update of t
),
freed as (
    update harvest_workflow_tasks t
       set state = 0, worker = null, sticky_worker = null, sticky_until = null, due = clock_timestamp(),
           sort_at = clock_timestamp(), strikes = t.strikes + 1
     where t.execution_id = any(array(select execution_id from held))
 returning t.execution_id, t.strikes
),
quarantined as (
    update harvest_executions e set blocked = 'quarantined', build = h.build
      from freed f join held h on h.execution_id = f.execution_id
     where e.execution_id = f.execution_id and f.strikes >= {STRIKES} and e.state < 10
 returning e.execution_id
),
reasons as (
    update harvest_execution_details x
       set blocked = convert_to(json_build_object(
           'code', 'quarantined',
           'message', 'A step of this run ended its worker {STRIKES} times. It is not tried again until another build starts.',
           'since', to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'count', {STRIKES}, 'next_try_at', null)::text, 'UTF8')
     where x.execution_id = any(array(select execution_id from quarantined))
),
running as materialized (
    select a.execution_id, a.seq from harvest_activity_tasks a
     where a.worker = any(array(select worker from lost))
     order by a.execution_id, a.seq
       for update
),
released as (
    update harvest_activity_tasks a
       set state = 0, worker = null, started_at = null, due = clock_timestamp(), sort_at = clock_timestamp(),
           timeout_at = a.schedule_to_close_at, strikes = a.strikes + 1
      from running r
     where a.execution_id = r.execution_id and a.seq = r.seq
 returning a.execution_id, a.seq, a.attempt, a.strikes
)
select l.worker, null::uuid as execution_id, null::int as seq, null::int as attempt from lost l
 union all
select null, execution_id, seq, attempt from released where strikes >= {STRIKES}"""


class Lost(Struct, frozen=True):
    """Workers found dead, and activities that were running on a dying worker for the third time."""

    workers: list[UUID]
    struck_out: list[tuple[UUID, int, int]]


async def register(store: Store, row: WorkerRow) -> None:
    """Introduce a worker; its lease begins."""
    await store.scan.write(
        _REGISTER, row.worker, row.name, row.host, row.pid, row.build, list(row.queues), row.slots
    )


async def register_definitions(store: Store, worker: UUID, rows: Sequence[DefinitionRow]) -> None:
    """Publish what this worker has the code for (answers 8)."""
    await store.scan.write(
        _DEFINITIONS,
        [row.kind for row in rows],
        [row.name for row in rows],
        [row.version for row in rows],
        [row.build for row in rows],
        [row.input_schema for row in rows],
        [row.output_schema for row in rows],
        [row.signals for row in rows],
        [row.description for row in rows],
        worker,
    )


async def retry_blocked(store: Store, build: str, queues: Sequence[str]) -> None:
    """A worker has started: blocked runs are tried at once, quarantined ones if its build is another."""
    await store.scan.write(_ANOTHER_BUILD, build, list(queues))


async def renew(connection: Connection, worker: UUID, counters: bytes) -> bool | None:
    """Renew the lease; None when the worker was marked lost. Else whether a console watches this shard."""
    row = await connection.fetchrow(_RENEW, worker, counters)
    return None if row is None else bool(row["watched"])


async def drain(store: Store, worker: UUID) -> None:
    """Say that this worker takes no new work; wakes no longer pin to it."""
    await store.scan.write(_DRAIN, worker)


async def stop(store: Store, worker: UUID) -> None:
    """A graceful end: the lease ends, everything held is free, no strikes."""
    await store.scan.write(_STOP, worker)


async def free_lost(store: Store) -> Lost:
    """Free what expired workers held; each task gets a strike (answers 15)."""
    rows = await store.scan.write(_LOST)
    return Lost(
        workers=[row["worker"] for row in rows if row["worker"] is not None],
        struck_out=[
            (row["execution_id"], row["seq"], row["attempt"]) for row in rows if row["execution_id"] is not None
        ],
    )
