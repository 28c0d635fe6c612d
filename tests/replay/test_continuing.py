"""Going on as a new run: what ends, what is carried over, and what the successor begins with."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harvest.history.data import (
    RetryPolicy,
    SignalReceived,
    UpdateAdmitted,
    WorkflowContinuedAsNew,
    WorkflowExecutionPaused,
    WorkflowExecutionResumed,
    WorkflowFailed,
    WorkflowStarted,
)
from harvest.history.kinds import EventKind
from harvest.replay.context import WorkflowContext
from harvest.replay.continuing import Onward
from tests.replay.driving import Driven
from tests.replay.noting import as_workflow, child
from tests.replay.oracle import IDENTITY, START


def _onward(one: Driven) -> Onward:
    outcome = one.outcome
    assert outcome is not None
    assert outcome.onward is not None, f"the run ended as {outcome.kind.word}"
    return outcome.onward


def _carried(one: Driven) -> list[tuple[str, str]]:
    """Kinds and names, or reasons, of what goes along."""
    found = []
    for kind, data in _onward(one).carried:
        held = msgspec.json.decode(data)
        found.append((EventKind(kind).word, held.get("name") or held["reason"]))
    return found


async def rotates(ctx: WorkflowContext, count: int) -> None:
    await ctx.wait_for_signal("go")
    ctx.continue_as_new(count + 1)


def test_the_successor_begins_where_the_code_said() -> None:
    one = Driven(rotates, 3)
    one.signal("go")
    onward = _onward(one)
    assert one.outcome is not None
    ended = msgspec.json.decode(one.outcome.payload, type=WorkflowContinuedAsNew)
    assert ended.new_execution_id == str(onward.execution_id)
    started = msgspec.json.decode(onward.event(), type=WorkflowStarted)
    assert bytes(started.input) == b"4"
    assert started.previous_execution_id == started.first_execution_id == str(IDENTITY.execution_id)
    assert started.seed != one.run.started.seed
    assert (started.workflow_name, started.workflow_id, started.attempt) == ("driven", "w-1", 1)


def test_its_id_is_the_same_however_often_the_decision_is_sent() -> None:
    one = Driven(rotates, 3)
    one.signal("go")
    assert _onward(one).execution_id == _onward(one).execution_id
    again = one.replayed()
    assert again.continued is not None


def test_it_may_go_on_as_another_type() -> None:
    async def changes(ctx: WorkflowContext) -> None:
        ctx.continue_as_new(1, 2, workflow=child)

    started = _onward(Driven(changes)).started
    assert (started.workflow_name, bytes(started.input)) == ("child", b"[1,2]")


async def leaves_much(ctx: WorkflowContext) -> None:
    """Takes one signal of each name, then goes on as new."""
    await ctx.wait_for_signal("a")
    await ctx.wait_for_signal("b")
    ctx.continue_as_new()


def test_what_nobody_took_goes_along_in_order() -> None:
    one = Driven(leaves_much)
    one.signal("c", 1)
    one.signal("a", 2)
    one.signal("a", 3)
    one.event(EventKind.SIGNAL_RECEIVED, 0, SignalReceived("c", actor="ann"))
    one.signal("b", 5)
    one.update("late")
    one.signal("b", 6)
    assert _carried(one) == [
        ("SignalReceived", "c"),
        ("SignalReceived", "a"),
        ("SignalReceived", "c"),
        ("UpdateAdmitted", "late"),
        ("SignalReceived", "b"),
    ]
    onward = _onward(one)
    assert onward.started.carried == 5
    signals = [msgspec.json.decode(data, type=SignalReceived) for kind, data in onward.carried if kind == 14]
    assert [each.actor for each in signals] == ["", "", "ann", ""]
    update = next(msgspec.json.decode(data, type=UpdateAdmitted) for kind, data in onward.carried if kind == 28)
    assert update.update_id == "u7"


def test_a_cancel_request_that_came_after_the_code_had_left_goes_along() -> None:
    one = Driven(leaves_much)
    one.signal("a")
    one.signal("b")
    one.cancel()
    assert _carried(one) == [("WorkflowCancelRequested", "enough")]


def test_a_cancel_request_that_the_code_saw_does_not() -> None:
    async def goes_on(ctx: WorkflowContext) -> None:
        try:
            await ctx.wait_for_signal("never")
        except asyncio.CancelledError:
            ctx.continue_as_new()

    one = Driven(goes_on)
    one.cancel()
    assert _carried(one) == []


def test_an_update_under_way_is_answered_and_does_not_go_along() -> None:
    async def goes_on(ctx: WorkflowContext) -> None:
        async def slow() -> None:
            await ctx.execute_activity("slow")

        ctx.register_update_handler("slow", slow)
        await ctx.wait_for_signal("go")
        ctx.continue_as_new()

    one = Driven(goes_on)
    one.update("slow")
    one.committed()
    one.signal("go")
    assert one.asked == [("UpdateFailed", 2)]
    assert _carried(one) == []


@pytest.mark.parametrize("how", ["group", "timeout", "nested"])
def test_it_leaves_through_whatever_the_code_has_around_it(how: str) -> None:
    async def leaves(ctx: WorkflowContext) -> None:
        if how == "timeout":
            async with asyncio.timeout(5):
                ctx.continue_as_new()
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.execute_activity("work"))
            await asyncio.sleep(0)
            if how == "nested":
                async with asyncio.TaskGroup():
                    ctx.continue_as_new()
            ctx.continue_as_new()

    assert _onward(Driven(leaves)).started.workflow_name == "driven"


def test_a_failure_beside_it_fails_the_run() -> None:
    async def fails(ctx: WorkflowContext) -> None:
        async def careless() -> None:
            try:
                await ctx.execute_activity("work")
            finally:
                raise ValueError

        async with asyncio.TaskGroup() as group:
            group.create_task(careless())
            await asyncio.sleep(0)
            ctx.continue_as_new()

    assert Driven(fails).failure.type == "BaseExceptionGroup"


def test_only_the_function_itself_may_say_it() -> None:
    async def in_a_task(ctx: WorkflowContext) -> str:
        async def says() -> None:
            ctx.continue_as_new()

        try:
            await asyncio.create_task(says())
        except Exception as error:
            return str(error)
        return "said"

    assert "the workflow function itself" in Driven(in_a_task).result


def test_cleanup_may_wait_before_the_run_goes_on() -> None:
    async def cleans(ctx: WorkflowContext) -> None:
        try:
            ctx.continue_as_new()
        finally:
            await ctx.execute_activity("clean up")

    one = Driven(cleans)
    assert one.outcome is None
    one.committed()
    one.completed(1)
    assert _onward(one).keeps_children


def test_what_cannot_be_stored_is_refused_where_it_is_said() -> None:
    async def says(ctx: WorkflowContext, value: Any) -> str:
        try:
            ctx.continue_as_new(object())
        except Exception as error:
            return type(error).__name__
        return "said"

    assert Driven(says).result == "PayloadError"


# Retries


RETRY = RetryPolicy(max_attempts=3, initial_interval=10.0, non_retryable=("Fatal",))


async def fails(ctx: WorkflowContext, kind: str) -> None:
    await ctx.wait_for_signal("go")
    raise type(kind, (Exception,), {})("no")


def test_a_failed_run_is_tried_again_with_its_input_and_unread_signals() -> None:
    one = Driven(fails, "Flaky", retry=RETRY)
    one.signal("kept")
    one.signal("go")
    onward = _onward(one)
    assert one.outcome is not None
    ended = msgspec.json.decode(one.outcome.payload, type=WorkflowFailed)
    assert ended.retry_execution_id == str(onward.execution_id)
    assert (onward.delay, onward.started.attempt, bytes(onward.started.input)) == (10.0, 2, b'"Flaky"')
    assert onward.started.last_failure is not None
    assert (onward.started.last_failure.type, onward.started.last_failure.traceback) == ("Flaky", "")
    assert _carried(one) == [("SignalReceived", "kept")]
    assert not onward.keeps_children


@pytest.mark.parametrize(
    ("kind", "retry", "chain_deadline"),
    [
        ("Fatal", RETRY, None),
        ("Flaky", RetryPolicy(max_attempts=1), None),
        ("Flaky", RETRY, START + timedelta(seconds=11)),
        ("Flaky", None, None),
    ],
)
def test_it_is_not_where_its_policy_or_its_chain_says_no(
    kind: str, retry: RetryPolicy | None, chain_deadline: Any
) -> None:
    one = Driven(fails, kind, retry=retry, chain_deadline=chain_deadline)
    one.signal("go")
    assert one.outcome is not None
    assert one.outcome.onward is None
    assert one.failure.type == kind


@pytest.mark.parametrize("after_the_end", [True, False])
def test_a_run_that_was_asked_to_end_is_not_tried_again(after_the_end: bool) -> None:
    async def careless(ctx: WorkflowContext) -> None:
        try:
            await ctx.wait_for_signal("go")
        finally:
            raise ValueError

    one = Driven(careless, retry=RETRY)
    if after_the_end:
        one.signal("go")
    one.cancel()
    assert one.failure.type == "ValueError"
    assert one.outcome is not None
    assert one.outcome.onward is None


def test_info_tells_of_the_chain() -> None:
    async def tells(ctx: WorkflowContext) -> list[Any]:
        info = ctx.info
        failure = info.last_failure
        return [info.attempt, str(info.previous_execution_id), str(info.first_execution_id), failure and failure.type]

    one = Driven(fails, "Flaky", retry=RETRY)
    one.signal("go")
    onward = _onward(one)
    then = Driven(tells)
    then.events.clear()
    then.run = then._run(tells)
    then.event(EventKind.WORKFLOW_STARTED, 0, msgspec.structs.replace(onward.started, carried=0))
    assert then.result == [2, str(IDENTITY.execution_id), str(IDENTITY.execution_id), "Flaky"]


def test_the_deadline_of_the_chain_is_kept_by_its_runs() -> None:
    deadline = START + timedelta(hours=1)

    async def looks(ctx: WorkflowContext) -> None:
        left = ctx.time_until_deadline()
        assert left == deadline - ctx.now()
        await ctx.wait_for_signal("go")
        assert ctx.should_continue_as_new()
        ctx.continue_as_new()

    one = Driven(looks, chain_deadline=deadline)
    one.at = START + timedelta(minutes=50)
    one.signal("go")
    assert _onward(one).started.chain_deadline == deadline


def test_a_workflow_of_the_same_name_is_named_only_where_it_differs() -> None:
    other = as_workflow(rotates, "other")

    async def changes(ctx: WorkflowContext) -> None:
        ctx.continue_as_new(1, workflow=other)

    for code, named in ((changes, "other"), (rotates, "")):
        one = Driven(code, 1)
        one.signal("go")
        assert one.outcome is not None
        assert msgspec.json.decode(one.outcome.payload, type=WorkflowContinuedAsNew).workflow_name == named


def _held(one: Driven, hours: int) -> None:
    one.event(EventKind.WORKFLOW_EXECUTION_PAUSED, 0, WorkflowExecutionPaused())
    one.at += timedelta(hours=hours) - one.tick
    one.event(EventKind.WORKFLOW_EXECUTION_RESUMED, 0, WorkflowExecutionResumed())


def test_the_deadline_of_the_chain_moves_by_as_long_as_its_runs_were_held() -> None:
    async def looks(ctx: WorkflowContext, number: int | None) -> None:
        await ctx.wait_for_signal("go")
        assert ctx.info.deadline == START + timedelta(hours=6)
        ctx.continue_as_new(1)

    one = Driven(looks, chain_deadline=START + timedelta(hours=1))
    _held(one, 2)
    _held(one, 3)
    one.signal("go")
    assert _onward(one).started.chain_deadline == START + timedelta(hours=6)
    assert one.replayed().deadline == START + timedelta(hours=6)


def test_a_run_that_was_held_beyond_its_chains_deadline_is_tried_again_all_the_same() -> None:
    async def fails(ctx: WorkflowContext) -> None:
        await ctx.wait_for_signal("go")
        raise ValueError("no")

    one = Driven(fails, retry=RetryPolicy(max_attempts=2), chain_deadline=START + timedelta(hours=1))
    _held(one, 2)
    one.signal("go")
    assert _onward(one).started.attempt == 2
