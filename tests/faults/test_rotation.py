"""Signals and updates stream into a run that continues as new every 50 of them: none is lost, doubled or refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from harvest import Harvest, WorkflowContext, WorkflowHandle, clock
from harvest.history.states import State
from harvest.shards import Shards
from tests.scale import scale
from tests.support import at_work, check_invariants

EVERY, RATE = 50, 200.0
app = Harvest()


@app.workflow
async def collects(ctx: WorkflowContext, total: int, count: int, digest: int) -> list[int]:
    """Takes numbered signals in order; what it has seen goes along as a count and a running digest."""
    for taken in range(1, total + 1):
        number = await ctx.wait_for_signal("n", int)
        count, digest = count + 1, (digest * 31 + number) % 1_000_003
        if count == total:
            break
        if taken == EVERY:
            ctx.continue_as_new(total, count, digest)
    return [count, digest]


@app.workflow
async def answers(ctx: WorkflowContext, total: int, count: int) -> int:
    """Answers each update with its place in the order of all runs of the chain."""
    taken = 0

    async def take(number: int) -> int:
        nonlocal count, taken
        count, taken = count + 1, taken + 1
        return count

    ctx.register_update_handler("take", take)
    await ctx.wait_condition(lambda: taken >= EVERY or count >= total)
    await ctx.wait_condition(ctx.all_handlers_finished)
    if count < total:
        ctx.continue_as_new(total, count)
    return count


def digest_of(numbers: range) -> int:
    digest = 0
    for number in numbers:
        digest = (digest * 31 + number) % 1_000_003
    return digest


async def paced(count: int) -> AsyncIterator[int]:
    """Numbers at the rate of the issue, or as fast as they are taken."""
    began = clock.monotonic()
    for number in range(count):
        early = began + number / RATE - clock.monotonic()
        if early > 0:
            await clock.sleep(early)
        yield number


@pytest.mark.prove_whole_core
@pytest.mark.timeout(600)
async def test_38_41_signals_into_a_run_that_rotates(
    new_database: Callable[[str], str], proof: Callable[..., None]
) -> None:
    total = scale(400, 10_000)
    async with at_work(app, new_database("rotation_signals")) as (_, shards):
        run = await app.start(collects, total, 0, 0, workflow_id="collects")
        began = clock.monotonic()
        async for number in paced(total):
            await run.signal("n", number)
        seconds = clock.monotonic() - began
        assert await run.result(timedelta(seconds=60)) == [total, digest_of(range(total))]
        rotations = await _rotations(shards)
        assert rotations == (total - 1) // EVERY
        await check_invariants(shards)
    proof("signals into a rotating run", signals=total, rotations=rotations, a_second=total / seconds)


@pytest.mark.prove_whole_core
@pytest.mark.timeout(600)
async def test_40_updates_into_a_run_that_rotates(
    new_database: Callable[[str], str], proof: Callable[..., None]
) -> None:
    total, senders = scale(400, 10_000), 20
    async with at_work(app, new_database("rotation_updates")) as (_, shards):
        run = await app.start(answers, total, 0, workflow_id="answers")
        began = clock.monotonic()
        lots = await asyncio.gather(*(_send(run, total // senders) for _ in range(senders)))
        seconds = clock.monotonic() - began
        assert sorted(place for lot in lots for place in lot) == list(range(1, total + 1))
        assert await run.result(timedelta(seconds=60)) == total
        rotations = await _rotations(shards)
        assert rotations >= 2
        await check_invariants(shards)
    proof("updates into a rotating run", updates=total, rotations=rotations, a_second=total / seconds)


async def _send(run: WorkflowHandle[Any], count: int) -> list[int]:
    return [await run.update("take", number) for number in range(count)]


async def _rotations(shards: Shards) -> int:
    row = await shards.store(0).read.fetch_row(
        "select count(*) as n from harvest_executions where state = $1", int(State.CONTINUED_AS_NEW)
    )
    assert row is not None
    return int(row["n"])
