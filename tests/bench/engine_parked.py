"""Bench (d): what a parked run weighs, and whether many of them slow down the start of others."""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import Any, Final

from tests.bench.engine_bench import Engine, running_engine
from tests.bench.engine_decisions import EVENTS_OF_ACTIVITY
from tests.bench.payload import TEXT

WARM_UP: Final = 200


async def memory(url: str, runs: int, events: int) -> dict[str, Any]:
    """Bytes of Python memory for each of `runs` parked runs with `events` events, all that grew with them included."""
    steps = (events - 1) // EVENTS_OF_ACTIVITY
    async with running_engine(url) as engine:
        await _park(engine, WARM_UP, 1)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await _park(engine, runs, steps)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        cold = engine.counters()["decisions_cold"]
    if cold > runs + WARM_UP:
        raise SystemExit(f"{cold} cold decisions for {runs + WARM_UP} runs: some were not resident all the time")
    return {"bytes": (after - before) / runs}


async def starts(url: str, parked: int, new: int) -> dict[str, Any]:
    """Runs started (queued, claimed, decided for the first time and parked) a second: beside none, then beside many."""
    async with running_engine(url) as engine:
        await _park(engine, WARM_UP, 0)
        alone = await _park(engine, new, 0)
        await _park(engine, parked - new - WARM_UP, 0)
        beside = await _park(engine, new, 0)
    return {"alone": new / alone, "beside": new / beside}


async def _park(engine: Engine, runs: int, steps: int) -> float:
    """Start runs and wait until each has `steps` activities behind it and waits for its signal; seconds."""
    since = engine.worker.counters.passed
    began = time.perf_counter()
    await engine.enqueue("parked", runs, steps, TEXT)
    return await engine.passed(runs * (steps + 1), since) - began
