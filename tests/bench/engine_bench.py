"""One worker process under measurement: shards, worker, waits on its counters."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from harvest.operations import starting
from harvest.shards import Shards
from harvest.store import fleet
from harvest.worker.options import WorkerOptions
from harvest.worker.worker import Worker, definition_rows
from tests.bench.engine_app import app

POLL_SECONDS: Final = 0.002
encode: Final = msgspec.json.encode


class Engine:
    """A worker on one shard, and the ways in which a bench waits for it."""

    def __init__(self, shards: Shards, options: WorkerOptions) -> None:
        self.shards = shards
        self.worker = Worker(app.registry, shards, options)

    async def enqueue(self, workflow: str, count: int, *arguments: object) -> list[str]:
        """Queue `count` runs with the same input; returns their workflow ids."""
        # An input is the JSON value of the only parameter, or the array of several (issue 2, build 1).
        body = encode(arguments[0] if len(arguments) == 1 else arguments or None)
        stem = uuid.uuid4().hex[:8]
        ids = [f"{workflow}-{stem}-{number}" for number in range(count)]
        await starting.start_many(self.shards, workflow, ids, body)
        return ids

    async def passed(self, more: int, since: int, seconds: float = 600.0) -> float:
        """Wait until `more` decisions have passed since the counter stood at `since`; the moment, by perf_counter."""
        goal = since + more
        return await until(lambda: self.worker.counters.passed >= goal, seconds, f"{more} passed decisions")

    async def let_go(self) -> None:
        """Let go of every resident, so that the next decision of each run is cold."""
        self.worker.let_go_residents()

    def counters(self) -> dict[str, Any]:
        """The worker's counters at this moment."""
        return dict(msgspec.structs.asdict(self.worker.counters))


async def until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait for a condition of this process; the moment when it was seen. Raises TimeoutError naming `what`."""
    deadline = time.perf_counter() + seconds
    while not condition():
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{what} did not come within {seconds:.0f} s")
        await asyncio.sleep(POLL_SECONDS)
    return time.perf_counter()


@asynccontextmanager
async def stopped_engine(url: str, options: WorkerOptions | None = None) -> AsyncIterator[Engine]:
    """An engine whose worker has not started; what was started is stopped at the end."""
    shards = await Shards.open({0: url})
    engine = Engine(shards, options or WorkerOptions())
    await fleet.register_definitions(shards.store(0), engine.worker.id, definition_rows(app.registry, ""))
    try:
        yield engine
    finally:
        await engine.worker.stop()
        await shards.close()


@asynccontextmanager
async def running_engine(url: str, options: WorkerOptions | None = None) -> AsyncIterator[Engine]:
    """An engine at work."""
    async with stopped_engine(url, options) as engine:
        await engine.worker.start()
        yield engine
