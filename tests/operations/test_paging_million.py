"""Paging through 1,000,000 executions over four shards while others are started: each row once, the last page like the
first."""

from __future__ import annotations

import random
import statistics
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from harvest import clock
from harvest.history.ids import business_key, partition_of
from harvest.operations.listing import MOST_ROWS, ListFilter, list_executions
from harvest.shards import Shards
from harvest.store.listing import ExecutionFilter, page_statement
from harvest.store.schema import compiled
from tests.operations.population import EPOCH, Run, add
from tests.operations.test_plans import buffers, explain, rows_of, scans
from tests.scale import scale

SHARDS = 4
EACH = scale(5_000, 250_000)
ALIKE = 1_000
SEED = 20_261_130
COLUMNS = (
    "execution_id",
    "business_key",
    "started_at",
    "closed_at",
    "next_event_id",
    "version",
    "partition",
    "state",
    "workflow_name",
    "workflow_id",
)
pytestmark = [pytest.mark.slow, pytest.mark.prove_shards, pytest.mark.timeout(3600)]


def records(shard_id: int, count: int) -> Iterator[tuple[Any, ...]]:
    """Executions half a second apart, the oldest first; a quarter of those that started at one instant are here."""
    rolled = random.Random(SEED + shard_id)
    middle, alike = count // 2, ALIKE // SHARDS
    for n in range(count, 0, -1):
        started = EPOCH - timedelta(seconds=(middle if middle <= n < middle + alike else n) / 2)
        milliseconds = int(started.timestamp() * 1000)
        execution_id = UUID(
            int=shard_id << 112
            | (milliseconds >> 12) << 80
            | 8 << 76
            | (milliseconds & 0xFFF) << 64
            | 2 << 62
            | rolled.getrandbits(62)
        )
        name, workflow_id = f"type_{n % 7}", f"w-{shard_id}-{n}"
        state = 0 if n % 20 == 0 else 10
        yield (
            execution_id,
            business_key("default", name, workflow_id),
            started,
            started if state else None,
            12,
            1,
            partition_of(workflow_id),
            state,
            name,
            workflow_id,
        )


@pytest.fixture(scope="module")
async def million(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """1,000,000 executions over four shards, 20,000 at the quick scale; 1,000 of them began at one instant."""
    shards = await Shards.open({n: new_database(f"million_{n}") for n in range(SHARDS)})
    for shard_id, store in shards.stores.items():
        connection: Any = await asyncpg.connect(store.url)
        try:
            await connection.copy_records_to_table(
                "harvest_executions", columns=COLUMNS, records=records(shard_id, EACH)
            )
            await connection.execute("vacuum analyze harvest_executions")
        finally:
            await connection.close()
    yield shards
    await shards.close()


async def test_the_last_page_reads_as_much_as_the_first(million: Shards, proof: Callable[..., None]) -> None:
    first = last = 0
    limit = MOST_ROWS + 1
    for shard_id, store in million.stores.items():
        row = await store.read.fetch_row(
            "select started_at, execution_id from harvest_executions order by started_at, execution_id "
            "offset $1 limit 1",
            limit,
        )
        assert row is not None
        for anchor in (None, (row["started_at"], row["execution_id"])):
            statement = page_statement(ExecutionFilter(), anchor, descending=True, limit=limit)
            plan = await explain(million, *compiled(statement), shard_id=shard_id)
            assert {node["Node Type"] for node in scans(plan, "harvest_executions")} == {"Index Scan"}
            assert rows_of(plan, "harvest_executions") == limit
            first, last = (first + buffers(plan), last) if anchor is None else (first, last + buffers(plan))
    proof("buffers of pages", executions=SHARDS * EACH, page_size=MOST_ROWS, first=first, last=last)
    # Where a page begins in its block is chance, one block more of the table and of the index on each shard.
    assert abs(last - first) <= (0.2 * first if scale(0, 1) else max(0.2 * first, 2 * SHARDS))


async def test_every_row_is_on_one_page_while_others_are_started(million: Shards, proof: Callable[..., None]) -> None:
    rolled = random.Random(SEED)
    shown: set[UUID] = set()
    added: set[UUID] = set()
    spent: list[float] = []
    most_read = rows = 0
    at_one_instant: dict[datetime, int] = {}
    last: tuple[datetime, UUID] | None = None
    cursor: str | None = None
    while True:
        began = clock.monotonic()
        page = await list_executions(million, ListFilter(), page_size=MOST_ROWS, cursor=cursor)
        spent.append((clock.monotonic() - began) * 1000)
        assert page.executions.status == "complete"
        assert page.rows_read <= SHARDS * (MOST_ROWS + 1)
        most_read = max(most_read, page.rows_read)
        for row in page.executions.rows:
            key = (row.started_at, row.execution_id)
            assert last is None or key < last
            last = key
            shown.add(row.execution_id)
            at_one_instant[row.started_at] = at_one_instant.get(row.started_at, 0) + 1
        rows += len(page.executions.rows)
        cursor = page.next_cursor
        if cursor is None:
            break
        # One that is new, and one anywhere: before the page that was read, or beyond it.
        for age in (-1 - len(added), rolled.uniform(0, EACH / 2)):
            added.add(await add(million, rolled.randrange(SHARDS), Run(workflow_id=f"new-{len(added)}", age=age)))
    assert rows == len(shown)
    assert len(shown - added) == SHARDS * EACH
    assert max(at_one_instant.values()) == ALIKE
    p95 = statistics.quantiles(spent, n=20)[-1]
    proof(
        "pages with starts between them",
        seed=SEED,
        executions=SHARDS * EACH,
        pages=len(spent),
        started_meanwhile=len(added),
        at_one_instant=ALIKE,
        most_rows_read=most_read,
        median_ms=statistics.median(spent),
        p95_ms=p95,
        longest_ms=max(spent),
    )
    if scale(0, 1):
        assert p95 < 300
