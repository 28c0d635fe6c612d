"""Two workers on one shard: residents stay where they are, everybody hears of what concerns them (answers 3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harvest import Harvest, WorkflowContext
from harvest.shards import Shards
from harvest.store import marks
from harvest.worker.worker import Worker
from tests.support import FAST, check_invariants, eventually

app = Harvest()
elsewhere = Harvest()


@app.activity
async def here(n: int) -> int:
    return n + 1


@app.activity(queue="other")
async def there(n: int) -> int:
    raise AssertionError("no worker of this app polls that queue")


@elsewhere.activity(queue="other", name="there")
async def really_there(n: int) -> int:
    return n + 10


@app.workflow
async def hears_three(ctx: WorkflowContext) -> int:
    total = 0
    for _ in range(3):
        total = await ctx.execute_activity(here, total + await ctx.wait_for_signal("go", int))
    return total


@app.workflow
async def goes_there(ctx: WorkflowContext) -> int:
    return await ctx.execute_activity(there, await ctx.execute_activity(here, 1))


@asynccontextmanager
async def workers(url: str, *apps: Harvest, **options: Any) -> AsyncIterator[tuple[list[Worker], Shards]]:
    """A worker for each of these applications, each with connections of its own."""
    own = [Shards({0: url}) for _ in apps]
    given = msgspec.structs.replace(FAST, **options)
    queues = [("other",) if one is elsewhere else ("default",) for one in apps]
    found = [
        Worker(one.registry, shards, msgspec.structs.replace(given, queues=polled))
        for one, shards, polled in zip(apps, own, queues, strict=True)
    ]
    await app.connect(url)
    for worker in found:
        await worker.start()
    client = Shards({0: url})
    try:
        yield found, client
    finally:
        for worker in found:
            await worker.stop()
        for shards in (*own, client):
            await shards.close()
        await app.close()


@pytest.fixture(autouse=True)
def _no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is found at the poll interval that a test gives, and by wakes."""
    monkeypatch.setattr(marks, "FULL_LOOK_SECONDS", 3600.0)


async def parked(shards: Shards, count: int) -> bool:
    rows = await shards.stores[0].read.fetch("select count(*) from harvest_workflow_tasks where state = 2")
    return bool(rows[0][0] == count)


async def test_residents_stay_with_their_holder(new_database: Callable[[str], str]) -> None:
    runs = []
    async with workers(new_database("two"), app, app, poll_interval=5.0, claim_batch=5) as (both, shards):
        while len(runs) < 24 or not all(worker.counters.decisions_cold for worker in both):
            runs.append(await app.start(hears_three))
        for heard in range(3):
            await eventually(lambda: parked(shards, len(runs)))
            if heard == 0:
                assert sum(w.counters.decisions_cold for w in both) == len(runs)
            await asyncio.gather(*(run.signal("go", 1) for run in runs))
        assert [await run.result(timedelta(seconds=30)) for run in runs] == [6] * len(runs)
        cold = sum(worker.counters.decisions_cold for worker in both)
        assert cold == len(runs), "each was replayed once, by whoever took it first"
        await check_invariants(shards)


async def test_a_result_from_another_process_wakes_the_holder_at_once(new_database: Callable[[str], str]) -> None:
    async with workers(new_database("wakes"), app, elsewhere, poll_interval=3600.0) as (both, shards):
        run = await app.start(goes_there)
        assert await run.result(timedelta(seconds=30)) == 12
        assert both[1].counters.activities_claimed == 1
        assert both[0].counters.decisions_cold == 1
        await check_invariants(shards)


async def test_news_of_a_run_that_is_held_by_a_long_activity_is_handled_at_once(
    new_database: Callable[[str], str],
) -> None:
    gate = asyncio.Event()
    holding = Harvest()

    @holding.activity
    async def long() -> str:
        await gate.wait()
        return "done"

    @holding.workflow
    async def held(ctx: WorkflowContext) -> list[Any]:
        running = asyncio.ensure_future(ctx.execute_activity(long))
        heard = [await ctx.wait_for_signal("go", int) for _ in range(2)]
        await ctx.execute_activity(long_no_more)
        return [*heard, await running]

    @holding.activity
    async def long_no_more() -> None:
        gate.set()

    async with workers(new_database("held"), holding, poll_interval=3600.0) as (both, shards):
        await holding.connect(both[0]._shards.stores[0].url)
        run = await holding.start(held)

        async def running() -> bool:
            return bool(await shards.stores[0].read.fetch("select 1 from harvest_activity_tasks where state = 1"))

        await eventually(running)
        await run.signal("go", 1)
        await run.signal("go", 2)
        assert await run.result(timedelta(seconds=30)) == [1, 2, "done"]
        assert both[0].counters.decisions_cold == 1
        await check_invariants(shards)
        await holding.close()
