"""Liveness probes of a shard: for each queue one run at a time that is started, must complete, and is removed again.

A row of `harvest_canary` with an execution is a probe under way. Whoever finds one that is due begins it, and whoever
finds one that has ended settles it: the processes need not know of each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.history.states import State
from harvest.store import starts
from harvest.store.pool import Connection, Record
from harvest.store.starts import NewExecution
from harvest.store.store import Store

INTERVAL_SECONDS: Final = 30.0
"""How often each queue is probed, and how long a probe may take before it counts as a failure."""
OTHERWISE: Final = "default"
"""This queue is probed where no worker decides runs of any queue."""
FORGOTTEN_DAYS: Final = 1
MOST_QUEUES: Final = 1_000
_AN_INTERVAL_AGO: Final = f"clock_timestamp() - {INTERVAL_SECONDS} * interval '1 second'"
_LOOK: Final = f"""
with served as (
    select distinct unnest(w.queues) as queue from harvest_workers w
     where w.status = 'active' and w.lease_until > clock_timestamp() and w.drain_requested_at is null
       and coalesce(w.workflow_slots, 1) > 0
),
wanted as (
    select queue from served
     union all
    select '{OTHERWISE}' where not exists (select from served)
)
select coalesce(w.queue, c.queue) as queue,
       w.queue is not null and c.execution_id is null
           and (c.asked_at is null or c.asked_at <= {_AN_INTERVAL_AGO}) as due,
       c.execution_id is not null and c.last_error is null and c.asked_at <= {_AN_INTERVAL_AGO} as late,
       c.execution_id is not null and (e.execution_id is null or e.closed_at is not null) as ended,
       w.queue is null and c.execution_id is null
           and c.asked_at < clock_timestamp() - interval '{FORGOTTEN_DAYS} days' as gone
  from wanted w
  full join harvest_canary c on c.queue = w.queue
  left join harvest_executions e on e.execution_id = c.execution_id
 order by 1"""

_CLAIM: Final = f"""
insert into harvest_canary as c (queue, execution_id, prober, asked_at) values ($1, $2, $3, clock_timestamp())
    on conflict (queue) do update
   set execution_id = excluded.execution_id, prober = excluded.prober, asked_at = excluded.asked_at, last_error = null
 where c.execution_id is null
   and (c.asked_at is null or c.asked_at <= {_AN_INTERVAL_AGO})
returning queue"""

# A run that a person has ended, or whose rows are gone, has not shown that work is done.
_SETTLE: Final = f"""
with ended as materialized (
    select c.queue, c.execution_id, c.last_error is null as in_time, e.state, e.closed_at,
           extract(epoch from e.closed_at - c.asked_at)::float8 * 1000 as roundtrip_ms
      from harvest_canary c
      left join harvest_executions e on e.execution_id = c.execution_id
     where c.execution_id is not null and (e.execution_id is null or e.closed_at is not null)
       for update of c skip locked
),
details as (delete from harvest_execution_details where execution_id = any(array(select execution_id from ended))),
events as (delete from harvest_events where execution_id = any(array(select execution_id from ended))),
runs as (delete from harvest_executions where execution_id = any(array(select execution_id from ended)))
update harvest_canary c
   set execution_id = null, prober = null,
       last_success_at = case when x.state = {State.COMPLETED:d} then x.closed_at else c.last_success_at end,
       last_roundtrip_ms = case when x.state = {State.COMPLETED:d} then greatest(x.roundtrip_ms, 0)
                                else c.last_roundtrip_ms end,
       success_count = c.success_count + (x.state is not distinct from {State.COMPLETED:d})::int,
       failure_count = c.failure_count + (x.state is distinct from {State.COMPLETED:d} and x.in_time)::int,
       last_error = case when x.state = {State.COMPLETED:d} then null
                         when x.state is null then 'its run is gone' else 'its run did not complete' end
  from ended x
 where c.queue = x.queue
returning c.queue"""

_NOTE_LATE: Final = f"""
update harvest_canary
   set failure_count = failure_count + 1, last_error = 'not completed within {INTERVAL_SECONDS:g} s'
 where queue = any($1::text[]) and execution_id is not null and last_error is null
   and asked_at <= {_AN_INTERVAL_AGO}"""
_FORGET: Final = "delete from harvest_canary where queue = any($1::text[]) and execution_id is null"
_READ: Final = """
select queue, execution_id, asked_at, last_success_at, last_roundtrip_ms, success_count, failure_count, last_error,
       clock_timestamp() as now
  from harvest_canary
 order by queue
 limit $1"""


class CanaryLook(Struct, frozen=True):
    """The queues of a shard by what is to be done with their probes."""

    due: list[str]
    late: list[str]
    ended: list[str]
    gone: list[str]


class CanaryRow(Struct, frozen=True):
    """The probes of one queue. `execution_id` is the one under way, `now` the database's time."""

    queue: str
    execution_id: UUID | None
    asked_at: datetime
    last_success_at: datetime | None
    last_roundtrip_ms: float | None
    success_count: int
    failure_count: int
    last_error: str | None
    now: datetime


async def look(store: Store) -> CanaryLook:
    """What there is to do."""
    found = await store.read.fetch(_LOOK)

    def queues(what: str) -> list[str]:
        return [row["queue"] for row in found if row[what]]

    return CanaryLook(queues("due"), queues("late"), queues("ended"), queues("gone"))


async def begin(store: Store, prober: UUID, new: NewExecution) -> bool:
    """Start the run of a queue's probe, unless another process has come first."""
    async with store.write.connection(writes=True) as connection, connection.transaction():
        taken: Sequence[Record] = await connection.fetch(_CLAIM, new.queue, new.execution_id, prober)
        if taken:
            await starts.start_many_on(connection, [new])
    return bool(taken)


async def settle(store: Store) -> list[str]:
    """Note how probes have ended, and remove their runs; returns their queues."""
    return [row["queue"] for row in await store.write.write(_SETTLE)]


async def note_late(store: Store, queues: Collection[str]) -> None:
    """Count the probes of these queues that have taken too long as failures, each once; they stay open."""
    await store.write.write(_NOTE_LATE, list(queues))


async def forget(store: Store, queues: Collection[str]) -> None:
    """Drop what is known of queues that nobody serves any more."""
    await store.write.write(_FORGET, list(queues))


async def read(store: Store) -> list[CanaryRow]:
    """The probes of each queue, by its name."""
    async with store.read.connection() as connection:
        return await read_on(connection)


async def read_on(connection: Connection) -> list[CanaryRow]:
    """As `read`, on a connection that is held already."""
    return [CanaryRow(*row.values()) for row in await connection.fetch(_READ, MOST_QUEUES)]
