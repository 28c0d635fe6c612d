"""Workflows run in memory, on time that is skipped, as a worker would run them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Struct

from harvest import ActivityError, ApplicationError, Harvest, WorkflowContext, WorkflowFailedError
from harvest.errors import (
    ExecutionClosedError,
    ExecutionExistsError,
    NonDeterminismError,
    PayloadDecodeError,
    PayloadError,
    ResultTimeoutError,
    WorkflowBugError,
    WorkflowNotRegisteredError,
)
from harvest.history.kinds import EventKind
from harvest.testing import WorkflowEnvironment, in_turn

app = Harvest()


class Order(Struct):
    card: str
    cents: int = 100


class Receipt(Struct):
    charge: str
    approved_by: str


@app.activity
async def charge(card: str, cents: int) -> str:
    return f"{card}/{cents}"


@app.activity
def stamp(text: str) -> str:
    return text.upper()


@app.activity
async def refund(charged: str) -> None:
    return None


@app.workflow
async def order_flow(ctx: WorkflowContext, order: Order) -> Receipt:
    charged = await ctx.execute_activity(charge, order.card, order.cents)
    try:
        by = await ctx.wait_for_signal("approved", str, timeout=timedelta(days=2))
    except TimeoutError:
        await ctx.execute_activity(refund, charged)
        raise
    return Receipt(charged, await ctx.execute_activity(stamp, by))


@app.workflow
async def naps(ctx: WorkflowContext, hours: int) -> list[str]:
    seen = []
    for _ in range(hours):
        await ctx.sleep(3600)
        seen.append(ctx.now().isoformat())
    return seen


@app.workflow
async def waits(ctx: WorkflowContext) -> str:
    return await ctx.wait_for_signal("go", str)


async def test_activities_run_and_a_signal_comes() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(order_flow, Order("visa", 250), workflow_id="o-1")
        assert handle.state == "RUNNING"
        await handle.signal("approved", "ann")
        assert await handle.result() == Receipt("visa/250", "ANN")
        assert env.now() == datetime(2026, 1, 1, tzinfo=UTC)


async def test_time_is_skipped_where_nothing_else_can_happen() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(order_flow, Order("visa"))
        with pytest.raises(WorkflowFailedError, match="TimeoutError"):
            await handle.result()
        assert env.now() == datetime(2026, 1, 3, tzinfo=UTC)
        assert [call.args for call in env.calls(refund)] == [("visa/100",)]


async def test_timers_come_in_the_order_of_time() -> None:
    async with WorkflowEnvironment(app, start_at=datetime(2030, 5, 1, 12, tzinfo=UTC)) as env:
        handles = [await env.start(naps, hours) for hours in (3, 1, 2)]
        assert await handles[0].result() == [f"2030-05-01T{hour}:00:00+00:00" for hour in (13, 14, 15)]
        assert [handle.state for handle in handles] == ["COMPLETED"] * 3


async def test_skip_lets_pass_what_is_asked_and_no_more() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(naps, 2)
        await env.skip(timedelta(minutes=59))
        assert env.look(handle).events == 2
        await env.skip(60)
        assert env.look(handle).events == 4
        assert env.now() == datetime(2026, 1, 1, 1, tzinfo=UTC)
        assert len(await handle.result()) == 2


async def test_after_lets_the_test_act_at_an_instant() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(order_flow, Order("visa"))
        env.after(timedelta(hours=30), lambda: handle.signal("approved", "bob"))
        assert (await handle.result()).approved_by == "BOB"
        assert env.now() == datetime(2026, 1, 2, 6, tzinfo=UTC)


async def test_what_after_raises_is_raised_to_who_waits() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(order_flow, Order("visa"))
        env.after(1, lambda: handle.signal("approved", float("nan")))
        with pytest.raises(PayloadError, match="NaN"):
            await handle.result()


async def test_a_run_that_nothing_would_end_says_what_it_waits_for_and_where() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(waits)
        with pytest.raises(ResultTimeoutError, match=r"waits for signal 'go', at .*test_environment.py:\d+ in waits"):
            await handle.result()
        await handle.signal("go", "on")
        assert await handle.result() == "on"


async def test_a_result_is_awaited_for_so_much_time() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(naps, 3)
        with pytest.raises(ResultTimeoutError, match="still open after 5400 s of virtual time"):
            await handle.result(timeout=timedelta(minutes=90))
        assert env.now() == datetime(2026, 1, 1, 1, 30, tzinfo=UTC)


async def test_several_wait_for_their_results_at_once() -> None:
    async with WorkflowEnvironment(app) as env:
        handles = [await env.start(naps, hours) for hours in (2, 5, 3)]
        results = await asyncio.gather(*(handle.result() for handle in handles))
        assert [len(result) for result in results] == [2, 5, 3]


async def test_a_failure_is_the_cause() -> None:
    @app.workflow(name="fails_typed")
    async def fails_typed(ctx: WorkflowContext) -> None:
        raise ApplicationError("no stock", type="OutOfStock")

    async with WorkflowEnvironment(app) as env:
        handle = await env.start(fails_typed)
        with pytest.raises(WorkflowFailedError) as caught:
            await handle.result()
        assert caught.value.fields["failure_type"] == "OutOfStock"
        assert isinstance(caught.value.__cause__, ApplicationError)
        assert caught.value.__cause__.type == "OutOfStock"


async def test_cancel_and_terminate() -> None:
    async with WorkflowEnvironment(app) as env:
        cancelled = await env.start(waits)
        assert await cancelled.cancel("enough") is True
        with pytest.raises(WorkflowFailedError, match="ended CANCELLED"):
            await cancelled.result()
        with pytest.raises(ExecutionClosedError):
            await cancelled.signal("go")
        terminated = await env.start(waits)
        assert await terminated.terminate() is True
        assert await terminated.terminate() is False
        assert terminated.state == "TERMINATED"


async def test_a_deadline_ends_a_run() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(waits, execution_timeout=timedelta(hours=1))
        with pytest.raises(WorkflowFailedError, match="TIMED_OUT"):
            await handle.result()


async def test_pause_holds_a_run_and_moves_its_deadline() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(waits, execution_timeout=timedelta(hours=1))
        assert await handle.pause("look") is True
        assert await handle.pause() is False
        await handle.signal("go", "later")
        await env.skip(timedelta(hours=5))
        assert handle.state == "PAUSED"
        assert await handle.resume() is True
        assert await handle.result() == "later"


async def test_policies_of_a_start() -> None:
    async with WorkflowEnvironment(app) as env:
        first = await env.start(waits, workflow_id="w")
        assert (await env.start(waits, workflow_id="w")).execution_id == first.execution_id
        with pytest.raises(ExecutionExistsError):
            await env.start(waits, workflow_id="w", conflict_policy="fail")
        other = await env.start(waits, workflow_id="w", conflict_policy="terminate_existing")
        assert other.execution_id != first.execution_id
        assert first.state == "TERMINATED"
        one = await env.start(waits, idempotency_key="k")
        assert (await env.start(waits, idempotency_key="k")).execution_id == one.execution_id


async def test_signal_with_start_is_there_before_the_code_runs() -> None:
    @app.workflow(name="first_look")
    async def first_look(ctx: WorkflowContext) -> str:
        found = ctx.try_receive_signal("go", str)
        return str(found or await ctx.wait_for_signal("go", str))

    async with WorkflowEnvironment(app) as env:
        handle = await env.signal_with_start(first_look, signal="go", payload="x", workflow_id="s")
        assert await handle.result() == "x"
        assert [e.kind for e in env.history(handle).events][:2] == [
            EventKind.WORKFLOW_STARTED,
            EventKind.SIGNAL_RECEIVED,
        ]


async def test_a_workflow_of_another_application_is_refused() -> None:
    async with WorkflowEnvironment(Harvest()) as env:
        with pytest.raises(WorkflowNotRegisteredError, match="declares no workflow 'waits'"):
            await env.start(waits)


async def test_what_does_not_follow_from_history_is_found_out() -> None:
    mine, cache = Harvest(), list[str]()

    @mine.activity
    async def look_up() -> str:
        return "rate"

    @mine.workflow(allow_nondeterministic_apis=True)
    async def cached(ctx: WorkflowContext) -> str:
        if not cache:
            cache.append(await ctx.execute_activity(look_up))
        await ctx.sleep(1)
        return cache[0]

    async with WorkflowEnvironment(mine) as env:
        handle = await env.start(cached)
        with pytest.raises(NonDeterminismError) as caught:
            await handle.result()
    assert "event 2 records activity 'look_up' (number 1)" in str(caught.value)
    assert "the code now asks for timer of 1 s (number 1)" in str(caught.value)
    assert f"{__file__}:" in caught.value.fields["line"]
    cache.clear()
    async with WorkflowEnvironment(mine, replay_check=False) as env:
        assert await (await env.start(cached)).result() == "rate"


async def test_an_open_run_is_checked_at_the_end() -> None:
    mine, calls = Harvest(), list[int]()

    @mine.workflow(allow_nondeterministic_apis=True)
    async def counts(ctx: WorkflowContext) -> None:
        calls.append(1)
        await ctx.sleep(len(calls))
        await ctx.wait_for_signal("never")

    env = WorkflowEnvironment(mine)
    await env.__aenter__()
    await env.start(counts)
    with pytest.raises(NonDeterminismError, match="timer of 1 s"):
        await env.__aexit__(None, None, None)


async def test_a_signal_that_does_not_fit_blocks_the_run_and_is_raised_at_once() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(waits)
        await handle.signal("go", {"not": "text"})
        with pytest.raises(PayloadDecodeError, match="signal 'go' does not fit"):
            await handle.result()


async def test_a_block_that_nobody_saw_is_raised_at_the_end() -> None:
    env = WorkflowEnvironment(app)
    await env.__aenter__()
    handle = await env.start(waits)
    await handle.signal("go", 3)
    with pytest.raises(PayloadDecodeError, match="signal 'go' does not fit"):
        await env.__aexit__(None, None, None)


async def test_a_bug_blocks_and_is_the_cause() -> None:
    mine = Harvest()

    @mine.workflow(block_on=[KeyError])
    async def buggy(ctx: WorkflowContext) -> None:
        raise KeyError("typo")

    async with WorkflowEnvironment(mine) as env:
        handle = await env.start(buggy)
        with pytest.raises(WorkflowBugError, match="blocks on such errors") as caught:
            await handle.result()
        assert isinstance(caught.value.__cause__, KeyError)


async def test_the_same_each_time() -> None:
    @app.workflow(name="dice")
    async def dice(ctx: WorkflowContext) -> list[Any]:
        return [ctx.random().random(), str(ctx.uuid4()), str(ctx.info.execution_id)]

    async def once(seed: int) -> list[Any]:
        async with WorkflowEnvironment(app, seed=seed) as env:
            return await (await env.start(dice)).result()

    assert await once(1) == await once(1) != await once(2)


async def test_what_people_see() -> None:
    @app.workflow(name="shows")
    async def shows(ctx: WorkflowContext) -> None:
        ctx.set_current_details({"step": 1})
        ctx.upsert_search_attributes({"city": "Bern", "gone": "x"})
        ctx.publish_progress([1])
        await ctx.sleep(1)
        ctx.upsert_search_attributes({"gone": None})
        ctx.publish_progress([2])
        await ctx.wait_for_signal("go")

    async with WorkflowEnvironment(app) as env:
        handle = await env.start(shows, memo="m")
        await env.skip(1)
        look = env.look(handle)
        assert (look.details, look.search_attributes, look.progress) == ({"step": 1}, {"city": "Bern"}, [[1], [2]])
        assert [wait.name for wait in look.waits] == ["go"]
        assert look.stack[0].frames[-1].code == 'await ctx.wait_for_signal("go")'
        assert look.memo == "m"


async def test_failed_attempts_are_tried_again_on_virtual_time() -> None:
    async with WorkflowEnvironment(app) as env:
        mock = env.mock(charge, in_turn(ConnectionError("down"), ConnectionError("down"), "c-1"))
        handle = await env.start(order_flow, Order("visa"))
        await env.skip(0.5)
        assert len(mock.calls) == 1
        await env.skip(2.5)
        assert [call.attempt for call in mock.calls] == [1, 2, 3]
        await handle.signal("approved", "ann")
        assert (await handle.result()).charge == "c-1"


async def test_an_activity_that_fails_for_good_fails_the_run() -> None:
    async with WorkflowEnvironment(app) as env:
        env.mock(charge, ApplicationError("declined", type="CardDeclined", non_retryable=True))
        handle = await env.start(order_flow, Order("visa"))
        with pytest.raises(
            WorkflowFailedError, match="ActivityError: activity 'charge' failed: CardDeclined"
        ) as caught:
            await handle.result()
        assert len(env.calls(charge)) == 1
        assert isinstance(caught.value.__cause__, ApplicationError)
        assert not isinstance(caught.value.__cause__, ActivityError)
