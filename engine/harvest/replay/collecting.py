"""Finalisers run whenever the garbage collector does, within any run's step too: they reach nobody (design 3).

While it is at work, the running loop is a closed one that is nobody's. What it finalises may be left over from a run
that was let go long ago.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any, Final

from harvest.replay import guard, hushing
from harvest.replay.unwinding import AbandonStep


class NobodysLoopError(RuntimeError):
    """A finaliser asked for a loop to work in."""


class NobodysLoop(asyncio.AbstractEventLoop):
    """A closed loop: it refuses everything, and drops what it was given without a word."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return True

    def create_task(self, coro: Any, **_: Any) -> Any:
        coro.close()
        raise NobodysLoopError(_CLOSED)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore: nobody waits for what nobody runs."""


def _refuse(self: NobodysLoop, *args: Any, **kwargs: Any) -> Any:
    raise NobodysLoopError(_CLOSED)


_CLOSED: Final = "Event loop is closed"
for _name in vars(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(NobodysLoop):
        setattr(NobodysLoop, _name, _refuse)


class _Collection:
    """One collection at a time: what was in force in its thread when it began."""

    def __init__(self) -> None:
        self._nobodys = NobodysLoop()  # type: ignore[abstract]
        self._silence: Any = None
        self._loop: Any = None
        self._step = False

    def __call__(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._silence = hushing.begin(_EXPECTED)
            self._step = guard.pause()
            self._loop = asyncio._get_running_loop()
            if self._loop is not None:
                asyncio._set_running_loop(self._nobodys)
        else:
            if self._loop is not None:
                asyncio._set_running_loop(self._loop)
                self._loop = None
            guard.leave(self._step)
            hushing.end(self._silence)


def install() -> None:
    """Let the collector work under nobody's loop. Safe to call again."""
    if _collection not in gc.callbacks:
        gc.callbacks.append(_collection)


_EXPECTED: Final = (AbandonStep, NobodysLoopError)
_collection: Final = _Collection()
