"""Workers: their lease on each shard, what they have registered, and what becomes of one that is lost (design 5)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from harvest import clock
from harvest.history.limits import STRIKES
from harvest.store.pool import Connection, Record
from harvest.store.store import Store

LEASE_SECONDS = 10.0
LOCKED_TRIES, LOCKED_PAUSE = 20, 0.05


class WorkerRow(Struct, frozen=True):
    """How a process introduces itself to a shard.

    `lease` is its length in seconds, `slots` those for activities. Workflow types are `name/version`; `config` is the
    JSON of its options. A wake pins a run that is parked on this worker for `sticky_ttl` seconds.
    """

    worker: UUID
    name: str
    host: str
    pid: int
    build: str
    queues: tuple[str, ...]
    slots: int
    lease: float = LEASE_SECONDS
    workflow_slots: int = 0
    workflow_types: tuple[str, ...] = ()
    activity_types: tuple[str, ...] = ()
    config: bytes | None = None
    sticky_ttl: float = 5.0


class Orders(Struct, frozen=True):
    """What people want of a worker. `drain_seconds` is how long is left until the deadline of a drain, if it has one.

    `evict_requested_at` tells one request to let go of parked runs from the next.
    """

    drains: bool = False
    drain_seconds: float | None = None
    evict_requested_at: datetime | None = None


class Renewal(Struct, frozen=True):
    """What the shard said with the renewal of a lease: whether a console watches it, and what people want."""

    watched: bool
    orders: Orders


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


_REGISTER = """
insert into harvest_workers
  (worker, name, host, pid, build, queues, slots, lease_until, workflow_slots, workflow_types, activity_types, config,
   sticky_ttl)
values ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + $8::float8 * interval '1 second', $9, $10, $11, $12, $13)"""

_ORDERS = """drain_requested_at is not null as drains,
       extract(epoch from drain_deadline_at - clock_timestamp())::float8 as drain_seconds, evict_requested_at"""
_RENEW = f"""
with renewed as (
    update harvest_workers
       set lease_until = clock_timestamp() + $3::float8 * interval '1 second', seen_at = clock_timestamp(),
           counters = $2
     where worker = $1 and status <> 'stopped' and (status = 'active' or lease_until > clock_timestamp())
 returning {_ORDERS}
)
select (select watched_until > clock_timestamp() from harvest_meta) as watched, renewed.* from renewed"""
_ASKED = f"select {_ORDERS} from harvest_workers where worker = $1"

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

# A build that did not put these runs aside tries them once more. Rows that are locked elsewhere are left to the next
# call: this one holds many, in no order.
_ANOTHER_BUILD = """
with waiting as materialized (
    select t.execution_id
      from harvest_workflow_tasks t join harvest_executions e on e.execution_id = t.execution_id
     where e.blocked is not null and e.closed_at is null and t.state = 0
       and t.queue = any($2) and (t.strikes < 3 or e.build <> $1) and (t.strikes > 0 or t.due > clock_timestamp())
       and t.execution_id in (
           select execution_id from harvest_workflow_tasks
            where state = 0 and (strikes >= 3 or due > clock_timestamp()) limit 10000)
),
free as materialized (
    select t.execution_id from harvest_workflow_tasks t
     where t.execution_id = any(array(select execution_id from waiting)) and t.state = 0
       for no key update skip locked
),
tried as (
    update harvest_workflow_tasks set strikes = 0, due = clock_timestamp()
     where execution_id = any(array(select execution_id from free))
)
select (select count(*) from waiting) - (select count(*) from free) as locked"""

# As above: what is locked elsewhere is left to the next call.
_STOP = """
with stopped as (
    update harvest_workers
       set status = 'stopped', lease_until = clock_timestamp(), report = coalesce($2, report)
     where worker = $1
),
held as materialized (
    select execution_id from harvest_workflow_tasks where worker = $1 for no key update skip locked
),
workflows as (
    update harvest_workflow_tasks
       set state = 0, worker = null, sticky_worker = null, sticky_until = null, due = clock_timestamp(),
           sort_at = clock_timestamp()
     where execution_id = any(array(select execution_id from held))
),
running as materialized (
    select execution_id, seq from harvest_activity_tasks where worker = $1 for no key update skip locked
),
activities as (
    update harvest_activity_tasks a
       set state = 0, worker = null, started_at = null, timeout_at = schedule_to_close_at, due = clock_timestamp(),
           sort_at = clock_timestamp()
      from running r
     where a.execution_id = any(array(select execution_id from running))
       and a.execution_id = r.execution_id and a.seq = r.seq
),
pinned as materialized (
    select execution_id from harvest_workflow_tasks
     where state = 0 and sticky_worker = $1
       for no key update skip locked
),
unpinned as (
    update harvest_workflow_tasks set sticky_worker = null, sticky_until = null
     where execution_id = any(array(select execution_id from pinned))
)
select (select count(*) from harvest_workflow_tasks where worker = $1) - (select count(*) from held)
     + (select count(*) from harvest_activity_tasks where worker = $1) - (select count(*) from running) as locked"""

# From then on no wake pins to it, so that what is parked needs nothing. The rows that are locked elsewhere are about to
# be claimed, or keep their pin for as long as it lasts.
_DRAIN = """
with draining as (
    update harvest_workers set status = 'draining' where worker = $1 and status = 'active'
),
pinned as materialized (
    select execution_id from harvest_workflow_tasks
     where state = 0 and sticky_worker = $1
       for no key update skip locked
)
update harvest_workflow_tasks set sticky_worker = null, sticky_until = null
 where execution_id = any(array(select execution_id from pinned))"""

_EXPIRED = "select worker from harvest_workers where lease_until < clock_timestamp() and status <> 'stopped' limit 1"

# Reads the task tables from end to end: an index over the holder would cost every decision, and this runs only when a
# worker is lost.
# Marks expired workers and frees what they held, with a strike each. Work that has two strikes is tried alone (claims):
# if the worker had some, the blame is its alone: a run's, else that of the activity which began last. The worker row is
# locked first, so that a renewal and this never both win. Nothing waits for another lock: a task that is locked
# elsewhere is left to the next look, and its worker stays `draining` until then, which no renewal brings back to life.
_LOST = f"""
with lost as materialized (
    select worker, build from harvest_workers
     where lease_until < clock_timestamp() and status <> 'stopped'
     order by worker limit 10
       for update skip locked
),
theirs as materialized (
    select t.execution_id, t.worker, l.build, t.strikes >= {STRIKES - 1} as last
      from harvest_workflow_tasks t join lost l on l.worker = t.worker
),
blamed as materialized (
    select worker, true as for_a_run, null::uuid as execution_id, null::int as seq from theirs where last
     union all
    (select distinct on (worker) worker, false, execution_id, seq from harvest_activity_tasks
      where worker = any(array(select worker from lost)) and strikes >= {STRIKES - 1}
      order by worker, started_at desc)
),
runs as materialized (
    select e.execution_id from harvest_executions e
     where e.execution_id = any(array(select execution_id from theirs where last)) and e.closed_at is null
       for no key update of e skip locked
),
held as materialized (
    select t.execution_id, t.worker
      from harvest_workflow_tasks t
     where t.execution_id = any(array(
               select execution_id from theirs
                where not last or execution_id = any(array(select execution_id from runs))))
       and t.worker = any(array(select worker from lost))
       for update of t skip locked
),
freed as (
    update harvest_workflow_tasks t
       set state = 0, worker = null, sticky_worker = null, sticky_until = null, due = clock_timestamp(),
           sort_at = clock_timestamp(),
           strikes = t.strikes + case
               when t.worker = any(array(select worker from blamed where for_a_run))
               then (t.strikes >= {STRIKES - 1})::int
               when t.worker = any(array(select worker from blamed)) then 0 else 1 end
     where t.execution_id = any(array(select execution_id from held))
 returning t.execution_id, t.strikes
),
quarantined as (
    update harvest_executions e set blocked = 'quarantined', build = h.build
      from freed f join theirs h on h.execution_id = f.execution_id
     where e.execution_id = f.execution_id and f.strikes >= {STRIKES}
       and e.execution_id = any(array(select execution_id from runs))
 returning e.execution_id
),
reasons as (
    update harvest_execution_details x
       set blocked = convert_to(json_build_object(
           'code', 'quarantined',
           'message', 'A step of this run ended its worker {STRIKES} times. '
                      'It is not tried again until another build starts.',
           'since', to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'count', {STRIKES}, 'next_try_at', null)::text, 'UTF8')
     where x.execution_id = any(array(select execution_id from quarantined))
),
running as materialized (
    select a.execution_id, a.seq, a.worker,
           a.strikes + case
               when a.worker = any(array(select worker from blamed where for_a_run)) then 0
               when a.worker = any(array(select worker from blamed)) then exists (
                   select from blamed b where b.execution_id = a.execution_id and b.seq = a.seq)::int
               else 1 end as strikes
      from harvest_activity_tasks a
     where a.worker = any(array(select worker from lost))
       for update skip locked
),
released as (
    update harvest_activity_tasks a
       set state = 0, worker = null, started_at = null, due = clock_timestamp(), sort_at = clock_timestamp(),
           timeout_at = case when r.strikes >= {STRIKES} then clock_timestamp() else a.schedule_to_close_at end,
           strikes = r.strikes
      from running r
     where a.execution_id = any(array(select execution_id from running))
       and a.execution_id = r.execution_id and a.seq = r.seq
 returning a.execution_id, a.seq, a.attempt, a.strikes
),
left_over as materialized (
    select worker from (
        select worker, 1 as n from theirs
         union all
        select worker, 1 from harvest_activity_tasks where worker = any(array(select worker from lost))
         union all
        select worker, -1 from held
         union all
        select worker, -1 from running
    ) x group by worker having sum(n) > 0
),
marked as (
    update harvest_workers w
       set status = case when w.worker = any(array(select worker from left_over)) then 'draining' else 'stopped' end
      from lost l where w.worker = l.worker
)
select l.worker, null::uuid as execution_id, null::int as seq, null::int as attempt from lost l
 union all
select null, execution_id, seq, attempt from released where strikes >= {STRIKES}
 union all
select null, execution_id, null, null from quarantined"""


class Lost(Struct, frozen=True):
    """Workers found dead, activities that were running on a dying worker for the third time, and runs put aside."""

    workers: list[UUID]
    struck_out: list[tuple[UUID, int, int]]
    quarantined: list[UUID] = []


async def register(store: Store, row: WorkerRow) -> None:
    """Introduce a worker; its lease begins."""
    await store.scan.write(
        _REGISTER,
        row.worker,
        row.name,
        row.host,
        row.pid,
        row.build,
        list(row.queues),
        row.slots,
        row.lease,
        row.workflow_slots,
        list(row.workflow_types),
        list(row.activity_types),
        row.config,
        row.sticky_ttl,
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
    for _ in range(LOCKED_TRIES):
        rows = await store.scan.write(_ANOTHER_BUILD, build, list(queues))
        if not rows[0]["locked"]:
            return
        await clock.sleep(LOCKED_PAUSE)


async def renew(connection: Connection, worker: UUID, counters: bytes, lease: float = LEASE_SECONDS) -> Renewal | None:
    """Renew the lease for `lease` seconds; None when the worker was marked lost."""
    row = await connection.fetchrow(_RENEW, worker, counters, lease)
    return None if row is None else Renewal(bool(row["watched"]), _orders(row))


async def orders(store: Store, worker: UUID) -> Orders:
    """What people want of a worker now."""
    rows = await store.scan.fetch(_ASKED, worker)
    return _orders(rows[0]) if rows else Orders()


def _orders(row: Record) -> Orders:
    return Orders(row["drains"], row["drain_seconds"], row["evict_requested_at"])


async def drain(store: Store, worker: UUID) -> None:
    """Say that this worker takes no new work: what is pinned to it is free, and wakes pin nothing more to it."""
    await store.scan.write(_DRAIN, worker)


async def stop(store: Store, worker: UUID, report: bytes | None = None) -> None:
    """A graceful end: the lease ends, everything held is free, no strikes. `report` is kept with the worker."""
    while (await store.scan.write(_STOP, worker, report))[0]["locked"]:
        await clock.sleep(LOCKED_PAUSE)


async def free_lost(store: Store) -> Lost:
    """Free what expired workers held; each task gets a strike (answers 15)."""
    if not await store.scan.fetch(_EXPIRED):
        return Lost([], [])
    rows = await store.scan.write(_LOST)
    return Lost(
        workers=[row["worker"] for row in rows if row["worker"] is not None],
        struck_out=[(row["execution_id"], row["seq"], row["attempt"]) for row in rows if row["seq"] is not None],
        quarantined=[row["execution_id"] for row in rows if row["execution_id"] is not None and row["seq"] is None],
    )
