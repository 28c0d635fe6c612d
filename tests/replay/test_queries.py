"""Questions to a parked run: they are answered from what the code knows, and change nothing."""

from __future__ import annotations

import asyncio
import sys
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest

from harvest.errors import PayloadDecodeError, QueryFailedError, QueryNotFoundError
from harvest.replay.context import WorkflowContext
from harvest.replay.run import Run
from tests.replay.driving import Driven
from tests.replay.noting import child


def test_an_answer_is_what_the_code_knows_now() -> None:
    async def counts(ctx: WorkflowContext) -> None:
        count = 0
        ctx.register_query_handler("count", lambda: count)
        while True:
            await ctx.wait_for_signal("n")
            count += 1

    one = Driven(counts)
    assert one.query("count") == 0
    one.signal("n")
    one.signal("n")
    assert one.query("count") == 2


def test_arguments_are_decoded_and_defaults_hold() -> None:
    async def answers(ctx: WorkflowContext) -> None:
        def scaled(by: int, plus: int = 1) -> int:
            return by * 10 + plus

        def with_default(by: int = 7) -> int:
            return by

        ctx.register_query_handler("scaled", scaled)
        ctx.register_query_handler("default", with_default)
        await ctx.wait_for_signal("end")

    one = Driven(answers)
    assert one.query("scaled", [4, 2]) == 42
    assert one.query("default") == 7
    assert one.query("default", 8) == 8
    with pytest.raises(PayloadDecodeError):
        one.query("scaled", ["four", 2])


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    async def answers(ctx: WorkflowContext) -> None:
        ctx.register_query_handler("known", lambda: 1)
        await ctx.wait_for_signal("end")

    with pytest.raises(QueryNotFoundError) as refused:
        Driven(answers).query("unknown")
    assert refused.value.fields["known"] == ["known"]


def test_what_a_handler_raises_is_the_askers_and_not_the_runs() -> None:
    async def answers(ctx: WorkflowContext) -> None:
        def fails() -> None:
            raise ValueError("no")

        async def waits() -> None: ...

        ctx.register_query_handler("fails", fails)
        ctx.register_query_handler("waits", lambda: waits())
        ctx.register_query_handler("exits", lambda: object())
        await ctx.wait_for_signal("end")

    one = Driven(answers)
    for name, words in (("fails", "ValueError: no"), ("waits", "plain function"), ("exits", "PayloadError")):
        with pytest.raises(QueryFailedError) as refused:
            one.query(name)
        assert words in refused.value.message
    assert one.run.blocked is None
    assert one.outcome is None


async def holding(ctx: WorkflowContext) -> None:
    """Has something of every kind under way."""
    handle = await ctx.start_child_workflow(child, 1, 2)
    timer = ctx.start_timer(60)
    task = asyncio.create_task(ctx.execute_activity("work"))
    gathered = asyncio.gather(ctx.execute_activity("more"), ctx.sleep(9))
    acts = {
        "child": handle.cancel,
        "timer": timer.cancel,
        "task": task.cancel,
        "gathered": gathered.cancel,
        "start timer": lambda: ctx.start_timer(1),
        "create task": lambda: asyncio.get_running_loop().create_task(ctx.sleep(1)),
        "call later": lambda: asyncio.get_running_loop().call_later(1, print),
        "create future": asyncio.get_running_loop().create_future,
        "random": ctx.random,
        "uuid": ctx.uuid4,
        "effect": lambda: ctx.side_effect(int),
        "version": lambda: ctx.version("v", 0, 1),
        "receive": lambda: ctx.try_receive_signal("s"),
        "details": lambda: ctx.set_current_details("x"),
        "attributes": lambda: ctx.upsert_search_attributes({"a": 1}),
        "progress": lambda: ctx.publish_progress(1),
        "register": lambda: ctx.register_query_handler("more", int),
        "onward": lambda: ctx.continue_as_new(),
    }

    def act(what: str) -> str:
        acts[what]()
        return "acted"

    ctx.register_query_handler("acts", lambda: list(acts))
    ctx.register_query_handler("act", act)
    await ctx.wait_for_signal("end")


def test_a_handler_may_only_look() -> None:
    one = Driven(holding)
    one.committed()
    one.signal("s")
    before = _facts(one.run)
    for what in one.query("acts"):
        with pytest.raises(QueryFailedError) as refused:
            one.query("act", what)
        assert "may only look" in refused.value.message, what
        assert one.asked == [], what
        assert _facts(one.run) == before, what
    assert one.run.blocked is None
    one.completed(3, "goes on")
    assert 3 not in one.run.pending


def _facts(run: Run) -> list[Any]:
    tasks = [task.done() or task.cancelling() for task in run.tasks]
    held = [sorted(each) for each in (run.timers, run.pending, run.children)]
    return [tasks, held, run.sequence, run.unhandled_signals(), run.details, run.upserts, run.progress]


def test_a_handler_that_wakes_the_code_has_the_run_replayed() -> None:
    """No replay would see that wake: what was disturbed is thrown away."""

    async def waits(ctx: WorkflowContext) -> None:
        event = asyncio.Event()
        ctx.register_query_handler("set", event.set)
        await event.wait()

    one = Driven(waits)
    with pytest.raises(QueryFailedError):
        one.query("set")
    assert one.run.blocked is not None
    assert one.replayed().blocked is None


def test_an_answer_is_the_same_warm_and_cold_whatever_stands_in_history_since() -> None:
    async def answers(ctx: WorkflowContext) -> None:
        ctx.register_query_handler("facts", lambda: [ctx.info.history_events, ctx.now(), ctx.should_continue_as_new()])
        await ctx.execute_activity("work")

    one = Driven(answers)
    one.committed()
    warm = one.query("facts")
    assert warm[0] == 1, "up to the event that was delivered"
    assert msgspec.json.decode(one.replayed().query("facts", b"null")) == warm


_mark: ContextVar[str] = ContextVar("mark", default="clean")


def test_a_handler_leaves_no_mark_in_the_context_of_the_code() -> None:
    async def marks(ctx: WorkflowContext) -> str:
        ctx.register_query_handler("mark", lambda: _mark.set("asked") and None)

        async def on_signal() -> None:
            seen.append(_mark.get())

        seen: list[str] = []
        ctx.register_signal_handler("look", on_signal)
        await ctx.wait_condition(lambda: bool(seen))
        return seen[0]

    one = Driven(marks)
    one.query("mark")
    one.signal("look")
    assert one.result == "clean"


def test_a_blocked_run_answers_nothing_and_harms_nobody() -> None:
    async def answers(ctx: WorkflowContext) -> None:
        ctx.register_query_handler("now", ctx.now)
        await ctx.wait_for_signal("n", int)

    one = Driven(answers)
    one.signal("n", "no number")
    assert one.run.blocked is not None
    for _ in range(300):
        with pytest.raises(QueryFailedError):
            one.query("now")


def test_the_loop_and_hooks_of_the_asker_are_its_own_again() -> None:
    async def answers(ctx: WorkflowContext) -> None:
        ctx.register_query_handler("ask", lambda: asyncio.get_running_loop().time())
        await ctx.wait_for_signal("end")

    before = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
    Driven(answers).query("ask")
    assert (asyncio._get_running_loop(), sys.get_asyncgen_hooks()) == before


def test_handlers_say_what_they_take() -> None:
    async def answers(ctx: WorkflowContext) -> None:
        def add(amount: int) -> int:
            return amount

        ctx.register_update_handler("add", add)
        ctx.register_signal_handler("note", lambda text: None)
        ctx.register_query_handler("total", lambda: 0)
        await ctx.wait_for_signal("end")

    found = Driven(answers).run.handlers()
    assert found.updates["add"]["type"] == "integer"
    assert list(found.signals) == ["note"]
    assert list(found.queries) == ["total"]


def test_a_handler_draws_no_number_that_the_code_would_have_drawn() -> None:
    async def draws(ctx: WorkflowContext) -> float:
        chance = ctx.random()
        ctx.register_query_handler("sample", lambda: chance.choice([1, 2, 3]))
        await ctx.wait_for_signal("go")
        return chance.random()

    asked, other = Driven(draws), Driven(draws)
    with pytest.raises(QueryFailedError, match="may only look"):
        asked.query("sample")
    for one in (asked, other):
        one.signal("go")
    assert asked.result == other.result
