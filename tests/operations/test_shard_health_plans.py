"""Looking at a shard reads a stretch of the claim index of each queue, however much waits or is parked there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from harvest.operations import shard_health
from harvest.shards import Shards
from harvest.store.pool import COMMON, LOOK, SCAN, Role
from harvest.store.shard_health import (
    LOOKED_AT,
    MOST_QUEUES,
    QUEUES_OF_ACTIVITIES,
    QUEUES_OF_WORKFLOWS,
    WAITING_ACTIVITIES,
    WAITING_WORKFLOWS,
)
from tests.explaining import explained, nodes
from tests.scale import scale

ROWS = scale(60_000, 1_000_000)
TABLES = ("harvest_workflow_tasks", "harvest_activity_tasks")
pytestmark = [pytest.mark.slow, pytest.mark.prove_shards]

# Of every four tasks one waits in a queue of its own, one in `default`, and two are parked.
_TASKS = """
insert into harvest_workflow_tasks (execution_id, partition, queue, workflow_name, version, sort_at, due, state)
select md5('t' || n)::uuid, n % 512, case n % 4 when 0 then 'mail' else 'default' end, 'w', 1,
       clock_timestamp() - n * interval '1 ms', clock_timestamp() - interval '1 minute',
       case when n % 4 > 1 then 2 else 0 end
  from generate_series(1, $1::int) n"""
_ACTIVITIES = """
insert into harvest_activity_tasks (execution_id, seq, scheduled_event_id, queue, name, sort_at)
select md5('a' || n)::uuid, 1, 1, case n % 4 when 0 then 'mail' else 'default' end, 'charge',
       clock_timestamp() - n * interval '1 ms'
  from generate_series(1, $1::int) n"""


@pytest.fixture(scope="module")
def crowded(new_database: Callable[[str], str]) -> str:
    """A shard with many tasks."""
    return new_database("health_plans")


@pytest.mark.parametrize("role", [LOOK, SCAN], ids=["people", "workers"])
async def test_no_more_is_read_than_a_stretch_of_each_queue(crowded: str, role: Role) -> None:
    connection: Any = await asyncpg.connect(crowded, server_settings={**COMMON, **role.settings})
    writer: Any = await asyncpg.connect(crowded)
    try:
        if not await writer.fetchval("select exists (select from harvest_workflow_tasks)"):
            await writer.execute(_TASKS.replace("$1::int", str(ROWS)))
            await writer.execute(_ACTIVITIES.replace("$1::int", str(ROWS)))
            await writer.execute("vacuum analyze")
        await connection.execute("set default_transaction_read_only = off")
        for name, sql, values, most in (
            ("queues_of_workflows", QUEUES_OF_WORKFLOWS, [MOST_QUEUES], 3),
            ("queues_of_activities", QUEUES_OF_ACTIVITIES, [MOST_QUEUES], 3),
            ("workflows", WAITING_WORKFLOWS, [["default", "mail"], LOOKED_AT // 2], LOOKED_AT),
            ("activities", WAITING_ACTIVITIES, [["default", "mail"], LOOKED_AT // 2], LOOKED_AT),
        ):
            plan = await explained(connection, f"{role.name}_{name}", sql, values)
            reads = [node for node in nodes(plan) if node.get("Relation Name") in TABLES]
            assert {node["Node Type"] for node in reads} <= {"Index Scan", "Index Only Scan"}, plan
            rows = sum(
                round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
                for node in reads
            )
            assert rows <= most
    finally:
        await connection.close()
        await writer.close()


async def test_a_count_beyond_the_stretch_says_at_least(crowded: str) -> None:
    shards = await Shards.open({0: crowded})
    (found,) = (await shard_health.health(shards)).shards
    assert found.pending_capped is True
    assert found.pending_workflow_tasks == LOOKED_AT
    assert found.stranded_pending == found.pending
    await shards.close()


async def test_many_queues_share_the_stretch(new_database: Callable[[str], str]) -> None:
    shards = await Shards.open({0: new_database("health_queues")})
    rows = scale(20_000, 1_000_000)
    async with shards.store(0).write.connection(30.0) as connection:
        for sql in (_TASKS, _ACTIVITIES):
            spread = sql.replace("case n % 4 when 0 then 'mail' else 'default' end", "'q' || n % 100")
            await connection.execute("set statement_timeout = 0")
            await connection.execute(
                spread.replace("case when n % 4 > 1 then 2 else 0 end", "0").replace("$1::int", str(rows))
            )
    (found,) = (await shard_health.health(shards)).shards
    assert (found.pending_workflow_tasks, found.pending_activity_tasks) == (LOOKED_AT, LOOKED_AT)
    assert {(each.workflow_tasks, each.capped) for each in found.queues} == {(LOOKED_AT // 100, True)}
    await shards.close()
