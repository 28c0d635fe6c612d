"""The same program logs the same on asyncio's own loop and in a workflow: what asyncio means is what workflows do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.replay.driving import Driven
from tests.replay.shapes import Call, Happening, Log, Program, described, in_a_workflow, on_asyncio

CASES: list[tuple[Program, list[Happening]]] = []


def case(*happenings: Happening) -> Callable[[Program], Program]:
    def add(program: Program) -> Program:
        CASES.append((program, list(happenings)))
        return program

    return add


@case(("ends", "b"), ("ends", "a"), ("ends", "c"))
async def gather_keeps_the_order_of_its_arguments(call: Call, log: Log) -> None:
    log.append(str(await asyncio.gather(call("a"), call("b"), call("c"))))


@case(("fails", "b"), ("ends", "a"))
async def gather_raises_and_leaves_the_others_running(call: Call, log: Log) -> None:
    async def noted(name: str) -> None:
        log.append(await call(name))

    try:
        await asyncio.gather(noted("a"), noted("b"))
    except Exception as error:
        log.append(described(error))
    await asyncio.sleep(60)


@case(("fails", "b"), ("ends", "a"))
async def gather_can_return_errors(call: Call, log: Log) -> None:
    found = await asyncio.gather(call("a"), call("b"), return_exceptions=True)
    log.append(str([x if isinstance(x, str) else described(x) for x in found]))


@case(("ends", "a"), ("ends", "b"))
async def gather_takes_one_awaitable_twice(call: Call, log: Log) -> None:
    task = asyncio.ensure_future(call("a"))
    log.append(str(await asyncio.gather(task, task, call("b"))))
    log.append(str(await asyncio.gather()))


@case(("ends", "a"), ("passes", 5), ("ends", "b"))
async def gather_that_is_cancelled_cancels_its_children(call: Call, log: Log) -> None:
    async def noted(name: str) -> None:
        try:
            log.append(await call(name))
        except asyncio.CancelledError:
            log.append(f"{name} cancelled")
            raise

    both = asyncio.gather(noted("a"), noted("b"), return_exceptions=True)
    await asyncio.sleep(5)
    log.append(str(both.cancel()))
    try:
        await both
    except asyncio.CancelledError:
        log.append("gather cancelled")
    log.append(str(both.cancelled()))


@case(("ends", "a"), ("ends", "b"))
async def gather_of_a_child_cancelled_from_elsewhere(call: Call, log: Log) -> None:
    child = asyncio.create_task(call("a"))
    both = asyncio.gather(child, call("b"))
    await asyncio.sleep(0)
    child.cancel()
    try:
        await both
    except asyncio.CancelledError:
        log.append("cancelled by a child")


@case(("ends", "c"), ("ends", "a"), ("fails", "b"))
async def as_completed_gives_what_comes(call: Call, log: Log) -> None:
    for soonest in asyncio.as_completed([call("a"), call("b"), call("c")]):
        try:
            log.append(await soonest)
        except Exception as error:
            log.append(described(error))


@case(("ends", "b"), ("passes", 10), ("ends", "a"))
async def as_completed_runs_out_of_time(call: Call, log: Log) -> None:
    for soonest in asyncio.as_completed([call("a"), call("b")], timeout=10):
        try:
            log.append(await soonest)
        except TimeoutError:
            log.append("out of time")


@case(("ends", "b"), ("passes", 10))
async def wait_for_the_first(call: Call, log: Log) -> None:
    tasks = [asyncio.create_task(call(name), name=name) for name in "abc"]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    log.append(f"{_names(done)} {_names(pending)}")
    done, pending = await asyncio.wait(pending, timeout=10)
    log.append(f"{_names(done)} {_names(pending)}")


@case(("ends", "a"), ("fails", "b"))
async def wait_for_the_first_error(call: Call, log: Log) -> None:
    tasks = [asyncio.create_task(call(name), name=name) for name in "abc"]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    log.append(f"{_names(done)} {_names(pending)}")


def _names(tasks: set[asyncio.Task[Any]]) -> list[str]:
    return sorted(task.get_name() for task in tasks)


@case(("ends", "a"), ("fails", "b"))
async def a_group_cancels_the_others(call: Call, log: Log) -> None:
    async def noted(name: str) -> None:
        try:
            log.append(await call(name))
        except asyncio.CancelledError:
            log.append(f"{name} cancelled")
            raise

    try:
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(noted(name))
    except* Exception as errors:
        log.append(described(errors))


@case(("ends", "a"), ("cancel", ""), ("ends", "c"))
async def a_group_that_is_cancelled(call: Call, log: Log) -> None:
    async def cleans_up(name: str) -> None:
        try:
            await call(name)
        finally:
            log.append(f"{name} cleans up")
            await call("c")
            log.append(f"{name} is clean")

    async with asyncio.TaskGroup() as group:
        group.create_task(call("a"))
        group.create_task(cleans_up("b"))


@case(("passes", 5), ("ends", "b"))
async def a_timeout_cancels_and_becomes_an_error(call: Call, log: Log) -> None:
    try:
        async with asyncio.timeout(5) as limit:
            await call("a")
    except TimeoutError:
        log.append(f"expired {limit.expired()}")
    log.append(await call("b"))


@case(("passes", 5), ("passes", 5), ("ends", "b"))
async def the_inner_timeout_is_not_the_outer(call: Call, log: Log) -> None:
    try:
        async with asyncio.timeout(10) as outer:
            try:
                async with asyncio.timeout(5):
                    await call("a")
            except TimeoutError:
                log.append("inner")
            await call("b")
    except TimeoutError:
        log.append(f"outer {outer.expired()}")


@case(("passes", 5), ("passes", 5), ("ends", "b"), ("passes", 100))
async def a_timeout_can_be_moved(call: Call, log: Log) -> None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(5) as limit:
            limit.reschedule(loop.time() + 10)
            await call("a")
    except TimeoutError:
        log.append("moved")
    async with asyncio.timeout(5) as limit:
        limit.reschedule(None)
        log.append(await call("b"))


@case(("passes", 5), ("ends", "b"), ("fails", "c"))
async def wait_for_limits_one_await(call: Call, log: Log) -> None:
    for name in "abc":
        try:
            log.append(await asyncio.wait_for(call(name), 5))
        except Exception as error:
            log.append(described(error))


@case(("ends", "b"))
async def wait_for_no_time_at_all(call: Call, log: Log) -> None:
    ready = asyncio.get_running_loop().create_future()
    ready.set_result("ready")
    log.append(await asyncio.wait_for(ready, 0))
    try:
        await asyncio.wait_for(call("a"), 0)
    except TimeoutError:
        log.append("none left")
    log.append(await asyncio.wait_for(call("b"), None))


@case(("passes", 5), ("ends", "b"))
async def wait_for_ends_what_it_waited_for(call: Call, log: Log) -> None:
    async def cleans_up() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            log.append("cleaning up")

    try:
        await asyncio.wait_for(cleans_up(), 5)
    except TimeoutError:
        log.append("late")
    log.append(await call("b"))


@case(("passes", 5), ("ends", "a"))
async def a_shield_lets_the_inner_go_on(call: Call, log: Log) -> None:
    inner = asyncio.create_task(call("a"))
    try:
        async with asyncio.timeout(5):
            await asyncio.shield(inner)
    except TimeoutError:
        log.append("late")
    log.append(await inner)


@case(("cancel", ""), ("ends", "refund"))
async def cleanup_may_wait(call: Call, log: Log) -> None:
    try:
        await call("charge")
    except asyncio.CancelledError:
        log.append(await call("refund"))
        raise
    finally:
        log.append("finally")


@case(("cancel", ""), ("ends", "a"), ("ends", "b"))
async def a_cancel_can_be_taken_back(call: Call, log: Log) -> None:
    try:
        await call("a")
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        log.append(f"{task.cancelling()} {task.uncancel()}")
    async with asyncio.timeout(5):
        log.append(await call("b"))


@case(("ends", "0"), ("ends", "1"), ("ends", "2"))
async def a_lock_is_fair(call: Call, log: Log) -> None:
    lock = asyncio.Lock()

    async def locked(number: int) -> None:
        async with lock:
            log.append(f"{number} in")
            await call(str(number))
        log.append(f"{number} out {lock.locked()}")

    await asyncio.gather(*(locked(number) for number in range(3)))


@case(("passes", 5), ("ends", "0"), ("ends", "2"))
async def a_waiter_that_gives_up_does_not_hold_the_lock(call: Call, log: Log) -> None:
    lock = asyncio.Lock()

    async def locked(number: int) -> None:
        try:
            async with asyncio.timeout(5 if number == 1 else None), lock:
                await call(str(number))
                log.append(f"{number} had it")
        except TimeoutError:
            log.append(f"{number} gave up")

    await asyncio.gather(*(locked(number) for number in range(3)))


@case(("ends", "1"), ("ends", "0"), ("ends", "2"), ("ends", "3"))
async def a_semaphore_lets_two_in(call: Call, log: Log) -> None:
    semaphore = asyncio.Semaphore(2)

    async def inside(number: int) -> None:
        async with semaphore:
            log.append(f"{number} in")
            await call(str(number))

    await asyncio.gather(*(inside(number) for number in range(4)))


@case(("ends", "a"), ("ends", "b"), ("ends", "c"))
async def a_queue_holds_back_who_puts(call: Call, log: Log) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(1)

    async def puts() -> None:
        for number in range(4):
            await queue.put(number)
            log.append(f"put {number}")

    async def takes() -> None:
        for name in "abc":
            log.append(f"got {await queue.get()}")
            await call(name)
            queue.task_done()

    await asyncio.gather(puts(), takes())
    log.append(str(queue.qsize()))


@case(("ends", "a"))
async def a_priority_queue_sorts(call: Call, log: Log) -> None:
    queue: asyncio.PriorityQueue[tuple[int, str]] = asyncio.PriorityQueue()
    for item in ((2, "b"), (1, "a"), (3, "c")):
        queue.put_nowait(item)
    await call("a")
    log.append(str([(await queue.get())[1] for _ in range(3)]))


@case(("ends", "a"), ("ends", "b"))
async def an_event_wakes_all_in_order(call: Call, log: Log) -> None:
    event = asyncio.Event()

    async def waits(number: int) -> None:
        await event.wait()
        log.append(str(number))

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(waits(number))
        await call("a")
        event.set()
        event.clear()
        await call("b")


@case(("ends", "a"), ("ends", "b"))
async def a_condition_wakes_as_many_as_it_is_told(call: Call, log: Log) -> None:
    condition = asyncio.Condition()

    async def waits(number: int) -> None:
        async with condition:
            await condition.wait()
            log.append(str(number))

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(waits(number))
        await call("a")
        async with condition:
            condition.notify(2)
        await call("b")
        async with condition:
            condition.notify_all()


@case(("ends", "a"), ("ends", "b"))
async def a_barrier_waits_for_all(call: Call, log: Log) -> None:
    barrier = asyncio.Barrier(2)

    async def arrives(name: str) -> None:
        await call(name)
        await barrier.wait()
        log.append(f"{name} through")

    await asyncio.gather(arrives("a"), arrives("b"))


@case(("passes", 1), ("passes", 1), ("passes", 1))
async def sleepers_wake_in_the_order_of_their_times(call: Call, log: Log) -> None:
    async def sleeps(seconds: float) -> None:
        await asyncio.sleep(seconds)
        log.append(f"{seconds}")

    await asyncio.gather(sleeps(3), sleeps(1), sleeps(2), asyncio.sleep(0), asyncio.sleep(-1))


@case(("ends", "a"))
async def callbacks_and_current_tasks(call: Call, log: Log) -> None:
    task = asyncio.create_task(call("a"), name="calling")
    task.add_done_callback(lambda done: log.append(f"done {done.get_name()}"))
    asyncio.get_running_loop().call_soon(log.append, "soon")
    asyncio.get_running_loop().call_later(5, log.append, "later").cancel()
    log.append(await task)


@case(("ends", "a"))
async def a_task_cancelled_before_it_began(call: Call, log: Log) -> None:
    async def never() -> None:
        log.append("began")

    task = asyncio.create_task(never())
    task.cancel()
    await asyncio.wait([task])
    log.append(str(task.cancelled()))
    log.append(await call("a"))


@pytest.mark.parametrize(("program", "happenings"), CASES, ids=[program.__name__ for program, _ in CASES])
def test_a_workflow_does_what_asyncio_does(program: Program, happenings: list[Happening]) -> None:
    expected = on_asyncio(program, happenings)
    assert in_a_workflow(program, happenings) == expected
    assert len(set(expected)) > 1, "the program logs nothing"


async def _completing(call: Call, log: Log) -> None:
    tasks = [asyncio.create_task(call(name), name=name) for name in "abc"]
    async for task in asyncio.as_completed(tasks, timeout=10):
        log.append(f"{task.get_name()} {task in tasks}")


def test_as_completed_can_be_walked_asynchronously() -> None:
    happenings: list[Happening] = [("ends", "b"), ("ends", "c"), ("passes", 10)]
    log = in_a_workflow(_completing, happenings)
    assert log == ["-", "b True", "-", "c True", "-", "TimeoutError", "-"]
    if sys.version_info >= (3, 13):
        assert on_asyncio(_completing, happenings) == log


def test_outside_a_workflow_asyncio_is_asyncio() -> None:
    async def outside() -> list[object]:
        gathered = await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))
        completed = [await soonest for soonest in asyncio.as_completed([asyncio.sleep(0, 3)])]
        return [gathered, completed, asyncio.all_tasks() == {asyncio.current_task()}]

    assert asyncio.run(outside()) == [[1, 2], [3], True]


def test_sets_of_tasks_have_one_order_in_every_run() -> None:
    async def walks(ctx: Any) -> list[list[str]]:
        tasks = {asyncio.create_task(asyncio.sleep(60), name=f"t{number}") for number in range(40)}
        done = {asyncio.get_running_loop().create_future() for _ in range(3)}
        everything = [task.get_name() for task in asyncio.all_tasks()]
        return [[task.get_name() for task in tasks], everything, [str(hash(future)) for future in done]]

    orders = set()
    for filler in range(20):
        keep = [object() for _ in range(filler * 7)]
        others = [Driven(walks, seed=filler) for _ in range(3)]
        orders.add(str(Driven(walks, seed=9).result))
        del keep, others
    assert len(orders) == 1
