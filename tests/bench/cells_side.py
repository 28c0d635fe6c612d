"""What one tenant's flood does to another one, with a cell for it and without: one case a process.

    python -m tests.bench.cells_side cell   URL_0 URL_1 IMPORTS CALLS ORDERS
    python -m tests.bench.cells_side shared URL_0 URL_1 IMPORTS CALLS ORDERS

Tenant A starts IMPORTS runs of CALLS activities at once, then tenant B starts ORDERS runs, one each tenth of a second.
With a cell, shard 1 is reserved for A and each shard has a worker process; without, both processes work on shard 0,
where everything lands. The schema is made, and one line of JSON printed: the seconds from the start of B's runs to the
start of their activities.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from harvest import clock
from harvest.history.ids import shard_of
from harvest.operations import overview, starting
from harvest.operations.actor import in_process
from harvest.operations.preparing import StartRequest
from harvest.shards import AUTOMATIC, Placement, Shards, configured
from harvest.store.migrate import upgrade
from tests.bench.side import ROOT

KEY: Final = "cell-a"
SLOTS, CALL_SECONDS, PACE_SECONDS = 20, 0.1, 0.1
JOIN_SECONDS, END_SECONDS = 60.0, 300.0
ACTOR: Final = in_process("bench")
RESERVED: Final = {"HARVEST_RESERVED_SHARDS": "1", "HARVEST_RESIDENCY_MAP": f"{KEY}=1"}

# From the first event of a run to the start of its only activity.
_WAITS: Final = """
select extract(epoch from a.at - s.at)::float8 as seconds
  from harvest_executions e
  join harvest_events s on s.execution_id = e.execution_id and s.event_id = 1
  left join harvest_events a on a.execution_id = e.execution_id and a.kind = 6
 where e.workflow_name = 'order_flow'"""


@asynccontextmanager
async def workers(urls: dict[int, str], environment: dict[str, str], crew: list[int]) -> AsyncIterator[None]:
    """A worker process for each entry of the crew, which names its shard; they are ended with the block."""
    databases = ",".join(f"{shard}={url}" for shard, url in urls.items())
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "harvest_console.cli", "worker", "run", "tests.bench.cells_app:app"),
            *("--name", f"w{number}", "--shard", str(shard), "--activity-slots", str(SLOTS), "--drain-timeout", "0"),
            cwd=ROOT,
            env={**os.environ, "HARVEST_LOG_LEVEL": "warning", "HARVEST_DATABASE_URLS": databases, **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        for number, shard in enumerate(crew)
    ]
    try:
        yield
    finally:
        for process in processes:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
        await asyncio.gather(*(process.wait() for process in processes))


async def measure(case: str, urls: dict[int, str], imports: int, calls: int, orders: int) -> dict[str, Any]:
    """The flood of A, and how long B's runs wait meanwhile."""
    has_cell = case == "cell"
    environment = RESERVED if has_cell else {"HARVEST_WRITABLE_SHARDS": "0"}
    for shard_id, url in urls.items():
        await upgrade(url, shard_id=shard_id)
    shards = await Shards.open(urls, configured(environment, urls))
    crew = [0, 1] if has_cell else [0, 0]
    try:
        async with workers(urls, environment, crew):
            await _joined(shards, crew)
            placement = Placement(residency_key=KEY) if has_cell else AUTOMATIC
            landed = [
                await _start(
                    shards, "import_orders", f"a-{number}", msgspec.json.encode([calls, CALL_SECONDS]), placement
                )
                for number in range(imports)
            ]
            landed_b = []
            for number in range(orders):
                landed_b.append(await _start(shards, "order_flow", f"b-{number}", b"null", AUTOMATIC))
                await asyncio.sleep(PACE_SECONDS)
            waits = await _waits(shards, orders)
    finally:
        await shards.close()
    return {
        "worst": max(waits),
        "median": statistics.median(waits),
        "shards_of_a": sorted(set(landed)),
        "shards_of_b": sorted(set(landed_b)),
    }


async def _start(shards: Shards, workflow: str, workflow_id: str, body: bytes, placement: Placement) -> int:
    """Start a run as a client would; the shard that it landed on."""
    request = StartRequest(workflow_name=workflow, workflow_id=workflow_id, input=body, placement=placement)
    return shard_of((await starting.start_one(shards, ACTOR, request)).execution_id)


async def _joined(shards: Shards, crew: list[int]) -> None:
    async def all_there() -> bool:
        found = {shard.shard_id: shard for shard in (await overview.overview(shards)).shards}
        return all(
            sum(worker.alive for worker in found[shard_id].workers) >= crew.count(shard_id) for shard_id in set(crew)
        )

    if not await clock.until(all_there, within=JOIN_SECONDS, every=0.1):
        raise TimeoutError(f"the workers have not joined within {JOIN_SECONDS:g} s")


async def _waits(shards: Shards, orders: int) -> list[float]:
    """Wait until the activity of each of B's runs has begun."""
    found: list[float | None] = []

    async def all_begun() -> bool:
        nonlocal found
        rows = await shards.store(0).read.fetch(_WAITS)
        found = [row["seconds"] for row in rows]
        return len(found) == orders and None not in found

    if not await clock.until(all_begun, within=END_SECONDS, every=0.2):
        raise TimeoutError(f"{found.count(None)} of {orders} runs of tenant B have not begun")
    return [seconds for seconds in found if seconds is not None]


def main() -> None:
    """Run the case that the command line names."""
    case, first, second, *sizes = sys.argv[1:]
    imports, calls, orders = map(int, sizes)
    told = asyncio.run(measure(case, {0: first, 1: second}, imports, calls, orders))
    print(msgspec.json.encode(told).decode())


if __name__ == "__main__":
    main()
