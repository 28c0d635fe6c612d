"""Bench (c): what a decision costs at three lengths of history, warm and cold.

Runs of all lengths are parked in one worker, each on an activity that the bench holds. A round lets each of them take
one decision, in turn: the held activity ends, its result and the next decision are committed, the next activity begins.
The time is from the end of the one to the begin of the other.
"""

from __future__ import annotations

import statistics
from typing import Any, Final

from tests.bench.engine_app import Gate, gates
from tests.bench.engine_bench import Engine, running_engine
from tests.bench.engine_tables import reported, table_statistics
from tests.bench.figures import percentile
from tests.bench.payload import TEXT

EVENTS_OF_ACTIVITY: Final = 3
SETTLING: Final = 20
READ_BY_SERVER: Final = 50
READ_BY_ENGINE: Final = ("loaded_events", "loaded_bytes", "statements")


class Costs:
    """What the decisions of one history length have cost so far."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.read: dict[str, list[int]] = {name: [] for name in READ_BY_ENGINE}

    def summary(self) -> dict[str, Any]:
        """Latencies in milliseconds; rows and bytes over all decisions, statements of the middle one.

        The worker's other duties send a statement now and then, which hits some decisions by chance: hence the median.
        """
        return {
            "p50_ms": statistics.median(self.seconds) * 1e3,
            "p99_ms": percentile(self.seconds, 0.99) * 1e3,
            "rows": sum(self.read["loaded_events"]) / len(self.seconds),
            "bytes": sum(self.read["loaded_bytes"]) / len(self.seconds),
            "statements": statistics.median(self.read["statements"]),
        }


async def decisions(url: str, rounds: int, cold_rounds: int, *sizes: int) -> dict[str, Any]:
    """Grow a run of each size, then take `rounds` warm and `cold_rounds` cold decisions of each, interleaved."""
    async with running_engine(url) as engine:
        for size in sizes:
            await _grow(engine, size)
        await _interleaved(engine, sizes, SETTLING, cold=False)
        warm = await _interleaved(engine, sizes, rounds, cold=False)
        server_rows = {size: await _rows_read_by_server(url, size) for size in sizes}
        cold = await _interleaved(engine, sizes, cold_rounds, cold=True)
        since = engine.worker.counters.passed
        for size in sizes:
            gates[str(size)].end()
        await engine.passed(len(sizes), since)
    return {
        str(size): {
            "warm": warm[size].summary() | {"server_rows": server_rows[size]},
            "cold": cold[size].summary(),
        }
        for size in sizes
    }


async def _grow(engine: Engine, size: int) -> None:
    """Start the run of this size and wait until it is held at its gate, with `size` events or two fewer."""
    name = str(size)
    gate = gates[name] = Gate()
    # The first event is WorkflowStarted; the gated activity has left two of its three when it is held.
    count = (size - 1 - 2) // EVENTS_OF_ACTIVITY
    await engine.enqueue("grown", 1, name, count, TEXT)
    await gate.arrival(300)


async def _interleaved(engine: Engine, sizes: tuple[int, ...], rounds: int, *, cold: bool) -> dict[int, Costs]:
    costs = {size: Costs() for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            if cold:
                await engine.let_go()
            before = engine.counters()
            costs[size].seconds.append(await gates[str(size)].step())
            after = engine.counters()
            for name in READ_BY_ENGINE:
                costs[size].read[name].append(after[name] - before[name])
            if cold and after["decisions_cold"] == before["decisions_cold"]:
                raise RuntimeError("a decision that should have been cold was warm")
            if not cold and after["decisions_cold"] != before["decisions_cold"]:
                raise RuntimeError("a decision that should have been warm was cold")
    return costs


async def _rows_read_by_server(url: str, size: int) -> float:
    """Rows of harvest_events that PostgreSQL says it read for each warm decision: a witness beside our own counters."""
    table = "harvest_events"
    before = await table_statistics(url, table)
    for _ in range(READ_BY_SERVER):
        await gates[str(size)].step()
    grown = await reported(url, table, before, "n_tup_ins", EVENTS_OF_ACTIVITY * READ_BY_SERVER)
    return (grown["idx_tup_fetch"] + grown["seq_tup_read"]) / READ_BY_SERVER
