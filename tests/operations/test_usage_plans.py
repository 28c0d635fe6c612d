"""The usage report at scale: a window reads what lies in it, by the index over times, and no payload."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from harvest.shards import Shards
from harvest.store import usage
from harvest.store.pool import COMMON, REPORT
from tests.explaining import buffers, explained, nodes
from tests.operations.population import EPOCH
from tests.scale import scale

pytestmark = [pytest.mark.slow, pytest.mark.prove_shards]
RUNS = scale(20_000, 100_000)
EVENTS_OF_A_RUN = 11
DAYS = 100
# A start, then three activities that take 0.2 s each, then the end; runs follow each other evenly over a hundred days.
_POPULATION = (
    """insert into harvest_executions (execution_id, business_key, started_at, closed_at, next_event_id, version,
           partition, state, workflow_name, workflow_id)
       select md5('e' || n)::uuid, md5('e' || n)::uuid, s.at, s.at + interval '1 second', 11, 1, n % 512, 10,
              'type_' || n % 7, 'w' || n
         from generate_series(1, $1::int) n,
              lateral (select $2::timestamptz + n * ($3::interval / $1::int) as at) s""",
    """insert into harvest_execution_details (execution_id, input, search_attributes)
       select md5('e' || n)::uuid, decode(repeat('61', 500), 'hex'), jsonb_build_object('tenant', 't' || n % 20)
         from generate_series(1, $1::int) n where $2::timestamptz is not null and $3::interval is not null""",
    """insert into harvest_events (execution_id, event_id, kind, seq, at, payload)
       select md5('e' || n)::uuid, i, case when i = 1 then 1 when i = 11 then 2 else 5 + (i - 2) % 3 end,
              case when i in (1, 11) then 0 else (i + 1) / 3 end,
              $2::timestamptz + n * ($3::interval / $1::int) + i * interval '0.1 seconds',
              decode(repeat('61', 300), 'hex')
         from generate_series(1, $1::int) n, generate_series(1, 11) i
        order by n, i""",
)


@pytest.fixture(scope="module")
async def crowded(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """A shard with 1,100,000 events of a hundred days; 220,000 at the quick scale."""
    shards = await Shards.open({0: new_database("usage_plans")})
    connection: Any = await asyncpg.connect(shards.store(0).url)
    try:
        for sql in _POPULATION:
            await connection.execute(sql, RUNS, EPOCH, timedelta(days=DAYS))
        await connection.execute("vacuum analyze")
    finally:
        await connection.close()
    yield shards
    await shards.close()


async def plan(shards: Shards, since: datetime, until: datetime, attribute: str | None = None) -> dict[str, Any]:
    settings = {**COMMON, **REPORT.settings}
    connection: Any = await asyncpg.connect(shards.store(0).url, server_settings=settings)
    try:
        values = [since, until] if attribute is None else [since, until, attribute]
        return await explained(connection, "s", usage.statement(attribute, 10_001), values)
    finally:
        await connection.close()


def tables(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The nodes of a plan that read a table."""
    return [node for node in nodes(found) if node.get("Relation Name") == name]


@pytest.mark.parametrize("attribute", [None, "tenant"])
async def test_a_window_is_read_by_the_index_over_times(
    crowded: Shards, attribute: str | None, proof: Callable[..., None]
) -> None:
    since = EPOCH + timedelta(days=50)
    found = await plan(crowded, since, since + timedelta(days=1), attribute)
    indexes = {node.get("Index Name") for node in nodes(found)}
    assert {"harvest_events_at", "harvest_executions_started"} <= indexes
    assert not [node for node in tables(found, "harvest_events") if node["Node Type"] == "Seq Scan"]
    whole = await plan(crowded, EPOCH, EPOCH + timedelta(days=90), attribute)
    # Of a hundred days one, and the blocks around its edges.
    read, all_of_it = (sum(buffers(node) for node in tables(each, "harvest_events")) for each in (found, whole))
    assert read < all_of_it / 15
    proof(
        "usage report",
        group_by=attribute or "workflow_name",
        events=RUNS * EVENTS_OF_A_RUN,
        day_buffers=buffers(found),
        day_ms=round(found["Actual Total Time"], 1),
        ninety_days_buffers=buffers(whole),
        ninety_days_ms=round(whole["Actual Total Time"], 1),
    )


async def test_the_start_of_an_activity_that_began_before_the_window_is_found_by_its_run_alone(crowded: Shards) -> None:
    # Between the start and the end of the first activity of a run.
    since = EPOCH + RUNS // 2 * (timedelta(days=DAYS) / RUNS) + timedelta(seconds=0.35)
    found = await plan(crowded, since, since + timedelta(minutes=1))
    looks = [node for node in nodes(found) if node.get("Index Name") == "harvest_events_pkey"]
    assert [node["Actual Loops"] > 0 and node["Actual Rows"] <= 1 for node in looks] == [True]
