"""A fleet of worker processes in owner mode, its load, and what the database says of both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from harvest import clock
from harvest.client import WorkflowHandle
from harvest.errors import OwnerModeRefusedError, WorkflowNotRegisteredError
from harvest.history.ids import PARTITIONS
from harvest.history.kinds import EventKind
from harvest.operations import owner_mode
from harvest.operations.actor import in_process
from harvest.shards import Shards
from tests.faults.app import app, counts
from tests.faults.process import WorkerProcess
from tests.support import eventually

ACTOR = in_process("test")
PATIENCE = 90.0
"""Seconds that a busy machine may take for what an idle one does at once."""


class Answered(msgspec.Struct, frozen=True):
    """A signal and the decision that it led to, by the database's clock."""

    execution_id: UUID
    partition: int
    heard: datetime
    decided: datetime

    @property
    def seconds(self) -> float:
        """From the one to the other."""
        return (self.decided - self.heard).total_seconds()


class Owners:
    """Worker processes by name. `lease` is the length of their leases in seconds."""

    def __init__(self, url: str, shards: Shards, folder: Path, lease: float) -> None:
        self.url = url
        self.shards = shards
        self.store = shards.stores[0]
        self.lease = lease
        self.processes: dict[str, WorkerProcess] = {}
        self._folder = folder

    def start(self, name: str, build: str = "b") -> WorkerProcess:
        """Start a process, or start it again after its end."""
        log = self._folder / f"{name}.log"
        process = WorkerProcess(
            self.url, log, name=name, build=build, HARVEST_TEST_LEASE=f"{self.lease:g}", HARVEST_TEST_DRAIN="20"
        )
        self.processes[name] = process
        return process.start()

    async def enable(self) -> None:
        """Turn owner mode on as soon as every living worker allows it."""

        async def on() -> bool:
            try:
                await owner_mode.enable(self.shards, ACTOR, 0, reason="test")
            except OwnerModeRefusedError:
                return False
            return True

        await eventually(on, within=PATIENCE)

    async def worker(self, name: str) -> dict[str, Any]:
        """The newest row of the worker of this name; its counters and its report are decoded."""
        row = await self.store.read.fetch_row(
            "select * from harvest_workers where name = $1 order by started_at desc limit 1", name
        )
        assert row is not None, f"{name} has not joined"
        told = {key: msgspec.json.decode(row[key]) if row[key] else {} for key in ("counters", "report")}
        return dict(row) | told

    async def counters(self, name: str) -> dict[str, Any]:
        """The counters of a worker, not older than this call."""
        asked = await self.now()

        async def told() -> bool:
            return bool((await self.worker(name))["seen_at"] > asked)

        await eventually(told, within=PATIENCE)
        counters: dict[str, Any] = (await self.worker(name))["counters"]
        return counters

    async def partitions_of(self, worker: UUID) -> set[int]:
        """What a worker owns now."""
        rows = await self.store.read.fetch("select partition from harvest_partitions where owner = $1", worker)
        return {row["partition"] for row in rows}

    async def settled(self, *names: str) -> None:
        """Wait until these workers own everything, in equal parts."""
        least = PARTITIONS // len(names)

        async def equal() -> bool:
            rows = await self.store.read.fetch(
                "select w.name, count(*) as n from harvest_partitions p join harvest_workers w on w.worker = p.owner "
                "where w.lease_until > clock_timestamp() and w.status = 'active' group by w.worker, w.name"
            )
            owned = sorted((row["name"], row["n"]) for row in rows)
            return [name for name, _ in owned] == sorted(names) and all(least <= n <= least + 2 for _, n in owned)

        await eventually(equal, within=PATIENCE)

    async def now(self) -> datetime:
        """The database's time."""
        return await moment(self.shards)

    async def journal(self, since: datetime, event: str, worker: UUID) -> list[dict[str, Any]]:
        """What the journal says of a worker since then."""
        rows = await self.store.read.fetch(
            "select * from harvest_partition_journal where at >= $1 and event = $2 and worker = $3 order by id",
            since,
            event,
            worker,
        )
        return [dict(row) for row in rows]


async def moment(shards: Shards) -> datetime:
    """The database's time."""
    row = await shards.stores[0].read.fetch_row("select clock_timestamp() as at")
    assert row is not None
    at: datetime = row["at"]
    return at


@asynccontextmanager
async def owners(url: str, folder: Path, names: Iterable[str], lease: float) -> AsyncIterator[Owners]:
    """These workers in owner mode, each with its share; the application is connected as a client."""
    shards = await Shards.open({0: url})
    await app.connect(url)
    fleet = Owners(url, shards, folder, lease)
    try:
        for name in names:
            fleet.start(name)

        async def joined() -> bool:
            rows = await shards.stores[0].read.fetch("select name from harvest_workers where scanned_at is not null")
            return {row["name"] for row in rows} == set(names)

        await eventually(joined, within=PATIENCE)
        await fleet.enable()
        await fleet.settled(*names)
        yield fleet
    finally:
        for process in fleet.processes.values():
            process.__exit__()
        await app.close()
        await shards.close()


class Load:
    """Runs that count: each hears `times` numbers in their order, at moments of `chance`."""

    def __init__(self, fleet: Owners, chance: random.Random, runs: int, times: int) -> None:
        self._fleet = fleet
        self._chance = chance
        self._runs = runs
        self._times = times
        self._sent = 0
        self.handles: list[WorkflowHandle[list[int]]] = []

    async def start(self) -> None:
        """Start every run, and wait until all are parked."""
        for _ in range(self._runs):
            self.handles.append(await self._started())
        await self.parked()

    async def _started(self) -> WorkflowHandle[list[int]]:
        while True:
            try:
                return await app.start(counts, self._times)
            except WorkflowNotRegisteredError:
                await clock.sleep(0.05)

    async def parked(self) -> None:
        """Wait until every run waits for its next number."""
        ids = [handle.execution_id for handle in self.handles]

        async def waits() -> bool:
            rows = await self._fleet.store.read.fetch(
                "select count(*) as n from harvest_workflow_tasks where state = 2 and execution_id = any($1)", ids
            )
            return bool(rows[0]["n"] == len(ids))

        await eventually(waits, within=PATIENCE)

    async def one_more(self) -> None:
        """Every run hears its next number at once."""
        number, self._sent = self._sent, self._sent + 1
        await _gathered(handle.signal("count", number) for handle in self.handles)

    async def stream(self, seconds: float) -> None:
        """Every run hears the rest of its numbers, one after the other, spread over about so many seconds."""
        first, self._sent = self._sent, self._times

        async def feed(handle: WorkflowHandle[list[int]]) -> None:
            for number in range(first, self._times):
                await clock.sleep(self._chance.uniform(0, 2 * seconds / (self._times - first)))
                await handle.signal("count", number)

        await asyncio.gather(*map(feed, self.handles))

    async def finished(self) -> None:
        """Every run has heard every number once, in order."""
        for handle in self.handles:
            assert await handle.result(timedelta(seconds=PATIENCE)) == list(range(self._times))

    async def answered(self, since: datetime) -> list[Answered]:
        """The signals since then, each with the decision that it led to."""
        rows = await self._fleet.store.read.fetch(
            """
            select h.execution_id, e.partition, h.at as heard, d.at as decided
              from (select execution_id, at, row_number() over (partition by execution_id order by event_id) as nth
                      from harvest_events where kind = $2) h
              join (select execution_id, at, row_number() over (partition by execution_id order by event_id) as nth
                      from harvest_events where kind = $3) d on d.execution_id = h.execution_id and d.nth = h.nth
              join harvest_executions e on e.execution_id = h.execution_id
             where h.at >= $1 and h.execution_id = any($4)""",
            since,
            int(EventKind.SIGNAL_RECEIVED),
            int(EventKind.ACTIVITY_SCHEDULED),
            [handle.execution_id for handle in self.handles],
            limit=30.0,
        )
        return [Answered(*row.values()) for row in rows]


async def _gathered(acts: Iterable[Any], at_once: int = 25) -> None:
    limit = asyncio.Semaphore(at_once)

    async def one(act: Any) -> None:
        async with limit:
            await act

    await asyncio.gather(*map(one, acts))
