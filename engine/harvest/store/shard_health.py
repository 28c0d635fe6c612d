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
from harvest.store.pool import Connection, Connections, Record
from harvest.store.store import Store

LOOKED_AT: Final = 10_000
"""So many tasks of each kind are looked at, an equal part of each queue, in the order in which they are claimed."""
SAMPLED_AT: Final = 1_000
"""The same for what each worker looks at of its own queues, every few seconds."""
MOST_QUEUES: Final = 100
"""Of so many queues at most tasks are counted."""
MOST_NAMES: Final = 1_000
MOST_WORKERS: Final = 500

# A drain counts from the moment that it was asked for: nothing new is taken from then on.
_WORKERS: Final = f"""
select worker, name, queues, coalesce(workflow_slots, 1) > 0 as decides
  from harvest_workers
 where status = 'active' and lease_until > clock_timestamp() and drain_requested_at is null
 order by name, worker
 limit {MOST_WORKERS}"""
# Found by leaping over the claim index: a row is read for each queue, however many tasks it has.
_QUEUES: Final = """
with recursive queues(queue) as (
    (select queue from {table} where state = 0 order by queue limit 1)
     union all
    select (select t.queue from {table} t where t.state = 0 and t.queue > q.queue order by t.queue limit 1)
      from queues q where q.queue is not null
)
select queue from queues where queue is not null limit $1"""
QUEUES_OF_WORKFLOWS: Final = _QUEUES.format(table="harvest_workflow_tasks")
QUEUES_OF_ACTIVITIES: Final = _QUEUES.format(table="harvest_activity_tasks")
# Of each queue a stretch of the claim index is read in its order: never the whole.
_WAITING: Final = """
select q.queue, count(*) filter (where x.due <= now())::int as waiting, count(*) >= $2::bigint as capped,
       min(x.due) filter (where x.due <= now()) as oldest
  from unnest($1::text[]) q(queue)
 cross join lateral (
    select t.due from {table} t
     where t.state = 0 and t.queue = q.queue{besides}
     order by t.priority desc, t.sort_at
     limit $2::bigint
 ) x
 group by q.queue
 order by q.queue"""
WAITING_WORKFLOWS: Final = _WAITING.format(
    table="harvest_workflow_tasks", besides=f" and t.workflow_name <> '{CANARY}'"
)
WAITING_ACTIVITIES: Final = _WAITING.format(table="harvest_activity_tasks", besides="")
# Wakes and upkeep want the connection that looks for stranded work.
_SOON: Final = "set local statement_timeout = 1000"
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


class Sample(Struct, frozen=True):
    """What a worker sees of a shard: tasks that nobody takes, who takes its own queues, and what waits there."""

    stranded: int
    workers: tuple[LiveWorker, ...]
    waiting: tuple[Waiting, ...]


def stranded_of(waiting: Sequence[Waiting], workers: Collection[LiveWorker]) -> int:
    """How many of these tasks are in queues that none of these workers takes."""
    decided, served = _taken_by(workers)
    return sum(
        (each.workflow_tasks if each.queue not in decided else 0)
        + (each.activity_tasks if each.queue not in served else 0)
        for each in waiting
    )


def _taken_by(workers: Collection[LiveWorker]) -> tuple[set[str], set[str]]:
    """The queues of which these workers take workflow tasks, and those of which they take activities."""
    return (
        {queue for worker in workers if worker.decides for queue in worker.queues},
        {queue for worker in workers for queue in worker.queues},
    )


async def look(store: Store, *, with_bytes: bool = False) -> ShardLook:
    """Look at a shard of whatever schema, on one connection; `with_bytes` reads how much room its tables take."""
    async with store.look.connection() as connection:
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
            waiting=await _waiting(
                connection,
                await _queues(connection, QUEUES_OF_WORKFLOWS, MOST_QUEUES),
                await _queues(connection, QUEUES_OF_ACTIVITIES, MOST_QUEUES),
            ),
            canary=tuple(await canary.read_on(connection)),
        )


async def sample(connections: Connections, own: Collection[str] = ()) -> Sample:
    """How many tasks wait on a shard that no living worker of it would take, and what waits in `own` queues.

    To be asked often: tasks are counted only in queues that nobody takes, and a few of them in `own`. Raises
    ShardUnavailableError, and what the driver raises where a statement takes more than a second.
    """
    async with connections.connection() as connection, connection.transaction(readonly=True):
        await connection.execute(_SOON)
        workers = await _workers(connection)
        decided, served = _taken_by(workers)
        workflows = await _queues(connection, QUEUES_OF_WORKFLOWS, MOST_NAMES)
        activities = await _queues(connection, QUEUES_OF_ACTIVITIES, MOST_NAMES)
        left = (
            [queue for queue in workflows if queue not in decided][:MOST_QUEUES],
            [queue for queue in activities if queue not in served][:MOST_QUEUES],
        )
        mine = ([queue for queue in workflows if queue in own], [queue for queue in activities if queue in own])
        return Sample(
            stranded_of(await _waiting(connection, *left), workers),
            workers,
            await _waiting(connection, *mine, most=SAMPLED_AT),
        )


async def _workers(connection: Connection) -> tuple[LiveWorker, ...]:
    rows = await connection.fetch(_WORKERS)
    return tuple(LiveWorker(row["worker"], row["name"], tuple(row["queues"]), row["decides"]) for row in rows)


async def _queues(connection: Connection, sql: str, most: int) -> list[str]:
    """The first queues, by name, that have tasks of a kind, whether or not they are due."""
    return [row["queue"] for row in await connection.fetch(sql, most)]


async def _counted(connection: Connection, sql: str, queues: Sequence[str], most: int) -> dict[str, Record]:
    if not queues:
        return {}
    rows = await connection.fetch(sql, list(queues), max(1, most // len(queues)))
    return {row["queue"]: row for row in rows}


async def _waiting(
    connection: Connection, of_workflows: Sequence[str], of_activities: Sequence[str], most: int = LOOKED_AT
) -> tuple[Waiting, ...]:
    """Tasks of each kind in these queues; a queue with nothing that is due is left out."""
    workflows = await _counted(connection, WAITING_WORKFLOWS, of_workflows, most)
    activities = await _counted(connection, WAITING_ACTIVITIES, of_activities, most)
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
