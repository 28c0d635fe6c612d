"""Bench (f): what a claim costs beside many pending tasks, and behind many that were claimed and finished.

    python -m tests.bench.claims_side FRESH_URL USED_URL GONE SAMPLES PENDING...

Two databases with the same runs. In the used one GONE tasks were claimed and finished, and nothing was vacuumed since;
in the fresh one those runs never had a task. Claims alternate between the two, as a worker makes them: from its marks.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import asyncpg
import msgspec
import uvloop

from harvest.history.kinds import EventKind
from harvest.store import activity_claims, claims
from harvest.store.marks import HANDICAP, Marks
from harvest.store.migrate import upgrade
from harvest.store.picking import columns
from harvest.store.pool import CLAIM, COMMON
from harvest.store.store import Store
from tests.bench.engine_bench import encode
from tests.explaining import buffers, explained
from tests.store.rows import a_worker

BATCH: Final = 200
CLAIMS: Final = {"200": (BATCH, False), "1": (1, False), "look": (BATCH, True)}
"""How many tasks, and whether it is a full look."""
WARM_UP: Final = 5
MORE_OF_ONE: Final = 5
EXPLAINED: Final = 10
AGE_SECONDS: Final = 1.2
"""A mark lies a second behind the claim: what is as old as this lies before it."""
QUEUES: Final = ["default"]
FILL_SECONDS: Final = 300.0
TABLES: Final = ("harvest_executions", "harvest_events", "harvest_workflow_tasks", "harvest_activity_tasks")

RUNS: Final = (
    """insert into harvest_executions (execution_id, business_key, next_event_id, version, partition, workflow_name,
           workflow_id)
       select md5('run' || n)::uuid, md5('run' || n)::uuid, 2, 1, 0, 'w', 'run' || n
         from generate_series($1::int, $2::int) n""",
    """insert into harvest_events (execution_id, event_id, kind, payload)
       select md5('run' || n)::uuid, 1, 1, convert_to(repeat('x', 250), 'UTF8')
         from generate_series($1::int, $2::int) n""",
)
TASKS: Final = {
    "workflow": """
        insert into harvest_workflow_tasks (execution_id, partition, queue, workflow_name, version, sort_at)
        select md5('run' || n)::uuid, 0, 'default', 'w', 1, clock_timestamp() + interval '30 seconds'
          from generate_series($1::int, $2::int) n""",
    "activity": """
        insert into harvest_activity_tasks (execution_id, seq, scheduled_event_id, queue, name)
        select md5('run' || n)::uuid, 1, 1, 'default', 'a' from generate_series($1::int, $2::int) n""",
}


class Site:
    """One of the two databases, with the tasks of one kind and the claiming loop of a worker."""

    def __init__(self, kind: str, store: Store, connection: Any) -> None:
        self.kind = kind
        self.store = store
        self.connection = connection
        self.marks = self.no_marks()
        self._count = 0

    async def prepare(self, gone: int, *, used: bool) -> None:
        """Make the worker and the runs that are gone; in the used database their tasks come and go."""
        self.worker = await a_worker(self.store, lease=7200)
        for table in TABLES:
            await self.store.scan.write(f"alter table {table} set (autovacuum_enabled = false)")
        await self.add(gone, with_tasks=used)
        while used and await self.claim(BATCH, self.marks):
            await self.finish()

    def no_marks(self) -> Marks:
        """Those of a loop that has seen nothing yet."""
        return Marks(HANDICAP) if self.kind == "workflow" else Marks()

    async def add(self, count: int, *, with_tasks: bool = True) -> None:
        """So many runs more, each with one pending task."""
        first, self._count = self._count + 1, self._count + count
        for sql in (*RUNS, *((TASKS[self.kind],) if with_tasks else ())):
            await self.store.scan.write(sql, first, self._count, limit=FILL_SECONDS)

    async def claim(self, most: int, marks: Marks) -> int:
        """One claim; how many tasks it took."""
        if self.kind == "workflow":
            return len(await claims.claim(self.store, self.worker, QUEUES, most, marks))
        return len(await activity_claims.claim_activities(self.store, self.worker, "bench", QUEUES, ["a"], most, marks))

    async def finish(self) -> None:
        """What was claimed is done."""
        await self.store.scan.write(f"delete from harvest_{self.kind}_tasks where worker = $1", self.worker)

    async def read(self, most: int, marks: Marks) -> int:
        """The pages that such a claim reads."""
        seeks = columns(marks.seeks(QUEUES))
        values: list[Any] = [QUEUES, self.worker, most, *seeks]
        if self.kind == "workflow":
            return buffers(await explained(self.connection, "workflow", claims.CLAIM, values))
        values += [["a"], int(EventKind.ACTIVITY_STARTED), "bench"]
        return buffers(await explained(self.connection, "activity", activity_claims.CLAIM_ACTIVITIES, values))

    async def sample(self, most: int, *, look: bool, explain: bool) -> tuple[float, float | None]:
        """Milliseconds and, if asked for, pages of one claim. As many tasks come as go."""
        marks = self.no_marks() if look else self.marks
        pages = float(await self.read(most, marks)) if explain else None
        began = time.perf_counter()
        if await self.claim(most, marks) != most:
            raise RuntimeError(f"a claim of {most} found fewer")
        seconds = time.perf_counter() - began
        await self.finish()
        await self.add(most)
        return seconds * 1e3, pages


@asynccontextmanager
async def opened(kind: str, url: str) -> AsyncIterator[Site]:
    """A site with the schema in place."""
    await upgrade(url, shard_id=0)
    await _without_flushes(url)
    store = Store(0, url)
    connection = await asyncpg.connect(url, server_settings={**COMMON, **CLAIM.settings})
    try:
        yield Site(kind, store, connection)
    finally:
        await connection.close()
        await store.close()


async def _without_flushes(url: str) -> None:
    """Leave out the wait for the disk: it is the same for every claim, and would hide how they differ."""
    connection = await asyncpg.connect(url)
    try:
        database = await connection.fetchval("select current_database()")
        await connection.execute(f'alter database "{database}" set synchronous_commit = off')
    finally:
        await connection.close()


async def run(kind: str, urls: dict[str, str], gone: int, samples: int, sizes: list[int]) -> dict[str, Any]:
    """Cost by pending tasks, claim (see CLAIMS) and site."""
    costs: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        sites = {name: await stack.enter_async_context(opened(kind, url)) for name, url in urls.items()}
        for name, site in sites.items():
            await site.prepare(gone, used=name == "used")
        pending = 0
        for size in sizes:
            for site in sites.values():
                await site.add(size - pending)
            pending = size
            await asyncio.sleep(AGE_SECONDS)
            costs[str(size)] = {claim: await _cost(sites, samples, claim) for claim in CLAIMS}
    return costs


async def _cost(sites: dict[str, Site], samples: int, claim: str) -> dict[str, Any]:
    """Medians by site. The sites take turns, and turns at being the first."""
    most, look = CLAIMS[claim]
    times: dict[str, list[float]] = {name: [] for name in sites}
    pages: dict[str, list[float]] = {name: [] for name in sites}
    for number in range(WARM_UP + samples * (MORE_OF_ONE if most == 1 else 1)):
        for name in sorted(sites, reverse=number % 2 == 0):
            explain = WARM_UP <= number < WARM_UP + EXPLAINED
            seconds, read = await sites[name].sample(most, look=look, explain=explain)
            if number >= WARM_UP:
                times[name].append(seconds)
            if read is not None:
                pages[name].append(read)
    return {name: {"ms": statistics.median(times[name]), "pages": statistics.median(pages[name])} for name in sites}


def main() -> None:
    """Run what the command line names."""
    kind, fresh, used, *numbers = sys.argv[1:]
    gone, samples, *sizes = map(int, numbers)
    result = uvloop.run(run(kind, {"fresh": fresh, "used": used}, gone, samples, sizes))
    print(encode(msgspec.to_builtins(result)).decode())


if __name__ == "__main__":
    main()
