"""The verifier: a recorded history against today's code, with both sides and the line of the first divergence."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from harvest import Harvest, WorkflowContext
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import ExternalWorkflowError
from harvest.history.document import HistoryDocument, decode_document, encode_document
from harvest.history.states import State
from harvest.testing import Verdict, WorkflowEnvironment, verify


class Order(Struct):
    item: str


class LaterOrder(Struct):
    item: str
    gift: bool = False


class Paid(Struct):
    cents: int


class LaterPaid(Struct):
    cents: int
    currency: str = "CHF"


def _declare(function: Callable[..., Any]) -> tuple[Harvest, WorkflowDefinition[..., Any]]:
    app = Harvest()
    return app, app.workflow(name="shop")(function)


async def _recorded(function: Callable[..., Any], *args: Any, until: str = "result") -> HistoryDocument:
    """A history of the function as it was, from start to end, or to where it waits."""
    app, workflow = _declare(function)
    async with WorkflowEnvironment(app) as env:
        for name in ("reserve", "charge", "ship"):
            env.mock(name, lambda value: value)
        handle = await env.start(workflow, *args)
        if until == "result":
            await handle.result()
        return decode_document(encode_document(env.history(handle)))


def _verdict(document: HistoryDocument, function: Callable[..., Any]) -> Verdict:
    return verify(document, _declare(function)[0].registry)


def _code_at(line: str) -> str:
    """The source that a line `file:number in function` points at."""
    place, _, _ = line.partition(" in ")
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip()


async def before(ctx: WorkflowContext) -> int:
    await ctx.execute_activity("reserve", 1)
    await ctx.sleep(60)
    charged: int = await ctx.execute_activity("charge", 100)
    return charged


async def test_unchanged_code_is_clean() -> None:
    document = await _recorded(before)
    verdict = _verdict(document, before)
    assert verdict.verdict == "clean"
    assert verdict.is_clean
    assert verdict.events_replayed == len(document.events)
    assert verify(document, _declare(before)[1]).is_clean


async def test_another_argument_is_reported_with_both_sides_and_the_line() -> None:
    async def after(ctx: WorkflowContext) -> Any:
        await ctx.execute_activity("reserve", 1)
        await ctx.sleep(60)
        return await ctx.execute_activity("charge", 200)

    verdict = _verdict(await _recorded(before), after)
    assert verdict.verdict == "diverged"
    found = verdict.divergence
    assert found is not None
    assert found.kind == "ActivityScheduleMismatch"
    assert found.expected == "activity 'charge' (number 3) with the arguments 100"
    assert found.actual == "it with 200"
    assert _code_at(found.line) == 'return await ctx.execute_activity("charge", 200)'
    assert found.line.endswith(" in after")
    assert verdict.events_replayed == found.event_id - 1
    assert verdict.message.endswith(f", at {found.line}")


async def test_a_command_that_the_code_does_not_ask_for_names_the_line_where_it_waits() -> None:
    async def after(ctx: WorkflowContext) -> Any:
        await ctx.execute_activity("reserve", 1)
        await ctx.wait_for_signal("paid")

    found = _verdict(await _recorded(before), after).divergence
    assert found is not None
    assert found.kind == "TimerMismatch"
    assert found.expected == "timer of 60 s (number 2)"
    assert found.actual == "nothing with that number"
    assert _code_at(found.line) == 'await ctx.wait_for_signal("paid")'


async def test_code_that_has_ended_names_its_function() -> None:
    async def after(ctx: WorkflowContext) -> Any:
        return await ctx.execute_activity("reserve", 1)

    found = _verdict(await _recorded(before), after).divergence
    assert found is not None
    assert found.expected == "timer of 60 s (number 2)"
    assert _code_at(found.line) == "async def after(ctx: WorkflowContext) -> Any:"


async def test_code_that_raises_names_the_line_of_that() -> None:
    async def after(ctx: WorkflowContext) -> Any:
        await ctx.execute_activity("reserve", 1)
        raise ValueError("too early")

    found = _verdict(await _recorded(before), after).divergence
    assert found is not None
    assert _code_at(found.line) == 'raise ValueError("too early")'


async def test_one_command_too_many_is_reported() -> None:
    async def after(ctx: WorkflowContext) -> Any:
        await ctx.execute_activity("reserve", 1)
        ctx.start_timer(5)
        await ctx.wait_for_signal("x")

    async def open_still(ctx: WorkflowContext) -> Any:
        await ctx.execute_activity("reserve", 1)
        await ctx.wait_for_signal("x")

    document = await _recorded(open_still, until="waiting")
    assert document.state == State.RUNNING.name
    verdict = _verdict(document, after)
    assert verdict.divergence is not None
    assert (verdict.divergence.expected, verdict.divergence.actual) == ("nothing", "timer of 5 s (number 2)")
    assert verdict.divergence.kind == "TimerMismatch"
    assert _code_at(verdict.divergence.line) == "ctx.start_timer(5)"


@pytest.mark.parametrize(
    ("kind", "was", "now"),
    [
        ("ActivityScheduleMismatch", "await call(ctx, 'ship')", "await call(ctx, 'charge')"),
        ("TimerMismatch", "await ctx.sleep(5)", "await ctx.sleep(6)"),
        ("LocalActivityMismatch", "await ctx.execute_local_activity(one)", "await ctx.execute_local_activity(two)"),
        ("ChildWorkflowMismatch", "await child(ctx, 'a')", "await child(ctx, 'b')"),
        ("SideEffectMismatch", "ctx.side_effect(lambda: 1, name='x')", "ctx.side_effect(lambda: 1, name='y')"),
        ("SideEffectMismatch", "pass", "ctx.side_effect(lambda: 1)"),
        ("VersionMismatch", "ctx.patched('one')", "ctx.patched('two')"),
        ("SignalMismatch", "await tell(ctx, 'a')", "await tell(ctx, 'b')"),
        ("ExternalMismatch", "await end(ctx, 'a')", "await end(ctx, 'b')"),
        ("ContinueAsNewMismatch", "ctx.continue_as_new(1)", "ctx.continue_as_new(2)"),
        ("ContinueAsNewMismatch", "ctx.continue_as_new(1)", "return 1"),
        ("OutcomeMismatch", "return 1", "return 2"),
        ("OutcomeMismatch", "return 1", "raise KeyError"),
        ("OutcomeMismatch", "raise KeyError", "raise ValueError"),
        ("OutcomeMismatch", "return 1", "await asyncio.Event().wait()"),
    ],
)  # fmt: skip
async def test_kinds(kind: str, was: str, now: str) -> None:
    app = Harvest()

    async def nothing() -> int:
        return 1

    def declare(registry: Harvest, line: str) -> WorkflowDefinition[..., Any]:
        """The same workflow with another line."""
        text = f"async def changing(ctx, given=0):\n    if not given:\n        {line}\n    return 1"
        names: dict[str, Any] = {"one": one, "two": two, "call": _call, "child": _child, "tell": _tell, "end": _end}
        exec("import asyncio\n" + text, names)
        return registry.workflow(allow_nondeterministic_apis=True)(names["changing"])

    one, two = app.activity(name="one")(nothing), app.activity(name="two")(nothing)
    old = declare(app, was)
    async with WorkflowEnvironment(app) as env:
        for name in ("ship", "charge", "a", "b"):
            env.mock(name, 1)
        handle = await env.start(old)
        await env.skip(10)
        assert handle.state == ("FAILED" if "raise" in was else "COMPLETED")
        document = env.history(handle)
    assert verify(document, old).is_clean
    verdict = verify(document, declare(Harvest(), now))
    assert verdict.divergence is not None, verdict
    assert verdict.divergence.kind == kind
    assert " in changing" in verdict.divergence.line or " in _" in verdict.divergence.line


async def _call(ctx: WorkflowContext, name: str) -> None:
    await ctx.execute_activity(name, 1)


async def _child(ctx: WorkflowContext, name: str) -> None:
    await ctx.execute_child_workflow(name, 1)


async def _tell(ctx: WorkflowContext, whom: str) -> None:
    try:
        await ctx.signal_external_workflow_by_id("shop", whom, "x")
    except ExternalWorkflowError:
        return


async def _end(ctx: WorkflowContext, whom: str) -> None:
    try:
        await ctx.cancel_external_workflow_by_id("shop", whom)
    except ExternalWorkflowError:
        return


async def test_a_result_that_grew_a_field_with_a_default_is_clean() -> None:
    async def paid(ctx: WorkflowContext) -> Paid:
        return Paid(5)

    async def later(ctx: WorkflowContext) -> LaterPaid:
        return LaterPaid(5)

    async def other(ctx: WorkflowContext) -> LaterPaid:
        return LaterPaid(5, "EUR")

    document = await _recorded(paid)
    assert _verdict(document, later).is_clean
    verdict = _verdict(document, other)
    assert verdict.divergence is not None
    assert verdict.divergence.expected == 'WorkflowCompleted with {"cents":5}'
    assert verdict.divergence.actual == 'ends otherwise: WorkflowCompleted with {"cents":5,"currency":"EUR"}'


async def test_an_input_that_no_longer_decodes_is_undecodable() -> None:
    async def was(ctx: WorkflowContext, order: Order) -> None: ...
    async def grown(ctx: WorkflowContext, order: LaterOrder) -> None: ...
    async def stricter(ctx: WorkflowContext, order: Paid) -> None: ...

    document = await _recorded(was, Order("pen"))
    assert _verdict(document, grown).is_clean
    verdict = _verdict(document, stricter)
    assert verdict.verdict == "undecodable"
    assert "argument 'order' of workflow 'shop' does not fit its type" in verdict.message


async def test_code_that_is_not_there_is_not_registered() -> None:
    document = await _recorded(before)
    assert verify(document, Harvest().registry).verdict == "not_registered"
    other = msgspec.structs.replace(document, version=7)
    assert "of version 7 is declared" in verify(other, _declare(before)[0].registry).message


async def test_a_history_without_its_payloads_is_undecodable() -> None:
    document = msgspec.structs.replace(await _recorded(before), payload_policy="redacted")
    verdict = _verdict(document, before)
    assert verdict.verdict == "undecodable"
    assert "payload_policy=full" in verdict.message
    empty = msgspec.structs.replace(document, payload_policy="full", events=[])
    assert _verdict(empty, before).verdict == "undecodable"


async def test_what_nobody_has_decided_yet_is_not_looked_at() -> None:
    document = await _recorded(before, until="waiting")

    async def after(ctx: WorkflowContext) -> Any:
        return await ctx.execute_activity("ship", 1)

    new = msgspec.structs.replace(document, decided_through=0, events=document.events[:1])
    verdict = _verdict(new, after)
    assert verdict.is_clean
    assert verdict.events_replayed == 0


async def test_a_run_that_was_ended_from_outside_is_clean_however_far_it_came() -> None:
    async def waits(ctx: WorkflowContext) -> None:
        await ctx.wait_for_signal("x")

    app, workflow = _declare(waits)
    async with WorkflowEnvironment(app) as env:
        stopped = await env.start(workflow)
        await stopped.terminate("enough")
        late = await env.start(workflow, execution_timeout=timedelta(hours=1))
        await env.skip(timedelta(hours=2))
        for handle in (stopped, late):
            assert verify(env.history(handle), workflow).is_clean


async def test_a_version_out_of_range_is_reported() -> None:
    async def second(ctx: WorkflowContext) -> int:
        return ctx.version("layout", 1, 2)

    async def third(ctx: WorkflowContext) -> int:
        return ctx.version("layout", 3, 4)

    found = _verdict(await _recorded(second), third).divergence
    assert found is not None
    assert found.kind == "version_unsupported"
    assert _code_at(found.line) == 'return ctx.version("layout", 3, 4)'


async def test_a_version_of_before_the_change_keeps_its_path() -> None:
    async def plain(ctx: WorkflowContext) -> int:
        await ctx.sleep(1)
        return 1

    async def versioned(ctx: WorkflowContext) -> int:
        return 2 if ctx.patched("fast") else await plain(ctx)

    assert _verdict(await _recorded(plain), versioned).is_clean
