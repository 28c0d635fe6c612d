"""An asyncio event loop that does the same on every replay (design 3).

Its time is the run's, its timers are durable, and its tasks and futures hash by number, so that sets of them iterate
alike in every process. It is driven by `Run`, one delivered event at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, TypeVar

from harvest.errors import ForbiddenInWorkflowError

if TYPE_CHECKING:
    from harvest.replay.run import Run

T = TypeVar("T")
HASH_BITS: Final = (1 << 61) - 1


class WorkflowTask(asyncio.Task[Any]):
    """A task that hashes by the run's seed plus its number; equal only to itself.

    It counts cancellations itself: a task that cancels itself and takes that back is not cancelled, which up to 3.12
    asyncio's own could not undo.
    """

    number: int
    _cancels = 0
    _cancels_itself = False

    def __hash__(self) -> int:
        return self.number

    __eq__ = object.__eq__

    def cancel(self, msg: Any | None = None) -> bool:
        """As asyncio's; what may only look may not."""
        check_may_act(self)
        if self.done():
            return False
        self._cancels += 1
        loop = self.get_loop()
        if asyncio.current_task(loop) is not self:
            return super().cancel(msg)
        if not self._cancels_itself:
            self._cancels_itself = True
            loop.call_soon(self._deliver, msg)
        return True

    def _deliver(self, msg: Any | None) -> None:
        """The task that cancelled itself waits by now."""
        if self._cancels_itself and not self.done():
            super().cancel(msg)
        self._cancels_itself = False

    def cancelling(self) -> int:
        """As asyncio's."""
        return self._cancels

    def uncancel(self) -> int:
        """As 3.13's: the last one takes back what has not been delivered."""
        self._cancels = max(0, self._cancels - 1)
        if self._cancels == 0:
            self._cancels_itself = False
        return self._cancels


class WorkflowFuture(asyncio.Future[Any]):
    """A future that hashes by number and tells its run when it is cancelled."""

    number: int
    on_cancel: Callable[[], None] | None = None

    def __hash__(self) -> int:
        return self.number

    __eq__ = object.__eq__

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel, and take back or cancel the command that this future waits for."""
        check_may_act(self)
        cancelled = super().cancel(msg)
        if cancelled and self.on_cancel is not None:
            self.on_cancel()
        return cancelled


def check_may_act(future: asyncio.Future[Any]) -> None:
    """Raise ForbiddenInWorkflowError where code runs that may only look."""
    run: Run = future.get_loop().run  # type: ignore[attr-defined]
    if run.only_looks:
        run.check_may_act()


class WorkflowTimer(asyncio.TimerHandle):
    """A handle whose time is a durable timer's."""

    __slots__ = ("seq",)
    seq: int


class WorkflowLoop(asyncio.AbstractEventLoop):
    """The part of asyncio's loop that coroutines, futures, tasks and timeouts need; the rest is refused by name."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.ready: deque[asyncio.Handle] = deque()
        self.closed = False
        self._number = seed & HASH_BITS

    def next_number(self) -> int:
        """A number unique in this run, offset by the run's seed."""
        self._number += 1
        return self._number

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.closed

    def time(self) -> float:
        return self.run.elapsed()

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self.run.only_looks:
            # A future has changed already, and whoever waits for it is never woken.
            self.run.disturbed = True
            self.run.check_may_act()
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = WorkflowTimer(when, callback, args, self, context)
        # Cleanup code of a run that is let go may wait, for nothing: it is cancelled again. Raising from here would
        # leave coroutines behind that asyncio was about to await.
        timer.seq = 0 if self.run.released else self.run.start_timer(max(0.0, when - self.time()), timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        assert isinstance(handle, WorkflowTimer)
        self.run.cancel_timer(handle.seq)

    def create_future(self) -> WorkflowFuture:
        if self.run.only_looks:
            self.run.check_may_act()
        future = WorkflowFuture(loop=self)
        future.number = self.next_number()
        return future

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: object = None, context: Context | None = None, **_: Any
    ) -> asyncio.Task[T]:
        if self.run.only_looks:
            coro.close()
            self.run.check_may_act()
        # The number must be there before __init__, which puts the task into asyncio's process-wide set.
        task = WorkflowTask.__new__(WorkflowTask)
        task.number = self.next_number()
        task.__init__(coro, loop=self, name=str(name or "workflow"), context=context)  # type: ignore[misc]
        self.run.tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore: what matters leaves through the main task, and a lost exception of another task is its author's."""

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore, as above."""

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: the run closes its generators when it is let go."""


_ELSEWHERE: Final = "files, network and processes belong in an activity"
_INSTEAD: Final = {
    "run_in_executor": "threads cannot be replayed; do the work in an activity",
    "call_soon_threadsafe": "threads cannot be replayed; do the work in an activity",
    "add_signal_handler": "signals of the operating system belong to the worker",
    "run_forever": "the workflow's loop is driven by its history",
    "run_until_complete": "await the coroutine instead",
    "stop": "the workflow's loop is driven by its history",
    "close": "the workflow's loop is driven by its history",
}


def _refusal(name: str, instead: str) -> Callable[..., Any]:
    def refuse(self: WorkflowLoop, *args: Any, **kwargs: Any) -> Any:
        raise ForbiddenInWorkflowError(f"workflow code called loop.{name}: {instead}", call=name)

    return refuse


for _name in vars(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(WorkflowLoop):
        setattr(WorkflowLoop, _name, _refusal(_name, _INSTEAD.get(_name, _ELSEWHERE)))
