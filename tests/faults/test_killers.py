"""Work that ends its worker is put aside after the third time, and its neighbours go on (answers 15, fault 64)."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harvest import Harvest, WorkflowContext
from harvest.shards import Shards
from harvest.store import fleet
from harvest.worker import watch
from harvest.worker.worker import Worker
from tests.faults.app import (
    app,
    killer_activity,
    killer_step,
    long_and_signals,
    spins,
    spins_for_good,
    spins_when_let_go,
    three_steps,
)
from tests.faults.process import WorkerProcess
from tests.faults.test_frozen import registered
from tests.support import FAST, at_work, check_invariants, eventually

LEASE = {"HARVEST_TEST_LEASE": "2"}


@asynccontextmanager
async def client_of(application: Harvest, url: str) -> AsyncIterator[Shards]:
    shards = Shards({0: url})
    await application.connect(url)
    try:
        yield shards
    finally:
        await application.close()
        await shards.close()


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Shards]:
    async with client_of(app, url) as shards:
        yield shards


async def blocked_as(shards: Shards, run: Any) -> str | None:
    rows = await shards.stores[0].read.fetch(
        "select blocked from harvest_executions where execution_id = $1", run.execution_id
    )
    return str(rows[0]["blocked"]) if rows[0]["blocked"] else None


@pytest.mark.slow
async def test_64_a_killing_step_is_quarantined_and_its_neighbours_go_on(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("killing_step")
    gate = tmp_path / "gate"
    async with client(url) as shards:
        with WorkerProcess(url, tmp_path / "log", **LEASE) as worker:
            await registered(app)
            async with worker.kept_alive():
                long = await app.start(long_and_signals, str(gate))  # in flight through all of it
                runs = [await app.start(three_steps, n) for n in range(10)]
                killer = await app.start(killer_step)
                runs += [await app.start(three_steps, n) for n in range(10, 20)]
                await eventually(lambda: is_blocked(shards, killer, "quarantined"), within=60)
                for n, run in enumerate(runs):
                    assert await run.result(timedelta(seconds=60)) == n + 3
                assert worker.said().count("has started") >= 3
                await long.signal("news", 1)
                await long.signal("news", 2)
                gate.touch()
                assert (await long.result(timedelta(seconds=60)))[:2] == [1, 2], (
                    "it was there each time, and is innocent"
                )
        with WorkerProcess(url, tmp_path / "mended.log", build="mended", HARVEST_TEST_MENDED="1", **LEASE):
            assert await killer.result(timedelta(seconds=30)) == 2, "another build tries it once more"
        await check_invariants(shards)


@pytest.mark.slow
async def test_64_a_killing_activity_ends_as_worker_killed(new_database: Callable[[str], str], tmp_path: Path) -> None:
    url = new_database("killing_activity")
    kills, gate = tmp_path / "kills", tmp_path / "gate"
    async with client(url) as shards:
        with WorkerProcess(url, tmp_path / "log", **LEASE) as worker:
            await registered(app)
            async with worker.kept_alive():
                long = await app.start(long_and_signals, str(gate))
                killer = await app.start(killer_activity, str(kills))
                runs = [await app.start(three_steps, n) for n in range(10)]
                result = await killer.result(timedelta(seconds=60))
                assert "WorkerKilled" in result
                assert len(set(kills.read_text().split())) == 3, "three processes, and no fourth"
                for n, run in enumerate(runs):
                    assert await run.result(timedelta(seconds=60)) == n + 3
                await long.signal("news", 1)
                await long.signal("news", 2)
                gate.touch()
                assert (await long.result(timedelta(seconds=60)))[:2] == [1, 2]
        await check_invariants(shards)


async def is_blocked(shards: Shards, run: Any, code: str) -> bool:
    return await blocked_as(shards, run) == code


async def test_a_graceful_end_is_no_strike(new_database: Callable[[str], str], tmp_path: Path) -> None:
    url = new_database("graceful")
    gate = tmp_path / "gate"
    async with client(url) as shards:
        for n in range(4):
            async with at_work(app, url, msgspec.structs.replace(FAST, drain_timeout=0.05)):
                if n == 0:
                    run = await app.start(long_and_signals, str(gate))

                async def running() -> bool:
                    rows = await shards.stores[0].read.fetch("select state, strikes from harvest_activity_tasks")
                    assert all(row["strikes"] == 0 for row in rows)
                    return [row["state"] for row in rows] == [1]

                await eventually(running)
            await app.connect(url)
        gate.touch()
        async with at_work(app, url):
            await run.signal("news", 1)
            await run.signal("news", 2)
            assert (await run.result(timedelta(seconds=30)))[:2] == [1, 2]
            await check_invariants(shards)


async def test_a_step_that_takes_too_long_is_broken_into_and_blocks_its_run(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "LONG_STEP", 0.5)
    async with at_work(app, new_database("too_long")) as (worker, shards):
        run = await app.start(spins)
        await eventually(lambda: is_blocked(shards, run, "step_too_long"))
        assert await (await app.start(three_steps, 1)).result(timedelta(seconds=30)) == 4
        assert not worker.lost.is_set()
        told = await blocked_details(shards, run)
        stack = told["message"].splitlines()[1:]
        assert len(stack) == 2, "only the user's frames"
        assert re.fullmatch(r'  File ".*/tests/faults/app.py", line \d+, in spins', stack[0])
        assert stack[1].strip() in ("while True:", "pass")
        await fleet.retry_blocked(shards.stores[0], "", ["default"])
        await eventually(lambda: is_blocked_again(shards, run))
        assert caplog.text.count("breaking into a step") == 2
        assert caplog.text.count("in spins") == 1, "its stack is logged once, at the first break-in"
        await run.terminate()
        await check_invariants(shards)


async def blocked_details(shards: Shards, run: Any) -> dict[str, Any]:
    rows = await shards.stores[0].read.fetch(
        "select blocked from harvest_execution_details where execution_id = $1", run.execution_id
    )
    return dict(msgspec.json.decode(rows[0]["blocked"]))


async def is_blocked_again(shards: Shards, run: Any) -> bool:
    return (await blocked_details(shards, run))["count"] == 2


@pytest.mark.timeout(30)
async def test_a_run_that_spins_when_it_is_let_go_is_hurried(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("let_go")) as (worker, _):
        run = await app.start(spins_when_let_go, False)
        await eventually(lambda: is_resident(worker))
        worker.let_go_residents()
        assert len(worker.residents) == 0
        assert await (await app.start(three_steps, 1)).result(timedelta(seconds=30)) == 4
        await run.signal("go", 7)
        assert await run.result(timedelta(seconds=30)) == 7, "its next decision is a cold one"
        await app.start(spins_when_let_go, False)
        await eventually(lambda: is_resident(worker))
    assert worker.counters.refused_release == 0, "it is watched while the worker stops, too"


async def is_resident(worker: Worker) -> bool:
    return len(worker.residents) == 1


async def test_a_run_that_does_not_let_itself_be_let_go_ends_the_process(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("never_released")
    async with client(url) as shards:
        with WorkerProcess(url, tmp_path / "log", HARVEST_TEST_HURRY="1") as worker:
            await registered(app)
            await app.start(spins_when_let_go, True)
            await eventually(lambda: is_parked(shards))
            worker.signal(signal.SIGTERM)
            assert await worker.ended(30) == watch.EXIT_HUNG
        rows = await shards.stores[0].read.fetch("select status from harvest_workers")
        assert [row["status"] for row in rows] == ["stopped"], "what it held was handed back first"


async def is_parked(shards: Shards) -> bool:
    return bool(await shards.stores[0].read.fetch("select 1 from harvest_workflow_tasks where state = 2"))


async def test_a_step_that_does_not_let_go_ends_the_process(new_database: Callable[[str], str], tmp_path: Path) -> None:
    url = new_database("never_lets_go")
    async with client(url):
        with WorkerProcess(url, tmp_path / "log", HARVEST_TEST_HURRY="1") as worker:
            await registered(app)
            await app.start(spins_for_good)
            assert await worker.ended(30) == watch.EXIT_HUNG
            assert "does not let go of the worker" in worker.said()
            assert "in spins_for_good" in worker.said(), "its stacks are in the log"


lonely = Harvest()


@lonely.workflow
async def waits_for_go(ctx: WorkflowContext) -> int:
    return await ctx.wait_for_signal("go", int)


async def test_pins_are_given_up_when_a_worker_stops(new_database: Callable[[str], str]) -> None:
    url = new_database("pins")
    async with at_work(lonely, url) as (_, shards):
        run = await lonely.start(waits_for_go)
        store = shards.stores[0]

        async def parked() -> bool:
            return bool(await store.read.fetch("select 1 from harvest_workflow_tasks where state = 2"))

        await eventually(parked)
    async with client_of(lonely, url) as shards:
        again = await lonely.handle(run.execution_id, waits_for_go)
        await again.signal("go", 5)
        (task,) = await shards.stores[0].read.fetch("select state, sticky_until from harvest_workflow_tasks")
        assert tuple(task) == (0, None), "no pin stands in the way of the next worker"
    async with at_work(lonely, url) as (worker, _):
        again = await lonely.handle(run.execution_id, waits_for_go)
        assert await again.result(timedelta(seconds=30)) == 5
        assert worker.counters.decisions_cold == 1
