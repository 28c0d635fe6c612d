"""A deploy that changes what running workflows ask for is reported with both sides and the line (rows 25 to 27)."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from harvest import Harvest, WorkflowContext
from harvest.definitions.activity import ActivityDefinition
from harvest.testing import Verdict, WorkflowEnvironment, verify
from tests.replay.edits import BASES, INSERTED, Op, check_passes, check_reported, harmful, harmless, recorded, replayed
from tests.scale import scale

pytestmark = pytest.mark.prove_whole_core


def test_there_are_thirty_workflows() -> None:
    assert len(BASES) == 30


@pytest.mark.parametrize("base", BASES)
def test_unchanged_code_passes(base: str) -> None:
    recording = recorded(BASES[base])
    for document in (recording.whole, *recording.before):
        verdict = replayed(BASES[base], document)
        assert verdict.is_clean, verdict.message


@pytest.mark.parametrize("base", BASES)
def test_26_every_harmful_edit_is_reported(base: str, proof: Callable[..., None]) -> None:
    ops = BASES[base]
    found = [check_reported(base, ops, edit) for edit in harmful(ops, scale(4, len(INSERTED)))]
    assert len(found) > 20
    proof("harmful edits reported", workflow=base, edits=len(found), kinds=sorted({each.kind for each in found}))


@pytest.mark.parametrize("base", BASES)
def test_every_harmless_edit_passes(base: str) -> None:
    ops = BASES[base]
    for edit in harmless(ops):
        check_passes(base, ops, edit)


@pytest.mark.parametrize("base", BASES)
def test_an_edit_is_reported_as_soon_as_history_has_reached_it(base: str) -> None:
    """While a run is still before the change, it goes on with the new code; once past it, it is blocked."""
    ops = BASES[base]
    # What only waits is missed while it is waited for, and not any more once it has come.
    edits = [edit for edit in harmful(ops, 1) if not edit.what.startswith(("receive", "update", "working"))]
    for edit in edits:
        reported = [not replayed(edit.ops, document).is_clean for document in recorded(ops).before]
        assert reported == sorted(reported), f"{edit.what} is reported at an early state and not at a later one"


def test_the_message_names_both_sides_and_the_line() -> None:
    document = recorded((Op("activity", "one", 1), Op("timer", number=5))).whole
    verdict = replayed((Op("activity", "two", 1), Op("timer", number=5)), document)
    assert _without_line(verdict) == (
        "event 2 records activity 'one' (number 1), but the code now asks for activity 'two' (number 1)"
    )
    verdict = replayed((Op("activity", "one", 2), Op("timer", number=5)), document)
    assert _without_line(verdict) == (
        "event 2 records activity 'one' (number 1) with the arguments 1, but the code now asks for it with 2"
    )
    verdict = replayed((Op("activity", "one", 1), Op("timer", number=6)), document)
    assert "records timer of 5 s (number 2), but the code now asks for timer of 6 s (number 2)" in verdict.message
    assert _code(verdict) == "await ctx.sleep(6)"


def _without_line(verdict: Verdict) -> str:
    assert verdict.divergence is not None
    return verdict.message.removesuffix(f", at {verdict.divergence.line}")


def _code(verdict: Verdict) -> str:
    assert verdict.divergence is not None
    file, _, line = verdict.divergence.line.partition(" in ")[0].rpartition(":")
    return linecache.getline(file, int(line)).strip()


class Order(Struct):
    item: str


class LaterOrder(Struct):
    item: str
    gift: bool = False


class StricterOrder(Struct):
    item: str
    amount: int


Declare = Callable[[Harvest, Any, Any], Any]


def _ships(app: Harvest, order_type: Any, order: Any) -> Any:
    async def ship(order: Any) -> int:
        return 1

    ship.__annotations__ = {"order": order_type, "return": int}
    activity: ActivityDefinition[..., Any] = app.activity(ship)

    @app.workflow(allow_nondeterministic_apis=True)
    async def shipping(ctx: WorkflowContext) -> None:
        await ctx.execute_activity(activity, order)

    return shipping


def _ships_local(app: Harvest, order_type: Any, order: Any) -> Any:
    async def ship(order: Any) -> int:
        return 1

    ship.__annotations__ = {"order": order_type, "return": int}
    activity: ActivityDefinition[..., Any] = app.activity(ship)

    @app.workflow(allow_nondeterministic_apis=True)
    async def shipping(ctx: WorkflowContext) -> None:
        await ctx.execute_local_activity(activity, order)

    return shipping


def _ships_by_child(app: Harvest, order_type: Any, order: Any) -> Any:
    async def ship(ctx: WorkflowContext, order: Any) -> int:
        return 1

    ship.__annotations__ = {"ctx": WorkflowContext, "order": order_type, "return": int}
    child = app.workflow(ship)

    @app.workflow(allow_nondeterministic_apis=True)
    async def shipping(ctx: WorkflowContext) -> None:
        await ctx.execute_child_workflow(child, order)

    return shipping


async def _upgraded(declare: Declare, before: tuple[Any, Any], after: tuple[Any, Any]) -> Verdict:
    """The code with another type and value over the history of the code before."""
    app = Harvest()
    workflow = declare(app, *before)
    async with WorkflowEnvironment(app) as env:
        handle = await env.start(workflow)
        await handle.result()
        document = env.history(handle)
    return verify(document, declare(Harvest(), *after))


@pytest.mark.parametrize("declare", [_ships, _ships_local, _ships_by_child])
async def test_a_new_field_with_a_default_is_harmless(declare: Declare) -> None:
    verdict = await _upgraded(declare, (Order, Order("pen")), (LaterOrder, LaterOrder("pen")))
    assert verdict.is_clean, verdict.message


@pytest.mark.parametrize(
    ("order_type", "order"),
    [
        (LaterOrder, LaterOrder("pen", gift=True)),
        (LaterOrder, LaterOrder("cup")),
        (StricterOrder, StricterOrder("pen", 1)),
        (Any, {"item": "pen", "gift": False}),
    ],
)
@pytest.mark.parametrize("declare", [_ships, _ships_local, _ships_by_child])
async def test_a_field_with_another_value_is_not(declare: Declare, order_type: Any, order: Any) -> None:
    verdict = await _upgraded(declare, (Order, Order("pen")), (order_type, order))
    assert verdict.verdict == "diverged"


@pytest.mark.parametrize("declared", [set[int], Any])
async def test_a_set_in_another_order_is_the_same_argument(declared: Any) -> None:
    # Two numbers of one slot stand in a set in the order in which they came.
    one, other = {0: None, 8: None}, {8: None, 0: None}
    assert msgspec.json.encode(set(one)) != msgspec.json.encode(set(other))
    verdict = await _upgraded(_ships, (declared, set(one)), (declared, set(other)))
    assert verdict.is_clean, verdict.message


async def test_the_branches_of_a_patch() -> None:
    """Old runs keep the old branch, new ones have the new, and the patch can be deprecated when they are gone."""
    app = Harvest()

    async def old(ctx: WorkflowContext) -> None:
        await ctx.execute_activity("one", 1)

    async def patched(ctx: WorkflowContext) -> None:
        if ctx.patched("two"):
            await ctx.execute_activity("two", 2)
        else:
            await ctx.execute_activity("one", 1)

    async def deprecated(ctx: WorkflowContext) -> None:
        ctx.deprecate_patch("two")
        await ctx.execute_activity("two", 2)

    async def gone(ctx: WorkflowContext) -> None:
        await ctx.execute_activity("two", 2)

    histories = []
    for function in (old, patched, deprecated):
        workflow = app.workflow(name=function.__name__)(function)
        async with WorkflowEnvironment(app) as env:
            env.mock("one", 1)
            env.mock("two", 2)
            handle = await env.start(workflow)
            await handle.result()
            histories.append(env.history(handle))
    passes = {
        function.__name__: [verify(document, Harvest().workflow(function)).is_clean for document in histories]
        for function in (old, patched, deprecated, gone)
    }
    assert passes == {
        "old": [True, False, False],
        "patched": [True, True, False],
        "deprecated": [False, True, True],
        "gone": [False, False, True],
    }


async def test_27_a_module_level_cache_is_found_out() -> None:
    """Row 27: what a process remembers changes what is asked for."""
    app, cache = Harvest(), dict[str, int]()

    @app.workflow(allow_nondeterministic_apis=True)
    async def cached(ctx: WorkflowContext) -> None:
        if "rate" not in cache:
            cache["rate"] = await ctx.execute_activity("fetch_rate")
        await ctx.execute_activity("charge", cache["rate"])

    async with WorkflowEnvironment(app, replay_check=False) as env:
        env.mock("fetch_rate", 3)
        env.mock("charge", 1)
        handle = await env.start(cached)
        await handle.result()
    verdict = verify(env.history(handle), cached)
    assert verdict.divergence is not None
    assert "fetch_rate" in verdict.divergence.expected
    assert "charge" in verdict.divergence.actual
