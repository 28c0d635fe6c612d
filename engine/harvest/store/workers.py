"""Workers as people see them: what each has told of itself, and what they ask of it. The read side of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.store.audit import AuditEntry, audit_part, audit_values
from harvest.store.pool import Record
from harvest.store.store import Store

REMEMBERED: Final = "1 hour"
"""For so long a worker is listed after its lease has ended."""
SAMPLE: Final = 5
# A worker of a release that says nothing of its types may have any.
_SERVES: Final = """(w.lease_until > clock_timestamp() and w.status = 'active'
      and (w.workflow_slots is null or {what} = any(w.{types})))"""
SERVES_WORKFLOW: Final = f"""exists (select from harvest_workers w where {
    _SERVES.format(what="{name} || '/' || {version}", types="workflow_types")
})"""
"""Whether a living worker has the code of a workflow; to be formatted with its name and version."""

_COLUMNS: Final = """w.worker, w.name, w.host, w.pid, w.build, w.queues, w.status, w.started_at, w.seen_at,
       w.lease_until, w.slots, w.workflow_slots, w.workflow_types, w.activity_types, w.scanned_at, w.drain_requested_at,
       w.drain_deadline_at, w.evict_requested_at, w.counters, w.lease_until > clock_timestamp() as alive,
       (select count(*)::int from harvest_partitions p where p.owner = w.worker) as partitions"""

_LIST: Final = f"""
select {_COLUMNS}
  from harvest_workers w
 where w.lease_until > clock_timestamp() - interval '{REMEMBERED}'
   and ($1::text is null or $1 = any(w.queues)) and ($2::text is null or w.status = $2)
 order by w.status, w.started_at desc
 limit $3"""

_GET: Final = f"""
select {_COLUMNS}, w.config, w.report,
       array(select p.partition from harvest_partitions p where p.owner = w.worker order by 1) as owned
  from harvest_workers w
 where w.worker = $1"""

_PINNED: Final = """
select execution_id, workflow_name, version, queue, due, sticky_until
  from harvest_workflow_tasks
 where state = 0 and sticky_worker = $1 and sticky_until > clock_timestamp()
 order by sticky_until, execution_id
 limit $2"""

_CONFIGS: Final = """
select w.worker, w.name, w.config, w.started_at
  from harvest_workers w
 where w.lease_until > clock_timestamp() and w.status <> 'stopped' and w.config is not null
 order by w.name, w.worker
 limit $1"""

# What somebody once had the code for and no living worker has now. Where that is nothing, no table of tasks is read.
_LACKED_WORKFLOWS: Final = f"""
with lacked as materialized (
    select distinct d.name, d.version from harvest_definitions d
     where d.kind = 'workflow' and not {SERVES_WORKFLOW.format(name="d.name", version="d.version")}
)
select 'workflow' as kind, t.workflow_name as name, t.version, count(*)::int as open,
       count(*) filter (where t.state = 0)::int as waiting, (array_agg(t.execution_id))[1:{SAMPLE}] as sample
  from harvest_workflow_tasks t
 where exists (select from lacked)
   and (t.workflow_name, t.version) in (select name, version from lacked)
 group by t.workflow_name, t.version
 order by t.workflow_name, t.version"""
_LACKED_ACTIVITIES: Final = f"""
with lacked as materialized (
    select distinct d.name from harvest_definitions d
     where d.kind = 'activity' and not exists (
        select from harvest_workers w where {_SERVES.format(what="d.name", types="activity_types")})
)
select 'activity' as kind, a.name, 0 as version, count(*)::int as open, count(*)::int as waiting,
       (array_agg(distinct a.execution_id))[1:{SAMPLE}] as sample
  from harvest_activity_tasks a
 where exists (select from lacked) and a.state = 0 and a.name in (select name from lacked)
 group by a.name
 order by a.name"""

_TELL: Final = f"""
with told as (
    update harvest_workers
       set {{change}}
     where worker = $1 and status <> 'stopped'
 returning worker
),
{audit_part(3, "told")}
select from told"""
# Asked twice, the first request stands; a deadline that is given replaces its own.
_DRAIN: Final = _TELL.format(
    change="""drain_requested_at = coalesce(drain_requested_at, clock_timestamp()),
           drain_deadline_at = coalesce($2::timestamptz, drain_deadline_at)"""
)
_EVICT: Final = _TELL.format(change="evict_requested_at = coalesce($2::timestamptz, clock_timestamp())")


class Lacked(Struct, frozen=True):
    """A definition that no living worker of a shard has, and what needs it: open runs, or activities that wait.

    `waiting` of the runs could go on at once. An activity has version 0.
    """

    kind: str
    name: str
    version: int
    open: int
    waiting: int
    sample: list[UUID]


async def page(store: Store, *, queue: str | None, status: str | None, limit: int) -> list[Record]:
    """The workers that had a lease in the last hour: active ones first, the youngest first."""
    return await store.read.fetch(_LIST, queue, status, limit)


async def get(store: Store, worker: UUID) -> Record | None:
    """One worker with its configuration, its last report and its partitions; None where this shard never knew it."""
    rows = await store.read.fetch(_GET, worker)
    return rows[0] if rows else None


async def pinned(store: Store, worker: UUID, limit: int) -> list[Record]:
    """Runs that wait to be decided, and that others leave to this worker for the time being."""
    return await store.read.fetch(_PINNED, worker, limit)


async def configurations(store: Store, limit: int) -> list[Record]:
    """The configuration of each living worker that has told it."""
    return await store.read.fetch(_CONFIGS, limit)


async def lacked(store: Store) -> list[Lacked]:
    """Definitions that no living worker has and that open work needs."""
    async with store.read.connection() as connection:
        rows: Sequence[Record] = [
            *await connection.fetch(_LACKED_WORKFLOWS),
            *await connection.fetch(_LACKED_ACTIVITIES),
        ]
    return [Lacked(*row.values()) for row in rows]


async def ask_to_drain(store: Store, worker: UUID, deadline_at: datetime | None, audit: AuditEntry) -> bool:
    """Leave word that a worker is to drain; whether it is there and has not stopped."""
    return bool(await store.write.write(_DRAIN, worker, deadline_at, *audit_values(audit)))


async def ask_to_evict(store: Store, worker: UUID, audit: AuditEntry) -> bool:
    """Leave word that a worker is to let go of its parked runs; whether it is there and has not stopped."""
    return bool(await store.write.write(_EVICT, worker, None, *audit_values(audit)))
