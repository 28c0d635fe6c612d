"""Cancellation that is lost, swallowed, or leaves something behind (docs/faults.md, 32 to 37)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest

from harvest import ActivityContext, ActivityError, Harvest, Retry, WorkflowContext, WorkflowFailedError, clock
from harvest.history.data import RetryPolicy
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.store.pool import READ, WRITE
from harvest.store.store import Store
from harvest.worker.activities import ActivityRunner, Attempt, Ended
from harvest.worker.options import Counters, WorkerOptions
from tests.console.conftest import API, BEARER, settings
from tests.console.serving import served
from tests.faults.app import app as process_app
from tests.faults.app import compensates
from tests.faults.process import WorkerProcess
from tests.faults.test_frozen import registered
from tests.operations.population import register
from tests.scale import scale
from tests.store.rows import task_of
from tests.support import at_work, check_invariants, eventually

SOON = timedelta(seconds=60)
LEASE = {"HARVEST_TEST_LEASE": "2"}


# 32: compensation


async def noted(path: Path, words: list[str]) -> bool:
    return path.exists() and path.read_text().split() == words


async def test_32_compensation_runs_once_warm(new_database: Callable[[str], str], tmp_path: Path) -> None:
    await compensated(new_database("compensation"), tmp_path, None)


async def test_32_compensation_runs_once_cold(new_database: Callable[[str], str], tmp_path: Path) -> None:
    await compensated(new_database("compensation"), tmp_path, "cold")


async def compensated(url: str, folder: Path, between: str | None) -> None:
    path = folder / "notes"
    async with at_work(process_app, url) as (worker, shards):
        run = await process_app.start(compensates, str(path))

        async def at_rest(words: list[str]) -> None:
            await eventually(lambda: noted(path, words))
            await eventually(lambda: rests(shards, run.execution_id))
            if between == "cold":
                worker.let_go_residents()

        await at_rest(["reserve"])
        await run.cancel()
        await at_rest(["reserve", "release"])
        await run.signal("go on")
        with pytest.raises(WorkflowFailedError, match="CANCELLED"):
            await run.result(SOON)
        assert path.read_text().split() == ["reserve", "release", "told"]
        assert worker.counters.decisions_cold == (3 if between == "cold" else 1)
        await check_invariants(shards)


async def rests(shards: Shards, run: UUID) -> bool:
    return (await task_of(shards.stores[0], run))[0] == 2


@pytest.mark.slow
async def test_32_compensation_runs_once_though_each_worker_is_killed_in_between(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url, path = new_database("compensation"), tmp_path / "notes"
    shards = Shards({0: url})
    await process_app.connect(url)
    try:
        with WorkerProcess(url, tmp_path / "first.log", **LEASE) as first:
            await registered(process_app)
            run = await process_app.start(compensates, str(path))
            await eventually(lambda: noted(path, ["reserve"]), within=30)
            await eventually(lambda: rests(shards, run.execution_id))
            first.kill()
        await run.cancel()
        with WorkerProcess(url, tmp_path / "second.log", **LEASE) as second:
            await eventually(lambda: noted(path, ["reserve", "release"]), within=30)
            await eventually(lambda: rests(shards, run.execution_id))
            second.kill()
        await run.signal("go on")
        with WorkerProcess(url, tmp_path / "third.log", **LEASE), pytest.raises(WorkflowFailedError, match="CANCELLED"):
            await run.result(SOON)
        assert path.read_text().split() == ["reserve", "release", "told"]
        await check_invariants(shards)
    finally:
        await process_app.close()
        await shards.close()


# 34: an attempt that is cancelled anywhere

turning = Harvest()
AGAIN = Retry(max_attempts=3, initial_interval=timedelta(0))


async def some_turns(ctx: ActivityContext) -> str:
    ctx.heartbeat("so far")
    for _ in range(4):
        await asyncio.sleep(0)
    return "done"


@turning.activity(retry=AGAIN)
async def ends(ctx: ActivityContext) -> str:
    return await some_turns(ctx)


@turning.activity(retry=AGAIN)
async def fails(ctx: ActivityContext) -> None:
    await some_turns(ctx)
    raise ValueError("no")


@turning.activity(retry=AGAIN)
async def swallows(ctx: ActivityContext) -> str:
    with suppress(asyncio.CancelledError):
        await some_turns(ctx)
    return await some_turns(ctx)


@turning.activity(retry=AGAIN)
def in_a_thread(ctx: ActivityContext) -> str:
    return "done"


class Heard:
    """A runner, and what it said of its attempts."""

    def __init__(self) -> None:
        self.ends: list[Ended] = []
        self.runner = ActivityRunner(turning.registry, WorkerOptions(), Counters())
        self.runner.on_end = lambda _, ended: self.ends.append(ended)
        self.runner.beat_writers[0] = self._write
        self.writes = 0

    async def _write(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        self.writes += 1

    def start(self, name: str) -> Attempt:
        attempt = Attempt(
            shard_id=0, execution_id=uuid4(), seq=1, attempt=1, workflow_name="w", workflow_id="w", name=name,
            input=b"null", start_to_close=60.0, heartbeat=10.0, retry=RetryPolicy(initial_interval=0.0), eager=False,
        )  # fmt: skip
        assert self.runner.take_claimed(0, name)
        self.runner.start(attempt)
        return attempt


@pytest.mark.parametrize("limit", [60.0, 4.0], ids=["watched by the scanner", "watched here"])
@pytest.mark.parametrize("name", ["ends", "fails", "swallows", "in_a_thread"])
async def test_34_an_attempt_that_is_cancelled_at_any_of_its_awaits_is_told_of_once(name: str, limit: float) -> None:
    heard = Heard()
    for turns in range(20):
        heard.ends.clear()
        attempt = heard.start(name)
        attempt.start_to_close = limit
        for _ in range(turns):
            await asyncio.sleep(0)
        heard.runner.cancel(attempt.execution_id, [1])
        assert attempt.task is not None
        await asyncio.wait([attempt.task], timeout=30)
        assert len(heard.ends) == 1, turns
        (ended,) = heard.ends
        assert ended.kind in (EventKind.ACTIVITY_COMPLETED, EventKind.ACTIVITY_FAILED)
        assert ended.delay is not None or ended.payload
        assert not heard.runner.running
    assert heard.runner.free == WorkerOptions().activity_slots, "no slot leaks"


@turning.activity
async def raises_cancelled() -> None:
    raise asyncio.CancelledError


@turning.workflow
async def meets_cancelled(ctx: WorkflowContext, local: bool) -> str:
    execute = ctx.execute_local_activity if local else ctx.execute_activity
    try:
        await execute(raises_cancelled)
    except ActivityError as error:
        return str(error.__cause__)
    return "?"


@pytest.mark.parametrize("local", [False, True], ids=["activity", "local activity"])
async def test_34_an_activity_that_raises_cancelled_by_itself_has_failed(
    new_database: Callable[[str], str], local: bool
) -> None:
    async with at_work(turning, new_database("raises_cancelled")):
        run = await turning.start(meets_cancelled, local)
        assert await run.result(SOON) == "the activity raised CancelledError"


# 36: requests that are given up


async def test_36_requests_that_are_given_up_leave_no_session_behind(new_database: Callable[[str], str]) -> None:
    url = new_database("given_up")
    chance, count = random.Random(36), scale(60, 500)
    shards = Shards({0: url})
    await register(shards, 0, "any_flow", input_schema=b"{}")
    async with served(settings({0: url})) as address, httpx.AsyncClient(base_url=address + API, timeout=60) as web:

        async def ask(n: int) -> None:
            if n % 3:
                await web.get("/workflows", headers=BEARER)
            else:
                await web.post("/workflows/start", headers=BEARER, json={"workflow_name": "any_flow", "input": n})

        async def give_up(n: int) -> None:
            task = asyncio.create_task(ask(n))
            await asyncio.wait([task], timeout=chance.uniform(0, 0.03))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        for first in range(0, count, 10):
            await asyncio.gather(*(give_up(n) for n in range(first, first + 10)))
        await eventually(lambda: sessions_are_clean(shards), within=30)
        response = await web.get("/workflows", headers=BEARER)
        assert response.status_code == 200
    await shards.close()


async def sessions_are_clean(shards: Shards) -> bool:
    rows = await shards.stores[0].scan.fetch(
        """select application_name as name, count(*) as n, count(*) filter (where state <> 'idle') as busy
             from pg_stat_activity
            where datname = current_database() and application_name in ('harvest-read', 'harvest-write')
            group by 1"""
    )
    most = {f"harvest-{role.name}": role.size for role in (READ, WRITE)}
    return bool(rows) and all(row["n"] <= most[row["name"]] and not row["busy"] for row in rows)


# 37: waiting for a connection


async def test_37_a_hundred_who_wait_for_a_connection_get_it_in_turn(
    new_database: Callable[[str], str], proof: Callable[..., None]
) -> None:
    """Between asking and getting, nobody is passed by more than a few times by each of the others."""
    store, waiters, seconds = Store(0, new_database("in_turn")), 100, scale(2, 60)
    served_count, passed_by, took = 0, Counter[int](), []
    until = clock.monotonic() + seconds

    async def wait_again_and_again(n: int) -> None:
        nonlocal served_count
        while clock.monotonic() < until:
            asked, began = served_count, clock.monotonic()
            async with store.write.connection() as connection:
                served_count += 1
                passed_by[n] = max(passed_by[n], served_count - asked)
                took.append(clock.monotonic() - began)
                await connection.execute("select pg_sleep(0.002)")

    await asyncio.gather(*(wait_again_and_again(n) for n in range(waiters)))
    await store.close()
    assert len(passed_by) == waiters
    assert max(passed_by.values()) <= 3 * waiters
    took.sort()
    p999 = took[int(0.999 * (len(took) - 1))]
    proof(
        "waiting for a connection",
        waiters=waiters,
        waits=len(took),
        p999_ms=1e3 * p999,
        worst_passed_by=max(passed_by.values()),
    )


def test_37_what_keeps_a_worker_alive_has_connections_of_its_own() -> None:
    store = Store(0, "postgresql://x")
    roles = [pool.role.name for pool in (store.commit, store.claim, store.scan, store.deliver, store.write, store.read)]
    assert len(set(roles)) == len(roles)
