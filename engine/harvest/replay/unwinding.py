"""Unwinding the code of a run that is let go or blocked, in bounded time, whatever that code catches (design 3)."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import traceback
from types import CodeType, FrameType
from typing import Any, Final

from harvest.replay.loop import WorkflowLoop

ROUNDS: Final = 3
STEPS: Final = 1_000
PATIENCE: Final = 100


class AbandonStep(BaseException):
    """Unwinds workflow code when the run is blocked or let go. It must pass `except Exception`."""


class HurriedError(AbandonStep):
    """Set by another thread in this one, whose code takes too long to be let go: it is made where it strikes.

    From then on, each further line of that code is interrupted.
    """

    def __init__(self) -> None:
        super().__init__()
        _hurry.on = True
        insist()


class Patience:
    """How long the code of one run may take to be let go: for ever, unless it is hurried from another thread.

    `due` is when it is hurried, on the monotonic clock; None when nobody is waited for. `struck` tells whether it was.
    """

    due: float | None = None
    struck = False

    def begin(self) -> None:
        """A run is let go from now on, until `due` is None again."""


ENDLESS: Final = Patience()


class _Hurry(threading.local):
    """Whether the run that this thread lets go of has had its time."""

    on = False


def begin() -> None:
    """The code of a run is let go, and has all its time."""
    _hurry.on = False


def unwind(loop: WorkflowLoop, tasks: list[asyncio.Task[Any]], generators: list[Any]) -> list[Any]:
    """Cancel tasks until they have ended and close generators; returns what did not let itself be closed.

    Both lists may grow meanwhile: cleanup code starts tasks of its own.
    """
    _cancel_rounds(loop, tasks)
    for generator in list(generators):
        if generator.ag_frame is not None and not generator.ag_running and not _hurry.on:
            loop.create_task(generator.aclose())
    _cancel_rounds(loop, tasks, patient=True)
    refused: list[Any] = [task for task in tasks if not task.done() and not _closed(task.get_coro())]
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        forget_frames(task)
    return refused + [each for each in generators if each.ag_frame is not None and not _closed_in_a_hurry(each)]


def _cancel_rounds(loop: WorkflowLoop, tasks: list[asyncio.Task[Any]], *, patient: bool = False) -> None:
    """Cancel what lives and run to rest, a few times over; a patient first round lets the tasks begin."""
    for number in range(ROUNDS):
        live = [task for task in tasks if not task.done()]
        if not live or _hurry.on:
            return
        if number or not patient:
            for task in live:
                task.cancel()
        _run_ready(loop)


def _run_ready(loop: WorkflowLoop) -> None:
    ready = loop.ready
    for _ in range(STEPS):
        if not ready or _hurry.on:
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


def forget_frames(task: asyncio.Task[Any]) -> None:
    """What the frames of an ended task hold dies here and now, not in somebody else's step."""
    if task.done():
        error = task._make_cancelled_error() if task.cancelled() else task.exception()  # type: ignore[attr-defined]
        if error is not None:
            traceback.clear_frames(error.__traceback__)
            error.__traceback__ = None


def _closed(coroutine: Any) -> bool:
    """Close a coroutine by force; tells whether it let itself be closed."""
    try:
        try:
            if _hurry.on:
                insist()
            coroutine.close()
        finally:
            calm()
    except BaseException:
        calm()
        return bool(getattr(coroutine, "cr_frame", None) is None)
    return True


def _closed_in_a_hurry(generator: Any) -> bool:
    """Close a generator that there was no time for; tells whether it let itself be closed."""
    if not _hurry.on or generator.ag_running:
        return False
    try:
        try:
            insist()
            generator.aclose().send(None)
        finally:
            calm()
    except BaseException:
        calm()
    return bool(generator.ag_frame is None)


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
        let_strike()
        _insisting.clear()


def let_strike() -> None:
    """What is on its way to this thread strikes here, and nowhere later.

    It is overtaken by one of our own. To take it back would leave the interpreter looking for it for ever: slow from
    then on, and up to 3.12 caught in an endless loop at the next call that is traced.
    """
    try:
        _set_exception(_thread(), ctypes.py_object(AbandonStep))
        for _ in range(STEPS):
            _thread()
    except AbandonStep:
        return


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


_hurry: Final = _Hurry()
_refused_to_end: list[Any] = []
_insisting: list[Any] = []
_set_exception: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
# What workflow code is called by.
DRIVERS: Final[set[CodeType]] = {asyncio.Handle._run.__code__, _closed.__code__, _closed_in_a_hurry.__code__}
