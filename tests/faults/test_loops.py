"""Background loops start and stop however soon the stop follows (faults 33 and 23)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from harvest import Harvest, WorkflowContext, clock
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.store import claims, fleet
from harvest.store.listening import listen
from harvest.store.store import Store
from harvest.store.wakes import CHANNEL
from harvest.worker.main import run_worker
from harvest.worker.metrics import Measures
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.scanner import Scanner, TimerLoop
from harvest.worker.sessions import Places
from harvest.worker.shard import ShardWorker
from harvest.worker.trial import Trial
from harvest.worker.watch import Lease, StepWatch
from harvest.worker.work import Residents
from harvest.worker.worker import Worker
from tests.scale import scale
from tests.store.rows import a_run, a_worker
from tests.support import FAST, at_work, eventually

TIMES = scale(25, 250)
app = Harvest()


@app.activity
async def echo(n: int) -> int:
    return n


@app.workflow
async def echoes(ctx: WorkflowContext, n: int) -> int:
    return await ctx.execute_activity(echo, n)


@pytest.fixture(scope="module")
async def store(new_database: Callable[[str], str]) -> Any:
    opened = Store(0, new_database("loops"))
    yield opened
    await opened.close()


async def parts(store: Store) -> ShardWorker:
    """A shard's loops with nothing around them."""
    counters, options = Counters(), FAST
    shards = Shards({0: store.url})
    worker = Worker(app.registry, shards, options)
    return ShardWorker(
        shards, store, await a_worker(store), app.registry, worker._runner, StepWatch(counters),
        Residents(10, 10**6, counters, StepWatch(counters)), options, counters, lambda: None,
        Places(1), Trial(worker._runner),
    )  # fmt: skip


Loop = Callable[[Store, ShardWorker], Coroutine[Any, Any, None]]
LOOPS: dict[str, Loop] = {
    "claimer": lambda store, part: part.claimer.run(),
    "committer": lambda store, part: part.committer.run(),
    "activity claimer": lambda store, part: part.activity_claimer.run(),
    "timers": lambda store, part: TimerLoop(store, Measures(0)).run(),
    "deliverer": lambda store, part: part.deliverer.run(),
    "scanner": lambda store, part: Scanner(
        store, part._worker, part.lease, part._runner, FAST, Counters(), Measures(0)
    ).run(),
    "listener": lambda store, part: listen(store, CHANNEL, lambda _: None, lambda: None),
    "doubts": lambda store, part: part._doubts.run(),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("turns", range(4))
async def test_33_a_loop_that_is_stopped_after_a_few_turns_ends(store: Store, name: str, turns: int) -> None:
    part = await parts(store)
    for _ in range(TIMES):
        task = asyncio.create_task(LOOPS[name](store, part))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=30)
        assert task in done
        assert task.cancelled()
    assert await store.scan.fetch_row("select 1"), "no connection was left in a bad state"


async def test_33_a_worker_that_is_stopped_at_once_stops(store: Store) -> None:
    for turns in range(4):
        shards = Shards({0: store.url})
        worker = Worker(app.registry, shards, FAST)
        await worker.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(worker.stop(), 60)
        await worker.stop()
        await shards.close()
    left = await store.scan.fetch("select worker from harvest_workers where status <> 'stopped' and name <> 'w'")
    assert not left


@pytest.mark.parametrize("name", ["activity_claimer.tick", "claimer.tick", "committer.tick"])
async def test_23_a_loop_that_dies_takes_its_worker_along(
    new_database: Callable[[str], str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(app, new_database("dying")) as (worker, _):
        part: Any = worker._parts[0]
        owner, _, method = name.rpartition(".")

        async def dies() -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(getattr(part, owner) if owner else part, method, dies)
        await app.start(echoes, 1)
        part._look_at_everything()
        assert await clock.wait_event(worker.lost, 30)


LOOP_NAMES = (
    "owner loop", "claimer", "committer", "activity claimer", "timers", "deliverer", "scanner", "listener", "doubts",
    "requests", "rollups", "sessions",
)  # fmt: skip


@pytest.mark.parametrize("name", LOOP_NAMES)
async def test_23_a_loop_that_is_cut_off_takes_its_worker_along(new_database: Callable[[str], str], name: str) -> None:
    async with at_work(app, new_database("cut_off")) as (worker, _):
        loops = {task.get_name(): task for task in worker._parts[0]._tasks}
        assert set(loops) == set(LOOP_NAMES)
        loops[name].cancel()
        assert await clock.wait_event(worker.lost, 30)


async def test_23_a_process_goes_on_with_another_incarnation_when_a_loop_has_died(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database("another")
    dead: list[Worker] = []
    started = Worker.start

    async def first_dies(worker: Worker) -> None:
        await started(worker)
        if not dead:
            dead.append(worker)
            worker._parts[0]._tasks[0].get_loop().call_soon(worker.lost.set)

    monkeypatch.setattr(Worker, "start", first_dies)
    stop = asyncio.Event()
    running = asyncio.create_task(
        run_worker("tests.faults.test_loops:app", {0: url}, stop=stop, options=WorkerOptions(drain_timeout=0.2))
    )
    await app.connect(url)
    shards = Shards({0: url})
    try:

        async def begun_anew() -> bool:
            rows = await shards.stores[0].read.fetch("select status from harvest_workers order by started_at")
            return [row["status"] for row in rows] == ["stopped", "active"]

        await eventually(begun_anew)
        run = await app.start(echoes, 7)
        assert await run.result(timedelta(seconds=30)) == 7
    finally:
        stop.set()
        await running
        await shards.close()
        await app.close()


async def test_an_activity_that_was_freed_at_its_third_strike_and_not_ended_ends_as_worker_killed(store: Store) -> None:
    """Whoever freed it died before the end was written: the next scanner finds it overdue."""
    part = await parts(store)
    lost = await a_worker(store, lease=-1)
    run = await a_run(store, lost, activities={1: 3})
    await store.scan.write("update harvest_activity_tasks set strikes = 2 where execution_id = $1", run)
    assert (await fleet.free_lost(store)).struck_out == [(run, 1, 3)]
    await Scanner(
        store, part._worker, Lease(store, 10.0, 3.0), part._runner, FAST, Counters(), Measures(0)
    ).overdue_activities()
    (end,) = (await claims.load_events(store, {run: 2}))[run]
    assert end.kind == EventKind.ACTIVITY_FAILED
    assert end.data().failure.type == "WorkerKilled"
    assert end.data().attempt == 3
