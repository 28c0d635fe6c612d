"""The view of children on other shards: what the queries of operators see in each state of a child."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from msgspec import Struct

from harvest.history.data import ChildCancelRequested, ChildWorkflowStarted
from harvest.history.deliveries import CLOSE_POLICIES, Cancel, DeliveryKind
from harvest.history.events import encode_data
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.shards.router import ShardRouter
from harvest.store.store import Store
from tests.faults.kinship import ending, going_on
from tests.scale import scale
from tests.store.kin import a_deliverer, a_delivery, a_kinship, a_member, deliver, emptied, rounds
from tests.store.rows import a_worker
from tests.store.sites import K, a_closed, a_start

IN_FLIGHT = """
SELECT target_shard, status, cancel_requested, count(*)
FROM harvest_cross_shard_children
GROUP BY 1, 2, 3
ORDER BY 1, 2;"""
NO_PROGRESS = """
SELECT child_exec_id, target_shard, attempts, last_attempt_at, last_error
FROM harvest_cross_shard_children
WHERE attempts > 0
ORDER BY attempts DESC
LIMIT 20;"""
OLDEST = """
SELECT target_shard, min(created_at) AS oldest, count(*) AS in_flight
FROM harvest_cross_shard_children
GROUP BY 1
ORDER BY 2;"""
POLICIES = [0, 1, 2]


@pytest.fixture(scope="module")
async def databases(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    shards = await Shards.open({n: new_database(f"relay_{n}") for n in range(2)})
    yield shards
    await shards.close()


class Family(Struct, frozen=True):
    """A parent on one shard, and a child that was asked for and lives on the other."""

    shards: Shards
    parent: UUID
    child: UUID

    @property
    def near(self) -> Store:
        return self.shards.store(0)

    @property
    def far(self) -> Store:
        return self.shards.store(1)

    async def ask(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in await self.near.scan.fetch(query)]

    async def begin(self) -> None:
        await deliver(a_deliverer(self.shards, self.near))

    async def end(self) -> None:
        await a_delivery(self.far, K.CHILD_CLOSED, self.child, self.parent, a_closed(self.child), seq=0)
        await deliver(a_deliverer(self.shards, self.far))

    async def cancel(self) -> None:
        await an_event(self.near, self.parent, EventKind.CHILD_CANCEL_REQUESTED, 1, ChildCancelRequested())
        await a_delivery(self.near, K.CHILD_CANCEL, self.parent, self.child, Cancel("enough"))


async def an_event(store: Store, run: UUID, kind: EventKind, seq: int, data: Struct) -> None:
    await store.scan.write(
        """with e as (update harvest_executions set next_event_id = next_event_id + 1 where execution_id = $1
                      returning next_event_id)
           insert into harvest_events (execution_id, event_id, kind, seq, payload)
           select $1, next_event_id - 1, $2, $3, $4 from e""",
        run, int(kind), seq, encode_data(data),
    )  # fmt: skip


async def a_family(shards: Shards, *, close_policy: int = 1, child_shard: int = 1) -> Family:
    near = shards.store(0)
    parent, child = await a_member(near), mint_execution_id(child_shard)
    started = ChildWorkflowStarted(str(child), "w", "c-1", "digest")
    await an_event(near, parent, EventKind.CHILD_WORKFLOW_STARTED, 1, started)
    await a_kinship(near, parent, child, close_policy=close_policy)
    start = a_start(parent, close_policy=CLOSE_POLICIES[close_policy])
    await a_delivery(near, K.CHILD_START, parent, child, start)
    return Family(shards, parent, child)


@pytest.fixture
async def family(databases: Shards) -> Family:
    for store in databases.stores.values():
        await emptied(store)
    return await a_family(databases)


async def test_a_child_that_is_still_to_be_started_is_pending(family: Family) -> None:
    assert await family.ask(IN_FLIGHT) == [(1, "PENDING_START", False, 1)]
    assert await family.ask(NO_PROGRESS) == []
    ((shard, oldest, count),) = await family.ask(OLDEST)
    assert (shard, count) == (1, 1)
    assert timedelta(0) <= datetime.now(UTC) - oldest < timedelta(minutes=5)


async def test_a_child_that_has_begun_is_started_until_its_end_has_arrived(family: Family) -> None:
    await family.begin()
    assert await family.ask(IN_FLIGHT) == [(1, "STARTED", False, 1)]
    ((_, oldest, _),) = await family.ask(OLDEST)
    assert timedelta(0) <= datetime.now(UTC) - oldest < timedelta(minutes=5)
    await family.end()
    assert [await family.ask(query) for query in (IN_FLIGHT, NO_PROGRESS, OLDEST)] == [[], [], []]


async def test_a_child_that_was_asked_to_end_stays_so_after_it_has_heard_of_it(family: Family) -> None:
    await family.begin()
    await family.cancel()
    assert await family.ask(IN_FLIGHT) == [(1, "STARTED", True, 1)]
    await family.begin()
    assert await family.ask(IN_FLIGHT) == [(1, "STARTED", True, 1)]
    await family.end()
    assert await family.ask(IN_FLIGHT) == []


async def test_a_child_that_was_asked_to_end_before_it_began_is_pending_and_asked(family: Family) -> None:
    await family.cancel()
    assert await family.ask(IN_FLIGHT) == [(1, "PENDING_START", True, 1)]


async def test_a_shard_that_cannot_be_reached_is_named_with_the_tries(family: Family) -> None:
    near = family.near.url
    alone = await Shards.open({0: near}, ShardRouter(readable=(0, 1), writable=(0, 1), default=0))
    try:
        deliverer = a_deliverer(alone, alone.store(0))
        await rounds(deliverer)
        ((child, shard, attempts, tried_at, error),) = await family.ask(NO_PROGRESS)
        assert (child, shard, attempts) == (family.child, 1, 1)
        assert error == "shard 1 has no database configured here"
        assert timedelta(0) <= datetime.now(UTC) - tried_at < timedelta(minutes=5)
        await family.near.scan.write("update harvest_deliveries set due = clock_timestamp()")
        await rounds(deliverer)
        ((due,),) = await family.ask("select next_attempt_at - last_attempt_at from harvest_cross_shard_children")
        assert timedelta(seconds=9.9) < due < timedelta(seconds=10.1)
        assert await family.ask(IN_FLIGHT) == [(1, "PENDING_START", False, 1)]
    finally:
        await alone.close()
    await family.near.scan.write("update harvest_deliveries set due = clock_timestamp()")
    await family.begin()
    assert await family.ask(NO_PROGRESS) == []


@pytest.mark.parametrize("policy", [1, 2])
async def test_a_child_whose_parent_has_ended_is_closing_until_its_policy_has_reached_it(
    databases: Shards, family: Family, policy: int
) -> None:
    await family.near.scan.write("update harvest_children set close_policy = $1::smallint", policy)
    await family.begin()
    await ending(family.near, await a_worker(family.near), family.parent)
    assert await family.ask(IN_FLIGHT) == [(1, "CLOSING", False, 1)]
    ((word,),) = await family.ask("select parent_close_policy from harvest_cross_shard_children")
    assert word == CLOSE_POLICIES[policy]
    await family.begin()
    assert await family.ask(IN_FLIGHT) == []


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
async def test_what_was_asked_for_is_told(databases: Shards, begun: bool, policy: int) -> None:
    for store in databases.stores.values():
        await emptied(store)
    family = await a_family(databases, close_policy=policy)
    if begun:
        await family.begin()
    ((parent, name, spec, word),) = await family.ask(
        "select parent_exec_id, workflow_name, child_spec ->> 'workflow_name', parent_close_policy "
        "from harvest_cross_shard_children"
    )
    assert (parent, name, spec, word) == (family.parent, "w", "w", CLOSE_POLICIES[policy])


async def test_a_child_goes_with_its_parent_that_goes_on_as_new(family: Family) -> None:
    await family.begin()
    heir = await going_on(family.near, await a_worker(family.near), family.parent)
    assert await family.ask(IN_FLIGHT) == [(1, "STARTED", False, 1)]
    rows = await family.ask("select parent_exec_id, workflow_name from harvest_cross_shard_children")
    assert rows == [(heir, None)], "the start is in the history before"


async def test_a_child_of_the_same_shard_is_none_of_them(databases: Shards) -> None:
    for store in databases.stores.values():
        await emptied(store)
    family = await a_family(databases, child_shard=0)
    assert await family.ask(IN_FLIGHT) == []
    await family.begin()
    assert await family.ask(IN_FLIGHT) == []


async def test_children_of_the_same_shard_cost_the_view_nothing(databases: Shards) -> None:
    for store in databases.stores.values():
        await emptied(store)
    near = databases.store(0)
    parent = mint_execution_id(0)
    for shard, count in ((0, scale(20_000, 500_000)), (1, 20)):
        children = [mint_execution_id(shard) for _ in range(count)]
        await near.scan.write(
            "insert into harvest_children select unnest($1::uuid[]), $2, 1, 1, true", children, parent
        )
    connection: Any = await asyncpg.connect(near.url)
    try:
        await connection.execute("analyze harvest_children")
        for query in (IN_FLIGHT, NO_PROGRESS, OLDEST):
            lines = [row[0] for row in await connection.fetch(f"explain (analyze) {query}")]
            plan = "\n".join(lines)
            assert "harvest_children_beyond" in plan, plan
            assert "Seq Scan on harvest_children" not in plan, plan
            assert "harvest_events_pkey" not in plan, plan
    finally:
        await connection.close()


def test_every_kind_that_the_view_names_is_the_one_that_is_meant() -> None:
    assert [int(kind) for kind in (K.CHILD_START, K.CHILD_CANCEL, K.CLOSE_POLICY)] == [1, 3, 4]
    assert DeliveryKind.CHILD_START.word == "child_start"
    events = (
        EventKind.CHILD_WORKFLOW_STARTED, EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED, EventKind.CHILD_CANCEL_REQUESTED,
    )  # fmt: skip
    assert [int(kind) for kind in events] == [15, 36, 62]
