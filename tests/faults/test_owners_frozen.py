"""An owner that is frozen past its lease and thawed after the take-over applies nothing (issue 4, Must show 2)."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from harvest import clock
from harvest.history.events import Event
from tests.faults.app import app, long_and_signals
from tests.faults.owners import PATIENCE, Load, Owners, owners
from tests.scale import scale
from tests.support import check_invariants, eventually, history_of

SEED = 13
FREEZES = scale(1, 10)
LEASE = scale(3, 10)
RUNS, CAUGHT = scale(20, 200), scale(8, 60)
pytestmark = [pytest.mark.slow, pytest.mark.prove_ownership, pytest.mark.timeout(scale(300, 1800))]


async def test_every_late_commit_of_a_thawed_owner_is_refused_and_counted(
    new_database: Callable[[str], str], tmp_path: Path, proof: Callable[..., None]
) -> None:
    chance = random.Random(SEED)
    refused = 0
    async with owners(new_database("frozen_owner"), tmp_path, ("a", "b"), LEASE) as fleet:
        for number in range(FREEZES):
            refused += await _freeze(fleet, chance, tmp_path / f"gate-{number}", "ab"[number % 2])
            await fleet.settled("a", "b")
        await check_invariants(fleet.shards)
    proof("frozen owners", seed=SEED, freezes=FREEZES, runs=RUNS + CAUGHT, refused=refused)


async def _freeze(fleet: Owners, chance: random.Random, gate: Path, victim: str) -> int:
    """Freeze an owner amid its work, thaw it when all of that was done by another; how many commits were refused."""
    load = Load(fleet, chance, RUNS, 2)
    await load.start()
    caught = [await app.start(long_and_signals, str(gate)) for _ in range(CAUGHT)]
    frozen = await fleet.worker(victim)
    owned = await fleet.partitions_of(frozen["worker"])
    await eventually(lambda: _activities(fleet, CAUGHT), within=PATIENCE)
    since = await fleet.now()
    process = fleet.processes[victim]
    said = len(process.said())
    await load.one_more()
    await clock.sleep(chance.uniform(0, 0.05))
    process.signal(signal.SIGSTOP)
    await load.one_more()
    for run in caught:
        for word in (1, 2):
            await run.signal("news", word)
    gate.touch()
    for run in caught:
        assert (await run.result(timedelta(seconds=PATIENCE)))[:2] == [1, 2]
    await load.finished()
    expired = await fleet.journal(since, "expired", frozen["worker"])
    assert {each["partition"] for each in expired} == owned
    before = await _histories(fleet, load, caught)

    process.signal(signal.SIGCONT)
    anew = rf"worker {victim} has stopped.*worker {victim} \(.*has started"
    await eventually(lambda: _says(process.said, said, anew), within=PATIENCE)
    (told,) = re.findall(r"([\d,]+) decisions fenced", process.said()[said:])
    refused = int(told.replace(",", ""))
    assert refused > 0, "commits of the thawed owner were tried"
    assert await _histories(fleet, load, caught) == before, "and none was applied"
    fenced = await fleet.journal(since, "fenced", frozen["worker"])
    assert sum(int(each["detail"].split()[0]) for each in fenced) == refused, "the journal tells of each"
    assert {each["partition"] for each in fenced} <= owned
    return refused


async def _activities(fleet: Owners, count: int) -> bool:
    """Whether so many activities run, and nothing is left to be decided."""
    row = await fleet.store.read.fetch_row(
        "select (select count(*) from harvest_activity_tasks where state = 1) as running, "
        "(select count(*) from harvest_workflow_tasks where state = 0) as pending"
    )
    assert row is not None
    return (row["running"], row["pending"]) == (count, 0)


async def _histories(fleet: Owners, load: Load, caught: list[Any]) -> dict[UUID, list[Event]]:
    runs = [handle.execution_id for handle in (*load.handles, *caught)]
    return {run: await history_of(fleet.shards, run) for run in runs}


async def _says(said: Callable[[], str], since: int, pattern: str) -> bool:
    return bool(re.search(pattern, said()[since:], re.DOTALL))
