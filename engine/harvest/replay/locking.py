"""`asyncio.Semaphore` and `asyncio.Condition` that wake alike under every Python, for code in a workflow.

Up to 3.12 a semaphore woke only one of several that could go on, and a condition lost a notification whose receiver was
cancelled. In a workflow they do as 3.13's do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, Literal

from harvest.replay.loop import WorkflowLoop

_Semaphore = asyncio.Semaphore
_BoundedSemaphore = asyncio.BoundedSemaphore
_Condition = asyncio.Condition


def _in_workflow() -> bool:
    return isinstance(asyncio._get_running_loop(), WorkflowLoop)


class Semaphore(_Semaphore):
    """As asyncio.Semaphore; outside a workflow it is that."""

    # asyncio's own fields.
    _get_loop: Any
    _value: int
    _waiters: deque[asyncio.Future[Any]] | None

    async def acquire(self) -> Literal[True]:
        """As asyncio's."""
        if not _in_workflow():
            return await super().acquire()
        if not self.locked():
            self._value -= 1
            return True
        if self._waiters is None:
            self._waiters = deque()
        future = self._get_loop().create_future()
        self._waiters.append(future)
        try:
            try:
                await future
            finally:
                self._waiters.remove(future)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._value += 1
            raise
        finally:
            while self._value > 0 and self._wake_up_next():
                pass
        return True

    def _wake_up_next(self) -> bool:  # type: ignore[override]
        """Let the first go on that waits; tells whether there was one."""
        for future in self._waiters or ():
            if not future.done():
                self._value -= 1
                future.set_result(True)
                return True
        return False


class BoundedSemaphore(Semaphore, _BoundedSemaphore):
    """As asyncio.BoundedSemaphore."""


class Condition(_Condition):
    """As asyncio.Condition; outside a workflow it is that."""

    # asyncio's own fields.
    _get_loop: Any
    _waiters: deque[asyncio.Future[Any]]

    async def wait(self) -> Literal[True]:
        """As asyncio's."""
        if not _in_workflow():
            return await super().wait()
        if not self.locked():
            raise RuntimeError("cannot wait on un-acquired lock")
        future = self._get_loop().create_future()
        self.release()
        try:
            try:
                self._waiters.append(future)
                try:
                    await future
                finally:
                    self._waiters.remove(future)
            finally:
                await self._acquire_again()
        except BaseException:
            # It may have been notified: then somebody else is, in its place.
            self._wake(1)
            raise
        return True

    async def _acquire_again(self) -> None:
        """Take the lock, whatever cancels meanwhile; the last cancellation leaves once it is held."""
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                await self.acquire()
                break
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _wake(self, count: int) -> None:
        for future in self._waiters:
            if count and not future.done():
                future.set_result(False)
                count -= 1


REPLACED: Final[dict[type, type]] = {
    _Semaphore: Semaphore,
    _BoundedSemaphore: BoundedSemaphore,
    _Condition: Condition,
}
