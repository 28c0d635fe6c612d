"""Bench (e): our replay of runs of sequential activities, from memory and from the database."""

from __future__ import annotations

import time
from typing import Any, Final

from harvest.history.events import Event
from harvest.history.ids import ExecutionId
from harvest.replay.context import WorkflowContext
from harvest.replay.run import Run
from harvest.replay.state import Identity
from harvest.store import claims
from tests.bench.engine_app import app, stamps
from tests.bench.engine_bench import Engine, running_engine
from tests.bench.engine_tables import connected
from tests.bench.payload import TEXT

WORKFLOW: Final = "many_steps"
WARM_UP: Final = 2


async def replays(url: str, rounds: int, *sizes: int) -> dict[str, Any]:
    """For runs of so many activities: activities replayed a second, and milliseconds to load and replay."""
    result: dict[str, Any] = {}
    async with running_engine(url) as engine:
        for size in sizes:
            execution_id = await _grown(engine, url, size)
            result[str(size)] = await _measured(engine, execution_id, size, rounds)
    return result


async def _grown(engine: Engine, url: str, size: int) -> ExecutionId:
    """Run the program to its end."""
    stamps.clear()
    since = engine.worker.counters.passed
    (workflow_id,) = await engine.enqueue(WORKFLOW, 1, size, TEXT)
    await engine.passed(size + 1, since)
    async with connected(url) as connection:
        found = await connection.fetchval(
            "select execution_id from harvest_executions where workflow_id = $1", workflow_id
        )
    return ExecutionId(int=found.int)


async def _measured(engine: Engine, execution_id: ExecutionId, size: int, rounds: int) -> dict[str, Any]:
    store = engine.shards.store(0)
    rates: list[float] = []
    loads: list[float] = []
    whole: list[float] = []
    for _ in range(WARM_UP + rounds):
        began = time.perf_counter()
        events = (await claims.load_events(store, {execution_id: 1}))[execution_id]
        loaded = time.perf_counter()
        run = _replayed(execution_id, events)
        ended = time.perf_counter()
        _check(run, size)
        rates.append(size / (ended - loaded))
        loads.append((loaded - began) * 1e3)
        whole.append((ended - began) * 1e3)
    return {"rates": rates[WARM_UP:], "load_ms": loads[WARM_UP:], "whole_ms": whole[WARM_UP:]}


def _replayed(execution_id: ExecutionId, events: list[Event]) -> Run:
    definition = app.registry.workflow(WORKFLOW, 1)
    if definition is None:
        raise RuntimeError(f"{WORKFLOW} is not declared")
    run = Run(definition, Identity(execution_id, WORKFLOW, "bench", "default"), WorkflowContext)
    run.replay(events, events[-1].event_id)
    return run


def _check(run: Run, size: int) -> None:
    """The code went the recorded way to its end."""
    if run.blocked is not None:
        raise run.blocked
    if run.sequence != size or run.main is None or run.main.result() != TEXT:
        raise RuntimeError(f"the replay ended after {run.sequence} of {size} activities")
