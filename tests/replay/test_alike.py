"""asyncio's constructs end alike under every Python: what 3.11 and 3.12 do otherwise, a workflow does as 3.13 does."""

from __future__ import annotations

import asyncio
import sys

import pytest

from harvest.history.kinds import EventKind
from harvest.replay import ordered
from harvest.replay.context import WorkflowContext
from tests.replay.driving import Driven


def _cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def _fails(ctx: WorkflowContext) -> None:
    await ctx.execute_activity("fails")


def test_a_group_that_fails_while_it_waits_leaves_no_mark_on_its_task() -> None:
    async def groups(ctx: WorkflowContext) -> int:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_fails(ctx))
        except* Exception:
            pass
        return _cancelling()

    one = Driven(groups)
    one.failed(1)
    assert one.result == 0


def test_a_cancel_request_that_meets_a_failing_group_is_not_lost() -> None:
    async def groups(ctx: WorkflowContext) -> str:
        async def stubborn() -> None:
            try:
                await ctx.sleep(60)
            finally:
                raise ValueError

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(stubborn())
        except* ValueError:
            pass
        await ctx.execute_activity("next")
        return "went on"

    one = Driven(groups)
    one.cancel()
    assert one.outcome is not None
    assert one.outcome.kind is EventKind.WORKFLOW_CANCELLED
    assert one.asked == [("TimerStarted", 1), ("TimerCancelled", 1)], "nothing is asked for after the cancel"


def test_a_timeout_that_meets_a_failing_group_is_over_with_it() -> None:
    async def groups(ctx: WorkflowContext) -> str:
        async def stubborn() -> None:
            try:
                await ctx.wait_for_signal("never")
            finally:
                raise ValueError

        try:
            async with asyncio.timeout(5), asyncio.TaskGroup() as group:
                group.create_task(stubborn())
        except* (ValueError, TimeoutError):
            pass
        return f"{await ctx.wait_for_signal('go')} {_cancelling()}"

    one = Driven(groups)
    one.fired(1)
    one.signal("go", "on")
    assert one.result == "on 0"


def test_a_group_cancels_its_tasks_oldest_first() -> None:
    async def groups(ctx: WorkflowContext) -> list[int]:
        ended: list[int] = []

        async def task(number: int) -> None:
            try:
                await ctx.sleep(60)
            finally:
                ended.append(number)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(task(number))
                await ctx.wait_for_signal("go")
                raise ValueError
        except* ValueError:
            pass
        return ended

    for seed in (5, 1_000_003):
        one = Driven(groups, seed=seed)
        one.signal("go")
        assert one.result == list(range(20))


def test_a_task_may_take_back_that_it_cancels_itself() -> None:
    async def changes_its_mind(ctx: WorkflowContext) -> list[int]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        found = [task.cancelling(), task.uncancel()]
        await ctx.wait_for_signal("go")
        return found

    one = Driven(changes_its_mind)
    one.signal("go")
    assert one.result == [1, 0]


def test_a_task_that_cancels_itself_ends_at_its_next_await_and_asks_for_nothing() -> None:
    async def cancels_itself(ctx: WorkflowContext) -> str:
        async def ends() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await ctx.execute_activity("never")

        done, _ = await asyncio.wait([asyncio.create_task(ends())])
        return str(done.pop().cancelled())

    one = Driven(cancels_itself)
    assert one.asked == []
    assert one.result == "True"


def test_a_notification_whose_receiver_is_cancelled_goes_to_the_next() -> None:
    async def notifies(ctx: WorkflowContext) -> list[str]:
        changed = asyncio.Condition()
        seen: list[str] = []

        async def waits(name: str) -> None:
            async with changed:
                await changed.wait()
                seen.append(name)

        first, second = asyncio.create_task(waits("first")), asyncio.create_task(waits("second"))
        await asyncio.sleep(0)
        async with changed:
            changed.notify(1)
            first.cancel()
        await asyncio.wait([first, second])
        return seen

    assert Driven(notifies).result == ["second"]


def test_a_semaphore_lets_go_on_whoever_can() -> None:
    async def shares(ctx: WorkflowContext) -> list[str]:
        places = asyncio.Semaphore(0)
        log: list[str] = []

        async def comes(name: str) -> None:
            await places.acquire()
            log.append(name)

        tasks = [asyncio.create_task(comes("first"))]
        await asyncio.sleep(0)
        for _ in range(3):
            places.release()
        tasks += [asyncio.create_task(comes(name)) for name in ("second", "third")]
        tasks[0].cancel()
        await asyncio.wait(tasks)
        return log

    assert Driven(shares).result == ["second", "third"]


def test_a_semaphore_of_another_run_is_refused() -> None:
    shared = asyncio.Semaphore(0)

    async def shares(ctx: WorkflowContext) -> None:
        await shared.acquire()

    Driven(shares)
    assert Driven(shares).failure.type == "RuntimeError"


@pytest.mark.parametrize("name", ["TaskGroup", "Semaphore", "BoundedSemaphore", "Condition"])
def test_outside_a_workflow_they_are_asyncios(name: str) -> None:
    ordered.install()
    replaced = getattr(asyncio, name)
    assert replaced.__module__.startswith("harvest.")
    assert any(base.__module__.startswith("asyncio") for base in replaced.__mro__)

    async def uses() -> list[int]:
        places, changed, found = asyncio.BoundedSemaphore(2), asyncio.Condition(), list[int]()

        async def works(number: int) -> None:
            async with places:
                await asyncio.sleep(0)
            async with changed:
                found.append(number)
                changed.notify_all()

        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(works(number))
            async with changed:
                await changed.wait_for(lambda: len(found) == 5)
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup():
                raise ValueError
        return sorted(found)

    assert asyncio.run(uses()) == list(range(5))
    assert sys.modules["asyncio.locks"].Condition is asyncio.Condition
