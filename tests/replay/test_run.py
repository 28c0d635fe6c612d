"""One run, event by event: what is delivered when, what is asked for, and how it ends (design 3, answers 7)."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from msgspec import Raw

from harvest.errors import ActivityError, ActivityTimeoutError
from harvest.history import payload
from harvest.history.data import ActivityTimedOut, SignalReceived
from harvest.history.events import Event, encode_data
from harvest.history.kinds import EventKind
from harvest.replay.context import WorkflowContext
from harvest.replay.decision import outcome_of
from harvest.replay.loop import WorkflowLoop
from harvest.replay.run import Run
from tests.replay.driving import Driven
from tests.replay.oracle import IDENTITY, START


def test_signals_of_the_starting_transaction_come_before_the_code_runs() -> None:
    async def drains(ctx: WorkflowContext) -> list[int]:
        return ctx.drain_signals("n", int)

    one = Driven(drains, carried=2)
    assert one.run.main is not None
    assert not one.run.is_done
    one.signal("n", 1)
    assert not one.run.is_done
    one.signal("n", 2)
    assert one.result == [1, 2]
    assert outcome_of_replay(one) == [1, 2]


def outcome_of_replay(one: Driven) -> object:
    outcome = outcome_of(one.replayed())
    assert outcome is not None
    assert outcome.result is not None
    return payload.decode(outcome.result)


def test_events_are_delivered_one_at_a_time_and_the_loop_rests_between() -> None:
    async def first_wins(ctx: WorkflowContext) -> str:
        activity = asyncio.create_task(ctx.execute_activity("work"), name="activity")
        signal = asyncio.create_task(ctx.wait_for_signal("go"), name="signal")
        done, _ = await asyncio.wait([activity, signal], return_when=asyncio.FIRST_COMPLETED)
        return ",".join(sorted(task.get_name() for task in done))

    one = Driven(first_wins)
    both = [
        Event(2, int(EventKind.SIGNAL_RECEIVED), 0, START, encode_data(SignalReceived("go"))),
        Event(3, int(EventKind.ACTIVITY_COMPLETED), 1, START, b"{}"),
    ]
    one.run.deliver(both)
    assert one.result == "signal"


def test_a_cancel_before_the_first_step_runs_no_code() -> None:
    ran = []

    async def work(ctx: WorkflowContext) -> None:
        ran.append(1)

    one = Driven(work, carried=1)
    one.cancel()
    assert one.outcome is not None
    assert one.outcome.kind is EventKind.WORKFLOW_CANCELLED
    assert not ran


def test_cancelling_raises_at_once_and_cleanup_may_wait() -> None:
    async def compensates(ctx: WorkflowContext) -> str:
        try:
            await ctx.execute_activity("charge")
        except asyncio.CancelledError:
            await ctx.execute_activity("refund")
            raise
        return "charged"

    one = Driven(compensates)
    one.committed()
    one.cancel()
    assert one.asked == [("ActivityCancelRequested", 1), ("ActivityScheduled", 2)]
    one.committed()
    one.cancel()
    assert one.asked == [], "a second request does nothing"
    one.completed(1, "too late")
    assert one.outcome is None
    one.completed(2)
    assert one.outcome is not None
    assert one.outcome.kind is EventKind.WORKFLOW_CANCELLED


def test_a_cancel_that_is_caught_completes() -> None:
    async def catches(ctx: WorkflowContext) -> str:
        try:
            await ctx.sleep(60)
        except asyncio.CancelledError:
            return f"cancelled: {ctx.is_cancelled()}"
        return "slept"

    one = Driven(catches)
    one.cancel()
    assert one.result == "cancelled: True"


@pytest.mark.parametrize("boundary", range(10))
def test_a_cancel_at_any_boundary_of_short_activities_cancels(boundary: int) -> None:
    """Row 30: no await swallows the request."""

    async def short_ones(ctx: WorkflowContext) -> None:
        for number in range(20):
            async with asyncio.timeout(10):
                await asyncio.gather(ctx.execute_activity("a", number), ctx.execute_activity("b", number))

    one = Driven(short_ones)
    seqs = iter([2, 3, 5, 6, 8, 9, 11, 12, 14, 15])
    for _ in range(boundary):
        one.committed()
        one.completed(next(seqs))
    one.cancel()
    assert one.outcome is not None
    assert one.outcome.kind is EventKind.WORKFLOW_CANCELLED


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_exits_fail_the_run_and_not_the_worker(error: type[BaseException]) -> None:
    async def leaves(ctx: WorkflowContext) -> None:
        raise error("out")

    async def in_a_task(ctx: WorkflowContext) -> None:
        await asyncio.create_task(leaves(ctx))

    async def in_a_condition(ctx: WorkflowContext) -> None:
        def never() -> bool:
            if ctx.info.history_events > 1:
                raise error("out")
            return False

        await ctx.wait_condition(never)

    for function in (leaves, in_a_task, in_a_condition):
        one = Driven(function)
        one.signal("go")
        assert one.failure.type == error.__name__, function


def test_a_condition_that_raises_fails_where_it_is_awaited() -> None:
    async def stops(ctx: WorkflowContext) -> str:
        found = iter([False])
        try:
            await ctx.wait_condition(lambda: next(found))
        except RuntimeError as error:
            return str(error)
        return "never"

    assert Driven(stops).result == "StopIteration()"


def test_a_failed_activity_carries_its_cause() -> None:
    async def catches(ctx: WorkflowContext) -> list[str]:
        found = []
        for _ in range(2):
            try:
                await ctx.execute_activity("work")
            except ActivityTimeoutError as error:
                found.append(f"{isinstance(error, TimeoutError)} {error.fields['timeout_type']}")
            except ActivityError as error:
                found.append(f"{type(error.__cause__).__name__} {error.fields['type']}")
        return found

    one = Driven(catches)
    one.failed(1, "CardDeclined")
    one.event(EventKind.ACTIVITY_TIMED_OUT, 2, ActivityTimedOut("heartbeat"))
    assert one.result == ["ApplicationError CardDeclined", "True heartbeat"]


def test_a_late_result_of_a_cancelled_activity_is_ignored() -> None:
    async def gives_up(ctx: WorkflowContext) -> str:
        try:
            async with asyncio.timeout(5):
                await ctx.execute_activity("slow")
        except TimeoutError:
            await ctx.execute_activity("fallback")
        return "fallback"

    one = Driven(gives_up)
    one.committed()
    one.fired(1)
    assert one.asked == [("ActivityCancelRequested", 2), ("ActivityScheduled", 3)]
    one.committed()
    one.completed(2, "late")
    assert one.asked == []
    one.completed(3)
    assert one.result == "fallback"
    assert outcome_of_replay(one) == "fallback"


def test_what_is_asked_for_and_dropped_within_one_step_vanishes() -> None:
    async def changes_its_mind(ctx: WorkflowContext) -> None:
        task = asyncio.create_task(ctx.execute_activity("work"))
        await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
        await ctx.execute_activity("other")

    one = Driven(changes_its_mind)
    assert one.asked == [("ActivityScheduled", 3)]
    one.committed()
    assert one.replayed().blocked is None


def test_what_is_dropped_after_a_refused_commit_is_cancelled_in_history() -> None:
    """A command is final when the loop rests, whether or not its commit has passed."""

    async def racing(ctx: WorkflowContext) -> str:
        try:
            async with asyncio.timeout(60):
                await ctx.wait_for_signal("go")
        except TimeoutError:
            return "late"
        await ctx.execute_activity("work")
        return "done"

    one = Driven(racing)
    one.signal("go")
    assert one.asked == [("TimerStarted", 1), ("TimerCancelled", 1), ("ActivityScheduled", 2)]
    one.committed()
    assert one.replayed().blocked is None


def test_now_never_goes_back() -> None:
    async def looks(ctx: WorkflowContext) -> list[str]:
        seen = [ctx.now()]
        for _ in range(3):
            await ctx.wait_for_signal("tick")
            seen.append(ctx.now())
        return [str((at - START).total_seconds()) for at in seen]

    one = Driven(looks)
    for seconds in (10, 4, 12):
        one.event(EventKind.SIGNAL_RECEIVED, 0, SignalReceived("tick"), at=START + timedelta(seconds=seconds))
    assert one.result == ["1.0", "10.0", "10.0", "12.0"]


def test_chance_comes_from_the_seed_of_the_run() -> None:
    async def rolls(ctx: WorkflowContext) -> list[str]:
        return [str(ctx.random().random()), str(ctx.uuid4()), str(ctx.uuid4())]

    one, again, other = Driven(rolls, seed=1), Driven(rolls, seed=1), Driven(rolls, seed=2)
    assert one.result == again.result
    assert not set(one.result) & set(other.result)
    assert len(set(one.result)) == 3


def test_tasks_hash_by_the_seed_and_not_by_a_bare_number() -> None:
    """A bare number would make the tasks of all runs collide in the process-wide set of tasks."""

    async def waits(ctx: WorkflowContext) -> None:
        await asyncio.gather(ctx.execute_activity("a"), ctx.execute_activity("b"))

    runs = [Driven(waits, seed=seed * 1_000_003).run for seed in range(1, 50)]
    hashes = [hash(task) for run in runs for task in run.tasks]
    assert len(set(hashes)) == len(hashes)
    same = Driven(waits, seed=1_000_003).run
    assert [hash(task) for task in same.tasks] == [hash(task) for task in runs[0].tasks]


def test_logs_speak_only_when_the_code_is_live(caplog: pytest.LogCaptureFixture) -> None:
    async def talks(ctx: WorkflowContext) -> None:
        ctx.log.info("before")
        await ctx.execute_activity("work")
        ctx.log.info("after", extra={"cents": 5})

    caplog.set_level(logging.INFO)
    one = Driven(talks)
    one.committed()
    assert [record.message for record in caplog.records] == ["before"]
    replay = Run(one.workflow, IDENTITY, WorkflowContext)
    replay.replay(one.events, one.run.decided_through)
    assert [record.message for record in caplog.records] == ["before"]
    replay.deliver([Event(len(one.events) + 1, int(EventKind.ACTIVITY_COMPLETED), 1, START, b"{}")])
    assert [record.message for record in caplog.records] == ["before", "after"]
    assert caplog.records[-1].__dict__["workflow_id"] == "w-1"
    assert caplog.records[-1].__dict__["cents"] == 5


def test_a_result_that_does_not_fit_blocks_and_wakes_nobody(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    async def takes_a_number(ctx: WorkflowContext) -> None:
        seen.append(await ctx.wait_for_signal("number", int))

    one = Driven(takes_a_number)
    one.signal("number", "seven")
    assert one.run.blocked is not None
    assert one.run.blocked.slug == "payload_undecodable"
    assert not seen


def test_input_that_no_longer_fits_blocks() -> None:
    async def takes_a_number(ctx: WorkflowContext, number: int) -> int:
        return number

    one = Driven(takes_a_number, "seven")
    assert one.run.blocked is not None
    assert one.run.blocked.slug == "payload_undecodable"
    assert one.run.release()


@pytest.mark.parametrize("seconds", [1e12, float("inf")])
def test_a_timer_too_long_is_refused_where_it_is_asked_for(seconds: float) -> None:
    async def sleeps(ctx: WorkflowContext, seconds: float) -> str:
        try:
            await ctx.sleep(float(seconds))
        except Exception as error:
            return type(error).__name__
        return "slept"

    async def by_text(ctx: WorkflowContext, seconds: str) -> str:
        return await sleeps(ctx, float(seconds))

    assert Driven(by_text, str(seconds)).result == "LimitError"


class Unreadable(Exception):
    """Cannot be turned into text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Falsy(Exception):
    """Is false where an error is asked for its truth."""

    def __bool__(self) -> bool:
        return False


def test_an_error_without_text_fails_the_run_all_the_same() -> None:
    async def fails(ctx: WorkflowContext) -> None:
        raise Unreadable

    failure = Driven(fails).failure
    assert failure.type == "Unreadable"
    assert "cannot be read" in failure.message


def test_hostile_text_of_an_error_is_kept_as_utf_8() -> None:
    async def fails(ctx: WorkflowContext) -> None:
        raise ValueError("a\ud800b\x00c" + "x" * 100_000)

    failure = Driven(fails).failure
    assert failure.message.startswith("a?b\x00c")
    assert len(failure.message) == 8_000


def test_a_falsy_error_leaves_gather() -> None:
    async def fails(ctx: WorkflowContext) -> list[str]:
        async def one() -> None:
            raise Falsy

        found = await asyncio.gather(one(), return_exceptions=True)
        try:
            await asyncio.gather(one())
        except Falsy:
            return [type(found[0]).__name__, "raised"]
        return []

    assert Driven(fails).result == ["Falsy", "raised"]


def test_a_run_has_a_loop_of_its_own_that_refuses_the_world() -> None:
    async def looks(ctx: WorkflowContext) -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WorkflowLoop)
        found = []
        for name in ("run_in_executor", "create_connection", "add_reader", "set_task_factory", "connect_read_pipe"):
            try:
                getattr(loop, name)(None, None)
            except Exception as error:
                found.append(f"{name} {type(error).__name__}")
        return found

    names = ("run_in_executor", "create_connection", "add_reader", "set_task_factory", "connect_read_pipe")
    assert Driven(looks).result == [f"{name} ForbiddenInWorkflowError" for name in names]


def test_two_thousand_activities_may_be_pending_and_no_more() -> None:
    async def many(ctx: WorkflowContext) -> str:
        tasks = [asyncio.create_task(ctx.execute_activity("work", number)) for number in range(2_001)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return type(done.pop().exception()).__name__

    one = Driven(many)
    assert one.result == "LimitError"
    assert len(one.run.pending) == 2_000
    assert one.run.release()


def test_activities_named_by_text_take_no_keywords() -> None:
    async def calls(ctx: WorkflowContext) -> None:
        await ctx.execute_activity("work", number=1)

    assert Driven(calls).failure.type == "TypeError"


def test_a_signal_is_kept_byte_for_byte() -> None:
    async def takes(ctx: WorkflowContext) -> float:
        return float(await ctx.wait_for_signal("n", float))

    one = Driven(takes)
    one.event(EventKind.SIGNAL_RECEIVED, 0, SignalReceived("n", Raw(b"-0.0")))
    assert str(one.result) == "-0.0"
