"""Our engine's side of every bench, one case a process.

    python -m tests.bench.engine_side queue     URL COUNT
    python -m tests.bench.engine_side ballast   URL CLOSED_RUNS
    python -m tests.bench.engine_side steps     URL COUNT
    python -m tests.bench.engine_side decisions URL ROUNDS COLD_ROUNDS EVENTS...
    python -m tests.bench.engine_side memory    URL RUNS EVENTS
    python -m tests.bench.engine_side starts    URL PARKED NEW
    python -m tests.bench.engine_side replays   URL ROUNDS ACTIVITIES...
    python -m tests.bench.engine_side soak      URL SECONDS SLICES
    python -m tests.bench.engine_side joins     URL COUNT (or races, families, updated)

Each makes the schema where it is missing and prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, Final

import msgspec
import uvloop

from harvest.store.migrate import upgrade
from tests.bench.engine_app import stamps
from tests.bench.engine_bench import encode, running_engine, stopped_engine, until
from tests.bench.engine_decisions import decisions
from tests.bench.engine_parked import memory, starts
from tests.bench.engine_replay import replays
from tests.bench.engine_shapes import families, joins, races, updated
from tests.bench.engine_soak import soak
from tests.bench.engine_tables import add_closed_runs, reported, shape_of, table_statistics, wrong_runs
from tests.bench.payload import TEXT

DECISIONS_OF_THREE_STEPS: Final = 4
WARM_UP: Final = 40


async def queue(url: str, count: int) -> dict[str, Any]:
    """Bench (a): from the worker's first claim to the last terminal commit of `count` queued runs."""
    before = await table_statistics(url, "harvest_executions")
    async with stopped_engine(url) as engine:
        ids = await engine.enqueue("three_steps", count, TEXT)
        starting = asyncio.create_task(engine.worker.start())
        first = await until(lambda: engine.worker.counters.claims > 0, 30, "the first claim")
        last = await engine.passed(DECISIONS_OF_THREE_STEPS * count, 0)
        await starting
        counters = engine.counters()
    wrong = await wrong_runs(url, ids, encode(TEXT))
    if wrong:
        raise SystemExit(f"{wrong} of {count} runs did not complete with their result")
    updates = await reported(url, "harvest_executions", before, "n_tup_upd", counters["passed"])
    # The update that ends a run moves it in the index over the state; every other one should stay on its page.
    hot = updates["n_tup_hot_upd"] / (updates["n_tup_upd"] - count)
    return {
        "rate": count / (last - first),
        "hot": hot,
        "counters": counters,
        "shape": msgspec.to_builtins(await shape_of(url, ids[-1])),
    }


async def ballast(url: str, count: int) -> dict[str, Any]:
    """Run one workflow to its end and copy it `count` times."""
    async with running_engine(url) as engine:
        ids = await engine.enqueue("three_steps", 1, TEXT)
        await engine.passed(DECISIONS_OF_THREE_STEPS, 0)
    await add_closed_runs(url, ids[0], count)
    return {"closed": count}


async def steps(url: str, count: int) -> dict[str, Any]:
    """Bench (b): one run of `count` sequential activities, after a short one to warm up."""
    async with running_engine(url) as engine:
        for length in (WARM_UP, count):
            stamps.clear()
            since = engine.worker.counters.passed
            await engine.enqueue("many_steps", 1, length, TEXT)
            await engine.passed(length + 1, since)
    gaps = [after - before for before, after in pairwise(stamps)]
    return {"rate": len(gaps) / (stamps[-1] - stamps[0]), "gaps": gaps}


CASES: Final[dict[str, Callable[..., Awaitable[dict[str, Any]]]]] = {
    "queue": queue,
    "ballast": ballast,
    "steps": steps,
    "decisions": decisions,
    "memory": memory,
    "starts": starts,
    "replays": replays,
    "soak": soak,
    "joins": joins,
    "races": races,
    "families": families,
    "updated": updated,
}


async def run(case: str, url: str, numbers: list[int]) -> dict[str, Any]:
    """Make the schema and run one case."""
    await upgrade(url, shard_id=0)
    return await CASES[case](url, *numbers)


def main() -> None:
    """Run the case that the command line names."""
    case, url, *numbers = sys.argv[1:]
    result = uvloop.run(run(case, url, [int(number) for number in numbers]))
    print(encode(result).decode())


if __name__ == "__main__":
    main()
