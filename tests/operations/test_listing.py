"""The list over shards: one order, every row once, cursors bound to their filter, capped counts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harvest.errors import CursorError, InvalidRequestError
from harvest.history.states import State
from harvest.operations.listing import ListFilter, ListPage, count, list_executions
from harvest.operations.views import ExecutionView
from harvest.shards import Shards
from tests.operations.population import EPOCH, Run, add


async def walk(shards: Shards, wanted: ListFilter, *, page_size: int) -> list[ListPage]:
    """All pages from the first to the last."""
    pages = [await list_executions(shards, wanted, page_size=page_size)]
    while (cursor := pages[-1].next_cursor) is not None:
        pages.append(await list_executions(shards, wanted, page_size=page_size, cursor=cursor))
    return pages


def ids(rows: list[ExecutionView]) -> list[str]:
    return [row.workflow_id for row in rows]


@pytest.mark.parametrize("order", ["desc", "asc"])
async def test_pages_show_every_row_of_every_shard_once_and_in_order(shards: Shards, order: str) -> None:
    for n in range(23):
        await add(shards, n % 2, Run(workflow_id=f"o-{n:02}", age=n))
    pages = await walk(shards, ListFilter(order=order), page_size=5)
    shown = [row for page in pages for row in ids(page.executions.rows)]
    newest_first = [f"o-{n:02}" for n in range(23)]
    assert shown == (newest_first if order == "desc" else newest_first[::-1])
    assert [len(page.executions.rows) for page in pages] == [5, 5, 5, 5, 3]


async def test_rows_of_one_instant_are_told_apart_by_their_id(shards: Shards) -> None:
    for n in range(12):
        await add(shards, n % 2, Run(workflow_id=f"o-{n}", age=0))
    pages = await walk(shards, ListFilter(), page_size=5)
    shown = [row.execution_id for page in pages for row in page.executions.rows]
    assert len(set(shown)) == 12
    assert shown == sorted(shown, reverse=True)


async def test_going_back_shows_the_page_one_came_from(shards: Shards) -> None:
    for n in range(12):
        await add(shards, n % 2, Run(workflow_id=f"o-{n:02}", age=n))
    first, second, third = await walk(shards, ListFilter(), page_size=5)
    assert first.previous_cursor is None
    back = await list_executions(shards, ListFilter(), page_size=5, cursor=third.previous_cursor)
    assert ids(back.executions.rows) == ids(second.executions.rows)
    top = await list_executions(shards, ListFilter(), page_size=5, cursor=back.previous_cursor)
    assert ids(top.executions.rows) == ids(first.executions.rows)
    assert top.previous_cursor is None
    assert top.next_cursor is not None


async def test_a_page_reads_no_more_than_its_size_and_one_from_each_shard(shards: Shards) -> None:
    for n in range(40):
        await add(shards, n % 2, Run(workflow_id=f"o-{n}", age=n))
    page = await list_executions(shards, ListFilter(), page_size=5)
    assert page.rows_read == 2 * (5 + 1)


async def test_a_microsecond_survives_the_cursor(shards: Shards) -> None:
    for n in range(6):
        await add(shards, 0, Run(workflow_id=f"o-{n}", age=n * 0.000001))
    pages = await walk(shards, ListFilter(), page_size=1)
    assert [ids(page.executions.rows) for page in pages] == [[f"o-{n}"] for n in range(6)]


async def test_filters_narrow_the_list_and_the_count_alike(shards: Shards) -> None:
    for n in range(12):
        state = (State.RUNNING, State.COMPLETED, State.FAILED)[n % 3]
        blocked = "step_too_long" if n in (3, 6, 9) else None
        run = Run(workflow_name=f"type_{n % 2}", workflow_id=f"o-{n:02}", age=n, state=state, blocked=blocked)
        await add(shards, n % 2, run)
    cases = {
        ListFilter(states=("FAILED",)): [2, 5, 8, 11],
        ListFilter(states=("FAILED", "RUNNING")): [0, 2, 3, 5, 6, 8, 9, 11],
        ListFilter(workflow_name="type_1"): [1, 3, 5, 7, 9, 11],
        ListFilter(workflow_name="type_1", states=("RUNNING",)): [3, 9],
        ListFilter(workflow_id="o-04"): [4],
        ListFilter(workflow_id="o-04", workflow_name="type_0"): [4],
        ListFilter(workflow_id="o-04", workflow_name="type_1"): [],
        ListFilter(workflow_id="o-04", states=("FAILED",)): [],
        ListFilter(started_after=EPOCH - timedelta(seconds=3)): [0, 1, 2, 3],
        ListFilter(started_before=EPOCH - timedelta(seconds=9)): [10, 11],
        ListFilter(started_after=EPOCH - timedelta(seconds=3), states=("RUNNING",)): [0, 3],
        ListFilter(blocked=True): [3, 6, 9],
        ListFilter(blocked=True, workflow_name="type_1"): [3, 9],
        ListFilter(blocked=True, workflow_id="o-06"): [6],
        ListFilter(blocked=True, states=("COMPLETED",)): [],
        ListFilter(blocked=True, started_before=EPOCH - timedelta(seconds=3)): [6, 9],
    }
    for wanted, expected in cases.items():
        pages = await walk(shards, wanted, page_size=3)
        assert [row for page in pages for row in ids(page.executions.rows)] == [f"o-{n:02}" for n in expected], wanted
        assert (await count(shards, wanted)).count == len(expected), wanted


async def test_an_id_is_found_under_every_type_that_uses_it(shards: Shards) -> None:
    for n in range(5):
        await add(shards, n % 2, Run(workflow_name=f"type_{n}", workflow_id="same", age=n))
        await add(shards, n % 2, Run(workflow_name=f"type_{n}", workflow_id="other", age=n))
    pages = await walk(shards, ListFilter(workflow_id="same"), page_size=2)
    shown = [row for page in pages for row in page.executions.rows]
    assert [row.workflow_name for row in shown] == [f"type_{n}" for n in range(5)]
    assert {row.workflow_id for row in shown} == {"same"}


async def test_a_count_stops_at_its_cap(shards: Shards) -> None:
    for n in range(8):
        await add(shards, n % 2, Run(workflow_id=f"o-{n}"))
    capped = await count(shards, ListFilter(), cap=7)
    assert (capped.count, capped.capped) == (7, True)
    exact = await count(shards, ListFilter(), cap=8)
    assert (exact.count, exact.capped) == (8, False)


async def test_a_cursor_of_another_filter_or_a_damaged_one_is_refused(shards: Shards) -> None:
    for n in range(4):
        await add(shards, 0, Run(workflow_id=f"o-{n}", age=n))
    cursor = (await list_executions(shards, ListFilter(), page_size=2)).next_cursor
    assert cursor is not None
    with pytest.raises(CursorError, match="another filter"):
        await list_executions(shards, ListFilter(states=("RUNNING",)), page_size=2, cursor=cursor)
    with pytest.raises(CursorError, match="another filter or order"):
        await list_executions(shards, ListFilter(order="asc"), page_size=2, cursor=cursor)
    for damaged in (cursor[:-6], "%%%", "é", "AAAA", cursor + "A" * 40):
        with pytest.raises(CursorError, match="damaged"):
            await list_executions(shards, ListFilter(), page_size=2, cursor=damaged)


@pytest.mark.parametrize(
    ("wanted", "size", "said"),
    [
        (ListFilter(states=("SLEEPING",)), 5, "no state"),
        (ListFilter(order="up"), 5, "asc or desc"),
        (ListFilter(), 0, "1 to 200"),
        (ListFilter(), 201, "1 to 200"),
        (ListFilter(workflow_id="a\x00b"), 5, "NUL"),
    ],
)
async def test_what_cannot_be_listed_is_refused_with_what_can(
    shards: Shards, wanted: ListFilter, size: int, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        await list_executions(shards, wanted, page_size=size)


async def test_rows_say_what_their_runs_wait_for_and_what_blocks_them(shards: Shards) -> None:
    written = await add(shards, 0, Run(workflow_id="written", waiting="signal approved", age=0))
    acting = await add(shards, 1, Run(workflow_id="acting", age=1))
    sleeping = await add(shards, 0, Run(workflow_id="sleeping", age=2))
    details = b'{"code":"non_determinism","message":"asked for b","since":"2026-05-01T11:00:00Z","count":3}'
    blocked = await add(
        shards, 1, Run(workflow_id="blocked", age=3, blocked="non_determinism", blocked_details=details)
    )
    await add(shards, 0, Run(workflow_id="closed", age=4, state=State.COMPLETED))
    for seq, name in enumerate(("charge", "ship"), start=1):
        await shards.store(1).write.write(
            "insert into harvest_activity_tasks (execution_id, seq, scheduled_event_id, queue, name) "
            "values ($1, $2, 2, 'default', $3)",
            acting,
            seq,
            name,
        )
    await shards.store(0).write.write(
        "insert into harvest_timers (execution_id, seq, fires_at) values ($1, 1, '2026-06-01T08:00:00Z')", sleeping
    )
    page = await list_executions(shards, ListFilter())
    waiting = {row.execution_id: row.waiting for row in page.executions.rows}
    assert waiting[written] == "signal approved"
    assert waiting[acting] == "activities charge, ship"
    assert waiting[sleeping] == "timer until 2026-06-01T08:00:00Z"
    shown = next(row for row in page.executions.rows if row.execution_id == blocked)
    assert shown.blocked is not None
    assert (shown.blocked.code, shown.blocked.message, shown.blocked.count) == ("non_determinism", "asked for b", 3)
