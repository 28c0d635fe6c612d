"""Unwinding the code of a run that is let go or blocked, in bounded time, whatever that code catches (design 3)."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import traceback
import warnings
from types import CodeType, FrameType
from typing import Any, Final

from harvest.replay.loop import WorkflowLoop

ROUNDS: Final = 3
STEPS: Final = 1_000
PATIENCE: Final = 100


class AbandonStep(BaseException):
    """Unwinds workflow code when the run is blocked or let go. It must pass `except Exception`."""


def unwind(loop: WorkflowLoop, tasks: list[asyncio.Task[Any]], generators: list[Any]) -> list[Any]:
    """Cancel tasks until they have ended and close generators; returns what did not let itself be closed.

    Both lists may grow meanwhile: cleanup code starts tasks of its own.
    """
    _quiet.on = True
    try:
        _cancel_rounds(loop, tasks)
        for generator in list(generators):
            if generator.ag_frame is not None and not generator.ag_running:
                loop.create_task(generator.aclose())
        _cancel_rounds(loop, tasks, patient=True)
        refused: list[Any] = [task for task in tasks if not task.done() and not _closed(task)]
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _forget_frames(task)
        refused += [generator for generator in generators if generator.ag_frame is not None]
    finally:
        _quiet.on = False
    return refused


def _cancel_rounds(loop: WorkflowLoop, tasks: list[asyncio.Task[Any]], *, patient: bool = False) -> None:
    """Cancel what lives and run to rest, a few times over; a patient first round lets the tasks begin."""
    for number in range(ROUNDS):
        live = [task for task in tasks if not task.done()]
        if not live:
            return
        if number or not patient:
            for task in live:
                task.cancel()
        _run_ready(loop)


def _run_ready(loop: WorkflowLoop) -> None:
    ready = loop.ready
    for _ in range(STEPS):
        if not ready:
            return
        handle = ready.popleft()
        if not handle._cancelled:
            try:
                try:
                    handle._run()
                finally:
                    calm()
            except (SystemExit, KeyboardInterrupt, AbandonStep):
                calm()


def _forget_frames(task: asyncio.Task[Any]) -> None:
    """What the frames of an ended task hold dies here and now, not in somebody else's step."""
    if task.done():
        error = task._make_cancelled_error() if task.cancelled() else task.exception()  # type: ignore[attr-defined]
        if error is not None:
            traceback.clear_frames(error.__traceback__)
            error.__traceback__ = None


def _closed(task: asyncio.Task[Any]) -> bool:
    """Close a task's coroutine by force; tells whether it let itself be closed."""
    coroutine = task.get_coro()
    try:
        try:
            coroutine.close()
        finally:
            calm()
    except BaseException:
        calm()
        return False
    return True


def keep(refused: list[Any]) -> None:
    """Hold on to what refused to end for as long as the process lives."""
    _refused_to_end.extend(refused)


# Code that catches even AbandonStep and asks again would go on for ever. From the first call too many, each of its
# lines sets an asynchronous exception, which strikes at the next call or jump: in handlers and at the ends of loops
# too. (A trace function that raises by itself is removed by the interpreter after the first time.)


def insist() -> None:
    """Let every further line of the workflow code that is running be interrupted."""
    if _insisting:
        return
    _insisting.append(sys.gettrace())
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in DRIVERS:
        if _is_users(frame):
            frame.f_trace = _interrupt
        frame = frame.f_back
    sys.settrace(_interrupt)


def calm() -> None:
    """Lines run again, if they did not. An interruption on its way may strike here, once: call it again then."""
    if _insisting:
        sys.settrace(_insisting[0])
        _set_exception(_thread(), None)
        _insisting.clear()


def _interrupt(frame: FrameType, event: str, argument: Any) -> Any:
    if not _is_users(frame):
        return None
    if event == "line":
        _set_exception(_thread(), ctypes.py_object(AbandonStep))
    return _interrupt


def _thread() -> ctypes.c_ulong:
    return ctypes.c_ulong(threading.get_ident())


def _is_users(frame: FrameType) -> bool:
    return frame.f_code not in DRIVERS and not str(frame.f_globals.get("__name__")).startswith("harvest.")


class _Quiet(threading.local):
    """Whether this thread is letting go of a run: coroutines never awaited then are no fault of the code's."""

    on = False


_quiet = _Quiet()
_warn_unawaited: Final = warnings._warn_unawaited_coroutine  # type: ignore[attr-defined]


def _warn_unless_letting_go(coroutine: Any) -> None:
    if not _quiet.on:
        _warn_unawaited(coroutine)


def install() -> None:
    """Let the interpreter ask here before it warns of a coroutine that was never awaited. Safe to call again."""
    warnings._warn_unawaited_coroutine = _warn_unless_letting_go  # type: ignore[attr-defined]


_refused_to_end: list[Any] = []
_insisting: list[Any] = []
_set_exception: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
# What workflow code is called by.
DRIVERS: Final[set[CodeType]] = {asyncio.Handle._run.__code__, _closed.__code__}
