"""A worker that is frozen past its lease and thawed after the take-over writes nothing (design 9, faults 10-13)."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from harvest import Harvest
from harvest.errors import WorkflowNotRegisteredError
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from tests.faults.app import app, long_and_signals, three_steps
from tests.faults.process import WorkerProcess
from tests.support import check_invariants, eventually, history_of


async def registered(client: Harvest) -> None:
    """Wait until a worker is at work."""

    async def known() -> bool:
        try:
            await client.start(three_steps, 1, workflow_id="first")
        except WorkflowNotRegisteredError:
            return False
        return True

    await eventually(known, within=30)


async def test_13_a_frozen_worker_is_refused_and_begins_anew(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = new_database("frozen")
    shards = await Shards.open({0: url})
    await app.connect(url)
    gate = tmp_path / "gate"
    try:
        with WorkerProcess(url, tmp_path / "frozen.log", name="frozen") as frozen:
            await registered(app)
            run = await app.start(long_and_signals, str(gate))

            async def begun() -> bool:
                return any(e.kind == EventKind.ACTIVITY_STARTED for e in await history_of(shards, run.execution_id))

            await eventually(begun)
            frozen.signal(signal.SIGSTOP)
            await run.signal("news", 1)
            await run.signal("news", 2)
            with WorkerProcess(url, tmp_path / "heir.log", name="heir") as heir:
                gate.touch()
                result = await run.result(timedelta(seconds=40))
                assert result == [1, 2, heir.process.pid]
                before = await history_of(shards, run.execution_id)
                frozen.signal(signal.SIGCONT)

                async def stopped_and_begun_anew() -> bool:
                    return bool(re.search(r"frozen has stopped.*frozen \(.*has started", frozen.said(), re.DOTALL))

                await eventually(stopped_and_begun_anew, within=20)
                (counters,) = re.findall(r"frozen has stopped: (.*)", frozen.said())
                assert re.search(r"\b[1-9]\d* decisions fenced", counters), (
                    "the thawed worker's commit was tried, refused and counted"
                )
                assert "1 leases lost" in counters
                assert await history_of(shards, run.execution_id) == before
                completed = [e for e in before if e.kind == EventKind.WORKFLOW_COMPLETED]
                assert len(completed) == 1
                await check_invariants(shards)
    finally:
        await app.close()
        await shards.close()
