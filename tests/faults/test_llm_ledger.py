"""Workers killed while activities report of language models: what has ended is in the ledger, and nothing is twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from harvest import clock
from harvest.errors import WorkflowFailedError
from harvest.history.data import ActivityCompleted
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from tests.faults.app import app, asks_models
from tests.faults.process import WorkerProcess
from tests.faults.test_frozen import registered
from tests.scale import scale
from tests.support import check_invariants, eventually, history_of

pytestmark = [pytest.mark.slow, pytest.mark.prove_shards, pytest.mark.timeout(900)]
KILLS, RUNS, ACTIVITIES = scale(3, 10), 20, 5
SEED = 11


async def test_a_killed_worker_loses_no_report_of_an_attempt_that_has_ended(
    new_database: Callable[[str], str], tmp_path: Path, proof: Callable[..., None]
) -> None:
    url, chance = new_database("llm_killed"), random.Random(SEED)
    shards = Shards({0: url})
    await app.connect(url)
    try:
        with WorkerProcess(url, tmp_path / "log", HARVEST_TEST_LEASE="2") as worker:
            await registered(app)
            runs = []
            for _ in range(KILLS):
                before = await ledger_rows(shards)
                runs += [await app.start(asks_models, ACTIVITIES) for _ in range(RUNS)]
                await eventually(lambda at=before: has_more(shards, at), within=60)  # type: ignore[misc]
                await clock.sleep(chance.random() * 0.4)
                worker.kill()
                worker.start()
            for run in runs:
                try:
                    await run.result(timedelta(seconds=120))
                except WorkflowFailedError as error:
                    # One that was there with three of the dead.
                    if "WorkerKilled" not in str(error.fields):
                        raise
        completed = cut_short = 0
        for run in runs:
            rows = await shards.store(0).read.fetch(
                "select seq, attempt, array_agg(number order by number) as numbers from harvest_cost_ledger "
                "where execution_id = $1 group by seq, attempt",
                run.execution_id,
            )
            kept = {(row["seq"], row["attempt"]): row["numbers"] for row in rows}
            for event in await history_of(shards, run.execution_id):
                if event.kind == EventKind.ACTIVITY_COMPLETED:
                    data = event.data()
                    assert isinstance(data, ActivityCompleted)
                    calls = int(bytes(data.output))
                    assert kept.pop((event.seq, data.attempt)) == list(range(1, calls + 1))
                    completed += 1
            # Attempts that were cut short have kept what they reported first.
            assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in kept.values())
            cut_short += len(kept)
        await check_invariants(shards)
        proof("kills", seed=SEED, kills=KILLS, runs=len(runs), completed_activities=completed, cut_short=cut_short)
    finally:
        await app.close()
        await shards.close()


async def ledger_rows(shards: Shards) -> int:
    rows = await shards.store(0).read.fetch("select count(*) as n from harvest_cost_ledger")
    return int(rows[0]["n"])


async def has_more(shards: Shards, than: int) -> bool:
    return await ledger_rows(shards) > than
