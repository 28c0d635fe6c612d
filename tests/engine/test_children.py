"""Children: results, failures, cancellation, close policies, across shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from harvest import ChildPlacement, ChildWorkflowError, Harvest, WorkflowContext
from harvest.history.states import State
from harvest.shards import Shards
from tests.support import at_work, eventually

app = Harvest()


@app.workflow
async def adds(ctx: WorkflowContext, one: int, two: int) -> int:
    return one + two


@app.workflow
async def fails(ctx: WorkflowContext) -> None:
    raise ValueError("no luck")


@app.workflow
async def waits(ctx: WorkflowContext) -> str:
    return await ctx.wait_for_signal("go", str)


@app.workflow
async def rotates(ctx: WorkflowContext, left: int) -> str:
    if left:
        ctx.continue_as_new(left - 1)
    return await ctx.wait_for_signal("go", str)


@app.workflow
async def sums(ctx: WorkflowContext, numbers: list[int], shard_id: int) -> int:
    total, placed = 0, adds.with_options(placement=ChildPlacement.Shard(shard_id))
    for number in numbers:
        total = await ctx.execute_child_workflow(placed, total, number)
    return total


@app.workflow
async def catches(ctx: WorkflowContext) -> str:
    try:
        await ctx.execute_child_workflow(fails)
    except ChildWorkflowError as error:
        return f"{error.fields['state']} {error.fields['type']}: {error.__cause__}"
    return "?"


@app.workflow
async def fans_out(ctx: WorkflowContext, many: int) -> list[int]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ctx.execute_child_workflow(adds, n, n)) for n in range(many)]
    return [task.result() for task in tasks]


@app.workflow
async def out_of_time(ctx: WorkflowContext) -> str:
    try:
        await ctx.execute_child_workflow(
            waits.with_options(deadline=timedelta(milliseconds=100), workflow_id="late-child")
        )
    except TimeoutError:
        return "timeout"
    return "?"


@app.workflow
async def leaves(ctx: WorkflowContext, close_policy: Any, detached: bool, left: int) -> str:
    child = rotates.with_options(workflow_id="left-behind", close_policy=close_policy, detached=detached)
    handle = await ctx.start_child_workflow(child, left)
    await ctx.wait_for_signal("end")
    return str(handle.execution_id)


@app.workflow
async def twice(ctx: WorkflowContext) -> str:
    first = await ctx.start_child_workflow(waits.with_options(workflow_id="one-only"))
    try:
        await ctx.execute_child_workflow(waits.with_options(workflow_id="one-only"))
    except ChildWorkflowError as error:
        await first.signal("go", "on")
        return f"{error.fields['type']} {await first}"
    return "?"


async def state_of(shards: Shards, workflow_id: str) -> list[str]:
    rows = []
    for store in shards.stores.values():
        rows += await store.read.fetch(
            "select state, started_at from harvest_executions where workflow_id = $1 order by started_at", workflow_id
        )
    return [State(row["state"]).name for row in rows]


def urls_of(new_database: Callable[[str], str], name: str, shards: int) -> dict[int, str]:
    return {number: new_database(f"{name}_{number}") for number in range(shards)}


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_childs_result_comes_back(new_database: Callable[[str], str], shards: int) -> None:
    async with at_work(app, urls_of(new_database, "child_result", shards)):
        run = await app.start(sums, [1, 2, 3, 4], shards - 1)
        assert await run.result(timedelta(seconds=60)) == 10


async def test_a_childs_failure_is_an_error_with_its_cause(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("child_fails")):
        run = await app.start(catches)
        assert await run.result(timedelta(seconds=60)) == "FAILED ValueError: no luck"


async def test_many_children_at_once(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("child_many")):
        run = await app.start(fans_out, 50)
        assert await run.result(timedelta(seconds=30)) == [2 * n for n in range(50)]


async def test_a_deadline_ends_the_wait_and_asks_the_child_to_end(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("child_deadline")) as (_, shards):
        run = await app.start(out_of_time)
        assert await run.result(timedelta(seconds=60)) == "timeout"

        async def cancelled() -> bool:
            return await state_of(shards, "late-child") == ["CANCELLED"]

        await eventually(cancelled)


@pytest.mark.parametrize("rotations", [0, 2])
@pytest.mark.parametrize(
    ("close_policy", "detached", "ends"),
    [
        ("request_cancel", False, "CANCELLED"),
        ("terminate", False, "TERMINATED"),
        ("abandon", False, "RUNNING"),
        ("terminate", True, "TERMINATED"),
        (None, True, "RUNNING"),
    ],
)
async def test_42_a_close_policy_reaches_the_current_run_of_a_child_that_rotated(
    new_database: Callable[[str], str], close_policy: str | None, detached: bool, ends: str, rotations: int
) -> None:
    async with at_work(app, new_database("child_policy")) as (_, shards):
        run = await app.start(leaves, close_policy, detached, rotations)

        async def begun() -> bool:
            return await state_of(shards, "left-behind") == ["CONTINUED_AS_NEW"] * rotations + ["RUNNING"]

        await eventually(begun)
        await run.signal("end")
        child = UUID(await run.result(timedelta(seconds=60)))

        async def ended() -> bool:
            return (await state_of(shards, "left-behind"))[-1] == ends

        await eventually(ended)
        rows = await shards.store(0).read.fetch("select from harvest_children")
        assert not rows
        first = await shards.store(0).read.fetch_row(
            "select workflow_id from harvest_executions where execution_id = $1", child
        )
        assert first is not None


async def test_a_child_whose_id_is_taken_is_rejected(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("child_taken")):
        run = await app.start(twice)
        assert await run.result(timedelta(seconds=60)) == "WorkflowAlreadyStarted on"
