"""Unwinding the code of a run that is let go or blocked, in bounded time, whatever that code catches (design 3)."""

from __future__ import annotations

import asyncio
import sys
from types import CodeType, FrameType
from typing import Any, Final

from harvest.replay.loop import WorkflowLoop

ROUNDS: Final = 3
STEPS: Final = 1_000
PATIENCE: Final = 100


class AbandonStep(BaseException):  # noqa: N818 - not an error of the user's, and must pass `except Exception`
    """Unwinds workflow code when the run is blocked or let go."""


def unwind(loop: WorkflowLoop, tasks: list[asyncio.Task[Any]], generators: list[Any]) -> list[Any]:
    """Cancel tasks until they have ended and close generators; returns what did not let itself be closed.

    Both lists may grow meanwhile: cleanup code starts tasks of its own.
    """
    _cancel_rounds(loop, tasks)
    for generator in list(generators):
        if generator.ag_frame is not None and not generator.ag_running:
            loop.create_task(generator.aclose())
    _cancel_rounds(loop, tasks, patient=True)
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        if task.done() and not task.cancelled():
            task.exception()
    refused: list[Any] = [task for task in tasks if not task.done() and not _closed(task)]
    refused += [generator for generator in generators if generator.ag_frame is not None]
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
        if not handle._cancelled:  # type: ignore[attr-defined]
            try:
                handle._run()
            except (SystemExit, KeyboardInterrupt):
                continue
            finally:
                stop_insisting()


def _closed(task: asyncio.Task[Any]) -> bool:
    """Close a task's coroutine by force; tells whether it let itself be closed."""
    coroutine = task.get_coro()
    try:
        coroutine.close()  # type: ignore[union-attr]
    except BaseException:
        return False
    finally:
        stop_insisting()
    return True


def keep(refused: list[Any]) -> None:
    """Hold on to what refused to end for as long as the process lives."""
    _refused_to_end.extend(refused)


# For code that catches even AbandonStep and asks again: from now on every line of it raises, handlers included.


def insist() -> None:
    """Let every further line of the workflow code that is running raise."""
    if _insisting:
        return
    _insisting.append(sys.gettrace())
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in DRIVERS:
        if _is_users(frame):
            frame.f_trace = _raise
        frame = frame.f_back
    sys.settrace(_raise)


def stop_insisting() -> None:
    """Lines run again."""
    if _insisting:
        sys.settrace(_insisting.pop())


def _raise(frame: FrameType, event: str, argument: Any) -> Any:
    if _is_users(frame):
        raise AbandonStep
    return None


def _is_users(frame: FrameType) -> bool:
    return frame.f_code not in DRIVERS and not str(frame.f_globals.get("__name__")).startswith("harvest.")


_refused_to_end: list[Any] = []
_insisting: list[Any] = []
# What workflow code is called by.
DRIVERS: Final[set[CodeType]] = {asyncio.Handle._run.__code__, _closed.__code__}
