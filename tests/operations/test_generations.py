"""A worker's generation: raised by whatever takes a partition from it, and while it stands its tasks need no look."""

from __future__ import annotations

from uuid import UUID

import pytest

from harvest.operations import owner_mode
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest.store import partitions
from harvest.store.store import Store
from tests.operations.owning import an_owner, claimed, commits, end_lease, own, owning, switch_on
from tests.store.rows import a_run, one

PENDING = 0


@pytest.fixture
async def store(shards: Shards) -> Store:
    """A shard in owner mode."""
    await switch_on(shards.store(0))
    return shards.store(0)


async def generation(store: Store, worker: UUID) -> int:
    number: int = await one(store, "select generation from harvest_workers where worker = $1", worker)
    return number


async def test_who_takes_what_is_free_or_offers_takes_nothing_from_anybody(store: Store) -> None:
    worker, other = await owning(store, "first", 512), await an_owner(store, "other")
    await partitions.offer(store, worker, {0: (other, [])})
    await partitions.accept(store, other, [0])
    assert (await generation(store, worker), await generation(store, other)) == (0, 0)


async def test_a_release_is_a_loss(store: Store) -> None:
    worker, other = await owning(store, "first", 10), await owning(store, "other", 10)
    scan = await partitions.scan(store, worker)
    mine = [each.partition for each in scan.partitions if each.owner == worker]
    await partitions.release(store, worker, mine[:3], "a test")
    assert (await generation(store, worker), await generation(store, other)) == (1, 0)
    assert (scan.generation, (await partitions.scan(store, worker)).generation) == (0, 1)


async def test_a_hand_over_is_a_loss_of_who_gives(store: Store) -> None:
    worker, heir = await owning(store, "first", 512), await an_owner(store, "heir")
    await partitions.offer(store, worker, {each: (heir, []) for each in range(4)})
    await partitions.accept(store, heir, range(4))
    assert len(await partitions.transfer(store, worker, range(4), [])) == 4
    assert (await generation(store, worker), await generation(store, heir)) == (1, 0)


async def test_a_take_over_is_a_loss_of_each_whose_lease_has_ended(store: Store) -> None:
    dead = [await owning(store, name, 100) for name in ("a", "b")]
    living = await owning(store, "living", 100)
    for worker in dead:
        await end_lease(store, worker)
    heir = await owning(store, "heir", 412)
    assert [await generation(store, each) for each in (*dead, living, heir)] == [1, 1, 0, 0]


async def test_turning_owner_mode_off_is_everybodys_loss(shards: Shards, actor: Actor, store: Store) -> None:
    owners = [await owning(store, name, 100) for name in ("a", "b")]
    without = await an_owner(store, "without")
    await owner_mode.disable(shards, actor, 0, reason="a test")
    assert [await generation(store, each) for each in (*owners, without)] == [1, 1, 0]


async def test_an_owners_account_of_its_epochs_holds_in_its_generation(
    shards: Shards, actor: Actor, store: Store
) -> None:
    worker, other = await an_owner(store, "first"), await an_owner(store, "other")
    await owner_mode.disable(shards, actor, 0, reason="off")
    await owner_mode.enable(shards, actor, 0, reason="with its guard")
    epoch = 0x01020304
    await store.scan.write("update harvest_partitions set owner = $1, epoch = $2 where partition = 0", worker, epoch)
    run = await a_run(store, None, state=PENDING)
    assert await claimed(store, worker, {0: epoch}, generation=0) == [run]
    assert await one(store, "select owner_epoch from harvest_workflow_tasks where execution_id = $1", run) == epoch
    assert await commits(store, worker, run, attempt=2)
    later = await a_run(store, None, state=PENDING)
    await own(store, other, 0)
    assert await claimed(store, worker, {0: epoch}, generation=0) == [], "it was taken away meanwhile"
    assert await claimed(store, other, {0: epoch + 1}, generation=0) == [later]


@pytest.mark.parametrize("lost", [0, 1])
async def test_what_was_taken_in_an_earlier_generation_is_looked_at(store: Store, lost: int) -> None:
    worker, other = await an_owner(store, "first"), await an_owner(store, "other")
    epochs = {each: await own(store, worker, each) for each in (0, 1)}
    run = await a_run(store, None, state=PENDING)
    assert await claimed(store, worker, epochs, generation=0) == [run]
    await own(store, other, lost)
    assert await generation(store, worker) == 1
    assert await commits(store, worker, run, attempt=2) == (lost == 1), "the run is in partition 0"


async def test_what_was_lost_and_regained_is_refused(store: Store) -> None:
    worker, other = await an_owner(store, "first"), await an_owner(store, "other")
    epoch = await own(store, worker, 0)
    run = await a_run(store, None, state=PENDING)
    assert await claimed(store, worker, {0: epoch}, generation=0) == [run]
    await own(store, other, 0)
    await own(store, worker, 0)
    assert not await commits(store, worker, run, attempt=2)
