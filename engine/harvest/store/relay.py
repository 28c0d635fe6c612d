"""Reads of what is under way from one shard's runs to other shards: their children there, and deliveries that fail."""

from __future__ import annotations

from typing import Final

from harvest.history.deliveries import DeliveryKind as K
from harvest.history.kinds import EventKind
from harvest.store.commit_relations import SHARD_OF
from harvest.store.pool import Record
from harvest.store.store import Store

CHILDREN_LOOKED_AT: Final = 10_000
"""So many children that have started are looked at, an equal part of each target shard, the oldest first."""
DELIVERIES_LOOKED_AT: Final = 20_000
"""So many deliveries are looked at, the oldest first."""
_BEYOND: Final = "substring(uuid_send({0}) for 2) <> substring(uuid_send({1}) for 2)"
_LAST_OF_SHARD: Final = "(encode(substring(uuid_send({0}) for 2), 'hex') || repeat('f', 28))::uuid"
_MADE_AT: Final = (
    "to_timestamp((('x' || substr({0}::text, 1, 8) || substr({0}::text, 10, 4) || substr({0}::text, 16, 3))"
    "::bit(60) & ('x' || '0000fffffffffff')::bit(60))::bigint / 1000.0)"
)
_DELIVERIES: Final = f"""
    select delivery_id, kind, source_execution_id, source_seq, target_execution_id, target_shard, created_at, attempts,
           last_error
      from harvest_deliveries
     order by delivery_id
     limit {DELIVERIES_LOOKED_AT}"""
# What `harvest_cross_shard_children` tells, of as many rows as may be looked at each time.
IN_FLIGHT: Final = f"""
with recursive targets(first) as (
    (select c.child_execution_id from harvest_children c
      where {_BEYOND.format("c.child_execution_id", "c.parent_execution_id")} order by c.child_execution_id limit 1)
     union all
    select (select c.child_execution_id from harvest_children c
             where {_BEYOND.format("c.child_execution_id", "c.parent_execution_id")}
               and c.child_execution_id > {_LAST_OF_SHARD.format("t.first")}
             order by c.child_execution_id limit 1)
      from targets t where t.first is not null
),
share as materialized (
    select greatest({CHILDREN_LOOKED_AT} / greatest(count(first), 1), 100) as most from targets
),
started as materialized (
    select t.first, s.*
      from targets t
     cross join lateral (
        select c.child_execution_id, c.parent_execution_id, c.seq from harvest_children c
         where {_BEYOND.format("c.child_execution_id", "c.parent_execution_id")}
           and c.child_execution_id between t.first and {_LAST_OF_SHARD.format("t.first")}
         order by c.child_execution_id
         limit (select most from share)
     ) s
     where t.first is not null
),
oldest as materialized ({_DELIVERIES}
),
waiting as materialized (
    select distinct on (d.target_execution_id)
           d.target_execution_id, d.source_execution_id, d.source_seq, d.kind, d.created_at, d.attempts
      from oldest d
     where d.kind in ({K.CHILD_START:d}, {K.CHILD_CANCEL:d}, {K.CLOSE_POLICY:d})
       and {_BEYOND.format("d.target_execution_id", "d.source_execution_id")}
     order by d.target_execution_id, d.delivery_id
),
kin as (
    select w.target_execution_id as child, coalesce(c.parent_execution_id, w.source_execution_id) as parent,
           coalesce(c.seq, w.source_seq) as seq, w.kind, w.created_at, w.attempts,
           case when w.kind = {K.CHILD_START:d} then 'PENDING_START' when c.seq is null then 'CLOSING' else 'STARTED'
           end as status
      from waiting w
      left join harvest_children c
        on c.child_execution_id = w.target_execution_id
       and {_BEYOND.format("c.child_execution_id", "c.parent_execution_id")}
     union all
    select s.child_execution_id, s.parent_execution_id, s.seq, null, null, 0, 'STARTED'
      from started s
     where not exists (select from waiting w where w.target_execution_id = s.child_execution_id)
),
told as (
    select {SHARD_OF.format("k.child")} as target_shard, k.status, k.attempts,
           k.kind is not distinct from {K.CHILD_CANCEL:d} or exists (
               select from harvest_events e
                where e.execution_id = k.parent and e.seq = k.seq and e.kind = {EventKind.CHILD_CANCEL_REQUESTED:d}
           ) as cancel_requested,
           case when k.kind = {K.CHILD_START:d} then k.created_at else {_MADE_AT.format("k.child")} end as created_at
      from kin k
)
select t.target_shard, t.status, t.cancel_requested, count(*) as in_flight,
       count(*) filter (where t.attempts > 0) as failing, min(t.created_at) as oldest_at, clock_timestamp() as now,
       x.capped
  from (
    select (select count(*) from oldest) >= {DELIVERIES_LOOKED_AT}
        or exists (select from started group by first having count(*) >= (select most from share)) as capped
  ) x
  left join told t on true
 group by t.target_shard, t.status, t.cancel_requested, x.capped
 order by target_shard, status, cancel_requested"""
# Who waits for the end of another run looks again and again, and has no error.
FAILING: Final = f"""
select d.kind, d.target_shard, count(*) as failing
  from ({_DELIVERIES}
  ) d
 where d.last_error is not null and d.target_shard <> $1
 group by d.kind, d.target_shard"""
WORST: Final = f"""
with oldest as materialized ({_DELIVERIES}
),
worst as (
    select d.delivery_id from oldest d
     where d.last_error is not null and d.target_shard <> $1
     order by d.attempts desc, d.delivery_id
     limit $2
)
select d.kind, d.source_execution_id, d.target_execution_id, d.target_shard, d.created_at, d.attempts,
       d.last_attempt_at, d.due as next_attempt_at, d.last_error
  from worst w
  join harvest_deliveries d on d.delivery_id = w.delivery_id
 order by d.attempts desc, d.delivery_id"""


async def in_flight(store: Store) -> tuple[list[Record], bool]:
    """Children on other shards by target, status and whether their cancellation was asked for.

    The second value tells that not all were looked at: of each there are at least so many.
    """
    rows = await store.look.fetch(IN_FLIGHT)
    return [row for row in rows if row["status"] is not None], any(row["capped"] for row in rows)


async def failing(store: Store) -> list[Record]:
    """How many of the oldest deliveries have failed and are tried again, by kind and target."""
    rows: list[Record] = await store.look.fetch(FAILING, store.shard_id)
    return rows


async def worst(store: Store, most: int) -> list[Record]:
    """Those of them that were tried most often."""
    rows: list[Record] = await store.look.fetch(WORST, store.shard_id, most)
    return rows
