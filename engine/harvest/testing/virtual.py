"""asyncio's sleeping and timeouts, on virtual time for the activities of an environment and on real time elsewhere."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

from harvest.replay.loop import WorkflowLoop
from harvest.testing.clock import Due

T = TypeVar("T")


class Time(Protocol):
    """Whose time it is."""

    def later(self, seconds: float, action: Callable[[], None]) -> Due:
        """Do `action` after so many seconds of virtual time."""

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds of virtual time."""


# What runs under it, tasks that it starts included, sleeps on virtual time.
time_here: contextvars.ContextVar[Time | None] = contextvars.ContextVar("harvest_virtual_time", default=None)

_sleep: Final = asyncio.sleep
_timeout: Final = asyncio.timeout
_wait_for: Any = asyncio.wait_for


def _here() -> Time | None:
    time = time_here.get()
    return None if time is None or isinstance(asyncio._get_running_loop(), WorkflowLoop) else time


async def _virtual_sleep(delay: float, result: Any = None) -> Any:
    time = _here()
    if time is None or delay <= 0:
        return await _sleep(delay, result)
    await time.sleep(delay)
    return result


class _VirtualTimeout(asyncio.Timeout):  # type: ignore[misc]  # final for type checkers; there is no other way in
    """As asyncio.timeout's, whose alarm is virtual."""

    def __init__(self, delay: float, time: Time) -> None:
        super().__init__(asyncio.get_running_loop().time() + delay)
        self._time = time
        self._delay: float | None = delay

    def reschedule(self, when: float | None) -> None:
        super().reschedule(None)
        if when is not None:
            left, self._delay = self._delay, None
            if left is None:
                left = max(0.0, when - asyncio.get_running_loop().time())
            self._when = when
            self._timeout_handler = self._time.later(left, self._on_timeout)  # type: ignore[attr-defined]


def _virtual_timeout(delay: float | None) -> asyncio.Timeout:
    time = _here()
    if time is None or delay is None:
        return _timeout(delay)
    return _VirtualTimeout(delay, time)


async def _virtual_wait_for(fut: Awaitable[T], timeout: float | None) -> T:
    if _here() is None or timeout is None or timeout <= 0:
        result: T = await _wait_for(fut, timeout)
        return result
    async with _virtual_timeout(timeout):
        return await fut


_REPLACED: Final[dict[str, tuple[Any, Any]]] = {
    "sleep": (_sleep, _virtual_sleep),
    "timeout": (_timeout, _virtual_timeout),
}


def install() -> None:
    """Put these in asyncio's place; outside of an environment's activities asyncio's run. Safe to call again."""
    global _wait_for
    for module in (asyncio, asyncio.tasks, asyncio.timeouts):
        for name, (real, virtual) in _REPLACED.items():
            if getattr(module, name, None) is real:
                setattr(module, name, virtual)
    if asyncio.wait_for is not _virtual_wait_for:
        _wait_for = asyncio.wait_for
        for module in (asyncio, asyncio.tasks):
            setattr(module, "wait_for", _virtual_wait_for)  # noqa: B010  # what is typed final is replaced


def rebind(function: Callable[..., Any]) -> None:
    """Replace what an activity's module imported by name."""
    names = getattr(function, "__globals__", {})
    for name, value in list(names.items()):
        for real, virtual in (*_REPLACED.values(), (_wait_for, _virtual_wait_for)):
            if value is real:
                names[name] = virtual
