"""Handlers of signals and updates: who gets what, in which order, and what is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from harvest.errors import DefinitionError, ForbiddenInWorkflowError
from harvest.history.data import RetryPolicy, UpdateCompleted, UpdateFailed
from harvest.history.kinds import EventKind
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


# Signals


def test_a_handler_takes_what_has_come_first_and_then_all_that_comes() -> None:
    async def listens(ctx: WorkflowContext) -> list[int]:
        seen: list[int] = []
        await ctx.wait_for_signal("begin")
        ctx.register_signal_handler("n", seen.append)
        await ctx.wait_for_signal("end")
        return seen

    one = Driven(listens)
    for name, value in (("n", 1), ("n", 2), ("begin", None), ("n", 3), ("end", None), ("n", 4)):
        one.signal(name, value)
    assert one.result == [1, 2, 3]
    assert one.run.messages.unhandled() == 1


def test_a_signal_that_was_taken_does_not_come_again() -> None:
    async def takes(ctx: WorkflowContext) -> list[list[int]]:
        taken = [await ctx.wait_for_signal("n", int), await ctx.wait_for_signal("n", int)]
        handled: list[int] = []
        ctx.register_signal_handler("n", handled.append)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [taken, handled]

    one = Driven(takes, carried=3)
    for number in (1, 2, 3):
        one.signal("n", number)
    assert one.result == [[1, 2], [3]]


def test_signals_that_are_waited_for_go_round_in_order() -> None:
    async def waits(ctx: WorkflowContext) -> list[str]:
        found: list[str] = []

        async def waiter(name: str) -> None:
            found.append(f"{name}{await ctx.wait_for_signal('n', int)}")

        await asyncio.gather(waiter("a"), waiter("b"), waiter("c"))
        return found

    one = Driven(waits)
    for number in (1, 2, 3):
        one.signal("n", number)
    assert one.result == ["a1", "b2", "c3"]


def test_a_handler_may_wait_and_several_run_at_once() -> None:
    async def listens(ctx: WorkflowContext) -> list[str]:
        done: list[str] = []

        async def on_signal(name: str) -> None:
            done.append(str(await ctx.execute_activity("work", name)))

        ctx.register_signal_handler("n", on_signal)
        await ctx.wait_condition(lambda: len(done) == 2 and ctx.all_handlers_finished())
        return done

    one = Driven(listens)
    one.signal("n", "a")
    one.signal("n", "b")
    one.committed()
    one.completed(2, "second")
    one.completed(1, "first")
    assert one.result == ["second", "first"]
    assert one.replayed().blocked is None


def test_what_a_signal_handler_raises_fails_the_run() -> None:
    async def listens(ctx: WorkflowContext) -> None:
        async def on_signal(name: str) -> None:
            raise ValueError(name)

        ctx.register_signal_handler("n", on_signal)
        await ctx.wait_for_signal("never")

    one = Driven(listens)
    one.signal("n", "no")
    assert one.failure.type == "ValueError"
    one.signal("n", "after the end")
    assert one.failure.message == "no"
    assert one.run.messages.unhandled() == 1


def test_a_signal_that_does_not_fit_its_handler_blocks_the_run() -> None:
    async def listens(ctx: WorkflowContext) -> None:
        def on_signal(number: int) -> None: ...

        ctx.register_signal_handler("n", on_signal)
        await ctx.wait_for_signal("never")

    one = Driven(listens)
    one.signal("n", "seven")
    assert one.run.blocked is not None
    assert one.run.blocked.slug == "payload_undecodable"


def test_a_handlers_defaults_are_its_own_runs() -> None:
    """Runs of one type share the code of their handlers, not what each has bound."""

    async def listens(ctx: WorkflowContext, base: int) -> int:
        found: list[int] = []

        def on_signal(amount: int = base) -> None:
            found.append(amount)

        ctx.register_signal_handler("n", on_signal)
        await ctx.wait_condition(lambda: bool(found))
        return found[0]

    for base in (3, 4):
        one = Driven(listens, base)
        one.signal("n")
        assert one.result == base


# Updates


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


# Registering


@pytest.mark.parametrize("kind", ["signal", "update", "query"])
def test_one_name_has_one_handler(kind: str) -> None:
    async def twice(ctx: WorkflowContext) -> None:
        for _ in range(2):
            getattr(ctx, f"register_{kind}_handler")("n", lambda: None)

    assert Driven(twice).failure.type == "DefinitionError"


def test_validators_and_queries_are_plain_functions() -> None:
    async def sees(amount: int) -> None: ...

    async def registers(ctx: WorkflowContext) -> list[str]:
        found = []
        for register in (
            lambda: ctx.register_update_handler("u", lambda: 1, validator=sees),
            lambda: ctx.register_query_handler("q", sees),
        ):
            with pytest.raises(DefinitionError) as refused:
                register()
            found.append(refused.value.message)
        return found

    validator, query = Driven(registers).result
    assert "plain function" in validator
    assert "plain function" in query


def test_updates_and_signals_of_the_starting_transaction_keep_their_order() -> None:
    async def listens(ctx: WorkflowContext) -> list[str]:
        seen: list[str] = []
        ctx.register_update_handler("u", lambda text: seen.append(f"update {text}"))
        ctx.register_signal_handler("s", lambda text: seen.append(f"signal {text}"))
        await ctx.wait_condition(lambda: len(seen) == 3)
        return seen

    one = Driven(listens, carried=3)
    one.signal("s", "a")
    one.update("u", "b")
    one.signal("s", "c")
    assert one.result == ["update b", "signal a", "signal c"], "in the order of registration, then of arrival"
    assert [kind for kind, _ in one.asked] == [EventKind.UPDATE_COMPLETED.word]


def test_a_validator_that_wakes_the_code_blocks_the_run() -> None:
    async def waits(ctx: WorkflowContext) -> None:
        woken = asyncio.Event()
        ctx.register_update_handler("wake", lambda: None, validator=woken.set)
        await woken.wait()

    one = Driven(waits)
    one.update("wake")
    assert isinstance(one.run.blocked, ForbiddenInWorkflowError)
    assert "validator" in one.run.blocked.message


def test_an_update_that_comes_as_the_run_fails_goes_to_its_next_attempt() -> None:
    async def fails(ctx: WorkflowContext) -> None:
        ctx.register_update_handler("set", lambda: "done")
        await ctx.execute_activity("breaks")

    one = Driven(fails, retry=RetryPolicy(max_attempts=2))
    one.committed()
    one.failed(1)
    one.update("set")
    assert one.asked == []
    outcome = one.outcome
    assert outcome is not None
    assert outcome.onward is not None
    assert [kind for kind, _ in outcome.onward.carried] == [EventKind.UPDATE_ADMITTED]


def test_an_update_that_comes_as_the_run_fails_for_good_is_refused() -> None:
    async def fails(ctx: WorkflowContext) -> None:
        ctx.register_update_handler("set", lambda: "done")
        await ctx.execute_activity("breaks")

    one = Driven(fails, retry=RetryPolicy(max_attempts=2))
    one.committed()
    one.failed(1)
    one.update("set")
    one.cancel()
    assert one.asked == [("UpdateFailed", 4)]
    assert one.outcome is not None
    assert one.outcome.onward is None


def test_waiting_again_and_again_leaves_nothing_behind() -> None:
    async def polls(ctx: WorkflowContext) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await ctx.wait_for_signal("go", timeout=1)

    one = Driven(polls)
    one.committed()
    for number in range(1, 21):
        one.fired(number)
        one.committed()
    assert len(one.run.messages.waiters["go"]) <= 2
