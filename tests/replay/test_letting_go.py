"""Letting go of a run: nothing gets out, in bounded time, whatever its code catches (design 3, rows 28 and 29)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from harvest.replay import unwinding
from harvest.replay.context import WorkflowContext
from tests.replay.driving import Driven

PARKED = 1_000
_request: ContextVar[str] = ContextVar("request", default="none")


@pytest.fixture(autouse=True)
def _nothing_gets_out(caplog: pytest.LogCaptureFixture) -> Any:
    """No warning, no log and no exception that nobody could catch comes out of these tests."""
    unraisable: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, unraisable.append
    try:
        with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.DEBUG):
            warnings.simplefilter("always")
            yield
            gc.collect()
        assert not [str(warning.message) for warning in caught]
        assert not caplog.records
        assert not unraisable
    finally:
        sys.unraisablehook = before


def test_28_a_thousand_parked_runs_are_collected_within_another_step() -> None:
    asked: list[str] = []

    async def parked(ctx: WorkflowContext) -> None:
        try:
            await ctx.execute_activity("work")
        finally:
            asked.append("finally")
            ctx.log.warning("cleaning up")
            await ctx.execute_activity("clean_up")
            asked.append("never")

    async def other(ctx: WorkflowContext) -> int:
        await ctx.execute_activity("first")
        gc.collect()
        await ctx.execute_activity("second")
        return 1

    runs = [Driven(parked, seed=number) for number in range(PARKED)]
    for one in runs:
        one.committed()
        assert one.run.release()
        assert not one.run.asked
    assert asked == ["finally"] * PARKED
    bystander = Driven(other)
    bystander.committed()
    runs.clear()
    del one
    bystander.completed(1)
    assert bystander.asked == [("ActivityScheduled", 2)]
    assert asked == ["finally"] * PARKED


async def _swallow_and_ask(ctx: WorkflowContext) -> None:
    while True:
        try:
            await ctx.execute_activity("again")
        except BaseException:
            continue


async def _swallow_and_look(ctx: WorkflowContext) -> None:
    try:
        await ctx.execute_activity("work")
    except BaseException:
        while True:
            try:
                ctx.now()
            except BaseException:
                continue


async def _swallow_in_loops(ctx: WorkflowContext) -> None:
    while True:
        try:
            while True:
                try:
                    await _swallow_and_look(ctx)
                except BaseException:
                    ctx.now()
        except BaseException:
            await ctx.wait_condition(lambda: True)


async def _swallow_cancel(ctx: WorkflowContext) -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def _swallow_everything(ctx: WorkflowContext) -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except BaseException:
            continue


async def _sleep_for_ever(ctx: WorkflowContext) -> None:
    try:
        await ctx.execute_activity("work")
    finally:
        while True:
            await asyncio.sleep(1)


async def _spawn_for_ever(ctx: WorkflowContext) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.create_task(_spawn_for_ever(ctx))


async def _spin(ctx: WorkflowContext) -> None:
    try:
        await ctx.execute_activity("work")
    finally:
        while True:
            await asyncio.sleep(0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("function", "ends"),
    [
        (_swallow_and_ask, True),
        (_swallow_and_look, True),
        (_swallow_in_loops, True),
        (_swallow_cancel, True),
        (_swallow_everything, False),
        (_sleep_for_ever, True),
        (_spawn_for_ever, False),
        (_spin, True),
    ],
)
def test_29_letting_go_is_bounded(function: Callable[[WorkflowContext], Awaitable[None]], ends: bool) -> None:
    before, refused = sys.gettrace(), len(unwinding._refused_to_end)
    one = Driven(function)
    one.committed()
    assert one.run.release() is ends
    assert not one.run.asked
    assert sys.gettrace() is before
    assert asyncio._get_running_loop() is None
    # What refuses is kept: collected, it would run its cleanup within somebody else's step.
    assert (len(unwinding._refused_to_end) > refused) is not ends


@pytest.mark.timeout(20)
def test_code_that_swallows_its_own_block_is_bounded() -> None:
    async def stubborn(ctx: WorkflowContext) -> None:
        await ctx.wait_for_signal("number", str)
        while True:
            try:
                ctx.drain_signals("number", int)
                await ctx.execute_activity("again")
            except BaseException:
                pass

    async def hurried(ctx: WorkflowContext) -> None:
        await ctx.execute_activity("work")
        while True:
            with contextlib.suppress(BaseException):
                ctx.try_receive_signal("number", int)
                ctx.now()

    before = sys.gettrace()
    one = Driven(hurried)
    one.signal("number", "not a number")
    one.completed(1)
    assert one.run.blocked is not None
    assert one.run.blocked.slug == "payload_undecodable"
    assert sys.gettrace() is before
    assert one.run.release()
    other = Driven(stubborn)
    other.signal("number", 5)
    assert other.run.blocked is not None
    assert other.run.release()


def test_a_run_that_was_let_go_answers_nothing() -> None:
    kept: list[WorkflowContext] = []

    async def keeps(ctx: WorkflowContext) -> None:
        kept.append(ctx)
        await ctx.execute_activity("work")

    one = Driven(keeps)
    assert one.run.release()
    assert one.run.release(), "a second time does no harm"
    ctx = kept[0]
    for use in (
        ctx.now,
        ctx.uuid4,
        ctx.random,
        ctx.is_cancelled,
        lambda: ctx.info,
        lambda: ctx.drain_signals("x"),
        lambda: ctx.try_receive_signal("x"),
    ):
        with pytest.raises(unwinding.AbandonStep):
            use()


def test_coroutines_that_were_never_awaited_make_no_noise() -> None:
    async def lists_them(ctx: WorkflowContext) -> None:
        coroutines = [ctx.execute_activity("work", number) for number in range(5)]
        for coroutine in coroutines:
            await coroutine

    one = Driven(lists_them)
    one.committed()
    one.completed(1)
    one.committed()
    assert one.run.release()
    del one
    gc.collect()


def test_async_generators_are_closed_with_their_run() -> None:
    closed: list[str] = []

    async def ticks(ctx: WorkflowContext) -> AsyncIterator[int]:
        try:
            for number in range(10):
                await ctx.execute_activity("tick", number)
                yield number
        finally:
            closed.append("closed")
            await ctx.execute_activity("after")
            closed.append("never")

    async def leaves_early(ctx: WorkflowContext) -> None:
        async for number in ticks(ctx):
            if number == 1:
                break
        gc.collect()
        await ctx.execute_activity("then")

    one = Driven(leaves_early)
    one.completed(1)
    one.completed(2)
    assert one.asked[-1] == ("ActivityScheduled", 3)
    assert closed == [], "a generator that was left ends with its run, at the same moment on every replay"
    assert one.run.release()
    assert closed == ["closed"]
    del one
    gc.collect()
    assert closed == ["closed"]


def test_generators_and_tasks_of_a_long_run_do_not_pile_up() -> None:
    async def numbers(ctx: WorkflowContext) -> AsyncIterator[int]:
        yield await ctx.execute_activity("tick")

    async def long(ctx: WorkflowContext) -> None:
        while True:
            async for _ in numbers(ctx):
                pass
            await asyncio.create_task(_nothing())

    one = Driven(long)
    for number in range(1, 500):
        one.committed()
        one.completed(number)
    assert len(one.run.tasks) + len(one.run._generators) < 60
    assert one.run.release()


async def _nothing() -> None:
    return None


def test_the_hooks_and_the_loop_of_the_worker_are_as_before() -> None:
    async def quick(ctx: WorkflowContext) -> None:
        await ctx.execute_activity("work")

    async def in_a_worker() -> None:
        loop, hooks = asyncio.get_running_loop(), sys.get_asyncgen_hooks()
        one = Driven(quick)
        assert asyncio.get_running_loop() is loop
        one.committed()
        one.completed(1)
        one.run.release()
        assert asyncio.get_running_loop() is loop
        assert sys.get_asyncgen_hooks() == hooks

    asyncio.run(in_a_worker())


def test_context_variables_do_not_leak_between_runs() -> None:
    async def sets_it(ctx: WorkflowContext, name: str) -> list[str]:
        seen = [_request.get()]
        _request.set(name)
        await ctx.execute_activity("work")
        seen.append(_request.get())
        return seen

    _request.set("the worker's")
    one, other = Driven(sets_it, "one"), Driven(sets_it, "other")
    other.completed(1)
    one.completed(1)
    assert one.result == ["none", "one"]
    assert other.result == ["none", "other"]
    assert _request.get() == "the worker's"


def test_a_run_that_ended_with_tasks_at_work_lets_them_go() -> None:
    ended: list[str] = []

    async def leaves_a_task(ctx: WorkflowContext) -> int:
        async def background() -> None:
            try:
                await ctx.execute_activity("slow")
            finally:
                ended.append("ended")

        task = asyncio.create_task(background())
        await asyncio.sleep(0)
        return int(task.done())

    one = Driven(leaves_a_task)
    assert one.result == 0
    assert ended == []
    assert one.run.release()
    assert ended == ["ended"]
