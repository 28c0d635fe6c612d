"""Eviction of parked runs: nothing gets out, in bounded time, and no other run notices (design 3)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import statistics
import sys
import time
import tracemalloc
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from harvest.replay import unwinding
from harvest.replay.collecting import NobodysLoop
from harvest.replay.context import WorkflowContext
from harvest.worker.options import Counters
from harvest.worker.watch import StepWatch
from harvest.worker.work import Residents, Work
from tests.replay.driving import Driven
from tests.replay.noting import as_workflow
from tests.replay.recording import live
from tests.scale import scale

PARKED = scale(200, 1_000)
_log = logging.getLogger("the author's")
_told: ContextVar[str] = ContextVar("told", default="nothing")
loops: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_gets_out(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No warning, no log, no exception that nobody could catch and no word on the standard streams."""
    loops.clear()
    unraisable: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, unraisable.append
    try:
        with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.DEBUG):
            warnings.simplefilter("always")
            yield
            gc.collect()
        assert not [str(warning.message) for warning in caught]
        assert not [record.getMessage() for record in caplog.records if not record.name.startswith("harvest.")]
        assert not [(one.exc_type, one.object) for one in unraisable]
    finally:
        sys.unraisablehook = before
    assert capfd.readouterr() == ("", "")


@pytest.fixture(autouse=True)
def _declared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared for each run anew would be most of what is measured."""
    monkeypatch.setattr("tests.replay.driving.as_workflow", functools.cache(as_workflow))


def note_loop() -> None:
    """Note the loop that code finds itself under."""
    try:
        loops.append(asyncio.get_running_loop())
    except RuntimeError:
        loops.append(None)


def say_all(ctx: WorkflowContext) -> None:
    """Everything that could get out."""
    note_loop()
    ctx.log.warning("cleaning up")
    _log.error("cleaning up")
    warnings.warn("cleaning up", stacklevel=2)
    ctx.metrics.count("cleaned_up")
    left_behind(ctx)


def left_behind(ctx: WorkflowContext) -> None:
    """Begin what nobody waits for."""
    asyncio.get_running_loop().create_task(_activity(ctx, "left behind")).set_name("left")


async def _activity(ctx: WorkflowContext, name: str) -> None:
    await ctx.execute_activity(name)


async def ends_with_finally(ctx: WorkflowContext) -> None:
    try:
        await ctx.execute_activity("work")
    finally:
        say_all(ctx)
        await ctx.execute_activity("clean_up")


async def catches_its_cancelling(ctx: WorkflowContext) -> None:
    try:
        await asyncio.gather(ctx.execute_activity("work"), asyncio.sleep(5), _activity(ctx, "more"))
    except asyncio.CancelledError:
        say_all(ctx)
        await asyncio.sleep(1)
        note_loop()
        await ctx.execute_activity("clean_up")


async def _ticks(ctx: WorkflowContext) -> AsyncIterator[int]:
    try:
        for number in range(10):
            yield number
    finally:
        say_all(ctx)
        await asyncio.sleep(0)
        note_loop()
        await ctx.execute_activity("clean_up")


async def leaves_generators_half_read(ctx: WorkflowContext) -> None:
    left = [_ticks(ctx) for _ in range(3)]
    for ticks in left:
        async for number in ticks:
            if number == 2:
                break
    async for _ in _ticks(ctx):
        await ctx.execute_activity("work")


def _numbers(ctx: WorkflowContext) -> Iterator[int]:
    try:
        yield from range(10)
    finally:
        note_loop()
        ctx.log.warning("cleaning up")
        ctx.now()


async def reads_a_plain_generator(ctx: WorkflowContext) -> None:
    for _ in _numbers(ctx):
        await ctx.execute_activity("work")


class Finalised:
    """Does what it can when it goes: whenever that is."""

    def __init__(self, ctx: WorkflowContext, *, in_a_cycle: bool) -> None:
        self.ctx = ctx
        self.cycle = self if in_a_cycle else None

    def __del__(self) -> None:
        note_loop()
        with contextlib.suppress(RuntimeError):
            left_behind(self.ctx)
        self.ctx.random()


async def keeps_what_is_finalised(ctx: WorkflowContext) -> None:
    kept = [Finalised(ctx, in_a_cycle=False)]
    cycle = [Finalised(ctx, in_a_cycle=True)]
    generator = _numbers(ctx)
    around: list[Any] = [generator]
    around.append(around)
    next(generator)
    await ctx.execute_activity("work")
    assert kept
    assert cycle


async def has_a_group(ctx: WorkflowContext) -> None:
    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        group.create_task(ends_with_finally(ctx))
        group.create_task(catches_its_cancelling(ctx))
        group.create_task(leaves_generators_half_read(ctx))


async def refuses(ctx: WorkflowContext) -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except BaseException:
            continue


SHAPES = (
    ends_with_finally,
    catches_its_cancelling,
    leaves_generators_half_read,
    reads_a_plain_generator,
    keeps_what_is_finalised,
    has_a_group,
)


def parked(function: Callable[[WorkflowContext], Any], seed: int = 5) -> Driven:
    """A run that has asked for what it waits for, and got it committed."""
    one = Driven(function, seed=seed)
    assert one.run.blocked is None
    one.committed()
    return one


def fleet_of(count: int) -> list[Driven]:
    """Parked runs of every shape, one of which refuses to end."""
    runs = [parked(SHAPES[number % len(SHAPES)], number) for number in range(count - 1)]
    return [*runs, parked(refuses, count)]


def residents() -> tuple[Residents, Counters]:
    counters = Counters()
    return Residents(10**6, 10**12, counters, StepWatch(counters)), counters


def work_of(one: Driven) -> Work:
    """The run as a worker keeps it; it is nobody else's any more."""
    identity = one.run.identity
    work = Work(
        identity.execution_id, partition=0, workflow_name="driven", workflow_id="w", version=1, queue="q",
        deadline_at=None,
    )  # fmt: skip
    work.run = one.run
    return work


@pytest.mark.slow
@pytest.mark.prove_ownership
def test_what_runs_when_runs_are_evicted_runs_under_their_own_closed_loops_and_asks_for_nothing(
    proof: Callable[..., None],
) -> None:
    kept, counters = residents()
    runs = fleet_of(PARKED)
    wall, processor = [], []
    gc.collect()
    gc.disable()
    try:
        for one in runs:
            work, run, loop, before = work_of(one), one.run, one.run.loop, len(loops)
            began, began_at = time.perf_counter(), time.thread_time()
            kept.let_go(work)
            processor.append(time.thread_time() - began_at)
            wall.append(time.perf_counter() - began)
            assert {id(loop) for loop in loops[before:]} <= {id(loop)}
            assert loop.is_closed()
            assert not run.asked
            assert not run.details
            assert not run.progress
            assert asyncio._get_running_loop() is None
    finally:
        gc.enable()
    assert len(loops) > PARKED
    assert counters.refused_release == 1
    p99 = statistics.quantiles(processor, n=100)[98]
    assert p99 < 0.005
    assert max(processor) < 0.1
    proof(
        "evictions",
        runs=PARKED,
        p99_ms=1e3 * statistics.quantiles(wall, n=100)[98],
        most_ms=1e3 * max(wall),
        p99_processor_ms=1e3 * p99,
        most_processor_ms=1e3 * max(processor),
    )


async def bystands(ctx: WorkflowContext) -> list[Any]:
    first = asyncio.create_task(_activity(ctx, "first"))
    gc.collect()
    await first
    gc.collect()
    return [_told.get(), ctx.random().random(), len(asyncio.all_tasks()), await ctx.execute_activity("second")]


def bystander() -> tuple[Any, ...]:
    """A run that collects what there is within its steps, and all that can be seen of it."""
    one = parked(bystands)
    one.completed(1)
    one.committed()
    one.completed(2, "done")
    return one.result, one.run.loop.next_number(), one.asked, [event.payload for event in one.events]


@pytest.mark.slow
@pytest.mark.prove_ownership
def test_collecting_evicted_runs_within_another_runs_step_changes_nothing_in_it() -> None:
    alone = bystander()
    kept, _ = residents()
    gc.collect()
    gc.disable()
    try:
        runs = [parked(keeps_what_is_finalised, number) for number in range(PARKED)]
        for one in runs:
            kept.let_go(work_of(one))
        before = len(loops)
        runs.clear()
        del one

        live.clear()
        beside = bystander()
    finally:
        gc.enable()
    assert beside == alone
    late = loops[before:]
    assert len(late) == 2 * PARKED, "finalisers of cycles, and generators in them"
    assert all(isinstance(loop, NobodysLoop) for loop in late)


def test_a_collection_between_steps_reaches_no_loop_either() -> None:
    async def in_a_worker() -> None:
        loop = asyncio.get_running_loop()
        kept, _ = residents()
        kept.let_go(work_of(parked(keeps_what_is_finalised)))

        live.clear()
        tasks, before = asyncio.all_tasks(), len(loops)
        gc.collect()
        assert [type(each) for each in loops[before:]] == [NobodysLoop, NobodysLoop]
        assert asyncio.all_tasks() == tasks
        assert asyncio.get_running_loop() is loop

    asyncio.run(in_a_worker())


@pytest.mark.slow
@pytest.mark.prove_ownership
def test_memory_is_as_before_when_runs_were_evicted(proof: Callable[..., None]) -> None:

    kept, _ = residents()

    def round_trip() -> int:
        runs = fleet_of(PARKED)
        parked_at = tracemalloc.get_traced_memory()[0]
        for one in runs:
            kept.let_go(work_of(one))
        loops.clear()
        live.clear()
        return parked_at

    tracemalloc.start()
    try:
        round_trip()
        gc.collect()
        start = tracemalloc.get_traced_memory()[0]
        most = round_trip()
        gc.collect()
        end = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert most - start > 1_000 * PARKED, "what is parked is what is measured"
    assert end - start < 0.01 * (most - start), "the one that refuses to end is kept"
    proof("traced memory", runs=PARKED, start_kib=start / 1024, parked_kib=most / 1024, end_kib=end / 1024)


async def _computes(ctx: WorkflowContext) -> None:
    try:
        await ctx.execute_activity("work")
    finally:
        number = 0
        while True:
            number += 1


async def _computes_and_catches(ctx: WorkflowContext) -> None:
    while True:
        try:
            await ctx.execute_activity("work")
        except BaseException:
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    continue


async def _computes_in_a_generator(ctx: WorkflowContext) -> None:
    async def numbers() -> AsyncIterator[int]:
        while True:
            try:
                yield 1
            finally:
                while True:
                    pass

    left = numbers()
    await anext(left)
    await ctx.execute_activity("work")


async def _computes_in_many_tasks(ctx: WorkflowContext) -> None:
    tasks = [asyncio.create_task(_computes_and_catches(ctx)) for _ in range(20)]
    left = [_ticks(ctx) for _ in range(20)]
    for ticks in left:
        await anext(ticks)
    await _computes(ctx)
    await asyncio.wait(tasks)


@pytest.mark.timeout(30)
@pytest.mark.prove_ownership
@pytest.mark.parametrize(
    "function", [_computes, _computes_and_catches, _computes_in_a_generator, _computes_in_many_tasks]
)
def test_cleanup_that_computes_is_hurried(
    function: Callable[[WorkflowContext], Any], proof: Callable[..., None]
) -> None:
    kept, counters = residents()
    before, took = sys.gettrace(), []
    for _ in range(5):
        work = work_of(parked(function))
        run, began = work.run, time.thread_time()
        kept.let_go(work)
        took.append(time.thread_time() - began)
        assert run is not None
        assert not run.asked
        assert {id(loop) for loop in loops} <= {id(run.loop)}
        loops.clear()
    assert sys.gettrace() is before
    assert asyncio._get_running_loop() is None
    assert counters.refused_release == 0
    assert max(took) < 0.1
    proof(f"hurried: {function.__name__}", most_processor_ms=1e3 * max(took))


def test_the_refused_are_kept_for_good() -> None:
    kept, counters = residents()
    before = len(unwinding._refused_to_end)
    kept.let_go(work_of(parked(refuses)))
    assert counters.refused_release == 1
    assert len(unwinding._refused_to_end) > before
