"""Runs that reach others: signals, cancel requests and waiting for an end, by execution id and by workflow id."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from harvest import ExternalWorkflowError, Harvest, WorkflowContext
from harvest.errors import WorkflowFailedError
from tests.support import at_work, eventually

app = Harvest()


@app.workflow
async def listens(ctx: WorkflowContext, rotations: int = 0) -> str:
    if rotations:
        ctx.continue_as_new(rotations - 1)
    return await ctx.wait_for_signal("word", str)


@app.workflow
async def speaks(ctx: WorkflowContext, target: str, by_key: bool) -> str:
    try:
        if by_key:
            await ctx.signal_external_workflow_by_id("listens", target, "word", "hello")
        else:
            await ctx.signal_external_workflow(target, "word", "hello")
    except ExternalWorkflowError as error:
        return str(error.fields["reason_code"])
    return "delivered"


@app.workflow
async def stops(ctx: WorkflowContext, target: str) -> str:
    await ctx.cancel_external_workflow(target, "enough of it")
    return "asked"


@app.workflow
async def follows(ctx: WorkflowContext, target: str) -> str:
    try:
        return f"ended with {await ctx.await_external_workflow(target)}"
    except ExternalWorkflowError as error:
        return f"{error.fields['state']} {error.fields['reason_code']}"


def both(new_database: Callable[[str], str], name: str) -> dict[int, str]:
    return {0: new_database(f"{name}_0"), 1: new_database(f"{name}_1")}


@pytest.mark.parametrize("by_key", [False, True])
async def test_a_signal_reaches_runs_on_every_shard(new_database: Callable[[str], str], by_key: bool) -> None:
    async with at_work(app, both(new_database, "external")):
        for number in range(4):
            target = await app.start(listens, number % 2, workflow_id=f"listener-{number}")
            name = f"listener-{number}" if by_key else str(target.execution_id)
            run = await app.start(speaks, name, by_key)
            assert await run.result(timedelta(seconds=60)) == "delivered"
            assert await target.result(timedelta(seconds=60)) == "hello"


@pytest.mark.parametrize("by_key", [False, True])
async def test_an_unknown_target_is_named_as_such(new_database: Callable[[str], str], by_key: bool) -> None:
    async with at_work(app, new_database("external_unknown")):
        target = "nobody" if by_key else "00000000-0000-8000-8000-000000000001"
        run = await app.start(speaks, target, by_key)
        assert await run.result(timedelta(seconds=60)) == "target_unknown"


async def test_a_closed_target_takes_nothing(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("external_closed")):
        target = await app.start(listens)
        await target.signal("word", "bye")
        await target.result(timedelta(seconds=60))
        run = await app.start(speaks, str(target.execution_id), False)
        assert await run.result(timedelta(seconds=60)) == "target_terminal"


async def test_a_run_is_asked_to_end(new_database: Callable[[str], str]) -> None:
    async with at_work(app, both(new_database, "external_cancel")):
        target = await app.start(listens, 1)
        run = await app.start(stops, str(target.execution_id))
        assert await run.result(timedelta(seconds=60)) == "asked"
        with pytest.raises(WorkflowFailedError) as ended:
            await target.result(timedelta(seconds=60))
        assert ended.value.fields["state"] == "CANCELLED"


async def test_the_end_of_another_run_can_be_awaited(new_database: Callable[[str], str]) -> None:
    async with at_work(app, both(new_database, "external_await")) as (_, shards):
        target = await app.start(listens, 1)
        run = await app.start(follows, str(target.execution_id))

        async def waiting() -> bool:
            rows = [row for s in shards.stores.values() for row in await s.read.fetch("select from harvest_deliveries")]
            return len(rows) == 1

        await eventually(waiting)
        await target.signal("word", "done")
        assert await run.result(timedelta(seconds=60)) == "ended with done"
        late = await app.start(follows, str(target.execution_id))
        assert await late.result(timedelta(seconds=60)) == "ended with done"
        nobody = await app.start(follows, "00000000-0000-8000-8000-000000000001")
        assert (await nobody.result(timedelta(seconds=60))).endswith("target_unknown")
