"""Durable time."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

from harvest.errors import InvalidRequestError
from harvest.replay.context.base import ContextBase, seconds
from harvest.replay.loop import WorkflowFuture, WorkflowTimer


class TimerHandle:
    """A durable timer that is under way: await it, or cancel it."""

    __slots__ = ("_future", "_timer")

    def __init__(self, future: WorkflowFuture, timer: WorkflowTimer) -> None:
        self._future = future
        self._timer = timer

    def __await__(self) -> Generator[Any, Any, None]:
        """Wait until it fires. Raises CancelledError when it was cancelled. Turning away leaves it running."""
        return asyncio.shield(self._future).__await__()

    @property
    def done(self) -> bool:
        """Whether it has fired or was cancelled."""
        return self._future.done()

    def cancel(self) -> bool:
        """Drop it; tells whether it was still under way."""
        if self._future.done():
            return False
        self._timer.cancel()
        return self._future.cancel()


class TimingCalls(ContextBase):
    """The part of the context that waits for time to pass."""

    __slots__ = ()

    async def sleep(self, delay: timedelta | float) -> None:
        """Sleep durably for a timedelta or seconds."""
        await asyncio.sleep(seconds(delay))

    async def sleep_until(self, instant: datetime) -> None:
        """Sleep durably until an instant, which must have a zone. One that has passed returns at once."""
        if instant.tzinfo is None:
            raise InvalidRequestError(f"{instant!r} has no time zone; give it one, such as UTC")
        instant = instant.astimezone(UTC)
        left = (instant - self.now()).total_seconds()
        if left <= 0:
            return
        future, timer = self._timer(left, instant)
        try:
            await future
        finally:
            timer.cancel()

    def start_timer(self, delay: timedelta | float) -> TimerHandle:
        """Start a durable timer and go on; the handle can be awaited, raced and cancelled."""
        return TimerHandle(*self._timer(max(0.0, seconds(delay)), None))

    def _timer(self, left: float, until: datetime | None) -> tuple[WorkflowFuture, WorkflowTimer]:
        run = self._run
        run.check_may_act()
        future = run.loop.create_future()
        timer = WorkflowTimer(run.elapsed() + left, _wake, (future,), run.loop)
        timer.seq = run.start_timer(left, timer, until=until)
        return future, timer


def _wake(future: WorkflowFuture) -> None:
    if not future.done():
        future.set_result(None)
