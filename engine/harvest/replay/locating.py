"""Where in the author's code a replay went another way than history: `shop.py:41 in order_flow`."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harvest.errors import HarvestError
from harvest.history.events import Event
from harvest.replay.guard import is_standard_library

if TYPE_CHECKING:
    from harvest.replay.run import Run


def locate(blocked: Run, again: Run, events: Sequence[Event]) -> None:
    """Add the code's line to the message and the fields of what blocks a run, by replaying its history in `again`.

    Lines are not noted while runs are decided: that would cost too much. `again` is a fresh run of the same execution;
    it is let go of. An error that the second replay does not meet stays as it is.
    """
    error = blocked.blocked
    again.asked.locate = True
    try:
        again.replay(events, blocked.decided_through)
        found = again.blocked
        if error is None or found is None or found.message != error.message:
            return
        line = line_of(again)
    finally:
        again.release()
    if line:
        say_line(error, line)


def say_line(error: HarvestError, line: str) -> None:
    """Put the code's line into the message and the fields of an error."""
    error.message = f"{error.message}, at {line}"
    error.args = (error.message,)
    error.fields["line"] = line


def line_of(run: Run) -> str:
    """Where the code of a run goes another way than history; empty where nothing of it ran.

    That is where it asked for what history does not have; else where it waits, or has ended, while history has more.
    """
    asked_at = run.blocked.fields.get("line") if run.blocked is not None else None
    if asked_at:
        return str(asked_at)
    main = run.main
    if main is None:
        return ""
    if not main.done():
        frames = run.stack()[0].frames if run.stack() else []
        return _text(frames[-1].file, frames[-1].line, frames[-1].function) if frames else ""
    error = None if main.cancelled() else main.exception()
    if error is not None:
        raised = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_authors(frame.filename)]
        if raised:
            return _text(raised[-1].filename, raised[-1].lineno or 0, raised[-1].name)
    code = run.definition.function.__code__
    return _text(code.co_filename, code.co_firstlineno, code.co_name)


def _is_authors(file: str) -> bool:
    return not is_standard_library(file) and not file.startswith(_ENGINE)


def _text(file: str, line: int, function: str) -> str:
    return f"{file}:{line} in {function}"


_ENGINE = __file__.removesuffix("replay/locating.py")
