"""DBOS on the same work, in an interpreter of its own that has dbos 3.4; it imports nothing of ours but the payload.

enqueue URL COUNT async|sync CONCURRENCY   put COUNT workflows of three steps into a queue that nobody drains yet
drain   URL COUNT                          drain it; from the first claim to the last success, by DBOS's own stamps
steps   URL COUNT async|sync               one workflow of COUNT steps; the times between the starts of its steps
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from itertools import pairwise
from typing import Any, Final

import psycopg
from dbos import DBOS

from tests.bench.payload import TEXT

QUEUE: Final = "bench"
WARM_UP: Final = 40
stamps: list[float] = []


@DBOS.step()
async def async_step(text: str) -> str:
    stamps.append(time.perf_counter())
    return text


@DBOS.step()
def sync_step(text: str) -> str:
    stamps.append(time.perf_counter())
    return text


@DBOS.workflow()
async def many_async_steps(count: int, text: str) -> str:
    for _ in range(count):
        text = await async_step(text)
    return text


@DBOS.workflow()
def many_sync_steps(count: int, text: str) -> str:
    for _ in range(count):
        text = sync_step(text)
    return text


def launch(url: str, *, listen: bool) -> None:
    """Start DBOS on a database of its own; with `listen` false it takes nothing from the queue."""
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "sys_db_pool_size": 20,
            "log_level": "ERROR",
            "application_version": "1",
        }
    )
    DBOS.listen_queues([QUEUE] if listen else ["nobody"])
    DBOS.launch()


async def enqueue(count: int, api: str, concurrency: int) -> dict[str, Any]:
    """Fill the queue, 16 at a time."""
    flow = many_async_steps if api == "async" else many_sync_steps
    await DBOS.register_queue_async(QUEUE, worker_concurrency=concurrency, polling_interval_sec=0.05)
    gate = asyncio.Semaphore(16)

    async def put() -> None:
        async with gate:
            await asyncio.to_thread(DBOS.enqueue_workflow, QUEUE, flow, 3, TEXT)

    started = time.perf_counter()
    await asyncio.gather(*(put() for _ in range(count)))
    return {"enqueue_rate": count / (time.perf_counter() - started)}


def drain(url: str, count: int) -> dict[str, Any]:
    """Wait until all have succeeded, then read DBOS's own stamps (milliseconds) of the first claim and the last end."""
    with psycopg.connect(url, autocommit=True) as connection:

        def one(statement: str) -> Any:
            row = connection.execute(statement).fetchone()
            assert row is not None
            return row

        while one("select count(*) from dbos.workflow_status where status = 'SUCCESS'")[0] < count:
            time.sleep(0.05)
        first, last = one("select min(started_at_epoch_ms), max(completed_at) from dbos.workflow_status")
        steps = one("select count(*) from dbos.operation_outputs")[0]
        results, different = one("select count(*), count(distinct output) from dbos.workflow_output")
    if steps != 3 * count or results != count or different != 1:
        raise SystemExit(
            f"DBOS recorded {steps} steps of {3 * count} and {results} results, {different} of them different"
        )
    return {"rate": count / ((last - first) / 1000), "seconds": (last - first) / 1000}


def steps(count: int, api: str) -> dict[str, Any]:
    """One workflow of `count` steps, after a short one to warm up."""
    for length in (WARM_UP, count):
        stamps.clear()
        if api == "async":
            asyncio.run(many_async_steps(length, TEXT))
        else:
            many_sync_steps(length, TEXT)
    gaps = [after - before for before, after in pairwise(stamps)]
    return {"rate": len(gaps) / (stamps[-1] - stamps[0]), "gaps": gaps}


def main() -> None:
    """Run the case that the command line names and print its result as one line of JSON."""
    case, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    launch(url, listen=case == "drain")
    if case == "enqueue":
        result = asyncio.run(enqueue(count, sys.argv[4], int(sys.argv[5])))
    elif case == "drain":
        result = drain(url, count)
    else:
        result = steps(count, sys.argv[4])
    print(json.dumps(result), flush=True)
    os._exit(0)  # its background threads take seconds to end, and nothing more is to be saved


main()
