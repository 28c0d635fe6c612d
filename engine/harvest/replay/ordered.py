"""The functions and classes of asyncio that do the same everywhere, for code in a workflow.

asyncio's own walk sets by address, or differ from one Python to the next. The replacements look at the running loop:
outside a workflow asyncio's run.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Final

from harvest.replay import collecting, grouping, guard, hushing, locking
from harvest.replay.loop import WorkflowFuture, WorkflowLoop, check_may_act

_gather = asyncio.gather
_as_completed = asyncio.as_completed
_all_tasks = asyncio.all_tasks
_wait_for = asyncio.wait_for


class Gathering(WorkflowFuture):
    """The outer future of `gather`: cancelling it cancels what it waits for."""

    children: list[asyncio.Future[Any]]
    cancel_requested = False

    def cancel(self, msg: Any | None = None) -> bool:
        check_may_act(self)
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
            error = child.exception()
            if error is not None:
                outer.set_exception(error)
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
    error = child.exception()
    return child.result() if error is None else error


class AsCompleted:
    """Results in the order in which they come; an iterator of awaitables, or an asynchronous iterator of futures."""

    def __init__(self, awaitables: Iterable[Awaitable[Any]], timeout: float | None, loop: WorkflowLoop) -> None:
        seen: dict[int, asyncio.Future[Any]] = {}
        for awaitable in awaitables:
            if id(awaitable) not in seen:
                seen[id(awaitable)] = asyncio.ensure_future(awaitable, loop=loop)
        self._loop = loop
        self._open = {id(future): future for future in seen.values()}
        self._left = len(self._open)
        self._finished: deque[asyncio.Future[Any] | None] = deque()
        self._waiters: deque[WorkflowFuture] = deque()
        waits = timeout is not None and self._left > 0
        self._timer = loop.call_later(timeout or 0.0, self._out_of_time) if waits else None
        for future in self._open.values():
            future.add_done_callback(self._completed)

    def __iter__(self) -> Iterator[Awaitable[Any]]:
        for _ in range(self._left):
            yield self._next_result()

    async def __aiter__(self) -> AsyncIterator[asyncio.Future[Any]]:
        for _ in range(self._left):
            yield await self._next()

    def _completed(self, future: asyncio.Future[Any]) -> None:
        if self._open.pop(id(future), None) is None:
            return
        self._push(future)
        if not self._open and self._timer is not None:
            self._timer.cancel()

    def _out_of_time(self) -> None:
        late, self._open = self._open, {}
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
        return _as_completed(awaitables, timeout=timeout)
    return AsCompleted(awaitables, timeout, loop)


async def wait_for(fut: Awaitable[Any], timeout: float | None) -> Any:
    """As asyncio.wait_for of Python 3.12 and later: that of 3.11 takes more turns, and another path on replay."""
    if not isinstance(asyncio._get_running_loop(), WorkflowLoop):
        return await _wait_for(fut, timeout)
    if timeout is None or timeout > 0:
        async with asyncio.timeout(timeout):
            return await fut
    future = asyncio.ensure_future(fut)
    if not future.done():
        future.cancel()
        await asyncio.wait([future])
    try:
        return future.result()
    except asyncio.CancelledError as error:
        raise TimeoutError from error


def all_tasks(loop: asyncio.AbstractEventLoop | None = None) -> set[asyncio.Task[Any]]:
    """As asyncio.all_tasks, which walks the tasks of the whole process: a set's order hangs on how it was filled."""
    chosen = loop or asyncio._get_running_loop()
    if not isinstance(chosen, WorkflowLoop):
        return _all_tasks(loop)
    return {task for task in chosen.run.tasks if not task.done()}


_REPLACED: Final[dict[str, Any]] = {
    "gather": gather,
    "as_completed": as_completed,
    "all_tasks": all_tasks,
    "wait_for": wait_for,
}
_CLASSES: Final = {asyncio.TaskGroup: grouping.TaskGroup, **locking.REPLACED}
_OWN: Final = {
    id(_gather): gather,
    id(_as_completed): as_completed,
    id(_all_tasks): all_tasks,
    id(_wait_for): wait_for,
    **{id(own): ordered for own, ordered in _CLASSES.items()},
}


def install() -> None:
    """Put the ordered versions in asyncio's place, and the guard's shims in theirs. Safe to call again."""
    for module in (asyncio, asyncio.tasks):
        for name, ordered in _REPLACED.items():
            if id(getattr(module, name)) in _OWN:
                setattr(module, name, ordered)
    for module in (asyncio, asyncio.taskgroups, asyncio.locks):
        for own, ordered in _CLASSES.items():
            if getattr(module, own.__name__, None) is own:
                setattr(module, own.__name__, ordered)
    guard.install()
    hushing.install()
    collecting.install()


def rebind(function: Callable[..., Any]) -> None:
    """Replace what a workflow's module imported by name before `install`."""
    names = inspect.unwrap(function).__globals__
    for name, value in list(names.items()):
        ordered = _OWN.get(id(value))
        if ordered is not None:
            names[name] = ordered
    guard.rebind(names)
