"""Runs that have to do with each other, as the tables hold them: children, chains, deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from uuid import UUID, uuid4

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.history.data import Target
from harvest.history.deliveries import DeliveryKind
from harvest.history.events import DATA_OF, encode_data
from harvest.history.ids import business_key, mint_execution_id
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.store.store import Store
from harvest.worker.deliverer import Deliverer
from harvest.worker.options import Counters

_RUN = """
with e as (
    insert into harvest_executions
      (execution_id, business_key, next_event_id, version, partition, workflow_name, workflow_id, state, closed_at,
       parent_id, first_execution_id, previous_execution_id, root_id, awaited, close_policy)
    values ($1::uuid, $2, 2, 1, 0, 'w', $3, $4::smallint, case when $4::smallint >= 10 then clock_timestamp() end, $5,
            coalesce($6::uuid, $1), $7, $1, $8, $9)
),
x as (
    insert into harvest_execution_details (execution_id, input, result, failure) values ($1::uuid, 'null', $10, $11)
),
v as (insert into harvest_events (execution_id, event_id, kind, payload) values ($1::uuid, 1, 1, '{}'))
insert into harvest_workflow_tasks (execution_id, state, partition, queue, workflow_name, version)
select $1::uuid, $12::smallint, 0, 'default', 'w', 1 where $4::smallint < 10"""
_DELIVERY = """
insert into harvest_deliveries (kind, source_execution_id, source_seq, target_execution_id, target_shard, payload)
values ($1, $2, $3, $4, $5, $6) returning delivery_id"""
_CHILD = """
insert into harvest_children (child_execution_id, parent_execution_id, seq, close_policy, awaited)
values ($1, $2, $3, $4, $5)"""


async def emptied(store: Store) -> None:
    """The store, with nothing in it."""
    for table in (
        "executions", "execution_details", "events", "workflow_tasks", "children", "deliveries", "dedupe",
        "definitions",
    ):  # fmt: skip
        await store.scan.write(f"delete from harvest_{table}")


async def a_member(
    store: Store,
    *,
    workflow_id: str | None = None,
    state: int = 0,
    parent: UUID | None = None,
    first: UUID | None = None,
    previous: UUID | None = None,
    awaited: bool | None = None,
    result: bytes | None = None,
    failure: bytes | None = None,
    task_state: int = 2,
) -> UUID:
    """A run of workflow `w`, parked; closed with a `state` of 10 or more."""
    run, name = mint_execution_id(store.shard_id), workflow_id or uuid4().hex
    key = business_key("default", "w", name)
    await store.scan.write(
        _RUN, run, key, name, state, parent, first, previous, awaited, None if awaited is None else 1, result, failure,
        task_state,
    )  # fmt: skip
    return run


async def a_chain(store: Store, length: int, *, last_state: int = 0, before: int = 15) -> list[UUID]:
    """Runs that went on one as the other; all but the last in state `before`."""
    name, runs = uuid4().hex, []
    for n in range(length):
        state = last_state if n == length - 1 else before
        first, previous = (runs[0], runs[-1]) if runs else (None, None)
        runs.append(await a_member(store, workflow_id=name, state=state, first=first, previous=previous))
    return runs


async def a_kinship(
    store: Store, parent: UUID, child: UUID, *, seq: int = 1, close_policy: int = 1, awaited: bool = True
) -> None:
    await store.scan.write(_CHILD, child, parent, seq, close_policy, awaited)


async def a_delivery(
    store: Store,
    kind: DeliveryKind,
    source: UUID,
    target: UUID,
    data: Struct,
    *,
    seq: int = 1,
    shard: int | None = None,
) -> int:
    shard_id = target.int >> 112 if shard is None else shard
    rows = await store.scan.write(_DELIVERY, int(kind), source, seq, target, shard_id, encode_data(data))
    return int(rows[0]["delivery_id"])


def by_name(workflow_id: str) -> Target:
    return Target(workflow_name="w", workflow_id=workflow_id)


def a_deliverer(shards: Shards, store: Store) -> Deliverer:
    return Deliverer(shards, store, Counters())


async def deliver(*deliverers: Deliverer, until: int = 0, within: float = 10.0) -> None:
    """Let them work until there are no more than so many deliveries; the clock decides nothing but the time-out."""
    stores = {deliverer._store for deliverer in deliverers}

    async def is_done() -> bool:
        for deliverer in deliverers:
            deliverer.kick()
            await deliverer.tick()
            await asyncio.gather(*deliverer._beyond.values())
        counts = [await store.scan.fetch("select count(*) from harvest_deliveries") for store in stores]
        return sum(rows[0][0] for rows in counts) <= until

    assert await clock.until(is_done, within=within, every=0.002)


async def rounds(deliverer: Deliverer, count: int = 1) -> None:
    """Let it work for so many rounds."""
    for _ in range(count):
        deliverer.kick()
        await deliverer.tick()
        while deliverer._beyond:
            await asyncio.gather(*deliverer._beyond.values())


async def told(store: Store, run: UUID, *kinds: EventKind) -> list[tuple[EventKind, int, Any]]:
    """A run's events after the first, of these kinds if any are given: kind, seq, data."""
    rows = await store.scan.fetch(
        "select kind, seq, payload from harvest_events where execution_id = $1 and event_id > 1 order by event_id", run
    )
    return [
        (kind, row["seq"], msgspec.json.decode(row["payload"], type=DATA_OF[kind]))
        for row in rows
        if (kind := EventKind(row["kind"])) in kinds or not kinds
    ]


async def rows_of(store: Store, table: str, columns: str = "*", order: str = "1") -> list[dict[str, Any]]:
    return [dict(row) for row in await store.scan.fetch(f"select {columns} from {table} order by {order}")]


async def state_of(store: Store, run: UUID) -> int | None:
    rows = await store.scan.fetch("select state from harvest_executions where execution_id = $1", run)
    return int(rows[0]["state"]) if rows else None


async def are_dense(stores: Iterable[Store]) -> None:
    """Every history has as many events as its run says."""
    for store in stores:
        wrong = await store.scan.fetch(
            """select e.execution_id from harvest_executions e
                where e.next_event_id - 1 <> (
                    select count(*) from harvest_events v where v.execution_id = e.execution_id)"""
        )
        assert not wrong
