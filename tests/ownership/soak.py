"""Minutes of owner mode: work without end, and a fleet whose processes die, freeze, join, drain and are replaced."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections import Counter
from datetime import timedelta
from typing import Any

from harvest import clock
from harvest.client import WorkflowHandle
from harvest.operations import owner_mode, workers
from tests.faults.app import app, counts, family, family_result, steps_signal_timer, three_steps
from tests.faults.owners import ACTOR, PATIENCE, Owners
from tests.faults.process import WorkerProcess
from tests.faults.test_chaos import insisted
from tests.support import eventually

NUMBERS = 4
LEAST, MOST = 2, 4
"""How many processes there are at the least and at the most."""
RESULT_SECONDS = timedelta(seconds=300)


class Work:
    """Runs of every kind, about `at_once` of them open at any time; each is checked as it ends."""

    def __init__(self, chance: random.Random, at_once: int) -> None:
        self.ended: Counter[str] = Counter()
        self._chance = chance
        self._at_once = at_once
        self._numbers = itertools.count()
        self._stopping = False

    async def run(self) -> None:
        """Work until told to stop; raises what went wrong with a run."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(self._one_after_the_other())

    def stop(self) -> None:
        """Begin no further run."""
        self._stopping = True

    async def _one_after_the_other(self) -> None:
        kinds = (self._three_steps, self._signalled, self._family, self._counts)
        while not self._stopping:
            kind, number = self._chance.choice(kinds), next(self._numbers)
            await kind(number)
            self.ended[kind.__name__.strip("_")] += 1

    async def _three_steps(self, number: int) -> None:
        assert await _result(await _started(three_steps, number)) == number + 3

    async def _signalled(self, number: int) -> None:
        handle = await _started(steps_signal_timer, number)
        await self._pause()
        for _ in range(2):
            await insisted(lambda: handle.signal("add", 1000, idempotency_key="the one"))
        assert await _result(handle) == 2 * (number + 1) + 1000 + 1

    async def _family(self, number: int) -> None:
        assert await _result(await _started(family, number)) == family_result(number)

    async def _counts(self, number: int) -> None:
        handle = await _started(counts, NUMBERS, workflow_id=f"run-{number}")
        for each in range(NUMBERS):
            await self._pause()
            await insisted(lambda each=each: handle.signal("count", each, idempotency_key=f"{each}"))  # type: ignore[misc]
        assert await _result(handle) == list(range(NUMBERS))

    async def _pause(self) -> None:
        await clock.sleep(self._chance.uniform(0, 1))


async def _started(workflow: Any, argument: int, workflow_id: str = "") -> WorkflowHandle[Any]:
    """Start a run once, whatever happens to the answer."""
    name = workflow_id or f"run-{argument}"
    handle: WorkflowHandle[Any] = await insisted(
        lambda: app.start(
            workflow, argument, workflow_id=name, idempotency_key=f"start-{name}", conflict_policy="use_existing"
        )
    )
    return handle


async def _result(handle: WorkflowHandle[Any]) -> Any:
    return await insisted(lambda: handle.result(RESULT_SECONDS))


class Unrest:
    """What happens to the fleet, one thing after the other."""

    def __init__(self, fleet: Owners, chance: random.Random) -> None:
        self.happened: Counter[str] = Counter()
        self._fleet = fleet
        self._chance = chance
        self._builds = itertools.count(1)
        self._names = itertools.count()
        self._build = "b"

    async def happen(self, kind: str) -> None:
        """Let one of `KINDS` happen, and see that every partition is owned by those who live."""
        await getattr(self, kind)()
        self.happened[kind] += 1
        await self._fleet.settled(*self._fleet.processes)

    async def kill(self) -> None:
        """A process dies and is started again, perhaps only after its lease has ended."""
        name = self._any()
        self._fleet.processes[name].kill()
        await clock.sleep(self._chance.uniform(0, 1.5 * self._fleet.lease))
        self._fleet.start(name, self._build)

    async def freeze(self) -> None:
        """A process stands still for longer than its lease, and begins anew."""
        name = self._any()
        process, before = self._fleet.processes[name], await self._fleet.worker(name)
        process.signal(signal.SIGSTOP)
        await clock.sleep(self._chance.uniform(1.1, 1.5) * self._fleet.lease)
        process.signal(signal.SIGCONT)

        async def anew() -> bool:
            return bool((await self._fleet.worker(name))["worker"] != before["worker"])

        await eventually(anew, within=PATIENCE)

    async def join(self) -> None:
        """Another process comes, where there is room for one."""
        if len(self._fleet.processes) < MOST:
            self._started()

    async def drain(self) -> None:
        """People drain a process; where few are left another has come before."""
        name = self._any()
        if len(self._fleet.processes) <= LEAST:
            await self._joined(self._started())
        await self._drained(name)

    async def deploy(self) -> None:
        """A new build by the runbook: owner mode off, new processes beside the old, drain those, owner mode on."""
        old = list(self._fleet.processes)
        await owner_mode.disable(self._fleet.shards, ACTOR, 0, reason="deploy")
        self._build = f"b{next(self._builds)}"
        for name in [self._started() for _ in range(LEAST)]:
            await self._joined(name)
        for name in old:
            await self._drained(name)
        await clock.sleep(self._fleet.lease)
        await self._fleet.enable()

    def _any(self) -> str:
        return self._chance.choice(sorted(self._fleet.processes))

    def _started(self) -> str:
        name = f"{self._build}-{next(self._names)}"
        self._fleet.start(name, self._build)
        return name

    async def _joined(self, name: str) -> None:
        async def at_work() -> bool:
            rows = await self._fleet.store.read.fetch(
                "select from harvest_workers where name = $1 and scanned_at is not null", name
            )
            return bool(rows)

        await eventually(at_work, within=PATIENCE)

    async def _drained(self, name: str) -> None:
        row = await self._fleet.worker(name)
        await workers.drain(self._fleet.shards, ACTOR, row["worker"], reason="soak")
        process: WorkerProcess = self._fleet.processes.pop(name)
        assert await process.ended(PATIENCE) == 0


KINDS = ("kill", "freeze", "join", "drain", "deploy")
