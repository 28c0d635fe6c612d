"""Two ways to run a program of plain asyncio: on a loop of asyncio's with a clock of its own, and in a workflow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

from harvest.history.kinds import EventKind
from harvest.replay.context import WorkflowContext
from tests.replay.driving import Driven

Call = Callable[[str], Coroutine[Any, Any, str]]
Log = list[str]
Program = Callable[[Call, Log], Awaitable[None]]
# What happens to a program: an activity ends or fails, seconds pass, or the whole is cancelled.
Happening = tuple[str, str | int]
TURNS = 60


class Failed(Exception):
    """How an activity fails."""


async def _run(program: Program, call: Call, log: Log) -> None:
    try:
        await program(call, log)
    except asyncio.CancelledError:
        log.append("cancelled")
    except BaseException as error:
        log.append(described(error))


def described(error: BaseException) -> str:
    """An error and those in it, by type."""
    if isinstance(error, BaseExceptionGroup):
        return f"group of {', '.join(sorted(described(inner) for inner in error.exceptions))}"
    return type(error).__name__


class ClockedLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, whose time passes when it is told."""

    now = 1_000.0

    def time(self) -> float:
        return self.now


def on_asyncio(program: Program, happenings: list[Happening]) -> Log:
    """What the program logs on asyncio's own loop."""
    log: Log = []
    waiting: dict[str, asyncio.Future[str]] = {}

    async def call(name: str) -> str:
        waiting[name] = asyncio.get_running_loop().create_future()
        return await waiting[name]

    async def drive() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ClockedLoop)
        main = asyncio.create_task(_run(program, call, log))
        for what, which in [("turn", ""), *happenings]:
            if what == "ends" and not waiting[str(which)].done():
                waiting[str(which)].set_result(str(which))
            elif what == "fails" and not waiting[str(which)].done():
                waiting[str(which)].set_exception(Failed())
            elif what == "passes":
                loop.now += float(which)
            elif what == "cancel":
                main.cancel()
            for _ in range(TURNS):
                await asyncio.sleep(0)
            log.append("-")
        main.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await main

    loop = ClockedLoop()
    try:
        loop.run_until_complete(drive())
    finally:
        loop.close()
    return log[: len(log) - 1 - log[::-1].index("-") + 1]


def in_a_workflow(program: Program, happenings: list[Happening]) -> Log:
    """What it logs as a workflow, where `call` is an activity."""
    log: Log = []
    numbers: dict[str, int] = {}

    async def workflow(ctx: WorkflowContext) -> None:
        async def call(name: str) -> str:
            numbers[name] = ctx._run.sequence + 1
            try:
                return str(await ctx.execute_activity(name))
            except Exception as error:
                raise Failed from error

        await _run(program, call, log)

    driven = Driven(workflow)
    log.append("-")
    driven.tick = timedelta(0)
    for what, which in happenings:
        if what == "ends":
            driven.completed(numbers[str(which)], which)
        elif what == "fails":
            driven.failed(numbers[str(which)])
        elif what == "passes":
            driven.at += timedelta(seconds=float(which))
            _fire_due(driven)
        elif what == "cancel":
            driven.cancel()
        log.append("-")
    assert driven.run.blocked is None
    driven.run.release()
    return log[: len(log) - log[::-1].index("-")]


def _fire_due(driven: Driven) -> None:
    now = (driven.at - driven.run.started_at).total_seconds()
    while True:
        due = [timer for timer in driven.run.timers.values() if timer.when() <= now]
        if not due:
            return
        first = min(due, key=lambda timer: timer.when())
        driven.event(EventKind.TIMER_FIRED, first.seq)
