"""Handlers of signals and updates: who gets what, in which order, and what is answered."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from harvest.errors import DefinitionError, ForbiddenInWorkflowError
from harvest.history.data import RetryPolicy
from harvest.history.kinds import EventKind
from harvest.replay.context import WorkflowContext
from tests.replay.driving import Driven


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
    assert one.run.unhandled_signals() == 1


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
    assert one.run.unhandled_signals() == 1


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
