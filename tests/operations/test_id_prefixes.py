"""Executions by the beginning of their id: the same as Python finds, by every way of looking, beside other filters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from uuid import UUID

import pytest

from harvest.errors import CursorError, InvalidRequestError
from harvest.history.ids import ids_beginning
from harvest.history.states import State
from harvest.operations.counting import count_groups
from harvest.operations.listing import ListFilter, count, list_executions
from harvest.shards import Shards
from harvest.store import searching
from tests.operations.population import Run, add
from tests.operations.test_filters import WAYS, found

# Two shards; ids that differ early, late and in their last digit alone.
IDS = [
    UUID(hex=text.ljust(31, "5") + last)
    for text in ("0000019a3c", "0000019a3d", "0000019b", "0001019a3c", "00010fff", "0001019a3c778")
    for last in "0f"
]
PREFIXES = ["0", "0000", "0001", "0000019a", "0000019A3C", "0000019a-3", "0000019a-", "0001019a3c778", "7", str(IDS[3])]


@pytest.fixture(scope="module")
async def placed(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """A run of each id on its shard; every third has failed, every second is of a tenant."""
    opened = await Shards.open({n: new_database(f"prefixes_{n}") for n in range(2)})
    for n, execution_id in enumerate(IDS):
        run = Run(
            execution_id=execution_id,
            workflow_id=str(execution_id),
            age=n,
            state=State.RUNNING if n % 3 else State.FAILED,
            search_attributes='{"tenant": "acme"}' if n % 2 else None,
        )
        await add(opened, execution_id.int >> 112, run)
    yield opened
    await opened.close()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One way of looking, whatever the numbers of rows would choose."""
    for name, value in zip(("FIRST_ROWS", "WORTH_WALKING", "MANY", "FURTHER_ROWS"), WAYS[request.param], strict=True):
        monkeypatch.setattr(searching, name, value)
    monkeypatch.setattr(searching, "WORTH_WALKING_EACH", 0)
    monkeypatch.setattr(searching, "LEAST_ROWS", 2)
    return str(request.param)


def expected(prefix: str) -> list[str]:
    digits = prefix.replace("-", "").lower()
    return sorted(str(each) for each in IDS if each.hex.startswith(digits))


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_a_prefix_finds_the_ids_that_begin_so(placed: Shards, way: str, prefix: str) -> None:
    wanted = ListFilter(exec_id_prefix=prefix)
    assert sorted(await found(placed, wanted)) == expected(prefix)
    assert (await count(placed, wanted)).count == len(expected(prefix))


async def test_everything_else_that_is_asked_must_hold_too(placed: Shards, way: str) -> None:
    wanted = ListFilter(exec_id_prefix="0001", states=("RUNNING",), filter="attrs.tenant = 'acme'")
    both = [str(each) for n, each in enumerate(IDS) if each.hex.startswith("0001") and n % 3 and n % 2]
    assert both
    assert sorted(await found(placed, wanted)) == sorted(both)
    grouped = await count_groups(placed, wanted, group_by="state")
    assert [(group.state, group.count) for group in grouped.groups] == [("RUNNING", len(both))]


async def test_pages_are_in_the_order_of_the_list_and_their_cursors_of_this_prefix_alone(placed: Shards) -> None:
    wanted = ListFilter(exec_id_prefix="0000")
    page = await list_executions(placed, wanted, page_size=2)
    assert [row.execution_id for row in page.executions.rows] == IDS[:2]
    with pytest.raises(CursorError, match="another filter"):
        await list_executions(placed, ListFilter(exec_id_prefix="0001"), page_size=2, cursor=page.next_cursor)


@pytest.mark.parametrize(
    "text",
    ["", "-", "g", "0x1a", "0_1", " 0", "0000019a%", "\x00", "٣", "0" * 33, "0000-019a", "0000019a--", "-0000019a"],
)
async def test_what_is_no_beginning_of_an_id_is_refused_by_name(placed: Shards, text: str) -> None:
    with pytest.raises(InvalidRequestError, match="hexadecimal") as refused:
        await list_executions(placed, ListFilter(exec_id_prefix=text))
    assert refused.value.fields["field"] == "exec_id_prefix"


def test_a_prefix_is_a_range_from_its_first_id_to_its_last() -> None:
    assert ids_beginning("0001019A-3C") == (
        UUID("0001019a-3c00-0000-0000-000000000000"),
        UUID("0001019a-3cff-ffff-ffff-ffffffffffff"),
    )
    assert ids_beginning(str(IDS[0])) == (IDS[0], IDS[0])
