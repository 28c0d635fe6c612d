"""Children, chains, timelines and grouped counts at scale: each reads what it shows by an index, and stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.shards import Shards
from harvest.store import counts, exports, families, reads, timelines
from harvest.store.listing import ExecutionFilter, names_statement
from harvest.store.schema import compiled
from tests.operations.population import EPOCH, Run, add, add_many
from tests.operations.test_plans import explain, rows_of, scans
from tests.scale import scale

pytestmark = [pytest.mark.slow]
INDEXED = {"Index Scan", "Index Only Scan"}
TABLE = "harvest_executions"
PARENTS = scale(200, 2_000)
EACH = 50
STEPS = scale(1_000, 6_000)
CHAIN = scale(2_000, 20_000)
ROOT, FIRST, LONG = (mint_execution_id(0) for _ in range(3))

# Children of many runs, a second apart; those of one parent lie between those of the others.
_CHILDREN = """
    insert into harvest_executions (execution_id, business_key, parent_id, started_at, next_event_id, version,
        partition, state, workflow_name, workflow_id)
    select gen_random_uuid(), gen_random_uuid(), p.id, $2::timestamptz + n * interval '1 s', 2, 1, 0,
           0, 'child_flow', 'c-' || n
    from generate_series(1, $3::int) n
    cross join lateral (select ('00000000-0000-8000-8000-' || lpad(to_hex(i), 12, '0'))::uuid as id
                        from generate_series(1, $1::int) i) p
"""
_CHAIN = """
    insert into harvest_executions (execution_id, business_key, first_execution_id, previous_execution_id, started_at,
        closed_at, next_event_id, version, partition, state, workflow_name, workflow_id)
    select gen_random_uuid(), gen_random_uuid(), $1, gen_random_uuid(), $2::timestamptz + n * interval '1 s',
           $2::timestamptz + (n + 1) * interval '1 s', 2, 1, 0, 15, 'loop_flow', 'l-1'
    from generate_series(1, $3::int) n
"""
_EVENTS = """
    insert into harvest_events (execution_id, event_id, kind, seq, payload)
    select $1, 1 + (n - 1) * 3 + k, (array[5, 6, 7])[k + 1], n, convert_to('{"name":"a"}', 'UTF8')
    from generate_series(1, $2::int) n, generate_series(0, 2) k
"""


def parent(n: int) -> UUID:
    return UUID(f"00000000-0000-8000-8000-{n:012x}")


@pytest.fixture(scope="module")
async def crowd(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """One shard of many parents with many children each, a long chain, a long history, and other runs."""
    shards = await Shards.open({0: new_database("families")})
    await add(shards, 0, Run(workflow_id="first", execution_id=FIRST, state=State.CONTINUED_AS_NEW, age=1))
    await add(shards, 0, Run(workflow_id="long", execution_id=LONG))
    connection: Any = await asyncpg.connect(shards.store(0).url)
    try:
        await connection.execute("set synchronous_commit = off")
        await connection.execute(_CHILDREN, PARENTS, EPOCH, EACH)
        await connection.execute(_CHAIN, FIRST, EPOCH, CHAIN)
        await connection.execute(_EVENTS, LONG, STEPS)
        await connection.execute(
            "insert into harvest_execution_details (execution_id, input) select execution_id, '{}' "
            "from harvest_executions on conflict do nothing"
        )
        for _ in range(9):
            await connection.execute(_EVENTS, mint_execution_id(0), STEPS)
    finally:
        await connection.close()
    await add_many(shards, 0, scale(5_000, 50_000))
    yield shards
    await shards.close()


def indexed(plan: dict[str, Any], index: str | None = None, table: str = TABLE) -> None:
    found = scans(plan, table)
    assert found, plan
    assert {node["Node Type"] for node in found} <= INDEXED, plan
    if index is not None:
        assert {node["Index Name"] for node in found} == {index}, plan


@pytest.mark.parametrize("parents", [1, 50])
async def test_a_level_of_a_tree_reads_what_it_shows(crowd: Shards, parents: int) -> None:
    ids = [parent(n) for n in range(1, parents + 1)]
    none = ["null"] * parents
    plan = await explain(crowd, families.LEVEL, (ids, 21, none, none))
    indexed(plan, "harvest_executions_children")
    assert rows_of(plan, TABLE) <= 21
    whole = await explain(crowd, families.LEVEL, (ids, 10_001, none, none))
    indexed(whole, "harvest_executions_children")
    assert rows_of(whole, TABLE) == parents * EACH


@pytest.mark.parametrize("parents", [1, 50])
async def test_a_level_beyond_anchors_reads_what_it_shows(crowd: Shards, parents: int) -> None:
    ids = [parent(n) for n in range(1, parents + 1)]
    anchors = ([EPOCH + timedelta(seconds=EACH - 5)] * parents, [UUID(int=2**128 - 1)] * parents)
    plan = await explain(crowd, families.LEVEL, (ids, 10_001, *anchors))
    indexed(plan, "harvest_executions_children")
    assert rows_of(plan, TABLE) == parents * 5


async def test_truncated_parents_are_found_by_the_index_of_children(crowd: Shards) -> None:
    ids = [parent(n) for n in range(1, 101)]
    plan = await explain(crowd, families.INCOMPLETE, (ids, [3] * 100, ["null"] * 100, ["null"] * 100))
    indexed(plan, "harvest_executions_children")
    assert rows_of(plan, TABLE) <= 400


@pytest.mark.parametrize("descending", [True, False])
async def test_a_page_of_children_walks_their_index_and_stops(crowd: Shards, descending: bool) -> None:
    wanted = families.ChildFilter(parent_id=parent(7))
    anchor = (EPOCH.replace(second=25), UUID(int=2**127))
    for start in (None, anchor):
        statement = families.children_statement(wanted, start, descending=descending, limit=11)
        plan = await explain(crowd, *compiled(statement))
        indexed(plan, "harvest_executions_children")
        assert rows_of(plan, TABLE) <= 11


async def test_a_window_of_a_chain_walks_its_index(crowd: Shards) -> None:
    plan = await explain(crowd, families.SUCCESSORS, (FIRST, 0, 100))
    indexed(plan, "harvest_executions_chain")
    assert rows_of(plan, TABLE) == 100
    length = await explain(crowd, families.CHAIN_LENGTH, (FIRST,))
    assert {node.get("Index Name") for node in scans(length, TABLE)} <= {"harvest_executions_chain", None}
    assert rows_of(length, TABLE) <= CHAIN


async def test_a_timeline_reads_one_history_and_the_heads_of_its_window(crowd: Shards) -> None:
    plan = await explain(crowd, timelines.TIMELINE.format(direction="asc"), (LONG, 0, 2**31 - 1, 50))
    assert {node["Node Type"] for node in scans(plan, "harvest_events")} <= {*INDEXED, "Bitmap Heap Scan"}, plan
    # Once the whole, and once each step that is shown.
    assert rows_of(plan, "harvest_events") <= STEPS * 3 + 50 + timelines.SLOWEST


async def test_an_export_reads_a_page_by_the_key(crowd: Shards) -> None:
    plan = await explain(crowd, exports.EVENTS, (LONG, 100, 2**31 - 1))
    indexed(plan, "harvest_events_pkey", "harvest_events")
    assert rows_of(plan, "harvest_events") == exports.PAGE


async def test_what_a_page_shows_beside_its_rows_is_read_by_keys(crowd: Shards) -> None:
    rows = await crowd.store(0).read.fetch("select execution_id from harvest_executions limit 200")
    plan = await explain(crowd, reads.BESIDE, ([row["execution_id"] for row in rows],))
    indexed(plan, "harvest_execution_details_pkey", "harvest_execution_details")
    assert rows_of(plan, "harvest_execution_details") <= 200
    assert rows_of(plan, TABLE) == 0


@pytest.mark.parametrize(
    ("wanted", "by"),
    [
        (ExecutionFilter(), ("state",)),
        (ExecutionFilter(workflow_names=("child_flow",)), ("state",)),
        (ExecutionFilter(states=(State.RUNNING,)), ("workflow_name",)),
    ],
)
async def test_a_grouped_count_ends_at_its_cap(crowd: Shards, wanted: ExecutionFilter, by: tuple[str, ...]) -> None:
    plan = await explain(crowd, *compiled(counts.groups_statement(wanted, by, 101)))
    # A state that hardly any run is in may be read by a bitmap of its index.
    assert {node["Node Type"] for node in scans(plan, TABLE)} <= {*INDEXED, "Bitmap Heap Scan"}, plan
    assert rows_of(plan, TABLE) <= 101 * len(State)


async def test_counts_of_all_types_walk_the_index_of_names(crowd: Shards) -> None:
    names = ["child_flow", "loop_flow", *(f"type_{n}" for n in range(7))]
    plan = await explain(
        crowd, *compiled(counts.names_groups_statement(ExecutionFilter(), ("workflow_name",), names, 101))
    )
    indexed(plan, "harvest_executions_name")
    assert rows_of(plan, TABLE) <= 101 * len(names)
    leaps = await explain(crowd, *compiled(names_statement(1_001)))
    assert rows_of(leaps, TABLE) <= len(names) + 5
