"""What is under way between shards: by source and target, what makes no progress, and the gauges of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harvest.history.deliveries import DeliveryKind
from harvest.history.ids import mint_execution_id
from harvest.operations import relay as operations
from harvest.operations.relay import gauges, relay
from harvest.shards import ShardRouter, Shards
from harvest.store import relay as rows
from tests.explaining import explained, nodes
from tests.operations.test_trees import DEAD
from tests.store.kin import a_deliverer, a_delivery, a_kinship, a_member, deliver, rounds
from tests.store.sites import a_closed, a_start

K = DeliveryKind


async def two_children_elsewhere(shards: Shards) -> None:
    """Of a run on shard 0: one on shard 1 that has begun, and one that is still to be started."""
    near = shards.store(0)
    for begins in (True, False):
        parent, child = await a_member(near), mint_execution_id(1)
        await a_kinship(near, parent, child)
        await a_delivery(near, K.CHILD_START, parent, child, a_start(parent))
        if begins:
            await deliver(a_deliverer(shards, near))


async def in_vain(shards: Shards) -> None:
    """Deliver what there is on shard 0 where shard 1 has no database."""
    alone = await Shards.open({0: shards.store(0).url}, ShardRouter.of((0, 1)))
    try:
        await rounds(a_deliverer(alone, alone.store(0)))
    finally:
        await alone.close()


async def test_children_are_told_by_source_target_and_status(shards: Shards) -> None:
    await two_children_elsewhere(shards)
    found = await relay(shards)
    told = [(row.source_shard, row.target_shard, row.status, row.in_flight, row.failing) for row in found.in_flight]
    assert told == [(0, 1, "PENDING_START", 1, 0), (0, 1, "STARTED", 1, 0)]
    assert (found.failing, found.shards.status) == ([], "complete")


async def test_what_makes_no_progress_is_named_with_its_error_and_its_next_try(shards: Shards) -> None:
    await two_children_elsewhere(shards)
    await in_vain(shards)
    (one,) = (await relay(shards)).failing
    assert (one.kind, one.source_shard, one.target_shard, one.attempts) == ("child_start", 0, 1, 1)
    assert one.last_error == "shard 1 has no database configured here"
    assert one.last_attempt_at is not None
    waits = one.next_attempt_at - one.last_attempt_at
    assert timedelta(seconds=4.9) < waits < timedelta(seconds=5.1)
    pending = next(row for row in (await relay(shards)).in_flight if row.status == "PENDING_START")
    assert pending.failing == 1


async def test_the_end_of_a_child_that_does_not_reach_its_parent_is_there_too(shards: Shards) -> None:
    child, parent = await a_member(shards.store(0)), mint_execution_id(1)
    await a_delivery(shards.store(0), K.CHILD_CLOSED, child, parent, a_closed(child), seq=0)
    await in_vain(shards)
    assert [one.kind for one in (await relay(shards)).failing] == ["child_closed"]
    assert (await gauges(shards))["cross_shard_child.failing", "1", "child_closed"] == 1


async def test_the_worst_come_first_and_end_at_a_cap(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MOST_FAILING", 2)
    for tries in (1, 3, 2):
        parent = await a_member(shards.store(0))
        await a_delivery(shards.store(0), K.CHILD_START, parent, mint_execution_id(1), a_start(parent))
        await shards.store(0).scan.write(
            "update harvest_deliveries set attempts = $1, last_error = 'away' where attempts = 0", tries
        )
    found = await relay(shards)
    assert ([one.attempts for one in found.failing], found.failing_capped) == ([3, 2], True)


async def test_what_is_told_is_what_the_view_has(shards: Shards) -> None:
    await two_children_elsewhere(shards)
    await in_vain(shards)
    near = shards.store(0)
    for kind, known in ((K.CHILD_CANCEL, True), (K.CLOSE_POLICY, False)):
        parent, child = await a_member(near), mint_execution_id(3)
        if known:
            await a_kinship(near, parent, child)
        await a_delivery(near, kind, parent, child, b"{}")
    told, capped = await rows.in_flight(near)
    wanted = await near.read.fetch(
        """select target_shard, status, cancel_requested, count(*) as in_flight,
                  count(*) filter (where attempts > 0) as failing, min(created_at) as oldest_at
             from harvest_cross_shard_children group by 1, 2, 3 order by 1, 2, 3"""
    )
    assert [tuple(row.values())[:6] for row in told] == [tuple(row.values()) for row in wanted]
    assert [row["status"] for row in told] == ["PENDING_START", "STARTED", "CLOSING", "STARTED"]
    assert not capped


async def test_children_of_the_same_shard_cost_the_look_nothing(shards: Shards) -> None:
    near, parent = shards.store(0), mint_execution_id(0)
    for shard, count in ((0, 20_000), (1, 20), (2, 20)):
        children = [mint_execution_id(shard) for _ in range(count)]
        await near.scan.write(
            "insert into harvest_children select unnest($1::uuid[]), $2, 1, 1, true", children, parent
        )
    async with near.look.connection() as connection:
        plan = await explained(connection, "in_flight", rows.IN_FLIGHT, [])
    reads = [node for node in nodes(plan) if node.get("Relation Name") == "harvest_children"]
    read = sum((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in reads)
    assert read <= 50, plan


async def test_of_very_many_the_oldest_are_looked_at_on_each_way(shards: Shards) -> None:
    near = shards.store(0)
    parent, most = mint_execution_id(0), rows.CHILDREN_LOOKED_AT
    for target in (1, 2):
        children = [mint_execution_id(target) for _ in range(most)]
        await near.scan.write(
            "insert into harvest_children select unnest($1::uuid[]), $2, 1, 1, true", children, parent
        )
    found = await relay(shards)
    told = [(row.target_shard, row.status, row.in_flight, row.capped) for row in found.in_flight]
    assert told == [(1, "STARTED", most // 2, True), (2, "STARTED", most // 2, True)]
    assert found.in_flight_capped


async def test_of_very_many_deliveries_the_oldest_are_looked_at(shards: Shards) -> None:
    near = shards.store(0)
    targets = [mint_execution_id(1) for _ in range(rows.DELIVERIES_LOOKED_AT + 100)]
    await near.scan.write(
        """insert into harvest_deliveries (kind, source_execution_id, source_seq, target_execution_id, target_shard,
                                           payload, attempts, last_error)
           select 1, $1, 1, unnest($2::uuid[]), 1, '{}', 1, 'away'""",
        mint_execution_id(0),
        targets,
    )
    found = await relay(shards)
    told = [(row.status, row.in_flight, row.failing, row.capped) for row in found.in_flight]
    assert told == [("PENDING_START", rows.DELIVERIES_LOOKED_AT, rows.DELIVERIES_LOOKED_AT, True)]
    assert (await gauges(shards))["cross_shard_child.failing", "1", "child_start"] == rows.DELIVERIES_LOOKED_AT


async def test_gauges_are_of_all_shards_by_target(shards: Shards) -> None:
    await two_children_elsewhere(shards)
    parent, child = await a_member(shards.store(1)), mint_execution_id(0)
    await a_kinship(shards.store(1), parent, child)
    await in_vain(shards)
    found = await gauges(shards)
    assert found["cross_shard_child.in_flight", "1", "pending_start"] == 1
    assert found["cross_shard_child.in_flight", "1", "started"] == 1
    assert found["cross_shard_child.in_flight", "0", "started"] == 1
    assert found["cross_shard_child.failing", "1", "child_start"] == 1
    assert 0 <= found["cross_shard_child.oldest_age", "1"] < 300


async def test_a_shard_that_does_not_answer_is_named_and_what_goes_there_is_told(shards: Shards) -> None:
    await two_children_elsewhere(shards)
    half = await Shards.open({0: shards.store(0).url, 1: DEAD})
    try:
        found = await relay(half)
        assert [shard.shard_id for shard in found.shards.missing] == [1]
        assert {row.target_shard for row in found.in_flight} == {1}
    finally:
        await half.close()
