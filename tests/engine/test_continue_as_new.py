"""Runs that go on as others: continue-as-new, workflow-level retry, and what goes along."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from harvest import ApplicationError, Harvest, Retry, WorkflowContext
from harvest.errors import WorkflowFailedError
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from tests.support import at_work, eventually, history_of

app = Harvest()


@app.workflow
async def counts_up(ctx: WorkflowContext, start: int, to: int) -> str:
    if start < to:
        ctx.continue_as_new(start + 1, to)
    return f"{start} in {ctx.info.execution_id} first {ctx.info.first_execution_id}"


@app.workflow
async def other(ctx: WorkflowContext, word: str) -> str:
    return f"other {word}"


@app.workflow
async def becomes_other(ctx: WorkflowContext) -> str:
    ctx.continue_as_new("way", workflow=other)


@app.workflow
async def leaves_signals(ctx: WorkflowContext, left: int) -> list[int]:
    await ctx.wait_condition(lambda: ctx.info.history_events > 0)
    if left:
        await ctx.wait_for_signal("go")
        ctx.continue_as_new(left - 1)
    return [await ctx.wait_for_signal("number", int) for _ in range(5)]


@app.workflow(retry=Retry(max_attempts=3, initial_interval=timedelta(milliseconds=10)))
async def third_time(ctx: WorkflowContext, word: str) -> str:
    if ctx.info.attempt < 3:
        raise ValueError(f"attempt {ctx.info.attempt}")
    assert ctx.info.last_failure is not None
    return f"{word} at attempt {ctx.info.attempt} after {ctx.info.last_failure.message}"


@app.workflow(retry=Retry(max_attempts=2, initial_interval=timedelta(milliseconds=10)))
async def never(ctx: WorkflowContext) -> None:
    raise ValueError("no")


@app.workflow
async def rotates_on_signals(ctx: WorkflowContext, total: int, seen: list[int]) -> int:
    for handled in range(1, total + 1):
        seen = [*seen, await ctx.wait_for_signal("n", int)]
        if len(seen) == total:
            break
        if handled == 50:
            ctx.continue_as_new(total, seen)
    assert seen == list(range(total)), seen
    return len(seen)


async def test_a_chain_of_runs_gives_the_result_of_its_last(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("continue")) as (_, shards):
        run = await app.start(counts_up, 0, 5, workflow_id="chain")
        result = await run.result(timedelta(seconds=30))
        assert result.startswith("5 in ")
        assert result.endswith(f"first {run.execution_id}")
        last = (await history_of(shards, run.execution_id))[-1]
        assert last.kind == EventKind.WORKFLOW_CONTINUED_AS_NEW
        rows = await _chain(shards)
        assert len(rows) == 6
        assert {row["first_execution_id"] for row in rows} == {run.execution_id}
        assert [row["state"] for row in rows] == [15] * 5 + [10]


async def test_it_can_go_on_as_another_type(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("continue_other")):
        run = await app.start(becomes_other)
        assert await run.result(timedelta(seconds=30)) == "other way"


async def test_39_unread_signals_go_along_in_order(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("continue_signals")):
        run = await app.start(leaves_signals, 2)
        for number in range(5):
            await run.signal("number", number)
        for _ in range(2):
            await run.signal("go")
        assert await run.result(timedelta(seconds=30)) == [0, 1, 2, 3, 4]


async def test_a_failed_run_is_tried_again_as_a_linked_run(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("retry")) as (_, shards):
        run = await app.start(third_time, "well")
        assert await run.result(timedelta(seconds=30)) == "well at attempt 3 after attempt 2"
        rows = await _chain(shards)
        assert [row["state"] for row in rows] == [11, 11, 10]
        started = (await history_of(shards, rows[2]["execution_id"]))[0].data()
        assert started.attempt == 3
        assert msgspec.json.decode(started.input) == "well"


async def test_the_last_failure_stands(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("retry_fails")) as (_, shards):
        run = await app.start(never)
        with pytest.raises(WorkflowFailedError, match="no") as failed:
            await run.result(timedelta(seconds=30))
        assert isinstance(failed.value.__cause__, ApplicationError)
        assert (failed.value.__cause__.type, failed.value.fields["type"]) == ("ValueError", "ValueError")
        assert len(await _chain(shards)) == 2


async def test_a_stream_of_signals_does_not_keep_a_run_from_rotating(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("rotation")) as (_, shards):
        run = await app.start(rotates_on_signals, 200, [], workflow_id="rotation")
        for number in range(200):
            await run.signal("n", number)
        assert await run.result(timedelta(seconds=30)) == 200
        await eventually(lambda: _rotated(shards))


async def _rotated(shards: Shards) -> bool:
    return len(await _chain(shards)) == 4


async def _chain(shards: Shards) -> list[dict[str, object]]:
    rows = await shards.store(0).read.fetch("select * from harvest_executions order by started_at")
    return [dict(row) for row in rows]
