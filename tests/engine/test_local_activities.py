"""Local activities: inside the worker, without a task; their results go into the next decision."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from harvest import ActivityError, Harvest, Retry, WorkflowContext
from harvest.history.kinds import EventKind
from harvest.worker import committer
from tests.support import at_work, eventually, history_of

app = Harvest()
ran: Counter[str] = Counter()


@app.activity
async def double(number: int) -> int:
    ran["double"] += 1
    return number * 2


@app.activity
def where_am_i() -> bool:
    return threading.current_thread() is threading.main_thread()


@app.activity
async def fails(key: str) -> None:
    ran[key] += 1
    raise ValueError("never")


@app.activity
async def sleeps() -> None:
    await asyncio.sleep(60)


@app.workflow
async def doubles(ctx: WorkflowContext, times: int) -> int:
    number = 1
    for _ in range(times):
        number = await ctx.execute_local_activity(double, number)
    return number


async def test_a_chain_of_them_is_one_commit(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("local_chain")) as (worker, shards):
        run = await app.start(doubles, 20)
        assert await run.result(timedelta(seconds=30)) == 2**20
        events = await history_of(shards, run.execution_id)
        kinds = [event.kind for event in events]
        assert kinds.count(EventKind.LOCAL_ACTIVITY_COMPLETED) == 20
        assert kinds.count(EventKind.LOCAL_ACTIVITY_SCHEDULED) == 20
        assert kinds[-1] == EventKind.WORKFLOW_COMPLETED
        assert worker.counters.passed < 10  # one, but for a machine that stands still for seconds


@app.workflow
async def asks_the_thread(ctx: WorkflowContext) -> bool:
    return await ctx.execute_local_activity(where_am_i)


async def test_a_plain_function_runs_in_a_thread(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("local_thread")):
        run = await app.start(asks_the_thread)
        assert await run.result(timedelta(seconds=30)) is False


@app.workflow
async def tries(ctx: WorkflowContext, key: str, times: int) -> str:
    again = fails.with_options(retry=Retry(max_attempts=times, initial_interval=timedelta(milliseconds=5)))
    try:
        await ctx.execute_local_activity(again if times > 1 else fails, key)
    except ActivityError as error:
        return f"{error.fields['type']} after {error.fields['attempt']}"
    return "?"


@pytest.mark.parametrize("times", [1, 3])
async def test_it_is_tried_once_unless_told_otherwise(new_database: Callable[[str], str], times: int) -> None:
    key = f"fails-{times}"
    async with at_work(app, new_database("local_fails")):
        run = await app.start(tries, key, times)
        assert await run.result(timedelta(seconds=30)) == f"ValueError after {times}"
    assert ran[key] == times


@app.workflow
async def gives_up(ctx: WorkflowContext) -> str:
    short = sleeps.with_options(start_to_close=timedelta(milliseconds=50))
    try:
        await ctx.execute_local_activity(short)
    except ActivityError as error:
        return str(error.fields["type"])
    return "?"


async def test_it_has_a_limit(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("local_limit")):
        run = await app.start(gives_up)
        assert await run.result(timedelta(seconds=30)) == "TimeoutError"


@app.workflow
async def waits_beside(ctx: WorkflowContext) -> str:
    slow = asyncio.create_task(ctx.execute_local_activity(sleeps))
    name: str = await ctx.wait_for_signal("go", str)
    slow.cancel()
    return name


async def test_a_signal_comes_while_one_is_under_way(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("local_signal")):
        run = await app.start(waits_beside)
        await run.signal("go", "on")
        assert await run.result(timedelta(seconds=30)) == "on"


@app.activity
async def answers() -> str:
    return "ok"


@app.workflow
async def gathers(ctx: WorkflowContext) -> None:
    await asyncio.gather(ctx.execute_activity(answers), ctx.execute_local_activity(sleeps))


async def test_the_result_of_an_activity_does_not_wait_for_them(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "HOLD_SECONDS", 600.0)
    async with at_work(app, new_database("local_beside")) as (_, shards):
        run = await app.start(gathers)

        async def is_written() -> bool:
            events = await history_of(shards, run.execution_id)
            return any(event.kind == EventKind.ACTIVITY_COMPLETED for event in events)

        await eventually(is_written)
