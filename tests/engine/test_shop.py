"""The four workflows of examples/shop.py do what the tour says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from examples import shop
from harvest import WorkflowFailedError, WorkflowHandle
from harvest.history.kinds import EventKind
from harvest.operations import reading
from harvest.shards import Shards
from harvest.worker.worker import Worker
from tests.support import at_work, check_invariants, eventually, history_of

SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(shop.app, new_database("shop")) as working:
        yield working
        await check_invariants(working[1])


async def waiting(work: Work, handle: WorkflowHandle[Any], what: str) -> None:
    async def holds() -> bool:
        return (await reading.get(work[1], handle.execution_id)).waiting == what

    await eventually(holds, within=30)


async def scheduled(work: Work, handle: WorkflowHandle[Any]) -> list[str]:
    events = await history_of(work[1], handle.execution_id)
    return [event.data().name for event in events if event.kind == EventKind.ACTIVITY_SCHEDULED]


async def test_an_order_waits_for_its_approval_and_is_shipped(work: Work) -> None:
    handle = await shop.app.start(shop.order_flow, shop.Order(items=["book", "pen"]))
    await waiting(work, handle, "signal approved")
    await handle.signal("approved", shop.Approval(by="Ada"))
    receipt = await handle.result(SOON)
    assert (receipt.approved_by, receipt.charge[:3], receipt.parcel[:9]) == ("Ada", "ch_", "parcel-2-")
    assert await scheduled(work, handle) == ["reserve", "charge", "ship"]


async def test_a_declined_card_fails_at_once_and_nothing_is_refunded(work: Work) -> None:
    handle = await shop.app.start(shop.order_flow, shop.Order(card="1111 0000"))
    with pytest.raises(WorkflowFailedError, match=r"ActivityError.*CardDeclined"):
        await handle.result(SOON)
    assert await scheduled(work, handle) == ["reserve", "charge"]


async def test_a_cancelled_order_is_refunded(work: Work) -> None:
    handle = await shop.app.start(shop.order_flow, shop.Order())
    await waiting(work, handle, "signal approved")
    await handle.cancel("changed their mind")
    with pytest.raises(WorkflowFailedError, match="CANCELLED"):
        await handle.result(SOON)
    assert await scheduled(work, handle) == ["reserve", "charge", "refund"]


async def test_orders_are_imported_side_by_side(work: Work) -> None:
    handle = await shop.app.start(shop.import_orders, 20)
    assert await handle.result(SOON) == sum(100 + n for n in range(20))


async def test_the_ledger_keeps_what_came_until_the_books_close(work: Work) -> None:
    handle = await shop.app.start(shop.nightly_ledger, 1.5 / 3600)
    for n in range(3):
        await handle.signal("entry", shop.Entry(f"line {n}", n))
    assert await handle.result(SOON) == [shop.Entry(f"line {n}", n) for n in range(3)]


async def test_a_slow_report_goes_on_where_the_last_heartbeat_was(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failed = asyncio.sleep, []

    async def fast(seconds: float, *result: Any) -> Any:
        if seconds != 1:
            return await real(seconds, *result)
        if shop_pages(work) >= 4 and not failed:
            failed.append(True)
            raise ConnectionError("the printer is on fire")
        return await real(0.01)

    monkeypatch.setattr(shop.asyncio, "sleep", fast)
    handle = await shop.app.start(shop.slow_report, 8)
    assert await handle.result(SOON) == 8
    assert failed
    starts = [e.data() for e in await history_of(work[1], handle.execution_id) if e.kind == EventKind.ACTIVITY_STARTED]
    assert [start.attempt for start in starts] == [1, 2]


def shop_pages(work: Work) -> int:
    """What the report has said of itself so far."""
    return max((int(beat[2]) for beat in work[0]._runner.beats.values()), default=0)


def test_the_example_says_what_its_forms_need() -> None:
    order = shop.order_flow.signature.input_schema()["$defs"]["Order"]["properties"]
    assert order["cents"]["minimum"] == 1
    assert order["card"]["description"]
    assert set(shop.order_flow.signals) == {"approved"}
    assert shop.import_orders.signature.input_schema()["maximum"] == 500
