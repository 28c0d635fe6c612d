"""Facets: the frequent values of a field among the newest matches, and the attributes that there are."""

from __future__ import annotations

import pytest

from harvest.errors import FilterError, InvalidRequestError
from harvest.history.states import State
from harvest.operations.facets import Facets, attribute_keys, count_values
from harvest.operations.filter_language import search_attr
from harvest.operations.listing import ListFilter, list_executions
from harvest.shards import Shards
from tests.operations.population import Run, add


async def several(shards: Shards) -> None:
    """Twelve runs over both shards: tenants a (6), b (4) and the number 1, the boolean true (1 each)."""
    tenants = ['"a"', '"b"', '"a"', '"b"', '"a"', "1", '"a"', '"b"', '"a"', "true", '"a"', '"b"']
    for n, tenant in enumerate(tenants):
        run = Run(
            workflow_name=f"type_{n % 3}",
            workflow_id=f"o-{n}",
            age=n,
            state=State.FAILED if n % 4 == 0 else State.RUNNING,
            search_attributes=f'{{"tenant": {tenant}, "odd": {n % 2}, "tags": ["x"]}}',
        )
        await add(shards, n % 2, run)


def told(found: Facets) -> list[tuple[bytes, int]]:
    return [(bytes(each.value), each.count) for each in found.values]


async def test_values_are_counted_over_the_shards_and_their_kinds_are_told_apart(shards: Shards) -> None:
    await several(shards)
    found = await count_values(shards, ListFilter(), "attrs.tenant")
    assert told(found) == [(b'"a"', 6), (b'"b"', 4), (b"1", 1), (b"true", 1)]
    assert (found.rows, found.capped, found.truncated, found.status) == (12, False, False, "complete")


async def test_the_condition_of_a_value_finds_as_many_as_were_counted(shards: Shards) -> None:
    await several(shards)
    for field in ("attrs.tenant", "attrs.odd", "state", "workflow_name"):
        found = await count_values(shards, ListFilter(), field)
        assert found.values
        for each in found.values:
            page = await list_executions(shards, ListFilter(filter=each.condition))
            assert len(page.executions.rows) == each.count, each.condition


async def test_a_facet_obeys_the_filter_but_for_its_own_field(shards: Shards) -> None:
    await several(shards)
    wanted = ListFilter(states=("FAILED",), attrs=(search_attr("tenant:a"),), filter="attrs.tenant = 'b'")
    assert told(await count_values(shards, wanted, "attrs.tenant")) == [(b'"a"', 3)]
    assert told(await count_values(shards, wanted, "state")) == []
    by_type = ListFilter(workflow_name="type_0", filter="workflow_name = 'type_1' AND attrs.odd = 0")
    assert sum(count for _, count in told(await count_values(shards, by_type, "workflow_name"))) == 6


async def test_only_the_newest_rows_are_looked_at_and_it_says_so(shards: Shards) -> None:
    await several(shards)
    found = await count_values(shards, ListFilter(), "attrs.odd", rows=2)
    assert told(found) == [(b"0", 2), (b"1", 2)]
    assert (found.rows, found.capped) == (4, True)


async def test_the_rest_of_the_values_is_told_of(shards: Shards) -> None:
    await several(shards)
    found = await count_values(shards, ListFilter(), "attrs.tenant", limit=1)
    assert (told(found), found.truncated) == ([(b'"a"', 6)], True)


async def test_what_cannot_be_filtered_by_is_no_value(shards: Shards) -> None:
    await several(shards)
    assert told(await count_values(shards, ListFilter(), "attrs.tags")) == []


async def test_keys_are_sampled_from_the_newest_runs(shards: Shards) -> None:
    await several(shards)
    await add(shards, 1, Run(workflow_id="plain"))
    found = await attribute_keys(shards)
    assert [(each.key, each.count) for each in found.keys] == [("odd", 12), ("tags", 12), ("tenant", 12)]
    assert found.rows == 13


@pytest.mark.parametrize(
    ("field", "error"),
    [("started_at", InvalidRequestError), ("color", FilterError), ("state = 'FAILED'", FilterError), ("", FilterError)],
)
async def test_a_field_without_facets_is_refused(shards: Shards, field: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await count_values(shards, ListFilter(), field)
