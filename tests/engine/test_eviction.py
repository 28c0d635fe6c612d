"""A worker that forgets its parked runs: nothing of that is written, and each goes on from its history (design 3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harvest import Harvest, WorkflowContext
from harvest.shards import Shards
from tests.scale import scale
from tests.support import FAST, at_work, check_invariants, eventually

PARKED = scale(60, 1_000)
SOON = timedelta(seconds=60)
app = Harvest()
loops: list[tuple[Any, bool]] = []


@app.activity
async def echo(text: str) -> str:
    return text


def note_loop() -> None:
    """Where cleanup code finds itself, and whether that is closed already."""
    loop = asyncio.get_running_loop()
    loops.append((loop, loop.is_closed()))


async def numbers(ctx: WorkflowContext) -> AsyncIterator[int]:
    try:
        for number in range(10):
            yield number
    finally:
        note_loop()
        await ctx.execute_activity(echo, "a generator ends")


@app.workflow
async def cleans_up(ctx: WorkflowContext, name: str) -> str:
    left = numbers(ctx)
    await anext(left)
    try:
        return f"{name} {await ctx.wait_for_signal('go', int)}"
    except asyncio.CancelledError:
        note_loop()
        await ctx.execute_activity(echo, "cancelled")
        raise
    finally:
        note_loop()
        ctx.log.warning("cleaning up")
        await ctx.execute_activity(echo, name)


@app.workflow
async def refuses_to_end(ctx: WorkflowContext) -> str:
    while True:
        try:
            return f"refused {await ctx.wait_for_signal('go', int)}"
        except BaseException:
            with contextlib.suppress(BaseException):
                await asyncio.Event().wait()


_WRITTEN = """
select (select count(*) from harvest_events) as events, (select count(*) from harvest_activity_tasks) as activities,
       (select count(*) from harvest_timers) as timers, (select count(*) from harvest_deliveries) as deliveries,
       (select sum(next_event_id) from harvest_executions) as ends, (select count(*) from harvest_audit_log) as acts"""


async def written(shards: Shards) -> dict[str, Any]:
    """What a command of any kind would add to."""
    (row,) = await shards.stores[0].read.fetch(_WRITTEN)
    return dict(row)


@pytest.mark.slow
@pytest.mark.prove_ownership
async def test_a_worker_that_evicts_its_parked_runs_writes_nothing_and_goes_on_from_history(
    new_database: Callable[[str], str], caplog: pytest.LogCaptureFixture, proof: Callable[..., None]
) -> None:
    async with at_work(app, new_database("evicts")) as (worker, shards):
        runs = [await app.start(cleans_up, f"run {number}") for number in range(PARKED - 1)]
        runs.append(await app.start(refuses_to_end))

        async def all_parked() -> bool:
            return len(worker.residents) == PARKED

        await eventually(all_parked)
        before, tasks = await written(shards), asyncio.all_tasks()
        loops.clear()
        caplog.clear()
        worker.let_go_residents()
        assert asyncio.all_tasks() == tasks
        assert len(loops) > PARKED
        assert len({id(loop) for loop, _ in loops}) < PARKED
        assert all(closed for _, closed in loops)
        assert not [record for record in caplog.records if "cleaning up" in record.getMessage()]
        assert worker.counters.refused_release == 1
        assert len(worker.residents) == 0
        assert await written(shards) == before
        cold = worker.counters.decisions_cold
        loops.clear()
        for number, run in enumerate(runs):
            await run.signal("go", number)
        results = [await run.result(SOON) for run in runs]
        assert results[:-1] == [f"run {number} {number}" for number in range(PARKED - 1)]
        assert results[-1] == f"refused {PARKED - 1}"
        assert worker.counters.decisions_cold >= cold + PARKED
        await check_invariants(shards)
    proof("a worker evicts what is parked", runs=PARKED, written=sum(map(int, before.values())))


async def test_a_run_that_is_pushed_out_by_others_goes_on_from_history(new_database: Callable[[str], str]) -> None:
    small = msgspec.structs.replace(FAST, workflow_cache_size=2)
    async with at_work(app, new_database("pushed_out"), small) as (worker, _):
        runs = [await app.start(cleans_up, f"run {number}") for number in range(6)]

        async def four_are_out() -> bool:
            return worker.counters.evicted == 4

        await eventually(four_are_out)
        for number, run in enumerate(runs):
            await run.signal("go", number)
        assert [await run.result(SOON) for run in runs] == [f"run {number} {number}" for number in range(6)]
