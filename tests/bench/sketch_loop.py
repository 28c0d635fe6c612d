"""The sketch's deterministic loop: the least that lets parked asyncio code be resumed step by step."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any


class SketchTask(asyncio.Task[Any]):
    """A task that hashes by its number, so that sets of tasks have one order in every process."""

    number: int

    def __hash__(self) -> int:
        return self.number

    __eq__ = object.__eq__  # identity: a run's tasks must not equal another's in asyncio's process-wide set


class SketchLoop(asyncio.AbstractEventLoop):
    """A queue of ready callbacks, run to rest on demand."""

    __slots__ = ("_number", "_ready")

    def __init__(self, seed: int) -> None:
        self._ready: collections.deque[asyncio.Handle] = collections.deque()
        self._number = seed

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coroutine: Coroutine[Any, Any, Any], **_: Any) -> SketchTask:  # type: ignore[override]
        task = SketchTask.__new__(SketchTask)
        self._number += 1
        task.number = self._number  # before __init__, which already hashes the task
        task.__init__(coroutine, loop=self)  # type: ignore[misc]
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        pass

    def rest(self) -> None:
        """Run until nothing is ready."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while self._ready:
                self._ready.popleft()._run()
        finally:
            asyncio._set_running_loop(outer)
