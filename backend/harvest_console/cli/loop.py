"""One event loop for a process, with the signals that end it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on uvloop, or on asyncio's own loop where there is no uvloop."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def stop_on_signals(then: Callable[[], None] | None = None) -> asyncio.Event:
    """An event that SIGINT or SIGTERM sets, in the running loop; each further signal calls `then`."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set() and then is not None:
            then()
        stop.set()

    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, on_signal)
    return stop
