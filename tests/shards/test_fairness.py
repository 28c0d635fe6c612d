"""One worker on two shards: a deep backlog on one of them does not starve the other, whatever they share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec
import pytest

from harvest import Harvest, WorkerOptions, WorkflowContext, clock
from harvest.operations import starting
from harvest.replay.commands import ScheduleActivity
from harvest.shards import Shards
from harvest.store.store import Store
from harvest.worker.activities import ActivityRunner
from harvest.worker.options import Counters
from tests.scale import scale
from tests.support import at_work

app = Harvest()
LIMIT = timedelta(seconds=60)


@app.activity(start_to_close=LIMIT)
async def waits(seconds: float) -> None:
    """Holds its slot for so long."""
    await asyncio.sleep(seconds)


@app.activity(start_to_close=LIMIT)
def waits_in_a_thread(seconds: float) -> None:
    """The same, with a thread."""
    time.sleep(seconds)


@app.workflow
async def one_call(ctx: WorkflowContext, seconds: float) -> None:
    await ctx.execute_activity(waits, seconds)


@app.workflow
async def one_thread(ctx: WorkflowContext, seconds: float) -> None:
    await ctx.execute_activity(waits_in_a_thread, seconds)


@app.workflow
async def no_call(ctx: WorkflowContext, seconds: float) -> None:
    pass


@pytest.fixture
def urls(new_database: Callable[[str], str]) -> dict[int, str]:
    """The databases of two empty shards."""
    return {0: new_database("fair_a"), 1: new_database("fair_b")}


@asynccontextmanager
async def flooded(
    urls: dict[int, str], options: WorkerOptions, workflow: str, count: int, seconds: float
) -> AsyncIterator[Store]:
    """A worker of both shards that begins with a backlog on shard 0; gives the store of that shard."""
    async with at_work(app, urls, options):
        pass  # its types are known from now on
    alone = await Shards.open({0: urls[0]})
    ids = [f"flood-{number}" for number in range(count)]
    await starting.start_many(alone, workflow, ids, msgspec.json.encode(seconds))
    await alone.close()
    async with at_work(app, urls, options) as (_, shards):
        yield shards.store(0)


async def latencies(workflow: str, times: int, seconds: float, crowded: Store) -> list[float]:
    """How long each of some runs on shard 1 takes, one after the other, as long as the other shard has a backlog."""
    found: list[float] = []
    for number in range(times):
        began = clock.monotonic()
        handle = await app.start(app.registry.workflows[workflow, 1], seconds, workflow_id=f"b-{number}", shard_id=1)
        await handle.result(timeout=60)
        took = clock.monotonic() - began
        if not await left(crowded):
            break
        found.append(took)
    return found


async def left(store: Store) -> int:
    """How many runs of a shard are open."""
    rows = await store.read.fetch("select count(*)::int as n from harvest_executions where state < 10")
    return int(rows[0]["n"])


@pytest.mark.slow
@pytest.mark.prove_shards
@pytest.mark.parametrize(
    ("workflow", "seconds", "options"),
    [
        ("no_call", 0.0, WorkerOptions(poll_interval=0.5, drain_timeout=0.1)),
        ("one_call", 0.02, WorkerOptions(poll_interval=0.5, drain_timeout=0.1, activity_slots=10)),
        ("one_thread", 0.02, WorkerOptions(poll_interval=0.5, drain_timeout=0.1, activity_slots=100, threads=10)),
        ("one_call", 0.02, WorkerOptions(poll_interval=0.5, drain_timeout=0.1, activity_slots=10, workflow_slots=20)),
    ],
    ids=["decisions", "activity slots", "threads", "workflow slots"],
)
async def test_runs_on_one_shard_go_on_while_another_one_drains(
    urls: dict[int, str], workflow: str, seconds: float, options: WorkerOptions, proof: Callable[..., None]
) -> None:
    # Decisions alone go quickly.
    count = scale(1_500, 5_000) if seconds else scale(5_000, 25_000)
    async with flooded(urls, options, workflow, count, seconds) as crowded:
        waited = await latencies(workflow, scale(5, 20), seconds, crowded)
    assert waited, "the backlog was gone before: nothing was shown"
    proof("waits beside a backlog", worst=round(max(waited), 3), runs=len(waited), workflow=workflow)
    assert max(waited) < 2


def test_who_waits_for_a_thread_still_does_after_claiming_what_needs_none() -> None:
    options = WorkerOptions(activity_slots=100, threads=1)
    runner = ActivityRunner(app.registry, options, Counters())
    woken: list[int] = []
    assert runner.take_claimed(0, "waits_in_a_thread")
    names, _ = runner.takeable(1, lambda: woken.append(1))
    assert names == ["waits"]
    runner.content(1, names)
    threaded = app.registry.activities["waits_in_a_thread"]
    runner.give_back(0, ScheduleActivity(1, threaded.name, b"null", "", "default", threaded.options, threaded))
    assert woken == [1], "the shard that waits hears of the thread that is free"
    assert not runner.take_claimed(0, "waits_in_a_thread"), "it is for who waits"
    assert runner.take_claimed(1, "waits_in_a_thread")
