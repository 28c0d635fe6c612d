"""`asyncio.gather` and `asyncio.as_completed` with a fixed order, for code that runs in a workflow.

asyncio's own walk sets by address. The replacements look at the running loop: outside a workflow asyncio's run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

from harvest.replay.loop import WorkflowFuture, WorkflowLoop

_gather = asyncio.gather
_as_completed = asyncio.as_completed


class Gathering(WorkflowFuture):
    """The outer future of `gather`: cancelling it cancels what it waits for."""

    children: list[asyncio.Future[Any]]
    cancel_requested = False

    def cancel(self, msg: Any | None = None) -> bool:
        if self.done():
            return False
        cancelled = False
        for child in self.children:
            cancelled |= child.cancel(msg)
        self.cancel_requested |= cancelled
        return cancelled


def gather(*awaitables: Awaitable[Any], return_exceptions: bool = False) -> asyncio.Future[list[Any]]:
    """As asyncio.gather."""
    loop = asyncio._get_running_loop()
    if not isinstance(loop, WorkflowLoop):
        return _gather(*awaitables, return_exceptions=return_exceptions)
    unique: dict[int, asyncio.Future[Any]] = {}
    for awaitable in awaitables:
        if id(awaitable) not in unique:
            unique[id(awaitable)] = asyncio.ensure_future(awaitable, loop=loop)
    children = [unique[id(awaitable)] for awaitable in awaitables]
    outer = Gathering(loop=loop)
    outer.number = loop.next_number()
    outer.children = list(unique.values())
    if not children:
        outer.set_result([])
        return outer
    left = len(unique)

    def done(child: asyncio.Future[Any]) -> None:
        nonlocal left
        left -= 1
        if outer.done():
            if not child.cancelled():
                child.exception()
            return
        if not return_exceptions:
            if child.cancelled():
                outer.set_exception(asyncio.CancelledError())
                return
            if child.exception() is not None:
                outer.set_exception(child.exception() or RuntimeError())
                return
        if left == 0:
            if outer.cancel_requested:
                outer.set_exception(asyncio.CancelledError())
            else:
                outer.set_result([_outcome(c) for c in children])

    for child in unique.values():
        child.add_done_callback(done)
    return outer


def _outcome(child: asyncio.Future[Any]) -> Any:
    if child.cancelled():
        return asyncio.CancelledError()
    return child.exception() or child.result()


class AsCompleted:
    """Results in the order in which they come; an iterator of awaitables, or an asynchronous iterator of futures."""

    def __init__(self, awaitables: Iterable[Awaitable[Any]], timeout: float | None, loop: WorkflowLoop) -> None:
        seen: dict[int, asyncio.Future[Any]] = {}
        for awaitable in awaitables:
            if id(awaitable) not in seen:
                seen[id(awaitable)] = asyncio.ensure_future(awaitable, loop=loop)
        self._loop = loop
        self._open = list(seen.values())
        self._left = len(self._open)
        self._finished: deque[asyncio.Future[Any] | None] = deque()
        self._waiters: deque[WorkflowFuture] = deque()
        self._timer = loop.call_later(timeout, self._out_of_time) if timeout is not None else None
        for future in self._open:
            future.add_done_callback(self._completed)

    def __iter__(self) -> Iterator[Awaitable[Any]]:
        for _ in range(self._left):
            yield self._next_result()

    async def __aiter__(self) -> AsyncIterator[asyncio.Future[Any]]:
        for _ in range(self._left):
            yield await self._next()

    def _completed(self, future: asyncio.Future[Any]) -> None:
        if future not in self._open:
            return
        self._open = [other for other in self._open if other is not future]
        self._push(future)
        if not self._open and self._timer is not None:
            self._timer.cancel()

    def _out_of_time(self) -> None:
        late, self._open = self._open, []
        for _ in late:
            self._push(None)

    def _push(self, future: asyncio.Future[Any] | None) -> None:
        self._finished.append(future)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break

    async def _next(self) -> asyncio.Future[Any]:
        while not self._finished:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        future = self._finished.popleft()
        if future is None:
            raise TimeoutError
        return future

    async def _next_result(self) -> Any:
        return (await self._next()).result()


def as_completed(awaitables: Iterable[Awaitable[Any]], *, timeout: float | None = None) -> Any:
    """As asyncio.as_completed."""
    loop = asyncio._get_running_loop()
    if not isinstance(loop, WorkflowLoop):
        return _as_completed(awaitables, timeout=timeout)  # type: ignore[type-var]
    return AsCompleted(awaitables, timeout, loop)


def install() -> None:
    """Put the ordered versions in asyncio's place. Safe to call again."""
    for module in (asyncio, asyncio.tasks):
        module.gather = gather  # type: ignore[attr-defined]
        module.as_completed = as_completed  # type: ignore[attr-defined]


def rebind(function: Callable[..., Any]) -> None:
    """Replace asyncio's own versions where a workflow's module imported them by name before `install`."""
    names = function.__globals__
    for name, value in list(names.items()):
        if value is _gather:
            names[name] = gather
        elif value is _as_completed:
            names[name] = as_completed
