"""What is under way between shards: by source and target, what makes no progress, and the gauges of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harvest.history.deliveries import DeliveryKind
from harvest.history.ids import mint_execution_id
from harvest.operations import relay as operations
from harvest.operations.relay import gauges, relay
from harvest.shards import ShardRouter, Shards
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
