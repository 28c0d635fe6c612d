"""A deploy that changes what running workflows ask for is reported, naming both sides (rows 25 to 27)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from harvest.definitions.activity import define_activity
from harvest.definitions.options import activity_options
from harvest.errors import NonDeterminismError
from harvest.replay.run import Run
from tests.replay.edits import (
    BASES,
    Edit,
    Op,
    Steady,
    every_edit_is_reported,
    harmful,
    recorded,
    replayed,
    workflow_of,
)
from tests.replay.oracle import Recording, fresh
from tests.replay.player import NotingContext, as_workflow


def test_every_edit_is_reported() -> None:
    assert every_edit_is_reported() > 80


@pytest.mark.parametrize("base", BASES)
def test_an_edit_is_reported_as_soon_as_history_has_reached_it(base: str) -> None:
    """While a run is still before the change, it goes on with the new code; once past it, it is blocked."""
    ops = BASES[base]
    recording = recorded(ops)
    for edit in harmful(ops):
        reported = [_blocked_at(edit, recording, state.events, state.decided_through) for state in recording.states]
        assert reported == sorted(reported), f"{edit.what} is reported at an early state and not at a later one"


def _blocked_at(edit: Edit, recording: Recording, events: int, decided_through: int) -> bool:
    run, _ = fresh(workflow_of(edit.ops))
    run.replay(recording.events[:events], decided_through)
    assert run.blocked is None or isinstance(run.blocked, NonDeterminismError)
    return run.blocked is not None


def test_the_message_names_both_sides() -> None:
    recording = recorded((Op("activity", "one", 1), Op("timer", number=5)))
    error = replayed((Op("activity", "two", 1), Op("timer", number=5)), recording).blocked
    assert str(error) == (
        "event 2 records activity 'one' (number 1), but the code now asks for activity 'two' (number 1)"
    )
    error = replayed((Op("activity", "one", 2), Op("timer", number=5)), recording).blocked
    assert "activity 'one' (number 1) with the arguments [1,0]" in str(error)
    assert "it with [2,0]" in str(error)
    error = replayed((Op("activity", "one", 1), Op("timer", number=6)), recording).blocked
    assert str(error) == ("event 5 records timer of 5 s (number 2), but the code now asks for timer of 6 s (number 2)")


class Order(Struct):
    item: str


class LaterOrder(Struct):
    item: str
    gift: bool = False


class StricterOrder(Struct):
    item: str
    amount: int


def _ship(order_type: Any, order: Any) -> Any:
    async def ship(order: Any) -> int:
        raise NotImplementedError

    ship.__annotations__ = {"order": order_type, "return": int}
    options = activity_options(
        queue=None,
        priority=0,
        schedule_to_start=None,
        start_to_close=None,
        schedule_to_close=None,
        heartbeat_timeout=None,
        retry=None,
    )
    activity = define_activity(ship, name="ship", options=options)

    async def shipping(ctx: NotingContext) -> None:
        await ctx.execute_activity(activity, order)

    return as_workflow(shipping, "shipping")


def _upgraded(before: Any, after: Any) -> Run:
    recording = Steady(before).record()
    run, _ = fresh(after)
    run.replay(recording.events, recording.decisions[-1].after)
    return run


def test_a_new_field_with_a_default_is_harmless() -> None:
    run = _upgraded(_ship(Order, Order("pen")), _ship(LaterOrder, LaterOrder("pen")))
    assert run.blocked is None
    assert run.is_done


@pytest.mark.parametrize(
    ("order_type", "order"),
    [
        (LaterOrder, LaterOrder("pen", gift=True)),
        (LaterOrder, LaterOrder("cup")),
        (StricterOrder, StricterOrder("pen", 1)),
        (Any, {"item": "pen", "gift": False}),
    ],
)
def test_a_field_with_another_value_is_not(order_type: Any, order: Any) -> None:
    run = _upgraded(_ship(Order, Order("pen")), _ship(order_type, order))
    assert isinstance(run.blocked, NonDeterminismError)


def test_a_set_in_another_order_is_the_same_argument() -> None:
    # Two numbers of one slot stand in a set in the order in which they came.
    one, other = {0: None, 8: None}, {8: None, 0: None}
    assert msgspec.json.encode(set(one)) != msgspec.json.encode(set(other))
    for declared in (set[int], Any):
        run = _upgraded(_ship(declared, set(one)), _ship(declared, set(other)))
        assert run.blocked is None


def test_a_module_level_cache_is_found_out() -> None:
    """Row 27: what a process remembers changes what is asked for."""
    cache: dict[str, int] = {}

    async def cached(ctx: NotingContext) -> None:
        if "rate" not in cache:
            cache["rate"] = await ctx.execute_activity("fetch_rate")
        await ctx.execute_activity("charge", cache["rate"])

    workflow = as_workflow(cached, "cached")
    recording = Steady(workflow).record()
    run, _ = fresh(workflow)
    run.replay(recording.events, recording.decisions[-1].after)
    assert isinstance(run.blocked, NonDeterminismError)
    assert "fetch_rate" in run.blocked.fields["recorded"]
    assert "charge" in run.blocked.fields["asked"]
