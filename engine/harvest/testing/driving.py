"""Brings an environment on: real activities first, then whatever is due next on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final

from harvest import clock as real_time
from harvest.errors import ResultTimeoutError
from harvest.testing.attempts import Attempt
from harvest.testing.clock import VirtualClock
from harvest.testing.world import World

# An activity that is only waiting has shown by then that no other turn of the loop brings it on.
QUIET_TURNS: Final = 50
# What sleeps on virtual time beside something real gets that much real time before its next alarm.
GRACE_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 10.0

# Whether this task is something that the environment itself waits for.
_errand: ContextVar[Errand | None] = ContextVar("harvest_errand", default=None)


class Errand:
    """Something that the test has asked for at an instant; `is_waiting` while it waits for the environment itself."""

    def __init__(self) -> None:
        self.is_waiting = 0


class Driver:
    """One for each environment. `patience` is how long a real activity may hold up time, in real seconds."""

    def __init__(self, world: World, patience: float) -> None:
        self._world = world
        self._clock: VirtualClock = world.clock
        self._patience = patience
        self._errands: dict[asyncio.Task[None], Errand] = {}
        self._failed: list[BaseException] = []

    def after(self, seconds: float, act: Callable[[], Awaitable[Any] | Any]) -> None:
        """Let the test do something at an instant to come."""
        self._clock.after(seconds, lambda: self._send(act))

    def _send(self, act: Callable[[], Awaitable[Any] | Any]) -> None:
        errand = Errand()

        async def run() -> None:
            _errand.set(errand)
            done = act()
            if asyncio.iscoroutine(done) or isinstance(done, asyncio.Future):
                await done

        task = asyncio.get_running_loop().create_task(run())
        self._errands[task] = errand
        task.add_done_callback(self._back)

    def _back(self, task: asyncio.Task[None]) -> None:
        self._errands.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed.append(error)
        self._world.changed()

    async def stop(self) -> None:
        """End the errands that are under way."""
        tasks = list(self._errands)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Going on

    async def settle(self) -> None:
        """Let everything happen that can happen at this instant.

        Activities that really wait for something outside are not waited for; those in threads are.
        """
        with self._waiting():
            quiet = 0
            while quiet < QUIET_TURNS:
                self._run()
                busy = self._busy()
                if not busy:
                    return
                if all(isinstance(one, Attempt) and one.in_thread for one in busy):
                    await self._news(busy, self._patience)
                    continue
                before = self._world.changes
                await asyncio.sleep(0)
                quiet = quiet + 1 if self._world.changes == before else 0

    async def until(self, done: Callable[[], bool]) -> bool:
        """Go on until `done()`, skipping time when nothing else can happen; False when nothing is left to come."""
        with self._waiting():
            while True:
                self._run()
                if done():
                    return True
                busy = self._busy()
                if busy and not await self._waited_for(busy):
                    continue
                # Whoever waits beside this for the same environment has its turn first.
                before = self._world.changes
                await asyncio.sleep(0)
                if self._world.changes != before or self._busy() != busy:
                    continue
                if self._clock.next() is None:
                    return False
                self._clock.step()

    async def skip(self, instant: datetime) -> None:
        """Go on to an instant, through everything that is due before it."""
        with self._waiting():
            while True:
                await self.settle()
                due = self._clock.next()
                if due is None or due > instant:
                    break
                self._clock.step()
            self._clock.advance_to(instant)
            await self.settle()

    def _run(self) -> None:
        self._world.run()
        trouble, self._world.trouble = self._world.trouble, None
        if trouble is not None:
            raise trouble
        if self._failed:
            raise self._failed.pop(0)

    def _busy(self) -> list[Attempt | Errand]:
        """What goes on in real time."""
        attempts = [attempt for attempt in self._world.activities.running if not attempt.waits_for_time]
        return [*attempts, *(errand for errand in self._errands.values() if not errand.is_waiting)]

    async def _waited_for(self, busy: list[Attempt | Errand]) -> bool:
        """Wait for what goes on in real time; tells whether time may pass all the same."""
        may_pass = all(isinstance(one, Attempt) and one.may_wait_for_time for one in busy)
        return not await self._news(busy, GRACE_SECONDS if may_pass else self._patience, may_pass=may_pass)

    async def _news(self, busy: list[Attempt | Errand], seconds: float, *, may_pass: bool = False) -> bool:
        """Wait for news; False when none came in so many real seconds, where that is no error."""
        news = asyncio.Event()
        self._world.listeners.append(news)
        if await real_time.wait_event(news, seconds) or may_pass:
            return news.is_set()
        names = sorted({one.activity.command.name for one in busy if isinstance(one, Attempt)})
        what = f"activity {', '.join(map(repr, names))} is" if names else "what env.after was given is"
        raise ResultTimeoutError(
            f"{what} under way for {seconds:g} s of real time, and time is not skipped meanwhile; let it wait by "
            "asyncio.sleep, replace it by env.mock(…, never) to see its timeout, or call env.skip to let time pass",
            activities=names,
        )

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """An errand that waits for the environment is not waited for by it."""
        errand = _errand.get()
        if errand is None:
            yield
            return
        errand.is_waiting += 1
        self._world.changed()
        try:
            yield
        finally:
            errand.is_waiting -= 1
