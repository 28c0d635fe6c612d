"""The only door to time, sleeping and randomness outside workflow code (design 1).

Leases, timers and deadlines are decided by the database's clock; what is read here may only end a lease earlier,
pace a loop or mint an id.
"""

from __future__ import annotations

import asyncio
import os
import random as _random
import time as _time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

# Bound before the workflow guard puts its shims into these modules.
_time_ns = _time.time_ns
_monotonic = _time.monotonic
_urandom = os.urandom
_jitter = _random.Random(os.urandom(16))


def now() -> datetime:
    """Wall clock of this process, in UTC."""
    return datetime.fromtimestamp(_time_ns() / 1e9, UTC)


def unix_milliseconds() -> int:
    """Milliseconds since 1970 of this process's wall clock."""
    return _time_ns() // 1_000_000


def nanoseconds() -> int:
    """Nanoseconds since 1970 of this process's wall clock: the cheapest stamp there is."""
    return _time_ns()


def monotonic() -> float:
    """Seconds of a clock that never goes back."""
    return _monotonic()


def processor_seconds(thread: int) -> float | None:
    """Processor time that a living thread of this process has used; None where the system does not tell."""
    try:
        return _time.clock_gettime(_time.pthread_getcpuclockid(thread))
    except (AttributeError, OSError):
        return None


def random_bytes(count: int) -> bytes:
    """Bytes from the system's generator."""
    return _urandom(count)


def jittered(seconds: float) -> float:
    """Between 50 % and 100 % of `seconds`, so that many waiters do not come back on one beat."""
    return seconds * (0.5 + 0.5 * _jitter.random())


async def sleep(seconds: float) -> None:
    """Sleep in real time; never called from workflow code."""
    await asyncio.sleep(seconds)


async def wait_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait until `event` is set, `seconds` at most. Tells whether it was set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def until(condition: Callable[[], Awaitable[bool]], *, within: float, every: float = 0.02) -> bool:
    """Poll `condition` until it holds or `within` seconds have passed; tells whether it held."""
    end = _monotonic() + within
    while not await condition():
        if _monotonic() >= end:
            return False
        await asyncio.sleep(every)
    return True


class DatabaseClock:
    """An estimate of one database's clock: local time plus an offset that each answer refreshes (design 3)."""

    def __init__(self) -> None:
        self._offset = timedelta(0)

    def observe(self, database_now: datetime) -> None:
        """Take the database's time from an answer that has just come.

        It was read before the answer left, so that the estimate is never ahead: what is stamped by it never lies beyond
        what the database stamps next.
        """
        self._offset = database_now - now()

    def now(self) -> datetime:
        """The database's time, as far as this process can tell."""
        return now() + self._offset
