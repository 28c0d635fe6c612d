"""Tenant cells: what lands on a reserved shard and what never does, and that a flood in one stays there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from harvest import ChildPlacement, Harvest, WorkerOptions, WorkflowContext
from harvest.errors import ConfigurationError, NoWritableShardError, PlacementError
from harvest.history.ids import shard_of
from harvest.operations import starting, with_start
from harvest.operations.actor import in_process
from harvest.operations.batch_starting import start_batch
from harvest.operations.preparing import StartRequest
from harvest.operations.starting import start_one
from harvest.shards import Placement, ShardRouter, Shards
from harvest.worker.worker import Worker
from tests.bench.part_l import CALLS, MOST_WITH_CELL
from tests.bench.side import run_side
from tests.operations.population import register
from tests.scale import scale
from tests.support import FAST

ACTOR = in_process("test")
OPEN = ShardRouter.of((0, 1, 2))
CELL = ShardRouter(readable=(0, 1, 2), writable=(0, 1, 2), default=0, residency={"cell-a": 2}, reserved=(2,))
KEYS = [f"order-{number}" for number in range(300)]


@pytest.fixture
async def shards(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """Two shared shards and a cell; one workflow type is registered."""
    opened = await Shards.open({shard: new_database(f"cells_{shard}") for shard in (0, 1, 2)}, CELL)
    await register(opened, 0, "order_flow", input_schema=b"{}")
    yield opened
    await opened.close()


def request(workflow_id: str | None = None, **more: object) -> StartRequest:
    """A start of the registered type."""
    return StartRequest(workflow_name="order_flow", workflow_id=workflow_id, **more)  # type: ignore[arg-type]


async def in_cell(shards: Shards) -> int:
    """How many runs live on the reserved shard."""
    return len(await shards.store(2).read.fetch("select from harvest_executions"))


def test_unpinned_placement_never_picks_a_reserved_shard() -> None:
    assert {CELL.pick("order_flow", key) for key in KEYS} == {0, 1}
    assert {CELL.place("order_flow", key) for key in KEYS} == {0, 1}


def test_only_the_keys_that_hashed_to_the_reserved_shard_move() -> None:
    before = {key: OPEN.pick("order_flow", key) for key in KEYS}
    after = {key: CELL.pick("order_flow", key) for key in KEYS}
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key] == 2}
    assert {after[key] for key in moved} == {0, 1}, "they spread over the others"


def test_keys_of_a_shard_that_drains_do_not_flow_into_a_cell() -> None:
    draining = msgspec.structs.replace(CELL, writable=(0, 2))
    assert {draining.pick("order_flow", key) for key in KEYS} == {0}


def test_with_every_shared_shard_drained_a_cell_takes_only_what_is_pinned() -> None:
    with pytest.raises(ConfigurationError, match="every writable shard is reserved"):
        msgspec.structs.replace(CELL, writable=(2,))
    drained = msgspec.structs.replace(CELL, writable=())
    with pytest.raises(NoWritableShardError):
        drained.pick("order_flow", "k")


def test_the_default_shard_stays_shared() -> None:
    with pytest.raises(ConfigurationError, match="shard 2 is the default and reserved"):
        msgspec.structs.replace(CELL, default=2)


def test_a_pin_by_number_and_by_key_reaches_the_cell() -> None:
    for placement in (Placement(shard_id=2), Placement(residency_key="cell-a")):
        assert {CELL.place("order_flow", key, placement) for key in KEYS} == {2}


def test_a_cell_that_drains_refuses_even_what_is_pinned() -> None:
    draining = msgspec.structs.replace(CELL, writable=(0, 1))
    with pytest.raises(PlacementError, match="being drained"):
        draining.place("order_flow", "k", Placement(residency_key="cell-a"))


async def test_no_start_without_a_pin_lands_in_a_cell(shards: Shards) -> None:
    """Starts with an id, with a key alone, in batches, and by a signal."""
    ids = [key for key in KEYS if OPEN.pick("order_flow", key) == 2][:12]
    assert len(ids) == 12, "keys that would have hashed there"
    for workflow_id in ids[:4]:
        await start_one(shards, ACTOR, request(workflow_id))
    for key in ids[4:8]:
        await start_one(shards, ACTOR, request(idempotency_key=key))
    await start_one(shards, ACTOR, request())
    items = await start_batch(shards, ACTOR, [request(workflow_id) for workflow_id in ids[8:10]], atomic=False)
    assert all(item.error is None for item in items)
    await starting.start_many(shards, "order_flow", [f"{workflow_id}-again" for workflow_id in ids], b"null")
    await with_start.signal_with_start(shards, ACTOR, request(ids[10]), "approved", b"{}")
    assert await in_cell(shards) == 0


async def test_a_pinned_start_lands_there_with_an_id_of_its_own_too(shards: Shards) -> None:
    placement = Placement(residency_key="cell-a")
    named = await start_one(shards, ACTOR, request("acme-42", placement=placement))
    unnamed = await start_one(shards, ACTOR, request(placement=placement))
    assert (shard_of(named.execution_id), shard_of(unnamed.execution_id)) == (2, 2)
    assert await in_cell(shards) == 2


async def test_a_key_that_is_on_the_shard_already_hashes_elsewhere_once_it_is_reserved(shards: Shards) -> None:
    """Which is why a cell begins with a fresh shard."""
    there = next(key for key in KEYS if OPEN.pick("order_flow", key) == 2)
    open_shards = Shards({shard: store.url for shard, store in shards.stores.items()}, OPEN)
    before = await start_one(open_shards, ACTOR, request(there))
    await open_shards.close()
    after = await start_one(shards, ACTOR, request(there))
    assert shard_of(before.execution_id) == 2
    assert shard_of(after.execution_id) != 2
    assert after.created


async def test_children_stay_in_the_cell_of_their_parent(new_database: Callable[[str], str]) -> None:
    app = Harvest()

    @app.workflow
    async def child(ctx: WorkflowContext, number: int) -> int:
        return number

    @app.workflow
    async def parent(ctx: WorkflowContext) -> list[int]:
        return [await ctx.execute_child_workflow(child, number) for number in range(4)]

    urls = {shard: new_database(f"cell_family_{shard}") for shard in (0, 1, 2)}
    await app.connect(urls, router=CELL)
    shards = await Shards.open(urls, CELL)
    worker = Worker(app.registry, shards, msgspec.structs.replace(FAST, shard_assignments=(2,)))
    await worker.start()
    try:
        handle = await app.start(parent, workflow_id="family", residency_key="cell-a")
        assert await handle.result() == [0, 1, 2, 3]
        assert await in_cell(shards) == 5
    finally:
        await worker.stop()
        await shards.close()
        await app.close()


async def test_distributed_children_leave_a_cell_and_placed_ones_enter_it(new_database: Callable[[str], str]) -> None:
    app = Harvest()

    @app.workflow
    async def child(ctx: WorkflowContext, number: int) -> int:
        return number

    @app.workflow
    async def parent(ctx: WorkflowContext, placed: str) -> list[int]:
        placement = ChildPlacement.ResidencyKey(placed) if placed else ChildPlacement.Distributed
        return await ctx.fan_out(child.with_options(placement=placement), range(8))

    urls = {shard: new_database(f"cell_leaving_{shard}") for shard in (0, 1, 2)}
    await app.connect(urls, router=CELL)
    shards = await Shards.open(urls, CELL)
    worker = Worker(app.registry, shards, msgspec.structs.replace(FAST, shard_assignments=(0, 1, 2)))
    await worker.start()
    try:
        inside = await app.start(parent, "", workflow_id="inside", residency_key="cell-a")
        assert await inside.result() == [*range(8)]
        assert await in_cell(shards) == 1, "the parent alone"
        outside = await app.start(parent, "cell-a", workflow_id="outside", shard_id=0)
        assert await outside.result() == [*range(8)]
        assert await in_cell(shards) == 9
    finally:
        await worker.stop()
        await shards.close()
        await app.close()


async def test_a_cell_is_worked_on_by_its_own_workers_alone(new_database: Callable[[str], str]) -> None:
    app = Harvest()

    @app.workflow
    async def quick(ctx: WorkflowContext) -> str:
        return "done"

    urls = {shard: new_database(f"cell_pool_{shard}") for shard in (0, 1, 2)}
    await app.connect(urls, router=CELL)
    shards = await Shards.open(urls, CELL)

    def worker_of(name: str, *assigned: int) -> Worker:
        options = WorkerOptions(name=name, shard_assignments=assigned, poll_interval=0.2, drain_timeout=0.5)
        return Worker(app.registry, shards, options)

    shared, cell = worker_of("shared", 0, 1), worker_of("cell", 2)
    try:
        await shared.start()
        inside = await app.start(quick, workflow_id="inside", residency_key="cell-a")
        outside = [await app.start(quick, workflow_id=key) for key in KEYS[:6]]
        assert [await each.result() for each in outside] == ["done"] * 6
        assert shared.counters.closed == 6
        await cell.start()
        assert await inside.result() == "done"
        assert (shared.counters.closed, cell.counters.closed) == (6, 1)
    finally:
        await shared.stop()
        await cell.stop()
        await shards.close()
        await app.close()


@pytest.mark.slow
@pytest.mark.prove_shards
async def test_a_flood_in_a_cell_does_not_reach_another_tenant(
    new_database: Callable[[str], str], full_scale: bool, proof: Callable[..., None]
) -> None:
    """Two worker processes each time; with a cell each has a shard, without they share one."""
    imports, orders = scale(24, 100), scale(12, 60)
    worst = {}
    for case in ("cell", "shared"):
        urls = [new_database(f"flood_{case}_{shard}") for shard in (0, 1)]
        told = run_side("cells_side", case, *urls, str(imports), str(CALLS), str(orders))
        worst[case] = told["worst"]
        assert told["shards_of_a"] == ([1] if case == "cell" else [0])
        assert told["shards_of_b"] == [0]
    proof("worst schedule-to-start of tenant B, s", **{case: round(seconds, 3) for case, seconds in worst.items()})
    assert worst["cell"] < MOST_WITH_CELL
    assert worst["shared"] > worst["cell"]
    if full_scale:
        assert worst["shared"] > MOST_WITH_CELL
