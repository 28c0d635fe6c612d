"""Local activities as a run sees them: their results may stand in history before what asked for them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from harvest.definitions.activity import ActivityDefinition, define_activity
from harvest.definitions.options import Retry, activity_options
from harvest.errors import ActivityError
from harvest.history.data import LocalActivityScheduled
from harvest.history.events import Event
from harvest.history.kinds import EventKind
from harvest.replay.context import WorkflowContext
from harvest.replay.records import RunLocal
from tests.replay.driving import Driven


def _local(name: str, **options: Any) -> ActivityDefinition[..., Any]:
    async def body(number: int) -> int:
        return number

    unset = dict.fromkeys(("queue", "schedule_to_start", "start_to_close", "schedule_to_close", "heartbeat_timeout"))
    return define_activity(
        body, name=name, options=activity_options(**{**unset, "priority": 0, "retry": None, **options})
    )


double, halve = _local("double"), _local("halve")


async def two_in_a_row(ctx: WorkflowContext) -> int:
    return await ctx.execute_local_activity(double, await ctx.execute_local_activity(double, 1))


def test_its_result_may_stand_before_what_asked_for_it() -> None:
    one = Driven(two_in_a_row)
    one.local_completed(1, 2)
    one.local_completed(2, 4)
    assert one.result == 4
    assert one.asked == [("LocalActivityScheduled", 1), ("LocalActivityScheduled", 2)]
    one.committed()
    again = one.replayed()
    assert again.blocked is None
    assert not again.asked


def test_what_it_was_asked_for_is_compared_all_the_same() -> None:
    async def otherwise(ctx: WorkflowContext) -> int:
        return await ctx.execute_local_activity(double, await ctx.execute_local_activity(halve, 1))

    one = Driven(two_in_a_row)
    one.local_completed(1, 2)
    one.committed()
    blocked = one.replayed(otherwise).blocked
    assert blocked is not None
    assert "local activity 'double' (number 1)" in str(blocked)
    assert "local activity 'halve' (number 1)" in str(blocked)


def test_a_failure_is_raised_with_its_cause() -> None:
    async def catches(ctx: WorkflowContext) -> list[str]:
        try:
            await ctx.execute_local_activity(double, 1)
        except ActivityError as error:
            return [error.fields["activity"], type(error.__cause__).__name__, error.fields["type"]]
        return []

    one = Driven(catches)
    one.local_failed(1, "Broken")
    assert one.result == ["double", "ApplicationError", "Broken"]


def test_the_end_of_another_call_that_had_the_number_is_nobodys() -> None:
    """A worker let go of a run that had gone on upon what history did not take: the number is another's now."""

    async def takes_turns(ctx: WorkflowContext) -> list[int]:
        found: list[int] = []

        async def on_signal(number: int) -> None:
            found.append(await ctx.execute_local_activity(halve, number))

        ctx.register_signal_handler("halve", on_signal)
        found.append(await ctx.execute_local_activity(double, 1))
        found.append(await ctx.execute_local_activity(double, found[-1]))
        return found

    bet = Driven(takes_turns)
    bet.local_completed(1, 2)
    second = bet.run.asked[int(EventKind.LOCAL_ACTIVITY_SCHEDULED), 2]
    assert isinstance(second, RunLocal)

    one = Driven(takes_turns)
    one.signal("halve", 8)  # came first after all: number 2 is a halving now
    one.local_completed(1, 2, "double", bet.run.asked[int(EventKind.LOCAL_ACTIVITY_SCHEDULED), 1].digest)  # type: ignore[attr-defined]
    one.local_completed(2, 4, second.name, second.digest)
    assert sorted(one.run.locals) == [2, 3]
    one.committed()
    again = one.replayed()
    assert again.blocked is None
    assert sorted(again.locals) == [2, 3]


def test_one_that_is_turned_away_from_is_not_waited_for() -> None:
    async def gives_up(ctx: WorkflowContext) -> str:
        task = asyncio.create_task(ctx.execute_local_activity(double, 1))
        await ctx.wait_for_signal("enough")
        task.cancel()
        await asyncio.wait([task])
        await ctx.execute_local_activity(halve, 2)
        return "done"

    one = Driven(gives_up)
    one.committed()
    one.signal("enough")
    assert list(one.run.locals) == [2]
    one.local_completed(1, 99)
    one.local_completed(2, 1)
    assert one.result == "done"
    one.committed()
    assert one.replayed().blocked is None


def test_one_that_is_dropped_before_it_was_asked_for_leaves_no_trace() -> None:
    async def changes_its_mind(ctx: WorkflowContext) -> None:
        task = asyncio.create_task(ctx.execute_local_activity(double, 1))
        await asyncio.sleep(0)
        task.cancel()
        await ctx.execute_activity("other")

    assert Driven(changes_its_mind).asked == [("ActivityScheduled", 2)]


@pytest.mark.parametrize(
    ("activity", "start_to_close", "attempts"),
    [
        (double, 60.0, 1),
        (_local("quick", start_to_close=timedelta(seconds=2)), 2.0, 1),
        (_local("again", retry=Retry(max_attempts=4)), 60.0, 4),
    ],
)
def test_it_has_a_minute_and_one_try_unless_it_says_otherwise(
    activity: ActivityDefinition[..., Any], start_to_close: float, attempts: int
) -> None:
    async def calls(ctx: WorkflowContext) -> None:
        await ctx.execute_local_activity(activity, 1)

    one = Driven(calls)
    one.committed()
    event: Event = one.events[-1]
    data: LocalActivityScheduled = event.data()
    assert (data.start_to_close, data.retry.max_attempts) == (start_to_close, attempts)
