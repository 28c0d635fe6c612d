"""Every operation of a workflow's context, from the start to the result in PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec import Struct

from harvest import ActivityError, Harvest, WorkflowContext
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.worker.worker import Worker
from tests.support import at_work, check_invariants, eventually, history_of

app = Harvest()
SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, new_database("context")) as working:
        yield working
        await check_invariants(working[1])


class Note(Struct):
    text: str
    number: int = 1


@app.activity
async def add(a: int, b: int = 1) -> int:
    return a + b


@app.activity
async def echo(note: Note) -> Note:
    return note


@app.activity
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"slept {seconds:g}"


@app.workflow
async def activities(ctx: WorkflowContext, n: int) -> list[Any]:
    """By definition, by name, with a default, with a struct, beside one another."""
    one = await ctx.execute_activity(add, n)
    two = await ctx.execute_activity(add, n, b=5)
    three = await ctx.execute_activity("add", n, 10)
    note = await ctx.execute_activity(echo, Note("x", 2**60))
    both = await asyncio.gather(ctx.execute_activity(add, 1), ctx.execute_activity(add, 2))
    assert type(note) is Note
    return [one, two, three, note.number, *both]


async def test_activities_by_definition_and_by_name(work: Work) -> None:
    assert await (await app.start(activities, 7)).result(SOON) == [8, 12, 17, 2**60, 2, 3]


@app.workflow
async def shapes(ctx: WorkflowContext) -> dict[str, Any]:
    """Plain asyncio: wait, as_completed, TaskGroup, timeout, shield, Lock, Queue, Event."""
    seen: dict[str, Any] = {}
    fast, slow = (asyncio.create_task(ctx.execute_activity(nap, s)) for s in (0.0, 0.1))
    done, pending = await asyncio.wait({fast, slow}, return_when=asyncio.FIRST_COMPLETED)
    seen["wait"] = [len(done), len(pending), fast in done]
    seen["rest"] = await slow
    seen["as_completed"] = [await each for each in asyncio.as_completed([ctx.execute_activity(nap, 0.0)])]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ctx.execute_activity(add, n)) for n in range(3)]
    seen["group"] = [task.result() for task in tasks]
    try:
        async with asyncio.timeout(0.05):
            await ctx.execute_activity(nap, 30.0)
    except TimeoutError:
        seen["timeout"] = True
    shielded = asyncio.create_task(ctx.execute_activity(nap, 0.1))
    try:
        await asyncio.wait_for(asyncio.shield(shielded), 0.02)
    except TimeoutError:
        seen["shield"] = await shielded
    lock, queue, event = asyncio.Lock(), asyncio.Queue[int](), asyncio.Event()

    async def worker() -> None:
        async with lock:
            queue.put_nowait(await ctx.execute_activity(add, 40, 2))
        event.set()

    background = asyncio.create_task(worker())
    await event.wait()
    seen["queue"] = await queue.get()
    await background
    return seen


async def test_plain_asyncio_works_durably(work: Work) -> None:
    assert await (await app.start(shapes)).result(SOON) == {
        "wait": [1, 1, True],
        "rest": "slept 0.1",
        "as_completed": ["slept 0"],
        "group": [1, 2, 3],
        "timeout": True,
        "shield": "slept 0.1",
        "queue": 42,
    }


@app.workflow
async def signals(ctx: WorkflowContext) -> dict[str, Any]:
    seen: dict[str, Any] = {"nothing": ctx.try_receive_signal("extra"), "none": ctx.drain_signals("extra")}
    try:
        await ctx.wait_for_signal("never", timeout=timedelta(seconds=0.05))
    except TimeoutError:
        seen["timeout"] = True
    seen["first"] = (await ctx.wait_for_signal("note", Note)).text
    await ctx.wait_for_signal("go")
    seen["tried"] = ctx.try_receive_signal("extra")
    seen["drained"] = ctx.drain_signals("extra", int)
    seen["buffered"] = (await ctx.wait_for_signal("note", Note)).text
    return seen


async def test_signals_wait_try_and_drain_in_order(work: Work) -> None:
    handle = await app.start(signals)
    await handle.signal("note", Note("a"))
    await handle.signal("note", Note("b"))
    for n in range(4):
        await handle.signal("extra", n)
    await handle.signal("go")
    assert await handle.result(SOON) == {
        "nothing": None,
        "none": [],
        "timeout": True,
        "first": "a",
        "tried": 0,
        "drained": [1, 2, 3],
        "buffered": "b",
    }


@app.workflow
async def unread(ctx: WorkflowContext) -> str:
    return str(await ctx.wait_for_signal("go"))


async def test_signals_that_nobody_took_are_counted(work: Work) -> None:
    handle = await app.start(unread)
    for _ in range(3):
        await handle.signal("ignored")
    await handle.signal("go", "on")
    assert await handle.result(SOON) == "on"
    last = (await history_of(work[1], handle.execution_id))[-1]
    assert last.data().unhandled_signals == 3


@app.workflow
async def conditions(ctx: WorkflowContext) -> list[Any]:
    seen: list[int] = []

    async def collect() -> None:
        while True:
            seen.append(await ctx.wait_for_signal("n", int))

    task = asyncio.create_task(collect())
    await ctx.wait_condition(lambda: True)
    await ctx.wait_condition(lambda: sum(seen) >= 6, timeout=timedelta(seconds=30))
    try:
        await ctx.wait_condition(lambda: len(seen) > 100, timeout=0.05)
    except TimeoutError:
        task.cancel()
        return seen
    raise AssertionError("it cannot hold")


async def test_a_condition_is_looked_at_whenever_the_run_comes_to_rest(work: Work) -> None:
    handle = await app.start(conditions)
    for n in (1, 2, 3):
        await handle.signal("n", n)
    assert await handle.result(SOON) == [1, 2, 3]


@app.workflow
async def clocks(ctx: WorkflowContext) -> list[Any]:
    began = ctx.now()
    assert ctx.now() == began
    await ctx.sleep(0.05)
    await ctx.sleep(timedelta(milliseconds=50))
    slept = ctx.now()
    until = slept + timedelta(seconds=0.1)
    await ctx.sleep_until(until)
    after = ctx.now()
    await ctx.sleep_until(began)
    await asyncio.sleep(0)
    return [(slept - began).total_seconds() >= 0.1, after >= until, ctx.now() == after, str(began.tzinfo)]


async def test_time_stands_still_within_a_step_and_sleeping_is_durable(work: Work) -> None:
    handle = await app.start(clocks)
    assert await handle.result(SOON) == [True, True, True, "UTC"]
    kinds = [event.kind for event in await history_of(work[1], handle.execution_id)]
    assert kinds.count(EventKind.TIMER_FIRED) == 3


@app.workflow
async def naive(ctx: WorkflowContext) -> str:
    try:
        await ctx.sleep_until(datetime(2030, 1, 1))  # noqa: DTZ001
    except Exception as error:
        return str(error)
    return ""


async def test_an_instant_needs_a_zone(work: Work) -> None:
    assert "has no time zone" in await (await app.start(naive)).result(SOON)


@app.workflow
async def chances(ctx: WorkflowContext, rounds: int) -> list[Any]:
    drawn: list[Any] = []
    for _ in range(rounds):
        drawn.append(ctx.random().random())
        drawn.append(str(ctx.uuid4()))
        drawn.append(ctx.now().timestamp())
        await ctx.execute_activity(add, 1)
    await ctx.wait_for_signal("go")
    drawn.append(ctx.random().randrange(10**9))
    return drawn


async def test_chance_and_time_are_the_same_warm_and_cold(work: Work) -> None:
    worker, shards = work
    warm, cold = [await app.start(chances, 3) for _ in range(2)]
    for handle in (warm, cold):
        await parked(shards, handle.execution_id)
    before = worker.counters.decisions_cold
    await warm.signal("go")
    first = await warm.result(SOON)
    assert worker.counters.decisions_cold == before
    worker.let_go_residents()
    await cold.signal("go")
    second = await cold.result(SOON)
    assert worker.counters.decisions_cold == before + 1
    assert len(set(map(str, first))) == len(first) == len(second) == 10
    drawn = [{str(each) for n, each in enumerate(seen) if n % 3 != 2} for seen in (first, second)]
    assert not drawn[0] & drawn[1]


async def parked(shards: Shards, execution_id: Any) -> None:
    """Wait until a run has come to rest and nobody holds it."""
    store = shards.store_of(execution_id)

    async def rests() -> bool:
        row = await store.read.fetch_row(
            "select state from harvest_workflow_tasks where execution_id = $1", execution_id
        )
        return row is not None and row["state"] == 2

    await eventually(rests)


drawings: list[tuple[float, str]] = []


@app.workflow
async def drawing(ctx: WorkflowContext) -> int:
    drawings.append((ctx.random().random(), str(ctx.uuid4())))
    await ctx.wait_for_signal("go")
    return 1


async def test_a_replay_draws_what_the_first_run_drew(work: Work) -> None:
    worker, shards = work
    drawings.clear()
    handle = await app.start(drawing)
    await parked(shards, handle.execution_id)
    worker.let_go_residents()
    await handle.signal("go")
    assert await handle.result(SOON) == 1
    assert len(drawings) == 2
    assert drawings[0] == drawings[1]


@app.workflow(version=3, queue="default")
async def facts(ctx: WorkflowContext) -> dict[str, Any]:
    before = ctx.info.history_events
    await ctx.execute_activity(add, 1)
    info = ctx.info
    return {
        "execution_id": str(info.execution_id),
        "workflow_name": info.workflow_name,
        "workflow_id": info.workflow_id,
        "version": info.version,
        "queue": info.queue,
        "grows": info.history_events > before,
        "before": before,
        "age": ctx.now() >= info.started_at,
        "cancelled": ctx.is_cancelled(),
    }


async def test_info_says_which_run_it_is(work: Work) -> None:
    handle = await app.start(facts, workflow_id="facts-1")
    assert await handle.result(SOON) == {
        "execution_id": str(handle.execution_id),
        "workflow_name": "facts",
        "workflow_id": "facts-1",
        "version": 3,
        "queue": "default",
        "grows": True,
        "before": 1,
        "age": True,
        "cancelled": False,
    }


@app.workflow
async def talks(ctx: WorkflowContext) -> None:
    ctx.log.info("before the activity")
    await ctx.execute_activity(add, 1)
    ctx.log.info("after the activity")
    await ctx.wait_for_signal("go")
    ctx.log.warning("at the end, %s", "once")


async def test_the_log_is_silent_while_history_is_replayed(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    worker, shards = work
    caplog.set_level(logging.INFO, logger="harvest.workflow")
    handle = await app.start(talks)
    await parked(shards, handle.execution_id)
    worker.let_go_residents()
    await handle.signal("go")
    await handle.result(SOON)
    mine = [r for r in caplog.records if getattr(r, "execution_id", "") == str(handle.execution_id)]
    assert [record.getMessage() for record in mine] == [
        "before the activity",
        "after the activity",
        "at the end, once",
    ]
    assert mine[0].workflow_name == "talks"  # type: ignore[attr-defined]


@app.workflow
async def fails_once(ctx: WorkflowContext) -> str:
    try:
        await ctx.execute_activity("no_such_activity_here", 1)
    except ActivityError:
        return "failed"
    return "never"


async def test_an_activity_without_code_here_waits_for_a_worker_that_has_it(work: Work) -> None:
    _, shards = work
    handle = await app.start(fails_once)
    await parked(shards, handle.execution_id)
    rows = await shards.store_of(handle.execution_id).read.fetch(
        "select state, name from harvest_activity_tasks where execution_id = $1", handle.execution_id
    )
    assert [tuple(row) for row in rows] == [(0, "no_such_activity_here")]
    await handle.terminate("nobody will come")


async def test_a_handle_by_id_gives_the_typed_result(work: Work) -> None:
    started = await app.start(activities, 1)
    await started.result(SOON)
    again = await app.handle(str(started.execution_id), activities)
    assert await again.result(SOON) == [2, 6, 11, 2**60, 2, 3]
