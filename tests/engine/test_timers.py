"""Durable timers: exact while the worker that set them lives, and fired after whatever happened to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from harvest import Harvest, WorkflowContext
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.store import timers
from harvest.worker.metrics import Measures
from harvest.worker.scanner import TimerLoop
from harvest.worker.worker import Worker
from tests.scale import scale
from tests.support import FAST, at_work, check_invariants, eventually, history_of

app = Harvest()
SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, new_database("timers")) as working:
        yield working
        await check_invariants(working[1])


@app.activity
async def nothing() -> None:
    return None


async def sleeping(ctx: WorkflowContext, seconds: float, times: int = 1) -> int:
    for _ in range(times):
        await ctx.sleep(seconds)
    return times


sleeps = app.workflow(name="sleeps")(sleeping)


def another() -> Harvest:
    """The same application in another process."""
    other = Harvest()
    other.workflow(name="sleeps")(sleeping)
    return other


async def lateness(shards: Shards, execution_id: UUID) -> list[float]:
    """Seconds between the instant that each timer named and the event that says that it fired."""
    due: dict[int, Any] = {}
    late = []
    for event in await history_of(shards, execution_id):
        if event.kind == EventKind.TIMER_STARTED:
            due[event.seq] = event.data().fires_at
        if event.kind == EventKind.TIMER_FIRED:
            late.append((event.at - due[event.seq]).total_seconds())
    return late


@pytest.mark.prove_main_job
async def test_timers_fire_within_a_tenth_of_a_second(work: Work, proof: Callable[..., None]) -> None:
    """Runs that sleep a little, many times, side by side: never early, and hardly late."""
    await (await app.start(sleeps, 0.01)).result(SOON)
    handles = [await app.start(sleeps, 0.05 + 0.037 * n, 4) for n in range(scale(8, 40))]
    await asyncio.gather(*(handle.result(SOON) for handle in handles))
    late = sorted([each for handle in handles for each in await lateness(work[1], handle.execution_id)])
    median, worst = late[len(late) // 2], late[-1]
    proof("timers", timers=len(late), median_ms=1e3 * median, worst_ms=1e3 * worst)
    assert late[0] >= 0
    assert median < scale(1_000, 100) / 1_000


async def test_the_instant_is_counted_from_the_decision(work: Work) -> None:
    handle = await app.start(sleeps, 60.0)

    async def timers_set() -> list[Any]:
        events = await history_of(work[1], handle.execution_id)
        return [event for event in events if event.kind == EventKind.TIMER_STARTED]

    await eventually(timers_set)
    (event,) = await timers_set()
    gap = (event.data().fires_at - event.at).total_seconds()
    assert 30 < gap < 61, "what is written a little later than it was decided"
    assert event.data().duration == pytest.approx(60)
    await handle.terminate()


async def test_a_timer_set_while_the_database_is_asked_is_not_overlooked(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sooner timer is committed between the question for the next one and its answer."""
    store = work[1].stores[0]
    loop = TimerLoop(store, Measures(0))
    real = timers.next_timer

    async def answers_before(asked: Any) -> Any:
        answer = await real(asked)
        loop.expect(store.clock.now() + timedelta(seconds=0.05))
        return answer

    loop.expect(store.clock.now() - timedelta(seconds=5))
    monkeypatch.setattr(timers, "next_timer", answers_before)
    assert await loop.tick() < 0.1
    monkeypatch.setattr(timers, "next_timer", real)
    assert await loop.tick() > 0.5


async def test_a_timer_set_before_a_crash_fires_after_the_restart(new_database: Callable[[str], str]) -> None:
    url, before, after = new_database("crash"), another(), another()
    async with at_work(before, url) as (_, shards):
        handle = await before.start(sleeps, 2.0)
        run = handle.execution_id

        async def is_set() -> bool:
            return bool(await shards.stores[0].read.fetch("select from harvest_timers"))

        await eventually(is_set)
    async with at_work(after, url) as (worker, shards):
        assert await (await after.handle(run, sleeps)).result(SOON) == 1
        assert worker.counters.decisions_cold == 1
        assert (await lateness(shards, run))[0] >= 0
        await check_invariants(shards)


async def test_another_worker_fires_the_timers_of_one_that_is_gone(new_database: Callable[[str], str]) -> None:
    """The first worker is cut off without a word; the second finds its timers by scanning."""
    url, going = new_database("gone"), another()
    async with at_work(going, url) as (first, shards):
        handle = await going.start(sleeps, 2.0)

        async def is_set() -> bool:
            return bool(await shards.stores[0].read.fetch("select from harvest_timers"))

        await eventually(is_set)
        for task in first._parts[0]._tasks:
            task.cancel()
        shards.stores[0].waker.local = None
        others = await Shards.open({0: url})
        second = Worker(another().registry, others, FAST)
        await second.start()
        try:
            assert await handle.result(SOON) == 1
        finally:
            await second.stop()
            await others.close()


@app.workflow
async def races(ctx: WorkflowContext) -> str:
    try:
        async with asyncio.timeout(3600):
            await ctx.execute_activity(nothing)
    except TimeoutError:
        return "late"
    return "in time"


async def test_a_timer_that_is_not_needed_leaves_no_row(work: Work) -> None:
    handle = await app.start(races)
    assert await handle.result(SOON) == "in time"
    kinds = [event.kind for event in await history_of(work[1], handle.execution_id)]
    assert EventKind.TIMER_CANCELLED in kinds
    assert (
        not await work[1]
        .stores[0]
        .read.fetch("select from harvest_timers where execution_id = $1", handle.execution_id)
    )


@app.workflow
async def sets_and_drops(ctx: WorkflowContext) -> str:
    try:
        await ctx.sleep(3600)
    except asyncio.CancelledError:
        await ctx.wait_for_signal("go")
        return "cleaned up"
    return "slept"


async def test_a_timer_set_and_dropped_in_one_commit_leaves_no_row(work: Work) -> None:
    """Cancelled before its first decision, the run asks for the timer and takes it back at once."""
    handle = await app.start(sets_and_drops, queue="nobody")
    await handle.cancel()
    store = work[1].stores[0]
    await store.write.write(
        "update harvest_workflow_tasks set queue = 'default', sort_at = clock_timestamp() where execution_id = $1",
        handle.execution_id,
    )
    store.waker.wake(None)

    async def cleaning() -> bool:
        kinds = [event.kind for event in await history_of(work[1], handle.execution_id)]
        return EventKind.TIMER_CANCELLED in kinds

    await eventually(cleaning)
    rows = await store.read.fetch("select from harvest_timers where execution_id = $1", handle.execution_id)
    assert not rows
    await handle.signal("go")
    assert await handle.result(SOON) == "cleaned up"


async def test_many_timers_due_at_once_all_fire(work: Work) -> None:
    handles = [await app.start(sleeps, 0.3) for _ in range(scale(100, 700))]
    assert [await handle.result(SOON) for handle in handles] == [1] * len(handles)
