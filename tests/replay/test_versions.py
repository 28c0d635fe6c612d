"""Changing code under open runs: which branch a run follows, and values that are recorded once."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from harvest.errors import ApplicationError, ForbiddenInWorkflowError
from harvest.history.data import MarkerRecorded, SideEffectRecorded
from harvest.history.kinds import EventKind
from harvest.replay.context import WorkflowContext
from tests.replay.driving import Driven


async def before(ctx: WorkflowContext) -> str:
    await ctx.execute_activity("first")
    await ctx.execute_activity("old")
    return "old"


async def patched(ctx: WorkflowContext) -> str:
    await ctx.execute_activity("first")
    if ctx.patched("new way"):
        await ctx.execute_activity("new")
        return "new"
    await ctx.execute_activity("old")
    return "old"


def _past_first(code: Any) -> Driven:
    one = Driven(code)
    one.committed()
    one.completed(1)
    return one


def test_a_run_that_comes_to_a_patch_live_follows_it_and_records_so() -> None:
    one = _past_first(patched)
    assert one.asked == [("MarkerRecorded", 0), ("ActivityScheduled", 2)]
    one.committed()
    marker: MarkerRecorded = next(e for e in one.events if e.kind == EventKind.MARKER_RECORDED).data()
    assert (marker.name, bytes(marker.details)) == ("patch:new way", b"1")
    again = one.replayed()
    assert again.blocked is None
    one.completed(2)
    assert one.result == "new"


def test_a_run_that_was_past_the_patch_keeps_the_old_branch_for_ever() -> None:
    one = _past_first(before)
    one.committed()
    new = one.goes_on_as(patched)
    assert new.run.blocked is None
    new.completed(2)
    assert new.result == "old"
    new.committed()
    assert new.replayed().blocked is None


def test_a_run_that_stood_before_the_patch_takes_the_new_branch() -> None:
    one = Driven(before)
    one.committed()
    new = one.goes_on_as(patched)
    new.completed(1)
    assert new.asked == [("MarkerRecorded", 0), ("ActivityScheduled", 2)]


def test_what_was_not_decided_yet_is_live_for_new_code() -> None:
    one = _past_first(before)  # its decision is never committed
    new = one.goes_on_as(patched)
    assert new.run.blocked is None
    assert new.asked == [("MarkerRecorded", 0), ("ActivityScheduled", 2)]


def test_a_patch_within_a_loop_is_chosen_once() -> None:
    async def loops(ctx: WorkflowContext) -> list[bool]:
        return [await _turn(ctx) for _ in range(3)]

    async def _turn(ctx: WorkflowContext) -> bool:
        await ctx.wait_for_signal("n")
        return ctx.patched("p")

    async def without(ctx: WorkflowContext) -> list[bool]:
        for _ in range(3):
            await ctx.wait_for_signal("n")
        return []

    one = Driven(without)
    one.signal("n")
    one.committed()
    new = one.goes_on_as(loops)
    new.signal("n")
    new.signal("n")
    assert new.result == [False, False, False]
    fresh = Driven(loops)
    for _ in range(3):
        fresh.signal("n")
    assert fresh.result == [True, True, True]
    assert fresh.asked == [("MarkerRecorded", 0)]


def test_removing_a_patch_that_runs_have_recorded_is_reported() -> None:
    async def removed(ctx: WorkflowContext) -> str:
        await ctx.execute_activity("first")
        await ctx.execute_activity("new")
        return "new"

    async def deprecated(ctx: WorkflowContext) -> str:
        await ctx.execute_activity("first")
        ctx.deprecate_patch("new way")
        await ctx.execute_activity("new")
        return "new"

    one = _past_first(patched)
    one.committed()
    blocked = one.replayed(removed).blocked
    assert blocked is not None
    assert "patch:new way" in blocked.message
    assert one.replayed(deprecated).blocked is None
    fresh = _past_first(deprecated)
    assert fresh.asked == [("ActivityScheduled", 2)], "a new run records nothing"


def test_a_patch_may_be_deprecated_here_and_asked_for_there() -> None:
    async def mixed(ctx: WorkflowContext) -> list[bool]:
        await ctx.execute_activity("first")
        ctx.deprecate_patch("new way")
        await ctx.execute_activity("new")
        return [ctx.patched("new way")]

    one = _past_first(patched)
    one.committed()
    old = one.goes_on_as(mixed)
    assert old.run.blocked is None
    old.completed(2)
    assert old.result == [True]
    old.committed()
    assert old.replayed().blocked is None

    new = _past_first(mixed)
    new.committed()
    new.completed(2)
    assert new.result == [True]
    assert new.asked == [("MarkerRecorded", 0)]
    new.committed()
    assert new.replayed().blocked is None


async def versioned(ctx: WorkflowContext) -> int:
    version = ctx.version("fee", 0, 2)
    await ctx.execute_activity("charge", version)
    return version


def test_a_version_is_the_highest_live_and_the_recorded_one_after() -> None:
    async def later(ctx: WorkflowContext) -> int:
        version = ctx.version("fee", 1, 5)
        await ctx.execute_activity("charge", version)
        return version

    one = Driven(versioned)
    one.committed()
    new = one.goes_on_as(later)
    new.completed(1)
    assert new.result == 2
    assert Driven(later).run.asked[int(EventKind.MARKER_RECORDED), "version:fee"].details == b"5"  # type: ignore[attr-defined]


def test_a_version_outside_of_the_range_blocks_the_run() -> None:
    async def too_new(ctx: WorkflowContext) -> int:
        version = ctx.version("fee", 3, 5)
        await ctx.execute_activity("charge", version)
        return version

    one = Driven(versioned)
    one.committed()
    blocked = one.replayed(too_new).blocked
    assert blocked is not None
    assert blocked.slug == "version_unsupported"
    assert (blocked.fields["recorded"], blocked.fields["lowest"], blocked.fields["highest"]) == (2, 3, 5)


def test_a_range_that_is_the_wrong_way_round_is_refused() -> None:
    async def wrong(ctx: WorkflowContext) -> None:
        ctx.version("fee", 2, 1)

    assert Driven(wrong).failure.type == "InvalidRequestError"


def test_markers_take_no_number() -> None:
    one = _past_first(patched)
    assert one.run.sequence == 2


# Values that cannot be computed again


def test_a_side_effect_runs_once_and_is_read_ever_after() -> None:
    counter = itertools.count(1)

    async def draws(ctx: WorkflowContext) -> list[int]:
        drawn = [ctx.side_effect(lambda: next(counter)), ctx.side_effect(lambda: next(counter), name="dice")]
        await ctx.wait_for_signal("end")
        return drawn

    one = Driven(draws)
    assert one.asked == [("SideEffectRecorded", 1), ("SideEffectRecorded", 2)]
    one.committed()
    again = one.replayed()
    assert again.blocked is None
    assert next(counter) == 3
    one.signal("end")
    assert one.result == [1, 2]
    data: SideEffectRecorded = one.events[2].data()
    assert (bytes(data.value), data.name) == (b"2", "dice")


def test_what_a_side_effect_raises_is_recorded_too() -> None:
    calls: list[int] = []

    def fails() -> int:
        calls.append(1)
        raise ValueError("no luck")

    async def draws(ctx: WorkflowContext) -> list[str]:
        found = []
        for function in (fails, object):
            try:
                ctx.side_effect(function)
            except ApplicationError as error:
                found.append(error.type)
        found.append(str(ctx.side_effect(lambda: "last")))
        await ctx.wait_for_signal("end")
        return found

    one = Driven(draws)
    one.committed()
    again = one.goes_on_as(draws)
    assert again.run.blocked is None
    again.signal("end")
    assert again.result == ["ValueError", "PayloadError", "last"]
    assert len(calls) == 1


def test_it_may_do_what_code_may_not() -> None:
    async def draws(ctx: WorkflowContext) -> bool:
        import time

        return bool(ctx.side_effect(time.time, as_type=float) > 0)

    assert Driven(draws).result is True


def test_a_value_comes_back_as_the_type_that_was_asked_for() -> None:
    class Pair(msgspec.Struct):
        left: int
        right: int = 2

    async def draws(ctx: WorkflowContext) -> list[int]:
        pair = ctx.side_effect(lambda: {"left": 1}, as_type=Pair)
        return [pair.left, pair.right]

    assert Driven(draws).result == [1, 2]


def test_a_value_that_does_not_fit_its_type_blocks() -> None:
    async def draws(ctx: WorkflowContext) -> None:
        ctx.side_effect(lambda: "seven", as_type=int)
        await ctx.wait_for_signal("end")

    blocked = Driven(draws).run.blocked
    assert blocked is not None
    assert blocked.slug == "payload_undecodable"


def test_a_side_effect_that_history_does_not_have_is_reported() -> None:
    async def plain(ctx: WorkflowContext) -> None:
        await ctx.wait_for_signal("end")

    async def draws(ctx: WorkflowContext) -> None:
        ctx.side_effect(pytest.fail, name="dice")
        await ctx.wait_for_signal("end")

    one = Driven(plain)
    one.committed()
    blocked = one.replayed(draws).blocked
    assert blocked is not None
    assert "side effect 'dice'" in blocked.message


def _draws(ctx: WorkflowContext) -> Any:
    return str(ctx.uuid4())


def _chooses(ctx: WorkflowContext) -> Any:
    return ctx.patched("within")


@pytest.mark.parametrize("act", [_draws, _chooses])
def test_a_side_effect_may_only_look_as_it_is_not_called_again(act: Callable[[WorkflowContext], Any]) -> None:
    async def tries(ctx: WorkflowContext) -> str:
        try:
            ctx.side_effect(lambda: act(ctx))
        except ApplicationError as error:
            return str(await ctx.execute_activity("after", str(ctx.uuid4()), error.type))
        return "it acted"

    one = Driven(tries)
    one.committed()
    assert one.replayed().blocked is None
    one.completed(2, "done")
    assert one.result == "done"


def test_a_side_effect_that_wakes_the_code_blocks_the_run() -> None:
    async def wakes(ctx: WorkflowContext) -> None:
        woken = asyncio.Event()
        waiting = asyncio.create_task(woken.wait())
        await asyncio.sleep(0)
        ctx.side_effect(woken.set)
        await waiting

    run = Driven(wakes).run
    assert isinstance(run.blocked, ForbiddenInWorkflowError)
    assert "side effect" in run.blocked.message


def test_a_side_effect_that_would_end_the_process_is_recorded_as_failed() -> None:
    async def asks(ctx: WorkflowContext) -> None:
        ctx.register_update_handler("leave", lambda: ctx.side_effect(sys.exit))
        await ctx.wait_for_signal("go")

    one = Driven(asks)
    one.update("leave")
    one.committed()
    assert one.replayed().blocked is None
