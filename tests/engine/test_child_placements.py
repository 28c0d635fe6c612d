"""Children on other shards: where they are placed, what is refused, and that everything else stays with its parent."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from harvest import ChildPlacement, ChildWorkflowError, Harvest, Retry, WorkflowContext
from harvest.history.data import ChildWorkflowFailed
from harvest.history.ids import parse_execution_id, pick_shard, shard_of
from harvest.history.kinds import EventKind
from harvest.shards import ShardRouter, Shards
from harvest.worker.worker import Worker
from tests.support import FAST, check_invariants, eventually, history_of

app = Harvest()
PATIENCE = timedelta(seconds=60)


@app.workflow
async def doubles(ctx: WorkflowContext, number: int) -> int:
    return 2 * number


@app.workflow
async def waits(ctx: WorkflowContext) -> str:
    return await ctx.wait_for_signal("go", str)


@app.workflow
async def fans_out(ctx: WorkflowContext, many: int) -> list[int]:
    return await ctx.fan_out(doubles.with_options(placement=ChildPlacement.Distributed), range(many))


@app.workflow
async def one_elsewhere(ctx: WorkflowContext) -> list[str]:
    handle = await ctx.start_child_workflow(waits.with_options(placement=ChildPlacement.Distributed))
    return [str(handle.execution_id), await handle]


@app.workflow
async def placed(ctx: WorkflowContext, shard_id: int | None, key: str | None) -> str:
    placement = ChildPlacement.Shard(shard_id) if shard_id is not None else ChildPlacement.ResidencyKey(key or "")
    try:
        return str(await ctx.execute_child_workflow(doubles.with_options(placement=placement), 4))
    except ChildWorkflowError as error:
        cause: Any = error.__cause__
        return f"{error.fields['state']} {cause.type}: {cause.message}"


@app.workflow
async def lets_go(ctx: WorkflowContext, shard_id: int) -> str:
    apart = doubles.with_options(placement=ChildPlacement.Shard(shard_id), detached=True)
    handle = await ctx.start_child_workflow(apart, 4)
    await ctx.wait_for_signal("end")
    return str(handle.execution_id)


@asynccontextmanager
async def a_fleet(
    urls: Mapping[int, str], router: ShardRouter | None = None, *, starts: ShardRouter | None = None
) -> AsyncIterator[Shards]:
    """A worker with a router of its own on all those shards; `starts` is the one of who starts runs."""
    await app.connect(urls, router=starts or ShardRouter.of(tuple(urls)))
    shards = await Shards.open(urls, router)
    worker = Worker(app.registry, shards, FAST)
    await worker.start()
    try:
        yield shards
    finally:
        await worker.stop()
        await shards.close()
        await app.close()


def databases(new_database: Callable[[str], str], name: str, count: int) -> dict[int, str]:
    return {number: new_database(f"{name}_{number}") for number in range(count)}


async def executions(shards: Shards, workflow_name: str) -> list[dict[str, Any]]:
    """Every run of a type, with the shard that it is on."""
    found: list[dict[str, Any]] = []
    for shard_id, store in shards.stores.items():
        rows = await store.read.fetch(
            "select execution_id, parent_id, workflow_id, state from harvest_executions where workflow_name = $1 "
            "order by started_at",
            workflow_name,
        )
        found += [{**dict(row), "shard": shard_id} for row in rows]
    return found


async def test_distributed_children_go_where_their_parents_id_and_their_number_lead(
    new_database: Callable[[str], str],
) -> None:
    many = 24
    async with a_fleet(databases(new_database, "spread", 3)) as shards:
        run = await app.start(fans_out, many, shard_id=0)
        assert await run.result(PATIENCE) == [2 * number for number in range(many)]
        expected = Counter(pick_shard((0, 1, 2), "doubles", f"{run.execution_id}#{n}") for n in range(1, many + 1))
        found = await executions(shards, "doubles")
        assert Counter(each["shard"] for each in found) == expected
        assert len(expected) == 3
        assert all(shard_of(each["execution_id"]) == each["shard"] for each in found)
        await eventually(lambda: nothing_under_way(shards))
        await check_invariants(shards)


async def nothing_under_way(shards: Shards) -> bool:
    for store in shards.stores.values():
        for table in ("harvest_cross_shard_children", "harvest_deliveries", "harvest_children"):
            if await store.read.fetch(f"select from {table}"):
                return False
    return True


async def test_a_reserved_shard_gets_distributed_children_from_nobody(new_database: Callable[[str], str]) -> None:
    urls = databases(new_database, "cell", 2)
    router = ShardRouter(readable=(0, 1), writable=(0, 1), default=0, reserved=(1,))
    shards = await Shards.open(urls, router)
    worker = Worker(app.registry, shards, replace(FAST, shard_assignments=(0, 1)))
    await app.connect(urls, router=router)
    await worker.start()
    try:
        run = await app.start(fans_out, 8, shard_id=1)
        assert await run.result(PATIENCE) == [2 * number for number in range(8)]
        assert {each["shard"] for each in await executions(shards, "doubles")} == {0}, "they leave the cell"
        pinned = await app.start(placed, 1, None, shard_id=0)
        assert await pinned.result(PATIENCE) == "8"
        assert 1 in {each["shard"] for each in await executions(shards, "doubles")}
    finally:
        await worker.stop()
        await shards.close()
        await app.close()


async def test_in_a_full_drain_distributed_children_stay_on_their_parents_shard_and_the_log_says_so(
    new_database: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    drained = ShardRouter(readable=(0, 1), writable=(), default=0)
    caplog.set_level(logging.WARNING, logger="harvest.worker")
    async with a_fleet(databases(new_database, "drain", 2), drained, starts=ShardRouter.of((0, 1))) as shards:
        run = await app.start(fans_out, 3, shard_id=1)
        assert await run.result(PATIENCE) == [0, 2, 4]
        assert [each["shard"] for each in await executions(shards, "doubles")] == [1, 1, 1]
    told = [record.getMessage() for record in caplog.records if "stays on its parent's shard" in record.getMessage()]
    assert len(told) == 3
    assert all("'doubles'" in line and "shard 1" in line for line in told)


ROUTER = ShardRouter(readable=(0, 1), writable=(0,), default=0, residency={"eu": 0, "us": 1})


@pytest.mark.parametrize(
    ("shard_id", "key", "says"),
    [
        (7, None, "REJECTED PlacementRefused: shard 7 is not a placeable shard for this deployment"),
        (
            1,
            None,
            "REJECTED PlacementRefused: shard 1 is not currently accepting new workflows; it is being drained",
        ),
        (None, "mars", "REJECTED PlacementRefused: residency key 'mars' is not declared for this deployment"),
        (
            None,
            "us",
            "REJECTED PlacementRefused: residency key 'us' is not currently accepting new workflows; its shard is "
            "being drained",
        ),
        (None, " ", "REJECTED PlacementRefused: residency key must not be blank"),
        (0, None, "8"),
        (None, "eu", "8"),
    ],
)
async def test_a_pin_is_granted_or_refused_as_a_start_is(
    new_database: Callable[[str], str], shard_id: int | None, key: str | None, says: str
) -> None:
    async with a_fleet(databases(new_database, "pins", 2), ROUTER, starts=ShardRouter.of((0, 1))) as shards:
        run = await app.start(placed, shard_id, key, shard_id=1)
        assert await run.result(PATIENCE) == says
        children = await executions(shards, "doubles")
        assert [each["shard"] for each in children] == ([0] if says == "8" else [])
        await eventually(lambda: nothing_under_way(shards))
        await check_invariants(shards)


async def test_a_refused_child_that_nobody_awaits_is_in_its_parents_history_and_nothing_begins(
    new_database: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    async with a_fleet(databases(new_database, "apart", 2)) as shards:
        run = await app.start(lets_go, 9, shard_id=0)

        async def told() -> bool:
            kinds = [event.kind for event in await history_of(shards, run.execution_id)]
            return EventKind.CHILD_WORKFLOW_FAILED in kinds

        await eventually(told)
        (failed,) = [
            event.data()
            for event in await history_of(shards, run.execution_id)
            if event.kind == EventKind.CHILD_WORKFLOW_FAILED
        ]
        assert isinstance(failed, ChildWorkflowFailed)
        assert (failed.state, failed.failure.type) == ("REJECTED", "PlacementRefused")
        await run.signal("end")
        await run.result(PATIENCE)
        assert await executions(shards, "doubles") == []
        await check_invariants(shards)
    assert any("cannot be placed" in record.getMessage() for record in caplog.records)


async def test_a_wider_map_moves_no_child_that_was_asked_for_neither_warm_nor_cold(
    new_database: Callable[[str], str],
) -> None:
    urls = databases(new_database, "wider", 3)
    narrow = ShardRouter(readable=(0, 1, 2), writable=(1,), default=0)
    wide = ShardRouter(readable=(0, 1, 2), writable=(0, 2), default=0)
    anyone = ShardRouter.of((0, 1, 2))
    async with a_fleet(urls, narrow, starts=anyone) as shards:
        warm = await app.start(one_elsewhere, shard_id=0)
        cold = await app.start(one_elsewhere, shard_id=0)

        async def begun() -> bool:
            return len(await executions(shards, "waits")) == 2

        await eventually(begun)
        known = {each["parent_id"]: each["execution_id"] for each in await executions(shards, "waits")}
        assert {shard_of(each) for each in known.values()} == {1}
        await (await app.handle(known[warm.execution_id])).signal("go", "on")
        assert await warm.result(PATIENCE) == [str(known[warm.execution_id]), "on"]
    async with a_fleet(urls, wide, starts=anyone) as shards:
        await (await app.handle(known[cold.execution_id])).signal("go", "on")
        assert await cold.result(PATIENCE) == [str(known[cold.execution_id]), "on"]
        assert len(await executions(shards, "waits")) == 2


async def test_a_child_for_a_shard_that_this_worker_cannot_reach_waits_and_is_placed_nowhere_else(
    new_database: Callable[[str], str],
) -> None:
    urls = databases(new_database, "later", 2)
    router = ShardRouter(readable=(0, 1), writable=(0, 1), default=0)
    async with a_fleet({0: urls[0]}, router, starts=ShardRouter.of((0,))) as shards:
        run = await app.start(placed, 1, None, shard_id=0)

        async def failing() -> bool:
            rows = await shards.store(0).read.fetch(
                "select target_shard, status, last_error from harvest_cross_shard_children where attempts > 0"
            )
            return [tuple(row.values()) for row in rows] == [
                (1, "PENDING_START", "shard 1 has no database configured here")
            ]

        await eventually(failing)
        assert await executions(shards, "doubles") == []
        await shards.store(0).scan.write("update harvest_deliveries set due = clock_timestamp()")
        execution_id = run.execution_id
    async with a_fleet(urls, router) as shards:
        assert await (await app.handle(execution_id)).result(PATIENCE) == "8"
        assert [each["shard"] for each in await executions(shards, "doubles")] == [1]


# Everything that descends from a pinned run stays on its shard (reference 1.5)


@app.workflow
async def leaf(ctx: WorkflowContext, what: str) -> str:
    return what


@app.workflow
async def awaited(ctx: WorkflowContext) -> None:
    await ctx.execute_child_workflow(leaf, "awaited")


@app.workflow
async def detached(ctx: WorkflowContext) -> None:
    handle = await ctx.start_child_workflow(leaf.with_options(detached=True), "detached")
    await ctx.await_external_workflow(handle.execution_id)


@app.workflow
async def raced(ctx: WorkflowContext) -> None:
    await ctx.race(ctx.execute_child_workflow(leaf, "raced"), ctx.sleep(timedelta(seconds=60)))


@app.workflow
async def with_deadline(ctx: WorkflowContext) -> None:
    await ctx.execute_child_workflow(leaf.with_options(deadline=timedelta(seconds=60)), "in time")


@app.workflow
async def goes_on(ctx: WorkflowContext, left: int) -> None:
    if left:
        ctx.continue_as_new(left - 1)
    await ctx.execute_child_workflow(leaf, "of the successor")


@app.workflow(retry=Retry(max_attempts=2, initial_interval=timedelta(milliseconds=10)))
async def tries_again(ctx: WorkflowContext) -> None:
    await ctx.execute_child_workflow(leaf, "of an attempt")
    if ctx.info.attempt == 1:
        raise ValueError("once more")


@app.workflow
async def grandparent(ctx: WorkflowContext) -> None:
    await asyncio.gather(
        *(ctx.execute_child_workflow(each) for each in (awaited, detached, raced, with_deadline)),
        ctx.execute_child_workflow(goes_on, 2),
        ctx.execute_child_workflow(tries_again),
    )


RUNS = {
    "grandparent": 1, "awaited": 1, "detached": 1, "raced": 1, "with_deadline": 1, "goes_on": 3, "tries_again": 2,
    "leaf": 7,
}  # fmt: skip


@pytest.mark.parametrize("shard_id", [0, 2])
async def test_every_descendant_of_a_pinned_run_lives_on_its_shard(
    new_database: Callable[[str], str], shard_id: int
) -> None:
    async with a_fleet(databases(new_database, "inherit", 3)) as shards:
        run = await app.start(grandparent, shard_id=shard_id)
        await run.result(PATIENCE)
        found = {name: await executions(shards, name) for name in RUNS}
        assert {name: len(rows) for name, rows in found.items()} == RUNS
        assert {each["shard"] for rows in found.values() for each in rows} == {shard_id}
        ids: list[UUID] = [each["execution_id"] for rows in found.values() for each in rows]
        assert {shard_of(parse_execution_id(str(each))) for each in ids} == {shard_id}
