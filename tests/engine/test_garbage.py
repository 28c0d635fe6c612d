"""A run that has ended leaves no cycles for the garbage collector: a full collection holds the loop of a worker."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from harvest import ApplicationError, Harvest, WorkflowContext, WorkflowDefinition
from harvest.errors import ActivityError, WorkflowFailedError
from harvest.worker.worker import Worker
from tests.support import at_work

app = Harvest()
RUNS = 5


@app.activity(start_to_close=timedelta(seconds=30))
async def echo(text: str) -> str:
    return text


@app.activity
async def breaks() -> None:
    raise ApplicationError("no", non_retryable=True)


@app.workflow
async def activities(ctx: WorkflowContext) -> int:
    for number in range(2):
        await asyncio.gather(*(ctx.execute_activity(echo, str(number)) for _ in range(3)))
    await ctx.execute_local_activity(echo, "local")
    try:
        await ctx.execute_activity(breaks)
    except ActivityError:
        return 1
    return 0


@app.workflow
async def timers(ctx: WorkflowContext) -> str:
    await ctx.sleep(0.01)
    await ctx.race(ctx.wait_for_signal("never"), ctx.sleep(0.01))
    ctx.start_timer(600).cancel()
    try:
        async with asyncio.timeout(0.01):
            await ctx.wait_for_signal("never")
    except TimeoutError:
        return "late"
    return "early"


@app.workflow
async def handlers(ctx: WorkflowContext) -> int:
    got: list[int] = []
    ctx.register_signal_handler("add", got.append)
    ctx.register_query_handler("got", lambda: len(got))
    waiting = asyncio.create_task(ctx.wait_for_signal("never"))
    ctx.set_current_details("at work")
    await ctx.wait_condition(lambda: len(got) == 0, timeout=5)
    return len(got) + waiting.done()


@app.workflow
async def versions(ctx: WorkflowContext) -> str:
    ctx.version("change", 0, 2)
    return ctx.side_effect(lambda: "effect", as_type=str) if ctx.patched("patch") else ""


@app.workflow
async def families(ctx: WorkflowContext) -> int:
    child = await ctx.start_child_workflow(versions)
    await child
    return await ctx.execute_child_workflow(continued, 1)


@app.workflow
async def continued(ctx: WorkflowContext, times: int) -> int:
    if times:
        ctx.continue_as_new(times - 1)
    return times


@app.workflow
async def sessions(ctx: WorkflowContext) -> str:
    async with ctx.create_session() as session:
        return await session.execute_activity(echo, "there")


@app.workflow
async def fails(ctx: WorkflowContext) -> None:
    await ctx.execute_activity(echo, "x")
    raise ApplicationError("no")


KINDS: list[WorkflowDefinition[..., object]] = [activities, timers, handlers, versions, families, sessions, fails]


@pytest.fixture(scope="module")
async def worker(new_database: Callable[[str], str]) -> AsyncIterator[Worker]:
    async with at_work(app, new_database("garbage")) as (started, _):
        yield started


async def end(kind: WorkflowDefinition[..., object], name: str) -> None:
    for handle in [await app.start(kind, workflow_id=f"{name}-{number}") for number in range(RUNS)]:
        if kind is fails:
            with pytest.raises(WorkflowFailedError):
                await handle.result()
        else:
            await handle.result()


async def closed(worker: Worker, since: int) -> None:
    while worker.counters.closed < since + RUNS or worker._held():
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_an_ended_run_leaves_nothing_to_collect(worker: Worker, kind: WorkflowDefinition[..., object]) -> None:
    await end(kind, f"before-{kind.name}")
    gc.collect()
    gc.disable()
    try:
        since = worker.counters.closed
        await end(kind, f"{kind.name}")
        await closed(worker, since)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("harvest"))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left
