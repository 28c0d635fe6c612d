"""What one shard tells of whether work on it is done: its schema, its living workers, and what waits to be taken."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.history.built_in import CANARY
from harvest.store import canary
from harvest.store.canary import CanaryRow
from harvest.store.migrate import SCHEMA_LEVEL
from harvest.store.pool import Connection, Connections
from harvest.store.store import Store

LOOKED_AT: Final = 10_000
"""So many tasks of a queue are looked at, in the order in which they are claimed."""
MOST_QUEUES: Final = 100
MOST_WORKERS: Final = 500

# A drain counts from the moment that it was asked for: nothing new is taken from then on.
_WORKERS: Final = f"""
select worker, name, queues, coalesce(workflow_slots, 1) > 0 as decides
  from harvest_workers
 where status = 'active' and lease_until > clock_timestamp() and drain_requested_at is null
 order by name, worker
 limit {MOST_WORKERS}"""
# The queues are found by leaping over the claim index, and of each a stretch is read in its order: never the whole.
_WAITING: Final = """
with recursive queues(queue) as (
    (select queue from {table} where state = 0 order by queue limit 1)
     union all
    select (select t.queue from {table} t where t.state = 0 and t.queue > q.queue order by t.queue limit 1)
      from queues q where q.queue is not null
)
select q.queue, count(*) filter (where x.due <= now())::int as waiting, count(*) >= {most} as capped,
       min(x.due) filter (where x.due <= now()) as oldest
  from (select queue from queues where queue is not null limit {queues}) q
 cross join lateral (
    select t.due from {table} t
     where t.state = 0 and t.queue = q.queue{besides}
     order by t.priority desc, t.sort_at
     limit {most}
 ) x
 group by q.queue
 order by q.queue"""
WAITING_WORKFLOWS: Final = _WAITING.format(
    table="harvest_workflow_tasks",
    most=LOOKED_AT,
    queues=MOST_QUEUES,
    besides=f" and t.workflow_name <> '{CANARY}'",
)
WAITING_ACTIVITIES: Final = _WAITING.format(
    table="harvest_activity_tasks", most=LOOKED_AT, queues=MOST_QUEUES, besides=""
)
_LEVEL: Final = "select schema_level, shard_id, clock_timestamp() as now from harvest_meta"
_OPEN: Final = f"""
select owner_mode, exists (select from harvest_workflow_tasks where workflow_name <> '{CANARY}') as open
  from harvest_meta"""
_BYTES: Final = """
select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint as bytes
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = current_schema() and c.relkind = 'r' and starts_with(c.relname, 'harvest_')"""


class LiveWorker(Struct, frozen=True):
    """A worker that takes new work on the shard; without workflow slots (`decides` is false) only activities."""

    worker: UUID
    name: str
    queues: tuple[str, ...]
    decides: bool


class Waiting(Struct, frozen=True):
    """What could be taken from a queue now; with `capped` there is at least so much. `oldest` is since when."""

    queue: str
    workflow_tasks: int
    activity_tasks: int
    capped: bool
    oldest: datetime | None

    @property
    def tasks(self) -> int:
        """Both kinds."""
        return self.workflow_tasks + self.activity_tasks


class ShardLook(Struct, frozen=True, kw_only=True):
    """One look at a shard. Where its schema is older than this release's, only the level and the name are known.

    `named` is the shard that the database says it is. `has_open_runs` does not count probes.
    """

    at: datetime
    schema_level: int
    named: int | None
    owner_mode: bool = False
    has_open_runs: bool = False
    bytes: int = 0
    workers: tuple[LiveWorker, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    canary: tuple[CanaryRow, ...] = ()

    @property
    def is_migrated(self) -> bool:
        """Whether this release can work with it."""
        return self.schema_level >= SCHEMA_LEVEL

    @property
    def queues(self) -> frozenset[str]:
        """The queues that a living worker takes workflow tasks from."""
        return frozenset(queue for worker in self.workers if worker.decides for queue in worker.queues)

    def stranded(self) -> int:
        """How many tasks wait that no living worker of this shard would take."""
        return stranded_of(self.waiting, self.workers)


def stranded_of(waiting: Sequence[Waiting], workers: Collection[LiveWorker]) -> int:
    """How many of these tasks are in queues that none of these workers takes."""
    decided = {queue for worker in workers if worker.decides for queue in worker.queues}
    served = {queue for worker in workers for queue in worker.queues}
    return sum(
        (each.workflow_tasks if each.queue not in decided else 0)
        + (each.activity_tasks if each.queue not in served else 0)
        for each in waiting
    )


async def look(store: Store, *, with_bytes: bool = False) -> ShardLook:
    """Look at a shard of whatever schema, on one connection; `with_bytes` reads how much room its tables take."""
    async with store.read.connection() as connection:
        if await connection.fetchval("select to_regclass('harvest_meta')") is None:
            now = await connection.fetchval("select clock_timestamp()")
            return ShardLook(at=now, schema_level=0, named=None)
        row = await connection.fetchrow(_LEVEL)
        level = ShardLook(at=row["now"], schema_level=row["schema_level"], named=row["shard_id"])
        if not level.is_migrated:
            return level
        meta = await connection.fetchrow(_OPEN)
        return ShardLook(
            at=level.at,
            schema_level=level.schema_level,
            named=level.named,
            owner_mode=meta["owner_mode"],
            has_open_runs=meta["open"],
            bytes=await connection.fetchval(_BYTES) if with_bytes else 0,
            workers=await _workers(connection),
            waiting=await _waiting(connection),
            canary=tuple(await canary.read_on(connection)),
        )


async def stranded(connections: Connections) -> int:
    """How many tasks wait on a shard that no living worker of it would take; to be asked often."""
    async with connections.connection() as connection:
        return stranded_of(await _waiting(connection), await _workers(connection))


async def _workers(connection: Connection) -> tuple[LiveWorker, ...]:
    rows = await connection.fetch(_WORKERS)
    return tuple(LiveWorker(row["worker"], row["name"], tuple(row["queues"]), row["decides"]) for row in rows)


async def _waiting(connection: Connection) -> tuple[Waiting, ...]:
    """Both kinds of tasks by queue; a queue with nothing that is due is left out."""
    workflows = {row["queue"]: row for row in await connection.fetch(WAITING_WORKFLOWS)}
    activities = {row["queue"]: row for row in await connection.fetch(WAITING_ACTIVITIES)}
    found = []
    for queue in sorted(workflows.keys() | activities.keys()):
        rows = [row for row in (workflows.get(queue), activities.get(queue)) if row is not None]
        if any(row["waiting"] for row in rows):
            found.append(
                Waiting(
                    queue,
                    workflows[queue]["waiting"] if queue in workflows else 0,
                    activities[queue]["waiting"] if queue in activities else 0,
                    any(row["capped"] for row in rows),
                    min(row["oldest"] for row in rows if row["oldest"] is not None),
                )
            )
    return tuple(found)
