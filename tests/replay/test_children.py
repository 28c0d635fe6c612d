"""Children and other runs as a workflow sees them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harvest.definitions.children import ChildPlacement
from harvest.errors import ChildWorkflowError, DefinitionError, ExternalWorkflowError
from harvest.history.data import ChildWorkflowStarted
from harvest.history.ids import parse_execution_id, shard_of
from harvest.history.kinds import EventKind
from harvest.replay.context import ChildHandle, WorkflowContext
from harvest.replay.relations import CancelChild, StartChild
from harvest.replay.run import Run
from tests.replay.driving import Driven
from tests.replay.noting import child, fanned_child
from tests.replay.oracle import IDENTITY

ELSEWHERE = "00000000-0000-8000-8000-00000000beef"


def _asked_for(run: Run) -> StartChild:
    return next(command for command in run.asked.values() if isinstance(command, StartChild))


async def awaits_one(ctx: WorkflowContext) -> int:
    return int(await ctx.execute_child_workflow(child, 1, 2))


def test_its_id_is_known_at_once_and_the_same_on_every_replay() -> None:
    async def begins(ctx: WorkflowContext) -> list[str]:
        handle = await ctx.start_child_workflow(child, 1, 2)
        known = [str(handle.execution_id), handle.workflow_id]
        await handle
        return known

    one = Driven(begins)
    command = _asked_for(one.run)
    assert command.workflow_id == f"{IDENTITY.execution_id}/1"
    assert shard_of(command.child_id) == shard_of(IDENTITY.execution_id)
    one.committed()
    data: ChildWorkflowStarted = one.events[-1].data()
    again = one.replayed()
    assert again.blocked is None
    one.child_completed(1, 5)
    assert one.result == [data.child_id, data.workflow_id]


def test_options_of_one_call() -> None:
    async def begins(ctx: WorkflowContext) -> None:
        chosen = child.with_options(
            workflow_id="c-9", queue="far", priority=3, close_policy="terminate", placement=ChildPlacement.Shard(7)
        )
        await ctx.start_child_workflow(chosen, 1, 2)

    one = Driven(begins)
    one.committed()
    data: ChildWorkflowStarted = one.events[1].data()
    assert (data.workflow_id, data.queue, data.priority, data.close_policy) == ("c-9", "far", 3, "terminate")
    assert shard_of(parse_execution_id(data.child_id)) == 7


def test_what_it_did_not_complete_with_is_raised() -> None:
    async def catches(ctx: WorkflowContext) -> list[str]:
        try:
            await ctx.execute_child_workflow(child, 1, 2)
        except ChildWorkflowError as error:
            return [error.fields["state"], error.fields["type"], type(error.__cause__).__name__]
        return []

    one = Driven(catches)
    one.committed()
    one.child_failed(1, "TERMINATED", "Terminated")
    assert one.result == ["TERMINATED", "Terminated", "ApplicationError"]


def test_results_go_by_number_and_not_by_order() -> None:
    async def both(ctx: WorkflowContext) -> list[int]:
        return list(
            await asyncio.gather(ctx.execute_child_workflow(child, 1, 0), ctx.execute_child_workflow(child, 2, 0))
        )

    one = Driven(both)
    one.committed()
    one.child_completed(2, 22)
    one.child_completed(1, 11)
    assert one.result == [11, 22]


def test_cancelling_its_call_asks_it_to_end_and_ignores_its_late_result() -> None:
    async def gives_up(ctx: WorkflowContext) -> str:
        try:
            async with asyncio.timeout(5):
                await ctx.execute_child_workflow(child, 1, 2)
        except TimeoutError:
            await ctx.wait_for_signal("go")
        return "gave up"

    one = Driven(gives_up)
    one.committed()
    one.fired(1)
    assert one.asked == [("ChildCancelRequested", 2)]
    one.committed()
    one.child_completed(2, 9)
    assert one.outcome is None
    one.signal("go")
    assert one.result == "gave up"
    one.committed()
    assert one.replayed().blocked is None


def test_a_deadline_raises_timeout_error_and_asks_it_to_end() -> None:
    async def waits(ctx: WorkflowContext) -> str:
        try:
            await ctx.execute_child_workflow(child.with_options(deadline=timedelta(seconds=9)), 1, 2)
        except TimeoutError:
            return "late"
        return "in time"

    one = Driven(waits)
    one.committed()
    one.fired(2)
    assert one.result == "late"
    assert one.asked == [("ChildCancelRequested", 1)]


def test_turning_away_from_a_handle_leaves_the_child_running() -> None:
    async def looks_again(ctx: WorkflowContext) -> int:
        handle = await ctx.start_child_workflow(child, 1, 2)
        try:
            async with asyncio.timeout(5):
                await handle
        except TimeoutError:
            pass
        return int(await handle)

    one = Driven(looks_again)
    one.committed()
    one.fired(2)
    assert one.asked == []
    one.child_completed(1, 7)
    assert one.result == 7


def test_cancelling_a_handle_is_seen_by_who_awaits_it() -> None:
    async def cancels(ctx: WorkflowContext) -> list[Any]:
        handle = await ctx.start_child_workflow(child, 1, 2)
        waiting = asyncio.create_task(_outcome(handle))
        await ctx.wait_for_signal("go")
        handle.cancel()
        handle.cancel()
        return [await waiting, handle.done]

    one = Driven(cancels)
    one.committed()
    one.signal("go")
    assert one.asked == [("ChildCancelRequested", 1)]
    assert one.result == ["cancelled", True]


async def _outcome(handle: ChildHandle[Any]) -> str:
    try:
        await handle
    except asyncio.CancelledError:
        return "cancelled"
    return "completed"


def test_what_is_begun_and_cancelled_within_one_step_never_was() -> None:
    async def changes_its_mind(ctx: WorkflowContext) -> None:
        (await ctx.start_child_workflow(child, 1, 2)).cancel()
        await ctx.sleep(1)

    assert Driven(changes_its_mind).asked == [("TimerStarted", 2)]


def test_a_detached_child_cannot_be_awaited_and_is_cancelled_from_outside() -> None:
    async def detaches(ctx: WorkflowContext) -> str:
        handle = await ctx.start_child_workflow(child.with_options(detached=True), 1, 2)
        try:
            await handle
        except TypeError as error:
            await ctx.sleep(1)
            handle.cancel()
            return str(error)
        return "awaited"

    one = Driven(detaches)
    assert one.asked == [("ChildWorkflowSpawnedDetached", 1), ("TimerStarted", 2)]
    assert _asked_for(one.run).options.close_policy == "abandon"
    one.committed()
    one.fired(2)
    assert "await_external_workflow" in one.result
    assert one.asked == [("ExternalCancelRequested", 3)]


def test_a_child_with_another_type_or_id_is_reported() -> None:
    async def by_id(ctx: WorkflowContext) -> None:
        await ctx.execute_child_workflow(child.with_options(workflow_id="a"), 1, 2)

    async def other_type(ctx: WorkflowContext) -> None:
        await ctx.execute_child_workflow(fanned_child.with_options(workflow_id="a"), [1, 2])

    async def other_id(ctx: WorkflowContext) -> None:
        await ctx.execute_child_workflow(child.with_options(workflow_id="b"), 1, 2)

    async def other_input(ctx: WorkflowContext) -> None:
        await ctx.execute_child_workflow(child.with_options(workflow_id="a"), 1, 3)

    one = Driven(by_id)
    one.committed()
    for code, words in ((other_type, "'fanned_child'"), (other_id, "'b'"), (other_input, "[1,3]")):
        blocked = one.replayed(code).blocked
        assert blocked is not None
        assert blocked.slug == "non_determinism"
        assert words in blocked.message
    assert one.replayed(by_id).blocked is None


def test_signalling_a_child_waits_until_the_signal_has_arrived() -> None:
    async def signals(ctx: WorkflowContext) -> str:
        handle = await ctx.start_child_workflow(child, 1, 2)
        await handle.signal("go", {"n": 1})
        return "arrived"

    one = Driven(signals)
    assert one.asked == [("ChildWorkflowStarted", 1), ("ExternalSignalRequested", 2)]
    one.committed()
    assert one.outcome is None
    one.signalled(2)
    assert one.result == "arrived"


@pytest.mark.parametrize("by_id", [True, False])
def test_other_runs_are_signalled_cancelled_and_awaited(by_id: bool) -> None:
    async def reaches(ctx: WorkflowContext) -> list[Any]:
        found: list[Any] = []
        for reach in _reaching(ctx, by_id):
            try:
                found.append(await reach)
            except ExternalWorkflowError as error:
                found.append(error.fields["reason_code"])
        return found

    one = Driven(reaches)
    one.committed()
    one.signalled(1)
    one.committed()
    one.unreachable(EventKind.EXTERNAL_CANCEL_FAILED, 2, "target_terminal")
    one.committed()
    one.other_completed(3, 42)
    assert one.result == [None, "target_terminal", 42]
    one.committed()
    assert one.replayed().blocked is None


def _reaching(ctx: WorkflowContext, by_id: bool) -> list[Any]:
    if by_id:
        return [
            ctx.signal_external_workflow(ELSEWHERE, "go", 1),
            ctx.cancel_external_workflow(ELSEWHERE, "enough"),
            ctx.await_external_workflow(ELSEWHERE),
        ]
    return [
        ctx.signal_external_workflow_by_id("order", "o-1", "go", 1),
        ctx.cancel_external_workflow_by_id("order", "o-1"),
        ctx.await_external_workflow_by_id("order", "o-1"),
    ]


@pytest.mark.parametrize(("state", "reason"), [("CANCELLED", "not_completed"), ("UNKNOWN", "target_unknown")])
def test_a_run_that_did_not_complete_is_raised_with_its_state(state: str, reason: str) -> None:
    async def waits(ctx: WorkflowContext) -> list[str]:
        try:
            await ctx.await_external_workflow(ELSEWHERE)
        except ExternalWorkflowError as error:
            return [error.fields["state"], error.fields["reason_code"]]
        return []

    one = Driven(waits)
    one.other_failed(1, state)
    assert one.result == [state, reason]


@pytest.mark.parametrize("options", [{"close_policy": "hope"}, {"placement": 65_535}, {"deadline": timedelta(0)}])
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        child.with_options(**options)


def test_the_input_of_a_child_is_what_its_signature_says() -> None:
    async def by_name(ctx: WorkflowContext) -> None:
        await ctx.start_child_workflow(child, salt=1, seen=2)
        await ctx.start_child_workflow("child", 1, 2)

    one = Driven(by_name)
    inputs = [
        msgspec.json.decode(command.input) for command in one.run.asked.values() if isinstance(command, StartChild)
    ]
    assert inputs == [[1, 2], [1, 2]]


async def starts_after_a_signal(ctx: WorkflowContext) -> None:
    await ctx.wait_for_signal("go")
    await starts_and_turns_away(ctx)


async def starts_at_once(ctx: WorkflowContext) -> None:
    await starts_and_turns_away(ctx, ctx.wait_for_signal("go"))


async def starts_and_turns_away(ctx: WorkflowContext, first: Any = None) -> None:
    waiting = asyncio.create_task(ctx.execute_child_workflow(child, 1, 2))
    if first is not None:
        await first
    await ctx.wait_for_signal("stop")
    waiting.cancel()
    await ctx.wait_for_signal("end")


def test_the_child_that_history_has_is_cancelled_where_code_now_asks_for_it_earlier() -> None:
    one = Driven(starts_after_a_signal)
    one.signal("go")
    one.committed()
    started: ChildWorkflowStarted = one.events[-1].data()
    new = one.goes_on_as(starts_at_once)
    assert new.run.blocked is None
    new.signal("stop")
    (cancel,) = new.run.asked.values()
    assert isinstance(cancel, CancelChild)
    assert str(cancel.child_id) == started.child_id
