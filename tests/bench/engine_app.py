"""The workflows that the bench runs on our engine, and the places where their activities leave stamps and wait."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Final

from harvest import Harvest, WorkflowContext

app: Final = Harvest()
stamps: Final[list[float]] = []
"""When each `stamped` activity began, in seconds of perf_counter."""


class Gate:
    """Holds one `gated` activity until the bench lets it go, and tells when the next one has begun."""

    def __init__(self) -> None:
        self.began = 0.0
        self.ends = False
        self._arrived = asyncio.Event()
        self._open = asyncio.Event()

    async def hold(self) -> None:
        """Called by the activity: note the arrival, then wait to be let go."""
        self.began = time.perf_counter()
        self._arrived.set()
        await self._open.wait()
        self._open.clear()

    async def arrival(self, seconds: float) -> None:
        """Wait until an activity is held here; raises TimeoutError."""
        async with asyncio.timeout(seconds):
            await self._arrived.wait()

    def end(self) -> None:
        """Let the held activity end, and its run with it."""
        self.ends = True
        self._open.set()

    async def step(self, seconds: float = 30.0) -> float:
        """Let the held activity end; seconds until the decision that follows has started the next one."""
        self._arrived.clear()
        released = time.perf_counter()
        self._open.set()
        await self.arrival(seconds)
        return self.began - released


gates: Final[dict[str, Gate]] = {}
"""The gate of each `grown` run, by the run's name."""


@app.activity(start_to_close=timedelta(seconds=30))
async def echo(text: str) -> str:
    """Do nothing."""
    return text


@app.activity(start_to_close=timedelta(seconds=30))
async def stamped(text: str) -> str:
    """Do nothing but note when."""
    stamps.append(time.perf_counter())
    return text


@app.activity(start_to_close=timedelta(minutes=30))
async def gated(name: str, text: str) -> str:
    """Wait at the run's gate; nothing is returned when the run is to end."""
    await gates[name].hold()
    return "" if gates[name].ends else text


@app.workflow
async def three_steps(ctx: WorkflowContext, text: str) -> str:
    """Bench (a): three sequential activities."""
    for _ in range(3):
        text = await ctx.execute_activity(echo, text)
    return text


@app.workflow
async def many_steps(ctx: WorkflowContext, count: int, text: str) -> str:
    """Bench (b): `count` sequential activities that leave stamps."""
    for _ in range(count):
        text = await ctx.execute_activity(stamped, text)
    return text


@app.workflow
async def grown(ctx: WorkflowContext, name: str, count: int, text: str) -> str:
    """Bench (c): a history of `count` activities, then one decision each time its gate is opened."""
    for _ in range(count):
        text = await ctx.execute_activity(echo, text)
    while text:
        text = await ctx.execute_activity(gated, name, text)
    return text


@app.workflow
async def parked(ctx: WorkflowContext, count: int, text: str) -> str:
    """Bench (d): a history of `count` activities, then a wait without end."""
    for _ in range(count):
        text = await ctx.execute_activity(echo, text)
    return await ctx.wait_for_signal("go", str)


@app.workflow
async def joins(ctx: WorkflowContext) -> int:
    """Bench (g): five joins of ten activities."""
    total = 0
    for _ in range(5):
        total += len(await asyncio.gather(*(ctx.execute_activity(echo, str(number)) for number in range(10))))
    return total


@app.workflow
async def races(ctx: WorkflowContext) -> int:
    """Bench (g): ten races of an activity against a timer."""
    won = 0
    for _ in range(10):
        winner = await ctx.race(ctx.execute_activity(echo, "fast"), ctx.sleep(60))
        won += winner.index == 0
    return won


@app.workflow
async def member(ctx: WorkflowContext, text: str) -> str:
    """Bench (g): a child."""
    return await ctx.execute_activity(echo, text)


@app.workflow
async def families(ctx: WorkflowContext) -> int:
    """Bench (g): five children, one after the other."""
    for number in range(5):
        await ctx.execute_child_workflow(member, str(number))
    return 5


@app.workflow
async def updated(ctx: WorkflowContext) -> int:
    """Bench (g): answers five updates, each with an activity."""
    answered = 0

    async def add(number: int) -> str:
        nonlocal answered
        text = await ctx.execute_activity(echo, str(number))
        answered += 1
        return text

    ctx.register_update_handler("add", add)
    await ctx.wait_condition(lambda: answered == 5 and ctx.all_handlers_finished())
    return answered
