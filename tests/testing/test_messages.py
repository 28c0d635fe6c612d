"""Updates and queries through the handle of an environment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from harvest import Harvest, WorkflowContext
from harvest.errors import (
    ExecutionClosedError,
    QueryFailedError,
    QueryNotFoundError,
    UpdateFailedError,
    UpdateRejectedError,
    UpdateTimeoutError,
)
from harvest.testing import WorkflowEnvironment

START = datetime(2026, 1, 1, tzinfo=UTC)
app = Harvest()


@app.activity
async def look_up(item: str) -> int:
    return len(item)


@app.workflow
async def cart(ctx: WorkflowContext) -> list[str]:
    items: list[str] = []

    def check(item: str, count: int = 1) -> None:
        if not item:
            raise ValueError("no item")

    async def add(item: str, count: int = 1) -> int:
        if item == "broken":
            raise RuntimeError("cannot add that")
        if item == "rare":
            await ctx.sleep(timedelta(hours=1))
        if item == "awaited":
            await ctx.wait_for_signal("arrived")
        cost = await ctx.execute_activity(look_up, item)
        items.extend([item] * count)
        return cost * count

    def explode() -> None:
        raise KeyError("inside")

    ctx.register_update_handler("add", add, validator=check)
    ctx.register_query_handler("items", lambda: list(items))
    ctx.register_query_handler("count", lambda word: items.count(word))
    ctx.register_query_handler("explode", explode)
    await ctx.wait_for_signal("done")
    await ctx.wait_condition(ctx.all_handlers_finished)
    return items


async def test_an_update_is_answered_and_a_query_sees_it() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(cart)
        assert await handle.query("items") == []
        assert await handle.update("add", "pen", 2, result_type=int) == 6
        assert await handle.query("items") == ["pen", "pen"]
        assert await handle.query("count", "pen", result_type=int) == 2
        await handle.signal("done")
        assert await handle.result() == ["pen", "pen"]
        with pytest.raises(ExecutionClosedError):
            await handle.query("items")


async def test_the_validator_refuses() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(cart)
        with pytest.raises(UpdateRejectedError, match="ValueError: no item"):
            await handle.update("add", "")
        with pytest.raises(UpdateRejectedError, match="UpdateHandlerMissing"):
            await handle.update("remove", "pen")
        with pytest.raises(UpdateFailedError, match="RuntimeError: cannot add that") as caught:
            await handle.update("add", "broken")
        assert caught.value.fields["failure_type"] == "RuntimeError"


async def test_time_is_skipped_for_an_update_and_an_answer_is_awaited_later() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(cart)
        sent = await handle.start_update("add", "rare")
        assert env.now() == START
        assert await sent.result() == 4
        assert env.now() == START + timedelta(hours=1)
        with pytest.raises(UpdateTimeoutError):
            await handle.update("add", "rare", timeout=60)
        with pytest.raises(UpdateTimeoutError, match=r"waits for .*signal 'arrived'"):
            await handle.update("add", "awaited")


async def test_a_key_is_taken_once() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(cart)
        for _ in range(2):
            assert await handle.update("add", "cup", idempotency_key="k") == 3
        assert await handle.query("items") == ["cup"]


async def test_what_queries_refuse() -> None:
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(cart)
        with pytest.raises(QueryNotFoundError, match="it has count, explode, items"):
            await handle.query("nothing")
        with pytest.raises(QueryFailedError, match="KeyError"):
            await handle.query("explode")


async def test_update_with_start() -> None:
    async with WorkflowEnvironment(app) as env:
        for _ in range(2):
            handle, answer = await env.update_with_start(cart, update="add", update_args=("pen",), workflow_id="c")
            assert answer == 3
        assert await handle.query("items") == ["pen", "pen"]
        assert len(env.runs()) == 1


async def test_updates_go_along_with_a_run_that_continues_as_new() -> None:
    mine = Harvest()

    @mine.workflow
    async def rotates(ctx: WorkflowContext, rest: int) -> int:
        if rest:
            await ctx.sleep(10)
            ctx.continue_as_new(rest - 1)
        answered = []
        ctx.register_update_handler("ask", lambda: answered.append(1) or rest)
        await ctx.wait_condition(lambda: bool(answered))
        return len(answered)

    async with WorkflowEnvironment(mine) as env:
        handle, answer = await env.update_with_start(rotates, 0, update="ask")
        assert answer == 0
        assert await handle.result() == 1
