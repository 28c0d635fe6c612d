"""Branches that are joined: fan-outs, races, and timers that can be raced."""

from __future__ import annotations

import asyncio
import inspect
from datetime import timedelta
from typing import Any

import pytest

from harvest.errors import ChildWorkflowError
from harvest.history.kinds import EventKind
from harvest.replay.context import WorkflowContext
from tests.replay.driving import Driven
from tests.replay.noting import child, fanned_child


def test_the_first_failure_of_a_fan_out_cancels_the_rest_and_is_raised() -> None:
    async def many(ctx: WorkflowContext) -> str:
        try:
            await ctx.fan_out(fanned_child, [[1, 0], [2, 0], [3, 0]])
        except ChildWorkflowError as error:
            return str(error.fields["state"])
        return "all"

    one = Driven(many)
    one.committed()
    one.child_failed(2, "FAILED")
    assert one.asked == [("ChildCancelRequested", 1), ("ChildCancelRequested", 3)]
    assert one.result == "FAILED"


def test_collecting_gives_every_item_its_turn() -> None:
    async def many(ctx: WorkflowContext) -> list[str]:
        slow = fanned_child.with_options(deadline=timedelta(seconds=5))
        found = await ctx.fan_out_collect(slow, [[1, 0], [2, 0], [3, 0]])
        return [type(each).__name__ for each in found]

    one = Driven(many)
    one.committed()
    timers = [seq for kind, seq in [(e.kind, e.seq) for e in one.events] if kind == EventKind.TIMER_STARTED]
    started = [e.seq for e in one.events if e.kind == EventKind.CHILD_WORKFLOW_STARTED]
    one.child_failed(started[0])
    one.fired(timers[1])
    one.child_completed(started[2], 3)
    assert one.result == ["ChildWorkflowError", "TimeoutError", "int"]


@pytest.mark.parametrize("collect", [True, False])
def test_no_more_than_at_once_run_together(collect: bool) -> None:
    async def many(ctx: WorkflowContext) -> list[int]:
        call: Any = ctx.fan_out_collect if collect else ctx.fan_out
        return list(await call(fanned_child, [[1, 0], [2, 0], [3, 0]], at_once=2))

    one = Driven(many)
    assert one.asked == [("ChildWorkflowStarted", 1), ("ChildWorkflowStarted", 2)]
    one.committed()
    one.child_completed(2, 2)
    assert one.asked == [("ChildWorkflowStarted", 3)]
    one.committed()
    one.child_completed(3, 3)
    one.child_completed(1, 1)
    assert one.result == [1, 2, 3]


@pytest.mark.parametrize("collect", [True, False])
def test_none_at_once_is_refused(collect: bool) -> None:
    async def none(ctx: WorkflowContext) -> None:
        call: Any = ctx.fan_out_collect if collect else ctx.fan_out
        await call(fanned_child, [[1, 0]], at_once=0)

    assert Driven(none).failure.type == "InvalidRequestError"


def test_a_race_is_won_by_who_ended_first_and_not_by_who_stands_first() -> None:
    async def races(ctx: WorkflowContext) -> list[Any]:
        opened = asyncio.Event()

        async def later() -> str:
            await opened.wait()
            await asyncio.sleep(0)
            return "later"

        async def sooner() -> str:
            await opened.wait()
            return "sooner"

        async def opens() -> None:
            await ctx.wait_for_signal("go")
            opened.set()
            await ctx.sleep(60)

        winner = await ctx.race(opens(), later(), sooner())
        return [winner.index, winner.value]

    one = Driven(races)
    one.signal("go")
    assert one.result == [2, "sooner"]


def test_the_losers_of_a_race_are_cancelled_and_their_cleanup_is_done() -> None:
    async def races(ctx: WorkflowContext) -> list[str]:
        cleaned: list[str] = []

        async def loser() -> None:
            try:
                await ctx.execute_activity("slow")
            finally:
                await ctx.execute_activity("clean up")
                cleaned.append("clean")

        await ctx.race(ctx.wait_for_signal("go"), loser())
        return cleaned

    one = Driven(races)
    one.committed()
    one.signal("go")
    assert one.asked == [("ActivityCancelRequested", 1), ("ActivityScheduled", 2)]
    one.committed()
    assert one.outcome is None
    one.completed(2)
    assert one.result == ["clean"]


def test_a_race_raises_what_its_winner_raised() -> None:
    async def races(ctx: WorkflowContext) -> None:
        await ctx.race(ctx.execute_child_workflow(child, 1, 2), ctx.sleep(60))

    one = Driven(races)
    one.committed()
    one.child_failed(1)
    assert one.failure.type == "ChildWorkflowError"
    assert one.asked == [("TimerCancelled", 2)]


def test_timers_can_be_raced_awaited_again_and_cancelled() -> None:
    async def races(ctx: WorkflowContext) -> list[Any]:
        timer = ctx.start_timer(60)
        winner = await ctx.race(ctx.wait_for_signal("go"), timer)
        return [winner.index, timer.done, timer.cancel(), timer.cancel(), timer.done]

    one = Driven(races)
    one.committed()
    one.signal("go")
    assert one.asked == [("TimerCancelled", 1)]
    assert one.result == [0, False, True, False, True]


def test_the_branches_of_a_race_that_never_begins_are_closed() -> None:
    """Found by the collector long after, they would be warned of in somebody else's step."""

    async def cleans_up(ctx: WorkflowContext) -> None:
        try:
            await ctx.wait_for_signal("never")
        finally:
            branches.extend((ctx.sleep(1), ctx.sleep(2)))
            await ctx.race(*branches)

    branches: list[Any] = []
    assert Driven(cleans_up).run.release()
    assert [inspect.getcoroutinestate(branch) for branch in branches] == [inspect.CORO_CLOSED] * 2
