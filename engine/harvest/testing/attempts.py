"""Activities of an environment and their attempts, as data: what is due of them, and whether time can bring them on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from harvest.history.data import Failure
from harvest.replay.commands import ScheduleActivity
from harvest.replay.records import RunLocal
from harvest.testing.clock import Due, VirtualClock
from harvest.testing.execution import Execution


class Activity:
    """One activity that a run has asked for; `attempt` is the one that runs, None between two."""

    def __init__(self, execution: Execution, command: ScheduleActivity | RunLocal) -> None:
        self.execution = execution
        self.command = command
        self.attempts = 0
        self.attempt: Attempt | None = None
        self.last_failure: Failure | None = None
        self.last_details: bytes | None = None
        self.of_attempt: list[Due] = []
        self.starting: Due | None = None
        self.closing: Due | None = None
        self.held = False

    @property
    def is_local(self) -> bool:
        """Whether it runs inside its decision's worker."""
        return isinstance(self.command, RunLocal)

    def stand_still(self) -> None:
        """Neither a limit of an attempt nor the wait for the next one goes on."""
        for due in self.of_attempt:
            due.cancel()
        self.of_attempt.clear()

    def postpone(self, clock: VirtualClock, seconds: float) -> None:
        """The limits of one that waits to begin are moved by the length of a pause."""
        self.starting = None if self.starting is None else clock.postponed(self.starting, seconds)
        self.closing = None if self.closing is None else clock.postponed(self.closing, seconds)


class Attempt:
    """One attempt, and the time that its code lives by."""

    def __init__(self, activity: Activity, clock: VirtualClock, changed: Callable[[], None]) -> None:
        self.activity = activity
        self.number = activity.attempts
        self.task: asyncio.Task[bytes | Failure] | None = None
        self.cancelled = False
        self.is_idle = False
        self.in_thread = False
        self._clock = clock
        self._changed = changed
        self._sleeping: set[asyncio.Future[None]] = set()
        self._alarms: set[Due] = set()

    def later(self, seconds: float, action: Callable[[], None]) -> Due:
        """Do `action` after so many seconds of virtual time."""
        self._alarms = {due for due in self._alarms if due.is_open}
        due = self._clock.after(seconds, action)
        self._alarms.add(due)
        self._changed()
        return due

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds of virtual time."""
        future = asyncio.get_running_loop().create_future()
        self._sleeping.add(future)
        due = self.later(seconds, lambda: self._wake(future))
        try:
            await future
        finally:
            due.cancel()
            self._sleeping.discard(future)

    def _wake(self, future: asyncio.Future[None]) -> None:
        self._sleeping.discard(future)
        if not future.done():
            future.set_result(None)

    @property
    def waits_for_time(self) -> bool:
        """Whether nothing but virtual time can bring it on."""
        return self.is_idle or self._awaits_time(getattr(self.task, "_fut_waiter", None))

    def _awaits_time(self, awaited: Any) -> bool:
        if isinstance(awaited, asyncio.Task):
            return self._awaits_time(getattr(awaited, "_fut_waiter", None))
        gathered = [child for child in getattr(awaited, "_children", ()) if not child.done()]
        return awaited in self._sleeping or (bool(gathered) and all(map(self._awaits_time, gathered)))

    @property
    def may_wait_for_time(self) -> bool:
        """Whether virtual time can bring it on beside whatever it does in real time."""
        return any(due.is_open for due in self._alarms)
