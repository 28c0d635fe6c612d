"""Where a child lives is found once, when it is asked for. A replay takes it from history, whatever holds by then."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.definitions.children import ChildPlacement
from harvest.errors import DefinitionError
from harvest.history.data import ChildWorkflowStarted
from harvest.history.ids import ExecutionId, parse_execution_id, shard_of
from harvest.replay.context import WorkflowContext
from harvest.replay.placing import Placed, Placer
from tests.replay.driving import Driven
from tests.replay.noting import child, fanned_child
from tests.replay.oracle import IDENTITY

SPREAD = child.with_options(placement=ChildPlacement.Distributed)
HOME = shard_of(IDENTITY.execution_id)


def on(shard_id: int, refused: str = "") -> Placer:
    def place(placement: ChildPlacement, parent: ExecutionId, workflow_name: str, seq: int) -> Placed:
        return Placed(shard_id, refused)

    return place


def never(placement: ChildPlacement, parent: ExecutionId, workflow_name: str, seq: int) -> Placed:
    raise AssertionError("nobody may ask")


async def tells_its_id(ctx: WorkflowContext) -> list[Any]:
    handle = await ctx.start_child_workflow(SPREAD, 1, 2)
    await ctx.execute_activity("tell", str(handle.execution_id))
    return [str(handle.execution_id), await handle]


def shard_asked(one: Driven) -> list[int]:
    data = [event.data() for event in one.events]
    return [shard_of(parse_execution_id(each.child_id)) for each in data if isinstance(each, ChildWorkflowStarted)]


def test_a_child_lives_where_it_was_placed() -> None:
    one = Driven(tells_its_id, placer=on(7))
    one.committed()
    assert shard_asked(one) == [7]


def test_a_replay_knows_the_id_before_it_reaches_its_event_and_places_nothing_again() -> None:
    one = Driven(tells_its_id, placer=on(7))
    one.committed()
    one.placer = never
    again = one.replayed()
    assert again.blocked is None
    one.run = again
    one.completed(2)
    one.child_completed(1, 5)
    (told, result) = one.result
    assert (shard_of(parse_execution_id(told)), result) == (7, 5)


def test_a_warm_run_stays_with_what_was_placed_when_the_map_changes() -> None:
    one = Driven(tells_its_id, placer=on(7))
    one.committed()
    one.run.placer = on(9)
    one.completed(2)
    one.child_completed(1, 5)
    assert shard_of(parse_execution_id(one.result[0])) == 7


def test_what_was_not_recorded_is_placed_by_the_map_of_now() -> None:
    one = Driven(tells_its_id, placer=on(7))
    one.placer = on(9)
    one.run = one.replayed()
    one.run.deliver([])
    one.committed()
    assert shard_asked(one) == [9]


def test_a_child_that_says_nothing_stays_with_its_parent_and_nobody_is_asked() -> None:
    async def begins(ctx: WorkflowContext) -> None:
        await ctx.start_child_workflow(child, 1, 2)
        await ctx.start_child_workflow(child.with_options(placement=ChildPlacement.ParentShard), 1, 2)

    one = Driven(begins, placer=never)
    one.committed()
    assert shard_asked(one) == [HOME, HOME]


def test_a_placed_child_that_is_taken_back_at_once_is_recorded() -> None:
    async def takes_back(ctx: WorkflowContext) -> str:
        handle = await ctx.start_child_workflow(SPREAD, 1, 2)
        handle.cancel()
        return str(await ctx.execute_activity("tell", str(handle.execution_id)))

    one = Driven(takes_back, placer=on(7))
    assert one.asked == [("ChildWorkflowStarted", 1), ("ChildCancelRequested", 1), ("ActivityScheduled", 2)]
    one.committed()
    one.placer = on(9)
    assert one.replayed().blocked is None


def test_a_child_that_was_taken_back_before_its_code_placed_it_still_replays() -> None:
    async def before(ctx: WorkflowContext) -> None:
        (await ctx.start_child_workflow(child, 1, 2)).cancel()
        await ctx.execute_activity("tell", "a")

    async def after(ctx: WorkflowContext) -> None:
        (await ctx.start_child_workflow(SPREAD, 1, 2)).cancel()
        await ctx.execute_activity("tell", "a")

    one = Driven(before)
    assert one.asked == [("ActivityScheduled", 2)]
    one.committed()
    assert one.replayed(after).blocked is None


@pytest.mark.parametrize("now", [child, SPREAD, child.with_options(placement=ChildPlacement.Shard(9))])
def test_a_placement_may_change_while_runs_are_open(now: Any) -> None:
    async def before(ctx: WorkflowContext) -> None:
        await ctx.execute_child_workflow(SPREAD, 1, 2)

    async def after(ctx: WorkflowContext) -> None:
        await ctx.execute_child_workflow(now, 1, 2)

    one = Driven(before, placer=on(7))
    one.committed()
    one.placer = never
    again = one.replayed(after)
    assert (again.blocked, [shard_of(command.child_id) for _, command in again.children.values()]) == (None, [7])


def test_every_call_of_a_fan_out_is_placed() -> None:
    seen: list[int] = []

    def place(placement: ChildPlacement, parent: ExecutionId, workflow_name: str, seq: int) -> Placed:
        seen.append(seq)
        return Placed(seq)

    async def fans(ctx: WorkflowContext) -> None:
        each = fanned_child.with_options(placement=ChildPlacement.Distributed)
        await ctx.fan_out(each, [[1, 0], [2, 0], [3, 0]])

    one = Driven(fans, placer=place)
    one.committed()
    assert (seen, shard_asked(one)) == ([1, 2, 3], [1, 2, 3])


def test_without_a_placer_there_is_one_world_and_a_number_is_taken_as_it_is() -> None:
    async def begins(ctx: WorkflowContext) -> None:
        for placement in (ChildPlacement.Distributed, ChildPlacement.ResidencyKey("eu"), ChildPlacement.Shard(4)):
            await ctx.start_child_workflow(child.with_options(placement=placement), 1, 2)

    one = Driven(begins)
    one.committed()
    assert shard_asked(one) == [HOME, HOME, 4]


def test_a_refused_child_is_recorded_as_one_of_its_parents_shard() -> None:
    async def begins(ctx: WorkflowContext) -> None:
        await ctx.start_child_workflow(SPREAD, 1, 2)

    one = Driven(begins, placer=on(HOME, "shard 7 is no shard"))
    assert [command.refused for command in one.run.asked.values()] == ["shard 7 is no shard"]  # type: ignore[attr-defined]
    one.committed()
    assert shard_asked(one) == [HOME]


@pytest.mark.parametrize("shard_id", [-1, 65535, 70000])
def test_a_number_that_no_shard_can_have_is_an_error_where_it_is_written(shard_id: int) -> None:
    with pytest.raises(DefinitionError, match=f"shard_id is {shard_id}"):
        ChildPlacement.Shard(shard_id)


def test_a_placement_of_another_type_is_an_error_where_it_is_written() -> None:
    wrong: Any = 3
    with pytest.raises(DefinitionError, match="must be a ChildPlacement"):
        child.with_options(placement=wrong)
