"""Workflows for the fault tests, run by worker processes that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

from harvest import ActivityContext, Harvest, Retry, WorkflowContext

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


@app.activity
async def note_in(path: str, word: str) -> None:
    """Writes a line, so that whoever looks sees how often it ran."""
    with open(path, "a") as file:
        file.write(f"{word}\n")


@app.activity(retry=Retry(max_attempts=1))
async def takes(ctx: ActivityContext, path: str, seconds: float) -> int:
    """Takes so long, and beats where it was given a heartbeat timeout; returns its attempt."""
    await note_in(path, f"attempt {ctx.attempt}")
    for n in range(int(seconds / 0.05)):
        ctx.heartbeat(n)
        await asyncio.sleep(0.05)
    return ctx.attempt


@app.activity(retry=Retry(max_attempts=1))
def spins_in_a_thread(seconds: float) -> None:
    """Keeps a processor, and this process's interpreter, busy for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@app.activity
async def kill_when_told(path: str) -> None:
    """Notes its process, and takes it down once a file is there."""
    await note_in(path, str(os.getpid()))
    while not Path(f"{path}.go").exists():
        await asyncio.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


@app.workflow
async def takes_long(ctx: WorkflowContext, path: str, seconds: float, heartbeat: float | None) -> int:
    limit = None if heartbeat is None else timedelta(seconds=heartbeat)
    return await ctx.execute_activity(takes.with_options(heartbeat_timeout=limit), path, seconds)


@app.workflow
async def keeps_busy(ctx: WorkflowContext, seconds: float) -> None:
    await ctx.execute_activity(spins_in_a_thread, seconds)


@app.activity(retry=Retry(max_attempts=1))
async def keeps_the_loop(path: str, seconds: float, computing: bool) -> None:
    """Lets nothing else of this process's main thread run for so long, as an activity must not."""
    await note_in(path, str(os.getpid()))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not computing:
            time.sleep(0.05)


@app.workflow
async def stops_the_loop(ctx: WorkflowContext, path: str, seconds: float, computing: bool) -> None:
    await ctx.execute_activity(keeps_the_loop, path, seconds, computing)


@app.workflow
async def waits_for_file(ctx: WorkflowContext, path: str) -> int:
    return await ctx.execute_activity(wait_for_file, path)


@app.workflow
async def compensates(ctx: WorkflowContext, path: str) -> None:
    """Undoes what it did once it is cancelled, and stops for a word in between."""
    try:
        await ctx.execute_activity(note_in, path, "reserve")
        await ctx.wait_for_signal("never")
    except asyncio.CancelledError:
        await ctx.execute_activity(note_in, path, "release")
        await ctx.wait_for_signal("go on")
        await ctx.execute_activity(note_in, path, "told")
        raise


@app.workflow
async def sleeps_for(ctx: WorkflowContext, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "awake"


@app.workflow
async def killed_when_told(ctx: WorkflowContext, path: str) -> None:
    await ctx.execute_activity(kill_when_told, path)


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
async def member(ctx: WorkflowContext, number: int, left: int) -> int:
    """A child that rotates, works inside its worker, and fails when its number says so."""
    number = await ctx.execute_local_activity(add_one, number)
    if left:
        ctx.continue_as_new(number, left - 1)
    if number % 5 == 0:
        raise ValueError(f"number {number}")
    return await ctx.execute_activity(add_one, number)


@app.workflow
async def family(ctx: WorkflowContext, number: int) -> list[int]:
    """Three children that end in different ways, one that is left behind, and a word to each of its own kind."""
    left = member.with_options(detached=True, workflow_id=f"left-{number}")
    await ctx.start_child_workflow(left, 2, 1)
    found = await asyncio.gather(
        *(ctx.execute_child_workflow(member, number + n, n % 2) for n in range(3)), return_exceptions=True
    )
    return [one if isinstance(one, int) else -1 for one in found]


def family_result(number: int) -> list[int]:
    """What `family` returns: a member adds one in each of its runs, fails at multiples of five, and adds one more."""
    reached = [number + n + 1 + n % 2 for n in range(3)]
    return [-1 if each % 5 == 0 else each + 1 for each in reached]


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
async def counts(ctx: WorkflowContext, times: int) -> list[int]:
    """Hears so many numbers, and takes a step after each."""
    heard: list[int] = []
    for _ in range(times):
        heard.append(await ctx.wait_for_signal("count", int))
        await ctx.execute_activity(add_one, 0)
    return heard


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


@app.activity(retry=SOON)
async def ask_model(ctx: ActivityContext, calls: int) -> int:
    """Reports so many calls of a language model, with a moment after each."""
    for number in range(calls):
        ctx.report_llm_usage(model="m", input_tokens=number, output_tokens=1, cost_usd_micros=1, latency_ms=5)
        await asyncio.sleep(0.02)
    return calls


@app.workflow
async def asks_models(ctx: WorkflowContext, activities: int) -> int:
    """One activity after the other, each of which asks."""
    return sum([await ctx.execute_activity(ask_model, 3 + number) for number in range(activities)])


@app.workflow
async def spins(ctx: WorkflowContext) -> None:
    """A step that holds the loop and can be broken into."""
    while True:
        pass


@app.workflow
async def spins_when_let_go(ctx: WorkflowContext, for_good: bool) -> int:
    """Parked code whose cleanup holds the loop once it is let go; for good, where nothing can break in."""
    try:
        return await ctx.wait_for_signal("go", int)
    except BaseException:
        lock = threading.Lock()
        lock.acquire(blocking=for_good)
        while True:
            with contextlib.suppress(BaseException):
                while True:
                    lock.acquire(blocking=for_good)


@app.workflow
async def spins_for_good(ctx: WorkflowContext) -> None:
    """A step that does not let go, whatever is raised in it."""
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue
