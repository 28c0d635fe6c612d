"""Worker sessions as code sees them: what is asked for, what history says back, and that replay goes the same way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harvest.errors import (
    ActivityError,
    ForbiddenInWorkflowError,
    InvalidRequestError,
    NonDeterminismError,
    SessionBrokenError,
)
from harvest.history.data import ActivityFailed, Failure, SessionBroken, SessionOpened
from harvest.history.kinds import EventKind
from harvest.replay.context import WorkflowContext
from tests.replay.driving import Driven

HOST = "0" * 31 + "7"


def opened(one: Driven, seq: int) -> None:
    one.event(EventKind.SESSION_OPENED, seq, SessionOpened(HOST, "ann"))


def broken(one: Driven, seq: int, *activities: int, reason: str = "worker_lost") -> None:
    one.event(EventKind.SESSION_BROKEN, seq, SessionBroken(reason, "ann"))
    for activity in activities:
        failure = Failure("SessionBroken", "its session is broken", non_retryable=True)
        one.event(EventKind.ACTIVITY_FAILED, activity, ActivityFailed(failure))


def same_when_replayed(one: Driven) -> None:
    run = one.replayed()
    assert run.blocked is None
    assert list(run.asked) == list(one.run.asked)
    assert run.is_done == one.run.is_done


async def two_steps(ctx: WorkflowContext) -> list[Any]:
    async with ctx.create_session(queue="gpu") as session:
        first = await session.execute_activity("load", 1)
        return [session.worker, first, await session.execute_activity("use", 2)]


def test_a_session_is_asked_for_used_and_ended() -> None:
    one = Driven(two_steps)
    assert one.asked == [("SessionRequested", 1)]
    assert one.run.waiting_for() == "session"
    one.committed()
    opened(one, 1)
    assert one.asked == [("ActivityScheduled", 2)]
    command: Any = next(iter(one.run.asked.values()))
    assert (command.queue, command.session.worker) == ("gpu", HOST)
    one.committed()
    scheduled = next(event for event in one.events if event.kind == EventKind.ACTIVITY_SCHEDULED)
    assert scheduled.data().session == 1
    one.completed(2, "loaded")
    same_when_replayed(one)
    one.committed()
    one.completed(3, "used")
    assert one.asked == [("SessionClosed", 1)]
    assert one.result == ["ann", "loaded", "used"]
    same_when_replayed(one)


def test_a_broken_session_fails_what_runs_in_it_and_whatever_else_is_asked_of_it() -> None:
    async def starts_over(ctx: WorkflowContext) -> list[Any]:
        told: list[Any] = []
        try:
            async with ctx.create_session() as session:
                await asyncio.gather(session.execute_activity("a"), session.execute_activity("b"))
        except SessionBrokenError as error:
            told += [error.retryable, error.fields["reason"], session.is_broken]
        with pytest.raises(SessionBrokenError):
            await session.execute_activity("c")
        async with ctx.create_session() as another:
            return [*told, another.is_broken]

    one = Driven(starts_over)
    one.committed()
    opened(one, 1)
    one.committed()
    broken(one, 1, 2, 3)
    assert one.asked == [("SessionRequested", 4)], "nothing ends a session that history has ended"
    one.committed()
    same_when_replayed(one)
    opened(one, 4)
    assert one.result == [False, "worker_lost", True, False]
    same_when_replayed(one)


def test_an_activity_that_fails_by_itself_fails_as_any_other() -> None:
    async def fails(ctx: WorkflowContext) -> str:
        async with ctx.create_session() as session:
            try:
                await session.execute_activity("a")
            except ActivityError as error:
                return str(error.fields["type"])
        return "no"

    one = Driven(fails)
    one.committed()
    opened(one, 1)
    one.committed()
    one.failed(2, "SessionBroken")
    assert one.result == "SessionBroken", "the word alone says nothing while the session is open"


def test_a_session_that_nobody_opens_is_a_timeout() -> None:
    async def impatient(ctx: WorkflowContext) -> str:
        try:
            async with ctx.create_session(creation_timeout=5):
                return "opened"
        except TimeoutError as error:
            return f"{type(error).__name__}: {error}"

    one = Driven(impatient)
    one.committed()
    broken(one, 1, reason="creation_timeout")
    assert one.result == "SessionTimeoutError: session 1 is broken: no worker had room for it in time"
    assert one.asked == []
    same_when_replayed(one)


def test_turning_away_before_it_opens_ends_it_and_its_opening_is_nobodys() -> None:
    async def impatient(ctx: WorkflowContext) -> str:
        try:
            async with asyncio.timeout(5), ctx.create_session():
                return "opened"
        except TimeoutError:
            return str(await ctx.wait_for_signal("on"))

    one = Driven(impatient)
    one.committed()
    one.fired(1)
    assert one.asked == [("SessionClosed", 2)]
    one.committed()
    opened(one, 2)
    same_when_replayed(one)
    one.signal("on", "went on")
    assert one.result == "went on"


def test_leaving_cancels_what_still_runs_in_it() -> None:
    async def leaves(ctx: WorkflowContext) -> bool:
        async with ctx.create_session() as session:
            inside = asyncio.ensure_future(session.execute_activity("a"))
            outside = asyncio.ensure_future(ctx.execute_activity("b"))
            await ctx.wait_for_signal("on")
        await outside
        return inside.cancelled()

    one = Driven(leaves)
    one.committed()
    opened(one, 1)
    one.committed()
    one.signal("on")
    assert one.asked == [("ActivityCancelRequested", 2), ("SessionClosed", 1)]
    one.committed()
    one.completed(3)
    assert one.result is True
    same_when_replayed(one)


def test_a_session_is_used_inside_its_block_only() -> None:
    async def careless(ctx: WorkflowContext) -> list[str]:
        told = []
        session = ctx.create_session()
        with pytest.raises(RuntimeError, match="not open"):
            await session.execute_activity("a")
        async with session:
            with pytest.raises(RuntimeError, match="entered once"):
                await session.__aenter__()
            told.append(session.worker)
        with pytest.raises(ForbiddenInWorkflowError, match="ended with its block"):
            await session.execute_activity("a")
        for wrong in ({"creation_timeout": 0}, {"execution_timeout": -1}, {"creation_timeout": float("inf")}):
            with pytest.raises(InvalidRequestError):
                ctx.create_session(**wrong)
        return told

    one = Driven(careless)
    one.committed()
    opened(one, 1)
    assert one.result == ["ann"]


def test_code_without_the_session_that_history_has_goes_another_way() -> None:
    async def without(ctx: WorkflowContext) -> Any:
        return await ctx.execute_activity("load", 1)

    one = Driven(two_steps)
    one.committed()
    opened(one, 1)
    blocked = one.goes_on_as(without).run.blocked
    assert isinstance(blocked, NonDeterminismError)
    assert "session (number 1)" in blocked.message


def test_a_parked_session_is_let_go_in_silence() -> None:
    one = Driven(two_steps)
    one.committed()
    opened(one, 1)
    one.committed()
    assert one.run.release()
    assert (one.run.asked, one.run.sessions) == ({}, {})
