"""Silence while a run is let go: what its code says then is said for nobody (design 3)."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from typing import Any, Final

Kinds = tuple[type[BaseException], ...]
EVERYTHING: Final[Kinds] = (BaseException,)


class _Quiet(threading.local):
    """Which exceptions that nobody can catch are not printed, in this thread."""

    kinds: Kinds = ()


_quiet: Final = _Quiet()
_heard_before: Any = sys.__unraisablehook__


def begin(kinds: Kinds = EVERYTHING) -> tuple[Kinds, Any]:
    """Until `end`, print no exceptions of these kinds; of `EVERYTHING`, no warning and no log of this thread either.

    Returns what `end` takes. Of two that overlap in two threads, the first rules what is printed.
    """
    global _heard_before
    before, hears = _quiet.kinds, sys.unraisablehook
    if before is not EVERYTHING:
        _quiet.kinds = kinds
    if hears is _hear:
        return before, None
    _heard_before, sys.unraisablehook = hears, _hear
    return before, hears


def end(before: tuple[Kinds, Any]) -> None:
    """Speak as before."""
    _quiet.kinds, hears = before
    if hears is not None and sys.unraisablehook is _hear:
        sys.unraisablehook = hears


def _hear(unraisable: Any) -> None:
    if not issubclass(unraisable.exc_type, _quiet.kinds):
        _heard_before(unraisable)


def install() -> None:
    """Let the interpreter, warnings and logging ask here before they speak. Safe to call again."""
    if not _installed:
        _installed.append(True)
        _put_before(warnings, "_warn_unawaited_coroutine")
        _put_before(warnings, "_showwarnmsg")
        _put_before(logging.Logger, "handle")


def _put_before(owner: Any, name: str) -> None:
    speak = getattr(owner, name)

    def unless_quiet(*arguments: Any) -> None:
        if _quiet.kinds is not EVERYTHING:
            speak(*arguments)

    setattr(owner, name, unless_quiet)


_installed: Final[list[bool]] = []
