"""Residents are bounded and can be lost at any time; limits are typed and end or refuse what passes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from harvest import Harvest, WorkflowContext, WorkflowFailedError
from harvest.errors import LimitError, PayloadTooLargeError
from harvest.history import limits
from harvest.operations import reading
from harvest.replay import decision, state
from harvest.shards import Shards
from harvest.worker import deciding
from harvest.worker.worker import Worker
from tests.support import FAST, at_work, check_invariants, eventually, history_of

app = Harvest()
SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]
MB = 1024 * 1024


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, new_database("limits")) as working:
        yield working
        await check_invariants(working[1])


@app.activity
async def add(a: int, b: int) -> int:
    return a + b


@app.activity
async def blob(size: int) -> str:
    return "x" * size


@app.workflow
async def sums(ctx: WorkflowContext, signals: int) -> int:
    total = 0
    for _ in range(signals):
        total = await ctx.execute_activity(add, total, await ctx.wait_for_signal("n", int))
    return total


@pytest.mark.parametrize("bound", [{"workflow_cache_size": 3}, {"workflow_cache_bytes": 20_000}])
async def test_residents_are_evicted_and_come_back_right(
    new_database: Callable[[str], str], bound: dict[str, int]
) -> None:
    async with at_work(app, new_database("residents"), replace(FAST, **bound)) as (worker, shards):
        handles = [await app.start(sums, 3) for _ in range(20)]
        for n in range(3):
            for handle in handles:
                await handle.signal("n", n + 1)
            await all_parked(shards, "signal n" if n < 2 else None)
            assert len(worker.residents) <= bound.get("workflow_cache_size", 20)
            assert worker.residents.bytes <= bound.get("workflow_cache_bytes", MB)
        assert [await handle.result(SOON) for handle in handles] == [6] * 20
        assert worker.counters.evicted >= 20
        assert worker.counters.decisions_cold > 30
        assert worker.residents.bytes >= 0
        assert len(worker.residents) == 0
        await check_invariants(shards)


async def all_parked(shards: Shards, waiting: str | None) -> None:
    async def rest() -> bool:
        rows = await shards.stores[0].read.fetch(
            """select t.state, e.waiting, exists (select from harvest_activity_tasks a
                 where a.execution_id = t.execution_id) as working
                 from harvest_workflow_tasks t join harvest_executions e using (execution_id)"""
        )
        return all(row["state"] == 2 and row["waiting"] == waiting and not row["working"] for row in rows)

    await eventually(rest, within=20)


@app.workflow
async def large(ctx: WorkflowContext, what: str) -> str:
    if what == "input of an activity":
        await ctx.execute_activity(add, "x" * (8 * MB), 1)  # type: ignore[arg-type]
    if what == "result of an activity":
        await ctx.execute_activity(blob, 8 * MB)
    return "x" * (8 * MB) if what == "result" else ""


@pytest.mark.parametrize("what", ["input of an activity", "result of an activity", "result"])
async def test_a_payload_over_eight_megabytes_is_refused_where_it_is_made(work: Work, what: str) -> None:
    handle = await app.start(large, what)
    with pytest.raises(WorkflowFailedError, match="8,388,608 are allowed"):
        await handle.result(SOON)


async def test_input_and_signals_over_eight_megabytes_are_refused(work: Work) -> None:
    with pytest.raises(PayloadTooLargeError):
        await app.start(large, "x" * (8 * MB))
    handle = await app.start(sums, 1)
    with pytest.raises(PayloadTooLargeError):
        await handle.signal("n", "x" * (8 * MB))
    await handle.signal("n", 1)
    assert await handle.result(SOON) == 1


@app.workflow
async def returns(ctx: WorkflowContext, size: int) -> str:
    return await ctx.execute_activity(blob, size)


async def test_five_megabytes_pass_exactly(work: Work) -> None:
    assert await (await app.start(returns, 5 * MB)).result(SOON) == "x" * (5 * MB)


async def test_payloads_from_512_kib_on_are_warned_of(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    await (await app.start(returns, 600_000)).result(SOON)
    assert any("a decision of workflow 'returns'" in record.getMessage() for record in caplog.records)
    caplog.clear()
    handle = await app.start(sums, 1)
    await handle.signal("other", "x" * 600_000)
    assert any("signal 'other'" in record.getMessage() for record in caplog.records)
    caplog.clear()
    await (await app.start(returns, 200_000)).result(SOON)
    assert not [record for record in caplog.records if "keep" in record.getMessage()]
    await handle.signal("n", 1)
    await handle.result(SOON)


@app.workflow
async def greedy(ctx: WorkflowContext, what: str, many: int) -> Any:
    if what == "timers":
        return await asyncio.gather(*(ctx.sleep(0.01) for _ in range(many)))
    return sum(await asyncio.gather(*(ctx.execute_activity(add, n, 0) for n in range(many))))


@pytest.mark.parametrize("what", ["activities", "timers"])
async def test_pending_operations_of_a_kind_are_bounded(work: Work, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(state, "PENDING_OF_A_KIND", 50)
    await (await app.start(greedy, what, 50)).result(SOON)
    with pytest.raises(WorkflowFailedError, match=f"LimitError: 50 {what} are pending"):
        await (await app.start(greedy, what, 51)).result(SOON)


async def test_two_thousand_activities_at_once(work: Work) -> None:
    assert await (await app.start(greedy, "activities", 2_000)).result(SOON) == 1_999_000


@app.workflow
async def endless(ctx: WorkflowContext) -> None:
    total = 0
    while True:
        total = await ctx.execute_activity(add, total, 1)


async def test_47_a_history_over_its_hard_limit_fails_the_run(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decision, "HISTORY_EVENTS_HARD", 60)
    monkeypatch.setattr(deciding, "HISTORY_EVENTS_SOFT", 30)
    handle = await app.start(endless)
    with pytest.raises(WorkflowFailedError, match="HistoryCapExceeded"):
        await handle.result(SOON)
    assert 60 < len(await history_of(work[1], handle.execution_id)) < 70
    warned = [r for r in caplog.records if "passes 30 events" in r.getMessage()]
    assert len(warned) == 1


@app.workflow
async def grows(ctx: WorkflowContext) -> None:
    while True:
        await ctx.execute_activity(blob, 20_000)


async def test_a_history_over_its_hard_limit_of_bytes_fails_the_run(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decision, "HISTORY_BYTES_HARD", 400_000)
    monkeypatch.setattr(deciding, "HISTORY_BYTES_SOFT", 200_000)
    handle = await app.start(grows)
    with pytest.raises(WorkflowFailedError, match="HistoryCapExceeded"):
        await handle.result(SOON)
    size = sum(len(event.payload) for event in await history_of(work[1], handle.execution_id))
    assert 400_000 < size < 450_000
    assert len([r for r in caplog.records if "passes 200000 bytes" in r.getMessage()]) == 1


@app.workflow
async def names(ctx: WorkflowContext, name: str) -> str:
    try:
        await ctx.execute_activity(name)
    except LimitError as error:
        return str(error)
    return ""


async def test_names_are_bounded_in_bytes(work: Work) -> None:
    assert "has 256 bytes" in await (await app.start(names, "é" * 128)).result(SOON)
    handle = await app.start(sums, 1)
    for wrong in ("", "é" * 128, "\x00", "\ud800"):
        with pytest.raises(LimitError):
            await handle.signal(wrong)
    with pytest.raises(LimitError):
        await handle.signal("n", 1, idempotency_key="k" * 256)
    await handle.signal("é" * 127, 0)
    await handle.signal("n", 1)
    assert await handle.result(SOON) == 1
    assert (await reading.get(work[1], handle.execution_id)).state == "COMPLETED"


def test_the_limits_are_those_of_the_design() -> None:
    assert (limits.PAYLOAD_BYTES, limits.PAYLOAD_WARN_BYTES) == (8 * MB, 512 * 1024)
    assert (limits.HISTORY_EVENTS_SOFT, limits.HISTORY_EVENTS_HARD) == (10_000, 50_000)
    assert (limits.HISTORY_BYTES_SOFT, limits.HISTORY_BYTES_HARD) == (10 * MB, 50 * MB)
    assert (limits.PENDING_OF_A_KIND, limits.NAME_BYTES, limits.WORKFLOW_ID_BYTES) == (2_000, 255, 2_048)
