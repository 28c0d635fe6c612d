"""Bench (h): the work of (a) for minutes on end, with as much of it waiting at the end as at the beginning."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any, Final

from harvest.history.states import State
from tests.bench.engine_bench import Engine, running_engine, until
from tests.bench.engine_tables import connected
from tests.bench.payload import TEXT

WAITING: Final = 2_000
CHUNK: Final = 500
LOOK_SECONDS: Final = 0.05


async def soak(url: str, seconds: int, slices: int) -> dict[str, Any]:
    """Runs closed a second in each of `slices` equal parts of the time, and the process's size after each."""
    rates: list[float] = []
    sizes: list[float] = []
    async with running_engine(url) as engine:
        feeder = Feeder(engine)
        feeding = asyncio.create_task(feeder.run())
        began = time.perf_counter()
        for number in range(1, slices + 1):
            closed, since = engine.worker.counters.closed, time.perf_counter()
            await _moment(began + seconds * number / slices, feeding)
            rates.append((engine.worker.counters.closed - closed) / (time.perf_counter() - since))
            sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await until(lambda: engine.worker.counters.closed >= feeder.started, 600, "the end of all runs")
    await _check(url, feeder.started)
    return {"rates": rates, "megabytes": sizes, "runs": feeder.started}


class Feeder:
    """Starts runs so that about as many wait all the time."""

    def __init__(self, engine: Engine) -> None:
        self.started = 0
        self._engine = engine

    async def run(self) -> None:
        """Feed until cancelled."""
        while True:
            while self.started - self._engine.worker.counters.closed < WAITING:
                # Counted only when it was answered; a cancel must not come between.
                await asyncio.shield(self._start())
            await asyncio.sleep(LOOK_SECONDS)

    async def _start(self) -> None:
        await self._engine.enqueue("three_steps", CHUNK, TEXT)
        self.started += CHUNK


async def _moment(moment: float, feeding: asyncio.Task[None]) -> None:
    """Wait until a moment of perf_counter; a feeder that died is an error at once."""
    done, _ = await asyncio.wait([feeding], timeout=max(0.0, moment - time.perf_counter()))
    if done:
        feeding.result()


async def _check(url: str, started: int) -> None:
    async with connected(url) as connection:
        completed = await connection.fetchval(
            "select count(*) from harvest_executions where state = $1", int(State.COMPLETED), timeout=120
        )
    if completed != started:
        raise SystemExit(f"{completed} of {started} runs completed")
