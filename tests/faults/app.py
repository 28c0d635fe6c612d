"""Workflows for the fault tests, run by worker processes that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

from harvest import Harvest, Retry, WorkflowContext

app = Harvest()
SOON = Retry(max_attempts=10, initial_interval=timedelta(milliseconds=20))


@app.activity(retry=SOON)
async def add_one(number: int) -> int:
    """Takes a moment, so that kills find it running."""
    await asyncio.sleep(0.01 * (number % 3))
    return number + 1


@app.activity(retry=SOON, queue="other")
async def add_one_elsewhere(number: int) -> int:
    """Never eager where the worker does not poll its queue."""
    return number + 1


@app.activity
async def wait_for_file(path: str) -> int:
    """Runs until the file exists; returns the process that ran it."""
    while not Path(path).exists():
        await asyncio.sleep(0.02)
    return os.getpid()


@app.activity
async def kill_worker(path: str) -> None:
    """Notes its process and takes it down."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)


@app.workflow
async def three_steps(ctx: WorkflowContext, number: int) -> int:
    for _ in range(3):
        number = await ctx.execute_activity(add_one, number)
    return number


@app.workflow
async def steps_signal_timer(ctx: WorkflowContext, number: int) -> int:
    """Two activities at once, a signal, a timer, and one more activity."""
    first, second = await asyncio.gather(ctx.execute_activity(add_one, number), ctx.execute_activity(add_one, number))
    added = await ctx.wait_for_signal("add", int)
    await ctx.sleep(0.1)
    return await ctx.execute_activity(add_one, first + second + added)


@app.workflow
async def long_and_signals(ctx: WorkflowContext, path: str) -> list[int]:
    """A long eager activity beside signals that must be heard meanwhile."""
    running = asyncio.ensure_future(ctx.execute_activity(wait_for_file, path))
    heard: list[int] = []
    while len(heard) < 2:
        heard.append(await ctx.wait_for_signal("news", int))
    await ctx.execute_activity(add_one, 1)
    return [*heard, await running]


@app.workflow
async def killer_activity(ctx: WorkflowContext, path: str) -> str:
    try:
        await ctx.execute_activity(kill_worker, path)
    except Exception as error:
        return str(error)
    return "survived"


@app.workflow
async def killer_step(ctx: WorkflowContext) -> int:
    """A step that ends its process, but for a build that has mended it."""
    number = await ctx.execute_activity(add_one, 1)
    if "HARVEST_TEST_MENDED" not in os.environ:
        os._exit(3)
    return number


@app.workflow
async def spins(ctx: WorkflowContext) -> None:
    """A step that holds the loop and can be broken into."""
    while True:
        pass


@app.workflow
async def spins_when_let_go(ctx: WorkflowContext, for_good: bool) -> int:
    """Parked code whose cleanup holds the loop once it is let go."""
    try:
        return await ctx.wait_for_signal("go", int)
    except BaseException:
        while True:
            try:
                while True:
                    pass
            except BaseException:
                if not for_good:
                    raise


@app.workflow
async def spins_for_good(ctx: WorkflowContext) -> None:
    """A step that does not let go, whatever is raised in it."""
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue
