"""Cancellation that is lost, swallowed, or leaves something behind (docs/faults.md, 32 to 37)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from harvest import ActivityContext, Harvest, Retry, WorkflowFailedError, clock
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
        with WorkerProcess(url, tmp_path / "third.log", **LEASE):
            with pytest.raises(WorkflowFailedError, match="CANCELLED"):
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
        assert self.runner.take_claimed(name)
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
