"""Keeps I/O, threads, clocks and chance out of workflow code while one of its steps runs (design 3).

An audit hook refuses what opens, connects or forks; shims of the standard library's clocks and random functions refuse
calls that do not come from the standard library itself. Both look only at the thread that is in a step: activities and
leases have threads of their own. Importing a module, printing a traceback, logging and what the garbage collector
happens to run are let through.
"""

from __future__ import annotations

import gc
import linecache
import logging
import os
import random
import secrets
import sys
import sysconfig
import threading
import time
import uuid
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from harvest.definitions.step import current as _step
from harvest.errors import ForbiddenInWorkflowError

_STDLIB: Final = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen"})
_MACHINERY: Final = frozenset({linecache.__file__, logging.__file__})
_ACTIVITY: Final = "do it in an activity"
_FORBIDDEN_EVENTS: Final = {
    "open": _ACTIVITY,
    **{f"os.{name}": _ACTIVITY for name in ("listdir", "scandir", "mkdir", "rmdir", "remove", "rename", "link")},
    **{f"os.{name}": _ACTIVITY for name in ("symlink", "truncate", "chmod", "chown", "utime", "kill", "forkpty")},
    "socket.connect": _ACTIVITY,
    "socket.bind": _ACTIVITY,
    "socket.sendto": _ACTIVITY,
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
    "_thread.start_new_thread": _ACTIVITY,
    "_thread.start_joinable_thread": _ACTIVITY,
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
    (time, "sleep", "use `await ctx.sleep(...)`"),
    (uuid, "uuid1", "use ctx.uuid4()"),
    (uuid, "uuid4", "use ctx.uuid4()"),
    (os, "urandom", "use ctx.random()"),
    *(
        (secrets, name, "use ctx.random()")
        for name in ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice")
    ),
    (threading.Thread, "start", _ACTIVITY),
)  # fmt: skip


_ENGINE: Final = "harvest.replay.run"


def enter() -> bool:
    """Begin a step in this thread; returns whether one was in progress, to hand to `leave`."""
    before = _step.active
    _step.active = True
    return before


def pause() -> bool:
    """Let the world in for a moment; returns whether a step was in progress, to hand to `leave`."""
    before = _step.active
    _step.active = False
    return before


def leave(before: bool) -> None:
    """End a step."""
    _step.active = before


def install() -> None:
    """Put the hook and the shims in place, once for the process."""
    if _installed:
        return
    _installed.append(True)
    sys.addaudithook(_audit)
    for owner, name, instead in _SHIMS:
        real = getattr(owner, name)
        shim = _shim(real, f"{getattr(owner, '__name__', owner)}.{name}", instead)
        _shim_of[id(real)] = (real, shim)
        setattr(owner, name, shim)


def rebind(names: dict[str, Any]) -> None:
    """Put shims where a module imported the functions themselves by name, before `install`."""
    for name, value in list(names.items()):
        real, shim = _shim_of.get(id(value), (None, None))
        if real is value and shim is not None:
            names[name] = shim


_installed: list[bool] = []
_shim_of: dict[int, tuple[Any, Callable[..., Any]]] = {}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _FORBIDDEN_EVENTS or not _step.active or _is_machinery(sys._getframe(1)):
        return
    raise ForbiddenInWorkflowError(
        f"workflow code did what cannot be replayed ({event}): {_FORBIDDEN_EVENTS[event]}", call=event
    )


def _is_machinery(frame: FrameType | None) -> bool:
    """Whether this happens inside an import, a traceback, a logging handler or the garbage collector."""
    collecting = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None and frame.f_globals.get("__name__") != _ENGINE:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code.co_filename in _MACHINERY:
            return True
        if code.co_name == "__del__" or code in collecting:
            return True
        frame = frame.f_back
    return False


def _shim(real: Callable[..., Any], name: str, instead: str) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if _step.active:
            caller = sys._getframe(1)
            if not is_standard_library(caller.f_code.co_filename) and not _is_machinery(caller):
                raise ForbiddenInWorkflowError(
                    f"workflow code called {name}, which a replay cannot repeat: {instead}", call=name
                )
        return real(*args, **kwargs)

    guarded.__name__ = getattr(real, "__name__", name)
    guarded.__doc__ = real.__doc__
    guarded.__wrapped__ = real  # type: ignore[attr-defined]
    return guarded


def is_standard_library(filename: str) -> bool:
    """Whether a source file is Python's own, and no installed package's."""
    return filename.startswith(_STDLIB) and "-packages" not in filename
