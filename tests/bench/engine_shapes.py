"""Bench (g): one worker with many runs of one shape of waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import UUID

from harvest.history.ids import business_key
from harvest.operations import updating
from harvest.operations.actor import in_process
from harvest.store import reads
from tests.bench.engine_bench import Engine, running_engine, until

UPDATES: Final = 5
AT_ONCE: Final = 50


async def joins(url: str, count: int) -> dict[str, Any]:
    """Runs that join ten activities, five times over."""
    return await _shaped(url, "joins", count, count)


async def races(url: str, count: int) -> dict[str, Any]:
    """Runs that race an activity against a timer, ten times over."""
    return await _shaped(url, "races", count, count)


async def families(url: str, count: int) -> dict[str, Any]:
    """Runs with five children, each with an activity."""
    return await _shaped(url, "families", count, count * 6)


async def updated(url: str, count: int) -> dict[str, Any]:
    """Runs that answer five updates, sent from outside, each with an activity."""
    return await _shaped(url, "updated", count, count, _send_updates)


async def _shaped(
    url: str,
    workflow: str,
    count: int,
    runs: int,
    drive: Callable[[Engine, list[str]], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """Decisions a second, and the warm share of those that are not a run's first."""
    async with running_engine(url) as engine:
        began = time.perf_counter()
        ids = await engine.enqueue(workflow, count)
        if drive is not None:
            await drive(engine, ids)
        counters = engine.worker.counters
        ended = await until(lambda: counters.closed >= runs, 600, f"{runs} closed runs")
        decided = counters.decisions_warm + counters.decisions_cold
        later = decided - runs
        return {
            "rate": counters.passed / (ended - began),
            "warm": 1 - max(0, counters.decisions_cold - runs) / later,
            "counters": engine.counters(),
        }


async def _send_updates(engine: Engine, ids: list[str]) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def send(workflow_id: str) -> None:
        async with limit:
            found = await _execution(engine, workflow_id)
            for number in range(UPDATES):
                await updating.update(engine.shards, in_process("bench"), found, "add", b"%d" % number, timeout=120.0)

    await asyncio.gather(*(send(workflow_id) for workflow_id in ids))


async def _execution(engine: Engine, workflow_id: str) -> UUID:
    key = business_key("default", "updated", workflow_id)
    rows = await reads.by_key(engine.shards.store(0), key)
    found: UUID = rows[0]["execution_id"]
    return found
