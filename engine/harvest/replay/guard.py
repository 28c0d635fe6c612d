"""Keeps I/O, threads, clocks and chance out of workflow code while one of its steps runs (design 3).

An audit hook refuses what opens, connects or forks; shims of the standard library's clocks and random functions refuse
calls that do not come from the standard library itself. Outside a step both let everything through.
"""

from __future__ import annotations

import os
import random
import sys
import sysconfig
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from harvest.errors import ForbiddenInWorkflowError

_STDLIB: Final = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen"})
_SITE: Final = sysconfig.get_path("purelib")
_ACTIVITY: Final = "do it in an activity"
_FORBIDDEN_EVENTS: Final = {
    "open": _ACTIVITY,
    "os.listdir": _ACTIVITY,
    "os.remove": _ACTIVITY,
    "os.rename": _ACTIVITY,
    "os.mkdir": _ACTIVITY,
    "socket.connect": _ACTIVITY,
    "socket.bind": _ACTIVITY,
    "socket.getaddrinfo": _ACTIVITY,
    "socket.gethostbyname": _ACTIVITY,
    "socket.__new__": _ACTIVITY,
    "subprocess.Popen": _ACTIVITY,
    "os.system": _ACTIVITY,
    "os.fork": _ACTIVITY,
    "os.exec": _ACTIVITY,
    "os.posix_spawn": _ACTIVITY,
    "sqlite3.connect": _ACTIVITY,
    "urllib.Request": _ACTIVITY,
    "time.sleep": "use `await ctx.sleep(...)`",
    "_thread.start_new_thread": _ACTIVITY,
}
_SHIMS: Final[tuple[tuple[Any, str, str], ...]] = (
    *((time, name, "use ctx.now()") for name in ("time", "time_ns", "monotonic", "monotonic_ns")),
    *((time, name, "use ctx.now()") for name in ("perf_counter", "perf_counter_ns")),
    *(
        (random, name, "use ctx.random()")
        for name in (
            "random", "randint", "randrange", "choice", "choices", "shuffle", "sample", "uniform", "gauss",
            "getrandbits", "randbytes", "triangular", "expovariate", "normalvariate",
        )
    ),
    (uuid, "uuid1", "use ctx.uuid4()"),
    (uuid, "uuid4", "use ctx.uuid4()"),
    (os, "urandom", "use ctx.random()"),
    (threading.Thread, "start", _ACTIVITY),
)  # fmt: skip


class Step:
    """The step in progress, if any; `depth` counts so that a step inside a step ends in order."""

    active = False


def enter() -> bool:
    """Begin a step; returns whether one was in progress, to hand to `leave`."""
    before = Step.active
    Step.active = True
    return before


def leave(before: bool) -> None:
    """End a step."""
    Step.active = before


def install() -> None:
    """Put the hook and the shims in place, once for the process."""
    if _installed:
        return
    _installed.append(True)
    sys.addaudithook(_audit)
    for owner, name, instead in _SHIMS:
        setattr(owner, name, _shim(getattr(owner, name), f"{getattr(owner, '__name__', owner)}.{name}", instead))


_installed: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not Step.active or event not in _FORBIDDEN_EVENTS:
        return
    if event == "open" and _is_import(sys._getframe(1)):
        return
    raise ForbiddenInWorkflowError(
        f"workflow code did what cannot be replayed ({event}): {_FORBIDDEN_EVENTS[event]}", call=event
    )


def _is_import(frame: Any) -> bool:
    """Whether the file is opened to import a module or to print a traceback."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib") or name.endswith("linecache.py"):
            return True
        frame = frame.f_back
    return False


def _shim(real: Callable[..., Any], name: str, instead: str) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if Step.active and not _is_standard_library(sys._getframe(1).f_code.co_filename):
            raise ForbiddenInWorkflowError(f"workflow code called {name}, which a replay cannot repeat: {instead}", call=name)
        return real(*args, **kwargs)

    guarded.__name__ = getattr(real, "__name__", name)
    guarded.__doc__ = real.__doc__
    guarded.__wrapped__ = real  # type: ignore[attr-defined]
    return guarded


def _is_standard_library(filename: str) -> bool:
    return filename.startswith(_STDLIB) and not filename.startswith(_SITE)
