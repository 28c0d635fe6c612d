"""The workflows that fleets of worker processes run in the bench: one for each way of waiting, and two long ones."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from harvest import Harvest, WorkflowContext

app: Final = Harvest()
STEPS, JOINS, RACES, CHILDREN, UPDATES = 6, 4, 3, 3, 3
SOON: Final = 0.05
"""Seconds of the timers that are to fire."""
NEVER: Final = 600
LONG_STEPS: Final = 332
"""Activities of a run of 1,001 events: three each, its start and end, a timer that fires and a signal."""


@app.activity(start_to_close=timedelta(seconds=60))
async def echo(text: str) -> str:
    """Do nothing."""
    return text


@app.workflow
async def three_steps(ctx: WorkflowContext, text: str) -> str:
    """Bench (k): three sequential activities, as in (a)."""
    for _ in range(3):
        text = await ctx.execute_activity(echo, text)
    return text


@app.workflow
async def sequence(ctx: WorkflowContext) -> int:
    """Bench (i): activities one after the other, with a timer between two halves."""
    for number in range(STEPS):
        await ctx.execute_activity(echo, str(number))
        if number == STEPS // 2:
            await ctx.sleep(SOON)
    return STEPS


@app.workflow
async def joins(ctx: WorkflowContext) -> int:
    """Bench (i): joins of five activities."""
    total = 0
    for _ in range(JOINS):
        total += len(await asyncio.gather(*(ctx.execute_activity(echo, str(number)) for number in range(5))))
    return total


@app.workflow
async def races(ctx: WorkflowContext) -> int:
    """Bench (i): races of a signal against a timer, which each win in turn."""
    won = 0
    for _ in range(RACES):
        winner = await ctx.race(ctx.wait_for_signal("go", int), ctx.sleep(NEVER))
        won += winner.index == 0
        winner = await ctx.race(ctx.wait_for_signal("never", int), ctx.sleep(SOON))
        won += winner.index == 1
    return won


@app.workflow
async def member(ctx: WorkflowContext, text: str) -> str:
    """Bench (i): a child, which lives in a partition of its own."""
    return await ctx.execute_activity(echo, text)


@app.workflow
async def families(ctx: WorkflowContext) -> int:
    """Bench (i): children, one after the other."""
    for number in range(CHILDREN):
        await ctx.execute_child_workflow(member, str(number))
    return CHILDREN


@app.workflow
async def updated(ctx: WorkflowContext) -> int:
    """Bench (i): updates from outside, each answered with an activity."""
    answered = 0

    async def add(number: int) -> str:
        nonlocal answered
        text = await ctx.execute_activity(echo, str(number))
        answered += 1
        return text

    ctx.register_update_handler("add", add)
    await ctx.wait_condition(lambda: answered == UPDATES and ctx.all_handlers_finished())
    return answered


@app.workflow
async def timers(ctx: WorkflowContext, count: int, seconds: float) -> int:
    """Bench (j): durable timers, one after the other."""
    for _ in range(count):
        await ctx.sleep(seconds)
    return count


@app.workflow
async def long(ctx: WorkflowContext, text: str) -> str:
    """Bench (j): a history of 1,001 events."""
    for _ in range(LONG_STEPS):
        text = await ctx.execute_activity(echo, text)
    await ctx.sleep(SOON)
    return await ctx.wait_for_signal("end", str)
