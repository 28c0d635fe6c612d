"""Kills at seeded random moments: nothing is lost, nothing is doubled (issue 2, Must show 2)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from harvest import Harvest, WorkflowDefinition, clock
from harvest.client import WorkflowHandle
from harvest.errors import ExecutionClosedError, ShardUnavailableError, WorkflowNotRegisteredError
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest_console.embedded import EmbeddedPostgres
from tests.faults.app import app, family, family_result, steps_signal_timer, three_steps
from tests.faults.process import WorkerProcess
from tests.scale import scale
from tests.support import check_invariants, eventually

T = TypeVar("T")
SEEDS = range(scale(1, 3))
RUNS, WITH_SIGNALS, FAMILIES, KILLS = scale(60, 500), scale(20, 100), scale(15, 150), scale(5, 25)


async def insisted(what: Callable[[], Awaitable[T]]) -> T:
    """Repeat until the database has answered."""
    while True:
        try:
            return await what()
        except (ShardUnavailableError, WorkflowNotRegisteredError, asyncpg.PostgresError):
            await clock.sleep(0.1)


class Tree:
    """A server and two workers, and ways to kill them."""

    def __init__(self, server: EmbeddedPostgres, workers: list[WorkerProcess], chance: random.Random) -> None:
        self.server = server
        self.workers = workers
        self.chance = chance
        self.kills: Counter[str] = Counter()

    def kill_something(self) -> None:
        kind = self.chance.choice(("worker", "worker", "server", "tree"))
        self.kills[kind] += 1
        workers = [self.chance.choice(self.workers)] if kind == "worker" else self.workers if kind == "tree" else []
        for worker in workers:
            worker.kill()
        if kind != "worker":
            self.server.kill()
            self.server.start()
        for worker in workers:
            worker.start()


def kind_of(n: int) -> WorkflowDefinition[[int], Any]:
    """The workflow of run `n`."""
    if n < RUNS:
        return three_steps
    return steps_signal_timer if n < RUNS + WITH_SIGNALS else family


def result_of(n: int) -> Any:
    """What run `n` returns."""
    if n < RUNS:
        return n + 3
    return 2 * (n + 1) + 1000 + 1 if n < RUNS + WITH_SIGNALS else family_result(n)


async def start_everything(client: Harvest) -> dict[int, WorkflowHandle[Any]]:
    """Start every run, whatever is being killed; an id makes each start repeatable."""
    handles: dict[int, WorkflowHandle[Any]] = {}
    for n in range(RUNS + WITH_SIGNALS + FAMILIES):
        workflow = kind_of(n)
        handles[n] = await insisted(
            lambda n=n, workflow=workflow: client.start(  # type: ignore[misc]
                workflow, n, workflow_id=f"run-{n}", idempotency_key=f"start-{n}", conflict_policy="use_existing"
            )
        )
    return handles


async def send_signals(handles: dict[int, WorkflowHandle[Any]]) -> None:
    """Each waiting run gets its signal twice, with one key: it must count once."""
    for n in range(RUNS, RUNS + WITH_SIGNALS):
        for _ in range(2):
            try:
                await insisted(lambda n=n: handles[n].signal("add", 1000, idempotency_key="the one"))  # type: ignore[misc]
            except ExecutionClosedError:
                break


@pytest.mark.slow
@pytest.mark.timeout(scale(120, 900))
@pytest.mark.prove_main_job
@pytest.mark.prove_whole_core
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_run_completes_once_whatever_is_killed(
    mortal_server: EmbeddedPostgres, mortal_database: str, tmp_path: Path, seed: int, proof: Callable[..., None]
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    workers = [WorkerProcess(mortal_database, tmp_path / f"worker{n}.log", name=f"worker{n}") for n in range(2)]
    shards = await Shards.open({0: mortal_database})
    began = clock.monotonic()
    try:
        for worker in workers:
            worker.start()
        tree = Tree(mortal_server, workers, chance)
        await app.connect(mortal_database)
        starting = asyncio.create_task(start_everything(app))
        for _ in range(KILLS // 2):
            await clock.sleep(chance.uniform(0.1, 2.0))
            tree.kill_something()
        handles = await starting
        sending = asyncio.create_task(send_signals(handles))
        for _ in range(KILLS - KILLS // 2):
            await clock.sleep(chance.uniform(0.1, 2.0))
            tree.kill_something()
        await sending
        for n, handle in handles.items():
            result = await insisted(lambda handle=handle: handle.result(timedelta(seconds=60)))  # type: ignore[misc]
            assert result == result_of(n), f"run-{n}"
        await eventually(lambda: nothing_is_open(shards), within=30.0)
        await check_invariants(shards)
        await signals_count_once(shards)
        proof(
            "chaos",
            seed=seed,
            runs=RUNS,
            with_signals=WITH_SIGNALS,
            families=FAMILIES,
            seconds=clock.monotonic() - began,
            **tree.kills,
        )
    finally:
        await app.close()
        await shards.close()
        for worker in workers:
            worker.__exit__()


async def nothing_is_open(shards: Shards) -> bool:
    """Whether all runs have ended, those that were left behind too, and nothing waits to be delivered."""
    row = await shards.stores[0].read.fetch_row(
        "select (select count(*) from harvest_executions where closed_at is null) as open, "
        "(select count(*) from harvest_deliveries) as deliveries, (select count(*) from harvest_children) as children"
    )
    assert row is not None
    return (row["open"], row["deliveries"], row["children"]) == (0, 0, 0)


async def signals_count_once(shards: Shards) -> None:
    """One SignalReceived for each run that was signalled, though each was sent twice."""
    rows = await shards.stores[0].read.fetch(
        "select count(*) as n, count(distinct execution_id) as runs from harvest_events where kind = $1",
        int(EventKind.SIGNAL_RECEIVED),
    )
    assert (rows[0]["n"], rows[0]["runs"]) == (WITH_SIGNALS, WITH_SIGNALS)
