"""Counts in groups: added up over shards, ended at a cap, honest about what is not in them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harvest.errors import InvalidRequestError
from harvest.history.states import State
from harvest.operations.counting import Grouped, count_groups
from harvest.operations.listing import ListFilter
from harvest.shards import Shards
from harvest.store import counts
from tests.operations.population import EPOCH, Run, add

DEAD = "postgresql://postgres@/x?host=/nonexistent"
ANY = ListFilter()


@pytest.fixture
async def mixed(shards: Shards) -> Shards:
    """Six order_flow (3 running, 2 failed, 1 completed), three ship_flow (running), two pay_flow (failed)."""
    running, failed, completed = State.RUNNING, State.FAILED, State.COMPLETED
    runs = [("order_flow", state) for state in (running, running, running, failed, failed, completed)]
    runs += [("ship_flow", running)] * 3 + [("pay_flow", failed)] * 2
    for n, (name, state) in enumerate(runs):
        await add(shards, n % 2, Run(workflow_name=name, workflow_id=f"o-{n}", state=state, age=n))
    return shards


def said(found: Grouped) -> list[tuple[str | None, str | None, int]]:
    return [(group.state, group.workflow_name, group.count) for group in found.groups]


async def test_by_state(mixed: Shards) -> None:
    found = await count_groups(mixed, ANY, group_by="state")
    assert said(found) == [("RUNNING", None, 6), ("FAILED", None, 4), ("COMPLETED", None, 1)]
    assert (found.total, found.capped, found.truncated, found.status) == (11, False, False, "complete")


async def test_by_type(mixed: Shards) -> None:
    found = await count_groups(mixed, ANY, group_by="workflow_name")
    assert said(found) == [(None, "order_flow", 6), (None, "ship_flow", 3), (None, "pay_flow", 2)]


async def test_a_type_is_counted_under_its_whole_name(shards: Shards) -> None:
    names = ["a" * 200 + end for end in "xy"]
    for name in names:
        await add(shards, 0, Run(workflow_name=name))
    found = await count_groups(shards, ANY, group_by="workflow_name")
    assert said(found) == [(None, name, 1) for name in names]


async def test_by_state_and_type(mixed: Shards) -> None:
    assert said(await count_groups(mixed, ANY, group_by="state,workflow_name")) == [
        ("RUNNING", "order_flow", 3),
        ("RUNNING", "ship_flow", 3),
        ("FAILED", "order_flow", 2),
        ("FAILED", "pay_flow", 2),
        ("COMPLETED", "order_flow", 1),
    ]


@pytest.mark.parametrize(
    ("wanted", "group_by", "expected"),
    [
        (ListFilter(workflow_name="pay_flow"), "state", [("FAILED", None, 2)]),
        (ListFilter(states=("COMPLETED", "FAILED")), "state", [("FAILED", None, 4), ("COMPLETED", None, 1)]),
        (ListFilter(states=("FAILED",)), "workflow_name", [(None, "order_flow", 2), (None, "pay_flow", 2)]),
        (ListFilter(workflow_id="o-4"), "state", [("FAILED", None, 1)]),
        (ListFilter(started_after=EPOCH - timedelta(seconds=4)), "workflow_name", [(None, "order_flow", 5)]),
        (ListFilter(started_before=EPOCH - timedelta(seconds=8)), "state", [("FAILED", None, 2)]),
        (ListFilter(blocked=True), "state", []),
    ],
)
async def test_the_filter_of_the_list_holds(
    mixed: Shards, wanted: ListFilter, group_by: str, expected: list[tuple[str | None, str | None, int]]
) -> None:
    assert said(await count_groups(mixed, wanted, group_by=group_by)) == expected


async def test_what_does_not_fit_is_one_other_group(mixed: Shards) -> None:
    found = await count_groups(mixed, ANY, group_by="state,workflow_name", limit_groups=2)
    assert said(found)[:2] == [("RUNNING", "order_flow", 3), ("RUNNING", "ship_flow", 3)]
    assert (found.groups[2].other, found.groups[2].count, len(found.groups)) == (True, 5, 3)
    assert (found.total, found.truncated) == (11, True)


@pytest.mark.parametrize("group_by", ["state", "workflow_name"])
async def test_a_group_over_the_cap_says_that_there_are_more(mixed: Shards, group_by: str) -> None:
    found = await count_groups(mixed, ANY, group_by=group_by, cap=1)
    assert (found.groups[0].count, found.groups[0].capped, found.capped) == (4, True, True)
    assert found.groups[-1].capped is False


async def test_many_types_are_counted_to_a_smaller_cap_each(mixed: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "ROWS_OF_ALL", 6)
    monkeypatch.setattr(counts, "ROWS_OF_EACH", 1)
    found = await count_groups(mixed, ANY, group_by="workflow_name")
    assert said(found)[0] == (None, "order_flow", 4)
    assert found.groups[0].capped
    monkeypatch.setattr(counts, "MOST_NAMES", 2)
    assert (await count_groups(mixed, ANY, group_by="workflow_name")).capped


async def test_a_missing_shard_is_named_beside_the_others_counts(mixed: Shards) -> None:
    half = await Shards.open({0: mixed.store(0).url, 1: DEAD})
    try:
        found = await count_groups(half, ANY, group_by="state")
        assert (found.total, found.status, [shard.shard_id for shard in found.missing]) == (6, "partial", [1])
    finally:
        await half.close()


async def test_what_cannot_be_counted_by_is_refused(shards: Shards) -> None:
    with pytest.raises(InvalidRequestError, match="group_by"):
        await count_groups(shards, ANY, group_by="queue")
    with pytest.raises(InvalidRequestError, match="limit_groups"):
        await count_groups(shards, ANY, group_by="state", limit_groups=501)
    assert (await count_groups(shards, ANY, group_by="workflow_name")).groups == []
