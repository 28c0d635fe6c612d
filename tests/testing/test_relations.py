"""Children, runs that go on as others, and what runs say to each other, in an environment."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from harvest import ChildPlacement, Harvest, Retry, WorkflowContext, WorkflowFailedError
from harvest.errors import ChildWorkflowError, ExternalWorkflowError, ResultTimeoutError, WorkflowBugError
from harvest.testing import WorkflowEnvironment, failing, never

START = datetime(2026, 1, 1, tzinfo=UTC)
app = Harvest()


@app.workflow
async def child(ctx: WorkflowContext, number: int) -> int:
    if number < 0:
        raise ValueError("below zero")
    await ctx.sleep(number)
    return number * 10


@app.workflow
async def patient(ctx: WorkflowContext) -> str:
    try:
        return await ctx.wait_for_signal("go", str)
    except asyncio.CancelledError:
        await ctx.sleep(60)
        raise


@app.workflow
async def parent(ctx: WorkflowContext, numbers: list[int]) -> list[int | str]:
    results = await ctx.fan_out_collect(child, numbers)
    return [r if isinstance(r, int) else f"{type(r).__name__} {r.fields['state']}" for r in results]


async def test_children_run_and_their_ends_come_back() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(parent, [3, -1, 5])
        assert await handle.result() == [30, "ChildWorkflowError FAILED", 50]
        assert env.now() == START + timedelta(seconds=5)
        assert sorted(run.workflow_name for run in env.runs()) == ["child", "child", "child", "parent"]


async def test_a_child_is_mocked() -> None:
    async with WorkflowEnvironment(app) as env:
        mock = env.mock(child, lambda number: number + 1)
        assert await (await env.start(parent, [3, -1])).result() == [4, 0]
        assert [call.args for call in mock.calls] == [(3,), (-1,)]
        env.mock(child, failing(1, RuntimeError("no"), then=7))
        assert await (await env.start(parent, [1, 1])).result() == ["ChildWorkflowError FAILED", 7]


async def test_a_mocked_child_that_never_ends_meets_the_deadline() -> None:
    mine = Harvest()

    @mine.workflow
    async def impatient(ctx: WorkflowContext) -> str:
        try:
            return str(await ctx.execute_child_workflow(child.with_options(deadline=timedelta(hours=1)), 1))
        except TimeoutError:
            return "late"

    async with WorkflowEnvironment(mine) as env:
        env.mock(child, never)
        assert await (await env.start(impatient)).result() == "late"
        assert env.now() == START + timedelta(hours=1)


async def test_a_child_without_code_is_named() -> None:
    mine = Harvest()

    @mine.workflow
    async def calls(ctx: WorkflowContext) -> Any:
        return await ctx.execute_child_workflow("far_away", 4)

    async with WorkflowEnvironment(mine) as env:
        handle = await env.start(calls)
        with pytest.raises(ResultTimeoutError, match="no code of workflow 'far_away' version 1 is declared"):
            await handle.result()
        await handle.terminate()
        env.mock("far_away", lambda number: number * 2)
        assert await (await env.start(calls)).result() == 8


async def test_a_blocked_child_is_raised_where_its_parent_is_awaited() -> None:
    mine = Harvest()

    @mine.workflow(block_on=[ZeroDivisionError])
    async def buggy(ctx: WorkflowContext) -> int:
        return 1 // 0

    @mine.workflow
    async def above(ctx: WorkflowContext) -> int:
        return await ctx.execute_child_workflow(buggy)

    async with WorkflowEnvironment(mine) as env:
        handle = await env.start(above)
        with pytest.raises(WorkflowBugError, match="raised ZeroDivisionError"):
            await handle.result()


@pytest.mark.parametrize(
    ("policy", "state"), [("abandon", "RUNNING"), ("request_cancel", "CANCELLED"), ("terminate", "TERMINATED")]
)
@pytest.mark.parametrize("how", ["completes", "terminated"])
async def test_close_policies(policy: Any, state: str, how: str) -> None:
    mine = Harvest()

    @mine.workflow
    async def leaves(ctx: WorkflowContext, waits: bool) -> str:
        handle = await ctx.start_child_workflow(patient.with_options(close_policy=policy))
        await ctx.sleep(1)
        if waits:
            await handle
        return str(handle.execution_id)

    mine.registry.add_workflow(patient)
    async with WorkflowEnvironment(mine) as env:
        handle = await env.start(leaves, how == "terminated")
        if how == "terminated":
            await env.skip(5)
            await handle.terminate()
        else:
            await handle.result()
        await env.skip(60)
        (found,) = [run for run in env.runs() if run.workflow_name == "patient"]
        assert found.state == state


async def test_a_detached_child_outlives_its_parent() -> None:
    mine = Harvest()
    mine.registry.add_workflow(patient)

    @mine.workflow
    async def spawns(ctx: WorkflowContext) -> str:
        handle = await ctx.start_child_workflow(patient.with_options(detached=True, workflow_id="p"))
        return str(handle.execution_id)

    async with WorkflowEnvironment(mine) as env:
        spawned = env.handle(await (await env.start(spawns)).result(), patient)
        assert spawned.state == "RUNNING"
        await spawned.signal("go", "on")
        assert await spawned.result() == "on"
        assert env.handle_by_id(patient, "p").execution_id == spawned.execution_id


async def test_a_taken_key_refuses_the_child() -> None:
    mine = Harvest()
    mine.registry.add_workflow(patient)

    @mine.workflow
    async def second(ctx: WorkflowContext) -> str:
        try:
            return await ctx.execute_child_workflow(patient.with_options(workflow_id="p"))
        except ChildWorkflowError as error:
            return f"{error.fields['state']} {error.fields['type']}"

    async with WorkflowEnvironment(mine) as env:
        await env.start(patient, workflow_id="p")
        assert await (await env.start(second)).result() == "REJECTED WorkflowAlreadyStarted"


async def test_a_cancelled_child_ends_in_its_own_time() -> None:
    mine = Harvest()
    mine.registry.add_workflow(patient)

    @mine.workflow
    async def cancels(ctx: WorkflowContext) -> bool:
        handle = await ctx.start_child_workflow(patient)
        await ctx.sleep(1)
        handle.cancel()
        await ctx.sleep(1)
        return handle.done

    async with WorkflowEnvironment(mine) as env:
        handle = await env.start(cancels)
        assert await handle.result() is True
        (found,) = [run for run in env.runs() if run.workflow_name == "patient"]
        assert found.state == "RUNNING"
        await env.skip(60)
        assert [run.state for run in env.runs() if run.workflow_name == "patient"] == ["CANCELLED"]


@app.workflow
async def counter(ctx: WorkflowContext, upto: int, at: int = 0) -> int:
    at += await ctx.wait_for_signal("add", int)
    if at >= upto:
        return at
    return ctx.continue_as_new(upto, at)


async def test_a_handle_follows_a_chain_and_no_signal_is_lost() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(counter, 10, workflow_id="c")
        for _ in range(10):
            await handle.signal("add", 1)
        assert await handle.result() == 10
        runs = env.runs()
        assert [run.state for run in runs] == ["CONTINUED_AS_NEW"] * 9 + ["COMPLETED"]
        assert {run.workflow_id for run in runs} == {"c"}
        assert env.history(handle).state == "CONTINUED_AS_NEW"


async def test_unread_signals_go_along() -> None:
    mine = Harvest()

    @mine.workflow
    async def rotates(ctx: WorkflowContext, rest: int) -> list[int]:
        await ctx.sleep(10)
        if rest:
            ctx.continue_as_new(rest - 1)
        return ctx.drain_signals("n", int)

    async with WorkflowEnvironment(mine) as env:
        handle = await env.start(rotates, 2)
        for number in range(3):
            await handle.signal("n", number)
        await env.skip(15)
        await handle.signal("n", 3)
        assert await handle.result() == [0, 1, 2, 3]


async def test_a_workflow_is_tried_again() -> None:
    mine = Harvest()

    @mine.workflow(retry=Retry(max_attempts=3, initial_interval=timedelta(minutes=1)))
    async def flaky(ctx: WorkflowContext) -> list[Any]:
        if ctx.info.attempt < 3:
            raise OSError(f"attempt {ctx.info.attempt}")
        assert ctx.info.last_failure is not None
        return [ctx.info.attempt, ctx.info.last_failure.message]

    async with WorkflowEnvironment(mine) as env:
        handle = await env.start(flaky)
        assert await handle.result() == [3, "attempt 2"]
        assert env.now() == START + timedelta(minutes=3)
        assert [run.state for run in env.runs()] == ["FAILED", "FAILED", "COMPLETED"]


async def test_runs_speak_to_each_other() -> None:
    mine = Harvest()
    mine.registry.add_workflow(patient)

    @mine.workflow
    async def speaks(ctx: WorkflowContext) -> list[Any]:
        told: list[Any] = []
        try:
            await ctx.signal_external_workflow_by_id("patient", "nobody", "go", "x")
        except ExternalWorkflowError as error:
            told.append(error.fields["reason_code"])
        await ctx.signal_external_workflow_by_id("patient", "one", "go", "hello")
        told.append(await ctx.await_external_workflow_by_id("patient", "one"))
        try:
            await ctx.signal_external_workflow_by_id("patient", "one", "go", "again")
        except ExternalWorkflowError as error:
            told.append(error.fields["reason_code"])
        await ctx.cancel_external_workflow_by_id("patient", "two", "enough")
        try:
            await ctx.await_external_workflow_by_id("patient", "two")
        except ExternalWorkflowError as error:
            told.append(error.fields["state"])
        return told

    async with WorkflowEnvironment(mine) as env:
        one, two = [await env.start(patient, workflow_id=name) for name in ("one", "two")]
        assert await (await env.start(speaks)).result() == ["target_unknown", "hello", "target_terminal", "CANCELLED"]
        assert await one.result() == "hello"
        with pytest.raises(WorkflowFailedError, match="CANCELLED"):
            await two.result()


@pytest.mark.parametrize(
    "placement",
    [
        ChildPlacement.ParentShard,
        ChildPlacement.Distributed,
        ChildPlacement.Shard(7),
        ChildPlacement.ResidencyKey("eu"),
    ],
)
async def test_a_placement_is_taken_as_it_is_in_the_one_world_of_a_test(placement: ChildPlacement) -> None:
    mine = Harvest()
    mine.registry.add_workflow(child)

    @mine.workflow
    async def places(ctx: WorkflowContext) -> int:
        return await ctx.execute_child_workflow(child.with_options(placement=placement), 3)

    async with WorkflowEnvironment(mine) as env:
        assert await (await env.start(places)).result() == 30
