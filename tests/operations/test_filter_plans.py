"""Filters at scale: whatever is asked, an index leads to it, and pages are quick whether many or few match."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import asyncpg
import msgspec
import pytest

from harvest import clock
from harvest.operations.facets import count_values
from harvest.operations.listing import ListFilter, count, list_executions
from harvest.shards import Shards
from harvest.store import searching
from harvest.store.pool import COMMON, READ
from harvest.store.schema import Composed, compiled
from tests.explaining import nodes
from tests.operations.searchable import add_searchable
from tests.scale import scale

ROWS = scale(20_000, 1_000_000)
FILTERS = {
    "a frequent value": "attrs.tenant = 'acme'",
    "a rare value": "attrs.vip = true",
    "one row": "attrs.order = 'o-7777'",
    "no row": "attrs.nothing = 5",
    "a frequent value of old rows": "attrs.campaign = 'spring'",
    "another value": "attrs.tenant != 'acme'",
    "few in order": "attrs.amount > 99990",
    "many in order": "attrs.amount >= 100",
    "between": "attrs.amount > 10 AND attrs.amount <= 20",
    "several values": "attrs.order IN ('o-1', 'o-5000', 'o-19999')",
    "a key": "attrs.vip EXISTS",
    "two attributes": "attrs.tenant = 't-5' AND attrs.paid = true",
    "never both": "attrs.tenant = 'acme' AND attrs.tenant = 't-5'",
    "with a state": "attrs.tenant = 'acme' AND state = 'RUNNING'",
    "with states": "attrs.vip = true AND state IN ('FAILED', 'COMPLETED')",
    "with a type": "attrs.tenant = 'acme' AND workflow_name = 'type_3'",
    "with types": "attrs.paid = false AND workflow_name IN ('type_1', 'type_3')",
    "with a time": "attrs.campaign = 'spring' AND started_at < '2026-05-01T11:00:00Z'",
    "either attribute": "attrs.tenant = 'acme' OR attrs.vip = true",
    "an attribute or a type": "attrs.vip = true OR workflow_name = 'type_3'",
    "an attribute and either": "attrs.paid = true AND (owner = 'team_1' OR severity = 'sev2')",
    "an owner": "owner = 'team_1'",
    "another owner": "owner != 'team_1'",
    "owners": "owner IN ('team_1', 'team_2')",
    "a severity and an attribute": "severity = 'sev1' AND attrs.tenant = 'acme'",
    "another type": "workflow_name != 'order_flow'",
    "a type": "workflow_name = 'type_3'",
    "another state": "state != 'COMPLETED'",
    "an instant": "started_at = '2026-05-01T11:00:00Z'",
    "another instant": "started_at != '2026-05-01T11:00:00Z'",
}
pytestmark = [pytest.mark.slow, pytest.mark.prove_shards, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
async def searchable(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """One shard with 1,000,000 executions at the full scale, 20,000 at the quick one."""
    shards = await Shards.open({0: new_database("searchable")})
    await add_searchable(shards, 0, ROWS)
    yield shards
    await shards.close()


@pytest.fixture(scope="module")
async def empty(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """A shard with nothing in it, of which the planner knows nothing; what is planned here may be kept for long."""
    shards = await Shards.open({0: new_database("nothing_to_search")})
    yield shards
    await shards.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Composed]:
    """The statements of searches, as they are run."""
    statements: list[Composed] = []
    run = searching.run

    async def noting(store: Any, statement: Composed) -> Any:
        statements.append(statement)
        return await run(store, statement)

    monkeypatch.setattr(searching, "run", noting)
    return statements


def literal(value: Any) -> str:
    """A value as SQL text that takes the type of its parameter."""
    if isinstance(value, list):
        quoted = (str(each).replace("\\", "\\\\").replace('"', '\\"') for each in value)
        return literal("{" + ",".join(f'"{each}"' for each in quoted) + "}")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return "'" + text.replace("'", "''") + "'"


async def plans(shards: Shards, statement: Composed) -> list[dict[str, Any]]:
    """The plans of a statement for its values, and for any values: a connection may keep that one."""
    sql, values = compiled(statement)
    connection: Any = await asyncpg.connect(shards.store(0).url, server_settings={**COMMON, **READ.settings})
    found = []
    arguments = f"({', '.join(map(literal, values))})" if values else ""
    try:
        await connection.execute(f"prepare s as {sql}")
        for mode in ("force_custom_plan", "force_generic_plan"):
            await connection.execute(f"set plan_cache_mode = {mode}")
            text = await connection.fetchval(f"explain (format json) execute s{arguments}")
            found.append(msgspec.json.decode(text)[0]["Plan"])
    finally:
        await connection.close()
    return found


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("order", ["desc", "asc"])
async def test_an_index_leads_to_whatever_a_filter_asks_and_a_plan_of_an_empty_shard_is_no_other(
    searchable: Shards, empty: Shards, asked: list[Composed], name: str, order: str
) -> None:
    page = await list_executions(searchable, ListFilter(filter=FILTERS[name], order=order))
    assert page.executions.status == "complete"
    assert page.rows_read <= 51
    assert asked
    for statement in asked:
        for plan in [*await plans(searchable, statement), *await plans(empty, statement)]:
            scans = {
                node["Node Type"] for node in nodes(plan) if str(node.get("Relation Name", "")).startswith("harvest_")
            }
            assert scans <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}, plan


async def test_the_primary_key_leads_to_the_ids_that_begin_so(
    searchable: Shards, empty: Shards, asked: list[Composed]
) -> None:
    oldest = (await list_executions(searchable, ListFilter(order="asc"), page_size=1)).executions.rows[0]
    asked.clear()
    page = await list_executions(searchable, ListFilter(exec_id_prefix=oldest.execution_id.hex[:16]))
    assert [row.execution_id for row in page.executions.rows] == [oldest.execution_id]
    sought = asked[-1]
    for plan in [*await plans(searchable, sought), *await plans(empty, sought)]:
        conditions = {
            str(node["Index Cond"])
            for node in nodes(plan)
            if node.get("Index Name") == "harvest_executions_pkey" and "Index Cond" in node
        }
        assert any(">=" in condition and "<=" in condition for condition in conditions), plan


@pytest.mark.parametrize("name", FILTERS)
async def test_a_count_says_what_a_list_shows(searchable: Shards, name: str) -> None:
    counted = await count(searchable, ListFilter(filter=FILTERS[name]))
    page = await list_executions(searchable, ListFilter(filter=FILTERS[name]), page_size=200)
    assert counted.status == "complete"
    assert min(counted.count, 200) == len(page.executions.rows)


async def test_facets_look_at_no_more_than_their_rows(searchable: Shards) -> None:
    found = await count_values(searchable, ListFilter(filter="attrs.tenant = 'acme'"), "attrs.paid")
    assert found.status == "complete"
    assert found.rows <= 5_000


async def test_filtered_pages_are_quick(searchable: Shards, full_scale: bool, proof: Callable[..., None]) -> None:
    figures = {}
    for name, text in FILTERS.items():
        spent = []
        for _ in range(5):
            began = clock.monotonic()
            await list_executions(searchable, ListFilter(filter=text))
            spent.append((clock.monotonic() - began) * 1000)
        figures[name.replace(" ", "_")] = round(statistics.median(spent), 1)
    proof("first page of a filter, ms (median of 5)", rows=ROWS, **figures)
    if full_scale:
        # Order is not in the index, nor is time: all that have the key, or the value, are looked at.
        slow = {"few in order", "between", "a frequent value of old rows", "with a time"}
        assert max(ms for name, ms in figures.items() if name.replace("_", " ") not in slow) < 300
        assert max(figures.values()) < 2_000
