"""`asyncio.TaskGroup` that ends alike under every Python, for code in a workflow.

Up to 3.12 a group that failed while it waited left its task marked as being cancelled, and lost a cancellation that
came at the same time. In a workflow a group ends as 3.13's does.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from harvest.replay.loop import WorkflowLoop

_TaskGroup = asyncio.TaskGroup


class TaskGroup(_TaskGroup):
    """As asyncio.TaskGroup; outside a workflow it is that."""

    # asyncio's own fields, which have been the same since groups were new.
    _aborting: bool
    _base_error: BaseException | None
    _errors: list[BaseException] | None
    _exiting: bool
    _loop: Any
    _on_completed_fut: asyncio.Future[bool] | None
    _parent_cancel_requested: bool
    _parent_task: asyncio.Task[Any]
    _tasks: set[asyncio.Task[Any]]

    async def __aexit__(
        self, et: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if not isinstance(self._loop, WorkflowLoop):
            await super().__aexit__(et, exc, tb)
            return
        self._exiting = True
        if isinstance(exc, SystemExit | KeyboardInterrupt) and self._base_error is None:
            self._base_error = exc
        cancelled = exc if isinstance(exc, asyncio.CancelledError) else None
        if exc is not None and not self._aborting:
            self._abort()
        cancelled = await self._ended(cancelled)
        if self._base_error is not None:
            raise self._base_error
        if self._parent_cancel_requested and self._parent_task.uncancel() == 0:
            cancelled = None
        assert self._errors is not None
        if cancelled is not None and not self._errors:
            raise cancelled
        if exc is not None and not isinstance(exc, asyncio.CancelledError):
            self._errors.append(exc)
        if self._errors:
            self._fail(self._errors)

    async def _ended(self, cancelled: asyncio.CancelledError | None) -> asyncio.CancelledError | None:
        """Wait until every task has ended; returns what cancelled the waiting from outside, if anything did."""
        while self._tasks:
            if self._on_completed_fut is None:
                self._on_completed_fut = self._loop.create_future()
            try:
                await self._on_completed_fut
            except asyncio.CancelledError as error:
                if not self._aborting:
                    cancelled = error
                    self._abort()
            self._on_completed_fut = None
        return cancelled

    def _abort(self) -> None:
        """asyncio's own walks a set; here the oldest task is cancelled first."""
        self._aborting = True
        tasks = sorted(self._tasks, key=_number) if isinstance(self._loop, WorkflowLoop) else list(self._tasks)
        for task in tasks:
            if not task.done():
                task.cancel()

    def _fail(self, errors: list[BaseException]) -> None:
        if self._parent_task.cancelling():
            # Cancelled from outside too: that is delivered at the next await.
            self._parent_task.uncancel()
            self._parent_task.cancel()
        self._errors = None
        raise BaseExceptionGroup("unhandled errors in a TaskGroup", errors) from None


def _number(task: Any) -> int:
    number: int = task.number
    return number
