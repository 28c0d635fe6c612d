"""Generated programs through PostgreSQL: what real workers recorded is replayed cold elsewhere, and nothing differs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import msgspec
import pytest

from harvest import clock
from harvest.client import UpdateHandle, WorkflowHandle
from harvest.errors import (
    ExecutionClosedError,
    NoWorkerError,
    QueryFailedError,
    RequestTimeoutError,
    ResultTimeoutError,
    ShardUnavailableError,
    UpdateFailedError,
    UpdateRejectedError,
    UpdateTimeoutError,
    WorkflowFailedError,
)
from harvest.operations.exporting import export_history
from harvest.shards import Shards
from harvest.worker.options import WorkerOptions
from harvest.worker.worker import Worker
from tests import pythons
from tests.replay import performing, program
from tests.replay.cold_documents import Exported
from tests.scale import scale
from tests.support import check_invariants

T = TypeVar("T")
FIRST_SEED = int(os.environ.get("HARVEST_SEED", "1"))
PROGRAMS = scale(16, 2_000)
TOGETHER = scale(8, 40)
PATIENCE = 2.0
# None or few of the parked runs stay in memory, so that many decisions begin with a replay.
RESIDENT = (0, 3)
OPTIONS = WorkerOptions(poll_interval=0.2, scan_interval=0.1, drain_timeout=1.0)


@asynccontextmanager
async def _workers(url: str) -> AsyncIterator[tuple[list[Worker], Shards]]:
    """Two workers of the programs' application, on one shard."""
    options = [msgspec.structs.replace(OPTIONS, workflow_cache_size=entries) for entries in RESIDENT]
    own = [Shards({0: url}) for _ in options]
    workers = [Worker(performing.app.registry, *each) for each in zip(own, options, strict=True)]
    client = Shards({0: url})
    await performing.app.connect(url)
    for worker in workers:
        await worker.start()
    try:
        yield workers, client
    finally:
        for worker in workers:
            await worker.stop()
        for shards in (*own, client):
            await shards.close()
        await performing.app.close()


async def _patiently(act: Callable[[], Awaitable[T]]) -> T:
    """Repeat what a busy machine did not answer in time: every act here may be repeated."""
    end = clock.monotonic() + 60.0
    while True:
        try:
            return await act()
        except (ShardUnavailableError, RequestTimeoutError, NoWorkerError):
            if clock.monotonic() > end:
                raise
            await clock.sleep(0.1)


class Visitor:
    """Whoever has to do with one run: sends, asks, holds and ends it as chance will."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.block = program.draw(self.chance)
        self.workflow_id = f"p-{seed}"
        self.updates: list[UpdateHandle] = []
        self.sent = 0

    async def visit(self) -> str:
        """Start the run and see it through; tells how it had to be ended."""
        handle = await _patiently(
            lambda: performing.app.start(
                performing.PERFORM, self.block, workflow_id=self.workflow_id, idempotency_key=self.workflow_id
            )
        )
        try:
            for _ in range(self.chance.randint(2, 14)):
                await clock.sleep(self.chance.choice((0.0, 0.0, 0.005, 0.03)))
                await self._act(handle)
        except ExecutionClosedError:
            pass
        ended = await self._end(handle)
        for update in self.updates:
            await self._answered(update)
        return ended

    async def _act(self, handle: WorkflowHandle[int]) -> None:
        what = self.chance.choices(("signal", "update", "ask", "pause", "cancel"), (6, 4, 2, 0.5, 0.3))[0]
        if what == "signal":
            self.sent += 1
            signal, key = self.chance.choice(program.SIGNALS), f"s{self.sent}"
            await _patiently(lambda: handle.signal(signal, self.sent, idempotency_key=key))
        elif what == "update":
            name, value = self.chance.choice((*program.UPDATES, "nobody's")), self.chance.randint(0, 99)
            key = f"u{len(self.updates)}"
            self.updates.append(await _patiently(lambda: handle.start_update(name, value, idempotency_key=key)))
        elif what == "ask":
            await self._ask(handle)
        elif what == "pause":
            await _patiently(lambda: handle.pause("a moment"))
            await _patiently(handle.resume)
        else:
            await _patiently(lambda: handle.cancel("enough"))

    async def _ask(self, handle: WorkflowHandle[int]) -> None:
        """A query that looks is answered; one that acts is refused."""
        await _patiently(lambda: handle.query("look"))
        number = self.chance.randrange(50)
        with pytest.raises(QueryFailedError, match="may only look"):
            await _patiently(lambda: handle.query("act", number))

    async def _end(self, handle: WorkflowHandle[int]) -> str:
        """Programs may wait for what never comes: then they are cancelled, and terminated if that does not help."""
        for ended, act in (("by itself", None), ("cancelled", handle.cancel), ("terminated", handle.terminate)):
            try:
                if act is not None:
                    await _patiently(partial(act, "it waits for ever"))
                await _patiently(lambda: handle.result(PATIENCE))
            except ResultTimeoutError:
                continue
            except (WorkflowFailedError, ExecutionClosedError):
                pass
            return ended
        raise AssertionError(f"{self.workflow_id} does not end")

    async def _answered(self, update: UpdateHandle) -> None:
        """Every update has an answer, whichever it is."""
        try:
            await _patiently(lambda: update.result(20.0))
        except UpdateTimeoutError as error:
            raise AssertionError(f"{self.workflow_id}: update {update.update_id} has no answer") from error
        except (UpdateFailedError, UpdateRejectedError):
            pass


async def _keep_other_open(stop: asyncio.Event) -> None:
    """The run that programs reach from outside: there mostly, gone for a moment now and then."""
    while not stop.is_set():
        handle = await _patiently(
            lambda: performing.app.start(performing.OTHER, workflow_id="w-9", conflict_policy="use_existing")
        )
        with contextlib.suppress(ResultTimeoutError, WorkflowFailedError):
            await _patiently(partial(handle.result, 0.5))
        await clock.wait_event(stop, 0.05)
    with contextlib.suppress(ExecutionClosedError):
        await _patiently(partial(handle.terminate, "over"))


async def _visit_all() -> Counter[str]:
    limit = asyncio.Semaphore(TOGETHER)
    stop = asyncio.Event()

    async def visit(seed: int) -> str:
        async with limit:
            return await Visitor(seed).visit()

    async with asyncio.TaskGroup() as group:
        group.create_task(_keep_other_open(stop))
        async with asyncio.TaskGroup() as visits:
            visited = [visits.create_task(visit(seed)) for seed in range(FIRST_SEED, FIRST_SEED + PROGRAMS)]
        stop.set()
    return Counter(visit.result() for visit in visited)


async def _all_closed(shards: Shards) -> bool:
    rows = await shards.stores[0].read.fetch("select count(*) from harvest_executions where closed_at is null")
    return bool(rows[0][0] == 0)


async def _export(shards: Shards, folder: Path) -> int:
    rows = await shards.stores[0].read.fetch("select execution_id from harvest_executions")
    for row in rows:
        execution_id: UUID = row["execution_id"]
        document = await export_history(shards, execution_id)
        exported = Exported(document.decode(), performing.notes[str(execution_id)])
        (folder / f"{execution_id}.json").write_bytes(msgspec.json.encode(exported))
    return len(rows)


async def _cold(python: Path | str, folder: Path) -> str:
    """What a process with another hash seed finds in the exported histories."""
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-m",
        "tests.replay.cold_documents",
        str(folder),
        cwd=pythons.ROOT,
        env=pythons.environment_of(4242),
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    assert process.returncode == 0
    return told.decode()


def _pythons() -> list[Path | str]:
    """This Python, and the others that are here and can import the engine."""
    found: list[Path | str] = [sys.executable]
    for version in pythons.others():
        try:
            found.append(pythons.python_of(version))
        except pythons.UnavailableError as error:
            print(f"Python {version} is left out: {error}")
    return found


@pytest.mark.prove_whole_core
@pytest.mark.timeout(scale(240, 7_200))
async def test_what_workers_recorded_replays_the_same_elsewhere(
    new_database: Callable[[str], str], tmp_path: Path, proof: Callable[..., None]
) -> None:
    performing.notes.clear()
    async with _workers(new_database("differential")) as (workers, shards):
        ended = await _visit_all()
        assert await clock.until(lambda: _all_closed(shards), within=60.0), "a child or a successor stays open"
        counters = [worker.counters for worker in workers]
        assert sum(each.blocked for each in counters) == 0
        await check_invariants(shards)
        executions = await _export(shards, tmp_path)
    assert executions > PROGRAMS
    assert sum(each.evicted for each in counters) > 0, "every run stayed in memory"
    versions = []
    for python in _pythons():
        *differs, replayed = (await _cold(python, tmp_path)).splitlines()
        assert not differs, f"{python}: {differs[:3]}"
        assert int(replayed) == executions
        versions.append(str(python))
    proof(
        "programs through PostgreSQL, warm equal to cold elsewhere",
        first_seed=FIRST_SEED,
        programs=PROGRAMS,
        executions=executions,
        ended=dict(ended),
        decisions_warm=sum(each.decisions_warm for each in counters),
        decisions_cold=sum(each.decisions_cold for each in counters),
        overtaken=sum(each.declined_overtaken for each in counters),
        evicted=sum(each.evicted for each in counters),
        pythons=len(versions),
    )
