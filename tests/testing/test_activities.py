"""Activities in an environment: real and mocked, retried and timed out on virtual time."""

from __future__ import annotations

import asyncio
import threading
from asyncio import sleep as nap
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from harvest import ActivityContext, ActivityError, ActivityTimeoutError, Harvest, Retry, WorkflowContext
from harvest.errors import ResultTimeoutError, WorkflowFailedError
from harvest.history.data import ActivityStarted
from harvest.history.events import DATA_OF
from harvest.history.kinds import EventKind
from harvest.testing import WorkflowEnvironment, failing, in_turn, never, unclaimed

START = datetime(2026, 1, 1, tzinfo=UTC)


def _app(function: Any, **options: Any) -> tuple[Harvest, Any, Any]:
    """An application whose workflow calls one activity and says how that ended."""
    app = Harvest()
    activity = app.activity(name="work", **options)(function)

    @app.workflow
    async def calls(ctx: WorkflowContext, argument: Any = None) -> Any:
        try:
            return await ctx.execute_activity(activity, argument)
        except ActivityTimeoutError as error:
            return f"{error.fields['timeout_type']} at attempt {error.fields['attempt']}"
        except ActivityError as error:
            return f"{error.fields['type']} at attempt {error.fields['attempt']}"

    return app, activity, calls


async def _echo(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("options", "outcome", "told", "after"),
    [
        ({"start_to_close": timedelta(seconds=5)}, never, "start_to_close at attempt 3", 5 + 1 + 5 + 2 + 5),
        ({"heartbeat_timeout": timedelta(seconds=4)}, never, "heartbeat at attempt 3", 4 + 1 + 4 + 2 + 4),
        ({"schedule_to_close": timedelta(seconds=7)}, never, "schedule_to_close at attempt 1", 7),
        ({"schedule_to_close": timedelta(seconds=7)}, ValueError, "ValueError at attempt 3", 3),
        ({"schedule_to_close": timedelta(seconds=2)}, ValueError, "schedule_to_close at attempt 2", 2),
        ({"schedule_to_start": timedelta(minutes=1)}, unclaimed, "schedule_to_start at attempt 1", 60),
    ],
)
async def test_the_four_timeouts(options: dict[str, Any], outcome: Any, told: str, after: float) -> None:
    app, work, calls = _app(_echo, **options)
    async with WorkflowEnvironment(app) as env:
        env.mock(work, outcome)
        assert await (await env.start(calls)).result() == told
        assert env.now() == START + timedelta(seconds=after)


async def test_fail_twice_then_run_the_declared_function() -> None:
    app, work, calls = _app(_echo)
    async with WorkflowEnvironment(app) as env:
        mock = env.mock(work, failing(2, OSError("down")))
        handle = await env.start(calls, "x")
        assert await handle.result() == "x"
        assert [call.attempt for call in mock.calls] == [1, 2, 3]
        started = [
            DATA_OF[EventKind.ACTIVITY_STARTED]
            for event in env.history(handle).events
            if event.kind == EventKind.ACTIVITY_STARTED
        ]
        assert started == [ActivityStarted] * 3


async def test_a_policy_is_kept_to() -> None:
    app, work, calls = _app(
        _echo, retry=Retry(max_attempts=9, initial_interval=timedelta(seconds=10), non_retryable=("KeyError",))
    )
    async with WorkflowEnvironment(app) as env:
        env.mock(work, in_turn(OSError("1"), OSError("2"), KeyError("3")))
        assert await (await env.start(calls)).result() == "KeyError at attempt 3"
        assert env.now() == START + timedelta(seconds=30)


async def test_a_function_stands_in_with_the_arguments_and_the_context() -> None:
    app, work, calls = _app(_echo)

    async def doubled(ctx: ActivityContext, value: int) -> int:
        await asyncio.sleep(60)
        return value * 2 + ctx.attempt

    async with WorkflowEnvironment(app) as env:
        mock = env.mock(work, doubled)
        assert await (await env.start(calls, 20)).result() == 41
        assert mock.calls[0].args == (20,)
        assert env.now() == START + timedelta(minutes=1)
        env.mock(work, lambda value: value + 1)
        assert await (await env.start(calls, 1)).result() == 2


async def test_a_result_must_fit_the_declared_type() -> None:
    async def counts(value: Any) -> int:
        return 1

    app, work, calls = _app(counts)
    async with WorkflowEnvironment(app) as env:
        env.mock(work, "many")
        assert await (await env.start(calls)).result() == "ResultTypeError at attempt 1"


async def test_sleeping_activities_take_virtual_time() -> None:
    async def polls(times: int) -> int:
        for _ in range(times):
            await asyncio.sleep(1)
        async with asyncio.timeout(1_000):
            await asyncio.gather(asyncio.sleep(100), asyncio.sleep(200))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        return times

    app, _, calls = _app(polls, start_to_close=timedelta(hours=1))
    async with WorkflowEnvironment(app) as env:
        assert await (await env.start(calls, 600)).result() == 600
        assert env.now() == START + timedelta(seconds=600 + 200 + 5 + 5)


async def test_a_sleep_that_was_imported_by_name_takes_virtual_time_too() -> None:
    async def naps(seconds: int) -> int:
        await nap(seconds)
        return seconds

    app, _, calls = _app(naps)
    async with WorkflowEnvironment(app) as env:
        assert await (await env.start(calls, 300)).result() == 300
        assert env.now() == START + timedelta(minutes=5)
    began = asyncio.get_running_loop().time()
    await nap(0.01)
    assert asyncio.get_running_loop().time() - began >= 0.009


async def test_time_is_not_skipped_while_something_real_is_under_way() -> None:
    """A timer of an hour does not come before an activity that takes a moment of real time."""

    async def works(_: Any) -> str:
        await asyncio.get_running_loop().run_in_executor(None, threading.Event().wait, 0.05)
        return "first"

    app = Harvest()
    work = app.activity(name="works")(works)

    @app.workflow
    async def races(ctx: WorkflowContext) -> int:
        return (await ctx.race(ctx.execute_activity(work, None), ctx.sleep(3600))).index

    async with WorkflowEnvironment(app) as env:
        assert await (await env.start(races)).result() == 0
        assert env.now() == START


async def test_heartbeats_keep_an_attempt_alive_and_hand_on_their_details() -> None:
    async def pages(ctx: ActivityContext, count: int) -> list[int]:
        first = ctx.heartbeat_details(int) or 0
        for page in range(first, count):
            await asyncio.sleep(3)
            ctx.heartbeat(page + 1)
            if page == 4 and ctx.attempt == 1:
                await asyncio.sleep(60)
        return [first, ctx.attempt]

    app, _, calls = _app(pages, heartbeat_timeout=timedelta(seconds=5))
    async with WorkflowEnvironment(app) as env:
        assert await (await env.start(calls, 10)).result() == [5, 2]
        assert env.now() == START + timedelta(seconds=5 * 3 + 5 + 1 + 5 * 3)


async def test_a_plain_function_runs_in_a_thread_with_its_heartbeat() -> None:
    def works(ctx: ActivityContext, value: int) -> list[Any]:
        ctx.heartbeat({"at": value})
        if ctx.attempt == 1:
            raise OSError
        return [ctx.heartbeat_details(), threading.current_thread() is threading.main_thread()]

    app, _, calls = _app(works)
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(calls, 3)
        assert await handle.result() == [{"at": 3}, False]


async def test_an_activity_that_the_test_holds_is_not_waited_for_by_a_start() -> None:
    app, work, calls = _app(_echo, start_to_close=timedelta(seconds=30), retry=Retry(max_attempts=1))
    async with WorkflowEnvironment(app) as env:
        gate = asyncio.Event()
        env.mock(work, lambda _: gate.wait())
        handle = await env.start(calls)
        assert [wait.name for wait in env.look(handle).waits] == ["work"]
        asyncio.get_running_loop().call_soon(gate.set)
        assert await handle.result() is True
        gate.clear()
        handle = await env.start(calls)
        await env.skip(30)
        assert await handle.result() == "start_to_close at attempt 1"


async def test_an_activity_that_never_ends_by_itself_is_named() -> None:
    app, work, calls = _app(_echo)
    async with WorkflowEnvironment(app, patience=0.05) as env:
        env.mock(work, lambda _: asyncio.Event().wait())
        handle = await env.start(calls)
        with pytest.raises(ResultTimeoutError, match=r"activity 'work' is under way for 0\.05 s of real time"):
            await handle.result()


async def test_an_activity_without_code_is_named() -> None:
    app = Harvest()

    @app.workflow
    async def elsewhere(ctx: WorkflowContext) -> Any:
        return await ctx.execute_activity("far_away", [1, 2])

    async with WorkflowEnvironment(app) as env:
        handle = await env.start(elsewhere)
        with pytest.raises(ResultTimeoutError, match="activity 'far_away', for which there is no code here"):
            await handle.result()
        env.mock("far_away", lambda value: sum(value))
        assert await (await env.start(elsewhere)).result() == 3


async def test_a_cancelled_activity_is_asked_to_stop() -> None:
    stopped = []

    async def slow(_: Any) -> None:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            stopped.append(True)
            raise

    app = Harvest()
    work = app.activity(name="slow")(slow)

    @app.workflow
    async def gives_up(ctx: WorkflowContext) -> str:
        try:
            async with asyncio.timeout(10):
                await ctx.execute_activity(work, None)
        except TimeoutError:
            await ctx.sleep(1)
            return "gave up"
        return "got it"

    async with WorkflowEnvironment(app) as env:
        handle = await env.start(gives_up)
        assert await handle.result() == "gave up"
        assert stopped == [True]
        kinds = [event.type for event in env.history(handle).events]
        assert kinds[kinds.index("ActivityCancelRequested") :][:2] == ["ActivityCancelRequested", "TimerStarted"]
        assert "ActivityFailed" in kinds


async def test_what_runs_ends_with_its_run() -> None:
    stopped = []

    async def slow(_: Any) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            stopped.append(True)

    app, _, calls = _app(slow)
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(calls)
        await handle.terminate()
        await asyncio.sleep(0)
        assert stopped == [True]


async def test_local_activities_run_and_are_tried_again() -> None:
    app = Harvest()
    tries = []

    @app.activity
    async def quick(value: int) -> int:
        tries.append(value)
        if len(tries) % 2:
            raise OSError("once")
        return value + 1

    @app.workflow
    async def locals_only(ctx: WorkflowContext) -> list[Any]:
        try:
            await ctx.execute_local_activity(quick, 1)
        except ActivityError as error:
            first = error.fields["type"]
        await ctx.execute_local_activity(quick, 2)
        with_retry = quick.with_options(retry=Retry(max_attempts=2, initial_interval=timedelta(seconds=3)))
        return [first, await ctx.execute_local_activity(with_retry, 3)]

    async with WorkflowEnvironment(app) as env:
        handle = await env.start(locals_only)
        assert await handle.result() == ["OSError", 4]
        assert tries == [1, 2, 3, 3]
        assert env.now() == START + timedelta(seconds=3)


async def test_a_local_activity_has_its_time() -> None:
    app = Harvest()

    @app.activity(start_to_close=timedelta(seconds=2))
    async def hangs() -> None:
        await asyncio.sleep(50)

    @app.workflow
    async def local(ctx: WorkflowContext) -> None:
        await ctx.execute_local_activity(hangs)

    async with WorkflowEnvironment(app) as env:
        with pytest.raises(WorkflowFailedError, match="TimeoutError"):
            await (await env.start(local)).result()
        assert env.now() == START + timedelta(seconds=2)


async def test_a_pause_holds_what_is_to_begin() -> None:
    app, work, calls = _app(_echo, schedule_to_close=timedelta(minutes=5))
    async with WorkflowEnvironment(app) as env:
        env.mock(work, in_turn(OSError("once"), "done"))
        handle = await env.start(calls)
        await handle.pause()
        await env.skip(timedelta(hours=1))
        assert len(env.calls(work)) == 1
        await handle.resume()
        assert await handle.result() == "done"


async def test_thousands_of_activities_at_once() -> None:
    app = Harvest()

    @app.activity
    async def one(number: int) -> int:
        return number

    @app.workflow
    async def many(ctx: WorkflowContext) -> int:
        return sum(await ctx.fan_out(one, range(1_000)))

    async with WorkflowEnvironment(app) as env:
        assert await (await env.start(many)).result() == 499_500
