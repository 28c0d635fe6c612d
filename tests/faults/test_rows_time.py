"""Clocks, and work that kills whoever takes it (docs/faults.md, 61 to 65)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient

from harvest import WorkflowFailedError
from harvest.history.kinds import EventKind
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, API, BEARER, settings
from tests.faults.app import app, killed_when_told, sleeps_for, steps_signal_timer, three_steps
from tests.faults.process import WorkerProcess
from tests.faults.test_frozen import registered
from tests.faults.test_killers import client
from tests.scale import scale
from tests.store.rows import one
from tests.support import check_invariants, eventually, history_of

SOON = timedelta(seconds=60)
LEASE = {"HARVEST_TEST_LEASE": "2"}


async def test_61_a_timer_whose_time_comes_while_no_process_lives_fires_at_the_next_start(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("slept_through")
    async with client(url) as shards:
        store = shards.stores[0]
        with WorkerProcess(url, tmp_path / "first.log", **LEASE) as first:
            await registered(app)
            run = await app.start(sleeps_for, 1.0)

            async def is_set() -> bool:
                return bool(await store.read.fetch("select from harvest_timers"))

            await eventually(is_set)
            first.kill()

        async def is_due() -> bool:
            return bool(await one(store, "select fires_at < clock_timestamp() from harvest_timers"))

        await eventually(is_due)
        fired = "select count(*) from harvest_events where kind = $1"
        assert await one(store, fired, int(EventKind.TIMER_FIRED)) == 0
        with WorkerProcess(url, tmp_path / "second.log", **LEASE):
            assert await run.result(SOON) == "awake"
        await check_invariants(shards)


@pytest.mark.slow
@pytest.mark.prove_whole_core
async def test_62_workers_whose_clocks_are_ten_minutes_off_decide_by_the_databases(
    new_database: Callable[[str], str], tmp_path: Path, proof: Callable[..., None]
) -> None:
    """One is ahead, one is behind: no lease is lost, no timer is early or late, and each stamp is the database's."""
    url, count = new_database("two_clocks"), scale(20, 200)
    async with client(url) as shards:
        store = shards.stores[0]
        began = await one(store, "select clock_timestamp()")
        with (
            WorkerProcess(url, tmp_path / "ahead.log", name="ahead", HARVEST_TEST_CLOCK="600") as ahead,
            WorkerProcess(url, tmp_path / "behind.log", name="behind", HARVEST_TEST_CLOCK="-600") as behind,
        ):
            await registered(app)
            both = "select count(*) from harvest_workers where status = 'active'"

            async def both_work() -> bool:
                return bool(await one(store, both) == 2)

            await eventually(both_work, within=30)
            runs = [
                await app.start(steps_signal_timer, n, execution_timeout=timedelta(minutes=5)) for n in range(count)
            ]
            for run in runs:
                await run.signal("add", 1000)
            for n, run in enumerate(runs):
                assert await run.result(SOON) == 2 * (n + 1) + 1000 + 1
            ended = await one(store, "select clock_timestamp()")
            assert "lost" not in ahead.said() + behind.said()
            assert await both_work()
        late = []
        for run in runs:
            due: dict[int, Any] = {}
            events = await history_of(shards, run.execution_id)
            stamps = [event.at for event in events]
            assert began <= min(stamps)
            assert max(stamps) <= ended
            for event in events:
                if event.kind == EventKind.TIMER_STARTED:
                    due[event.seq] = event.data().fires_at
                if event.kind == EventKind.TIMER_FIRED:
                    late.append((event.at - due[event.seq]).total_seconds())
        assert len(late) == count
        assert min(late) >= 0
        await check_invariants(shards)
    proof("workers with clocks of their own", runs=count, worst_timer_ms=1e3 * max(late))


@pytest.mark.slow
async def test_65_a_run_whose_activity_kills_its_workers_is_cancelled_from_the_console_while_it_is_claimed(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url, pids = new_database("cancelled_killer"), tmp_path / "pids"
    go = Path(f"{pids}.go")
    async with (
        client(url) as shards,
        AsyncTestClient(create_app(settings({0: url})), base_url=ADDRESS) as console,
    ):
        with WorkerProcess(url, tmp_path / "log", **LEASE) as worker:
            await registered(app)
            async with worker.kept_alive():
                run = await app.start(killed_when_told, str(pids))
                await eventually(lambda: claimed_by(pids, 1), within=30)
                first = worker.process
                go.touch()
                await asyncio.to_thread(first.wait)
                go.unlink()  # before its lease has ended nobody takes the activity again
                await eventually(lambda: claimed_by(pids, 2), within=60)
                asked = await cancel(console, str(run.execution_id))
                assert asked.json()["newly_cancelled"], asked.text
                with pytest.raises(WorkflowFailedError, match="CANCELLED"):
                    await run.result(SOON)
                assert await (await app.start(three_steps, 1)).result(SOON) == 4
                assert len(pids.read_text().split()) == 2
        await check_invariants(shards)


async def claimed_by(pids: Path, processes: int) -> bool:
    return pids.exists() and len(set(pids.read_text().split())) >= processes


async def cancel(console: Any, run: str) -> httpx.Response:
    response: httpx.Response = await console.post(f"{API}/workflows/{run}/cancel", headers=BEARER, json={})
    return response
