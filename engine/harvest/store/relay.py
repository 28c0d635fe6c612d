"""Reads of what is under way from one shard's runs to other shards: their children there, and deliveries that fail."""

from __future__ import annotations

from typing import Final

from harvest.store.pool import Record
from harvest.store.store import Store

IN_FLIGHT: Final = """
select target_shard, status, cancel_requested, count(*) as in_flight, count(*) filter (where attempts > 0) as failing,
       min(created_at) as oldest_at, clock_timestamp() as now
  from harvest_cross_shard_children
 group by target_shard, status, cancel_requested
 order by target_shard, status, cancel_requested"""
# Who waits for the end of another run looks again and again, and has no error.
FAILING: Final = """
select kind, target_shard, count(*) as failing from harvest_deliveries
 where last_error is not null and target_shard <> $1
 group by kind, target_shard"""
WORST: Final = """
select kind, source_execution_id, target_execution_id, target_shard, created_at, attempts, last_attempt_at,
       due as next_attempt_at, last_error
  from harvest_deliveries
 where last_error is not null and target_shard <> $1
 order by attempts desc, delivery_id
 limit $2"""


async def in_flight(store: Store) -> list[Record]:
    """Children on other shards by target, status and whether their cancellation was asked for."""
    rows: list[Record] = await store.read.fetch(IN_FLIGHT)
    return rows


async def failing(store: Store) -> list[Record]:
    """How many deliveries to each other shard have failed and are tried again, by kind."""
    rows: list[Record] = await store.read.fetch(FAILING, store.shard_id)
    return rows


async def worst(store: Store, most: int) -> list[Record]:
    """Those of them that were tried most often."""
    rows: list[Record] = await store.read.fetch(WORST, store.shard_id, most)
    return rows
