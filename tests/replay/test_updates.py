"""Updates: what is answered, refused, and left to whoever comes after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from harvest.history.data import UpdateCompleted, UpdateFailed
from harvest.replay.context import WorkflowContext
from harvest.replay.records import AnswerUpdate
from tests.replay.driving import Driven


def _answer(one: Driven) -> AnswerUpdate:
    """The answer that is asked for now."""
    (answer,) = [command for command in one.run.asked.values() if isinstance(command, AnswerUpdate)]
    return answer


def _refusal(one: Driven) -> str:
    answer = _answer(one)
    assert answer.failure is not None
    return f"{answer.failure.type} {answer.rejected}"


def test_an_update_is_answered_with_what_its_handler_returns() -> None:
    async def adds(ctx: WorkflowContext) -> int:
        total = 0

        async def add(amount: int) -> int:
            nonlocal total
            total += int(await ctx.execute_activity("price", amount))
            return total

        ctx.register_update_handler("add", add)
        await ctx.wait_for_signal("end")
        return total

    one = Driven(adds)
    one.update("add", 2)
    assert one.asked == [("ActivityScheduled", 1)]
    one.committed()
    one.completed(1, 20)
    answer = _answer(one)
    assert (answer.seq, answer.update_id, answer.output, answer.failure) == (2, "u2", b"20", None)
    one.committed()
    data: UpdateCompleted = one.events[-1].data()
    assert data.update_id == "u2"
    assert one.replayed().blocked is None


def test_an_update_fails_with_what_its_handler_raises_and_the_run_goes_on() -> None:
    async def listens(ctx: WorkflowContext) -> str:
        async def refuse(amount: int) -> int:
            raise ValueError("too much")

        ctx.register_update_handler("add", refuse)
        return str(await ctx.wait_for_signal("end"))

    one = Driven(listens)
    one.update("add", 2)
    assert _refusal(one) == "ValueError False"
    one.signal("end", "well")
    assert one.result == "well"


def test_what_cannot_be_stored_fails_the_update() -> None:
    async def listens(ctx: WorkflowContext) -> None:
        ctx.register_update_handler("add", lambda: object())
        await ctx.wait_for_signal("end")

    one = Driven(listens)
    one.update("add")
    assert _refusal(one) == "PayloadError False"


def test_an_update_that_came_before_the_code_ran_waits_for_its_handler() -> None:
    async def listens(ctx: WorkflowContext) -> int:
        ctx.register_update_handler("add", lambda: 5)
        await ctx.wait_condition(ctx.all_handlers_finished)
        return 1

    one = Driven(listens, carried=1)
    one.update("add")
    assert _answer(one).output == b"5"
    assert one.result == 1


def test_one_without_a_handler_is_refused_when_the_code_comes_to_rest() -> None:
    async def listens(ctx: WorkflowContext) -> None:
        ctx.register_update_handler("known", lambda: None)
        await ctx.wait_for_signal("end")

    one = Driven(listens)
    one.update("unknown")
    assert _refusal(one) == "UpdateHandlerMissing True"
    assert "known" in _answer(one).failure.message  # type: ignore[union-attr]
    one.committed()
    data: UpdateFailed = one.events[-1].data()
    assert data.rejected
    assert one.replayed().blocked is None


async def guarded(ctx: WorkflowContext) -> None:
    """Takes what is below ten."""
    ctx.register_update_handler("add", lambda amount: amount, validator=_below(10))
    await ctx.wait_for_signal("end")


def _below(limit: int) -> Callable[[int], None]:
    def validate(amount: int) -> None:
        if amount >= limit:
            raise ValueError(f"{amount} is too much")

    return validate


def test_a_validator_refuses_before_anything_is_done() -> None:
    one = Driven(guarded)
    one.update("add", 10)
    assert _refusal(one) == "ValueError True"
    one.committed()
    one.update("add", 9)
    assert _answer(one).output == b"9"
    one.committed()
    assert one.replayed().blocked is None


def test_a_validator_may_change_from_build_to_build() -> None:
    """What was refused stays refused and what was taken stays taken."""

    async def stricter(ctx: WorkflowContext) -> None:
        ctx.register_update_handler("add", lambda amount: amount, validator=_below(5))
        await ctx.wait_for_signal("end")

    async def laxer(ctx: WorkflowContext) -> None:
        ctx.register_update_handler("add", lambda amount: amount, validator=_below(100))
        await ctx.wait_for_signal("end")

    one = Driven(guarded)
    for amount in (7, 12):
        one.update("add", amount)
        one.committed()
    assert one.replayed(stricter).blocked is None
    lax = one.goes_on_as(laxer)
    assert lax.run.blocked is None
    lax.update("add", 12)
    assert _answer(lax).output == b"12"
    strict = one.goes_on_as(stricter)
    strict.update("add", 7)
    assert _refusal(strict) == "ValueError True"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_whatever_a_validator_raises_refuses_and_nothing_else_ends(error: type[BaseException]) -> None:
    def validate(amount: int) -> None:
        raise error

    async def listens(ctx: WorkflowContext) -> None:
        ctx.register_update_handler("add", lambda amount: amount, validator=validate)
        await ctx.wait_for_signal("end")

    one = Driven(listens)
    one.update("add", 1)
    assert _refusal(one) == f"{error.__name__} True"
    assert one.outcome is None


def test_a_validator_may_only_look() -> None:
    async def listens(ctx: WorkflowContext) -> None:
        ctx.register_update_handler("add", lambda: 1, validator=lambda: ctx.start_timer(1))
        await ctx.wait_for_signal("end")

    one = Driven(listens)
    one.update("add")
    assert _refusal(one) == "ForbiddenInWorkflowError True"
    assert not one.run.timers


def test_an_input_that_does_not_fit_refuses_the_update() -> None:
    one = Driven(guarded)
    one.update("add", [1, 2, 3])
    assert _refusal(one) == "TypeError True"

    async def typed(ctx: WorkflowContext) -> None:
        def add(amount: int) -> int:
            return amount

        ctx.register_update_handler("add", add)
        await ctx.wait_for_signal("end")

    other = Driven(typed)
    other.update("add", "seven")
    assert _refusal(other) == "PayloadDecodeError True"


def test_the_end_of_the_run_answers_what_is_under_way() -> None:
    async def listens(ctx: WorkflowContext) -> str:
        async def slow() -> None:
            await ctx.execute_activity("slow")

        ctx.register_update_handler("slow", slow)
        await ctx.wait_for_signal("end")
        return "ended"

    one = Driven(listens)
    one.update("slow")
    one.committed()
    one.signal("end")
    assert one.result == "ended"
    assert _refusal(one) == "WorkflowEnded False"
    one.update("slow")
    answers = [command for command in one.run.asked.values() if isinstance(command, AnswerUpdate)]
    assert [answer.rejected for answer in answers] == [False, True]


def test_a_cancelled_handler_fails_its_update() -> None:
    async def listens(ctx: WorkflowContext) -> None:
        async def slow() -> None:
            me.append(asyncio.current_task())
            await ctx.execute_activity("slow")

        me: list[Any] = []
        ctx.register_update_handler("slow", slow)
        await ctx.wait_for_signal("stop")
        me[0].cancel()
        await ctx.wait_for_signal("end")

    one = Driven(listens)
    one.update("slow")
    one.signal("stop")
    assert _refusal(one) == "CancelledError False"
