"""Looking into a run at rest: its answers to queries, the handlers it has, and where its code waits (design 8)."""

from __future__ import annotations

import asyncio
import inspect
import linecache
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from harvest.errors import QueryFailedError, QueryNotFoundError
from harvest.history import payload
from harvest.replay import guard
from harvest.replay.failures import failure_of
from harvest.replay.handlers import Handlers, block_if_disturbed, refusing
from harvest.replay.unwinding import AbandonStep

if TYPE_CHECKING:
    from harvest.replay.run import Run

MOST_TASKS: Final = 200
MOST_FRAMES: Final = 50


class Frame(Struct, frozen=True):
    """One await on the way to what a task waits for: `code` is the line itself."""

    file: str
    line: int
    function: str
    code: str


class TaskStack(Struct, frozen=True):
    """Where one task of the workflow waits, outermost frame first."""

    task: str
    frames: list[Frame]


def query(run: Run, name: str, arguments: bytes) -> bytes:
    """The answer of a query handler, encoded.

    Raises QueryNotFoundError with the names there are, PayloadDecodeError for arguments that do not fit, and
    QueryFailedError when the handler raised or tried to act.
    """
    if run.blocked is not None:
        raise QueryFailedError(f"query {name!r} is not answered: the run is blocked: {run.blocked.message}")
    handler = run.messages.queries.get(name)
    if handler is None:
        known = sorted(run.messages.queries)
        raise QueryNotFoundError(
            f"the workflow has no query handler {name!r}; it has {', '.join(known) or 'none'}", known=known
        )
    values = [] if arguments == payload.NULL and not handler.signature.required else handler.signature.decode(arguments)
    who = f"the handler of query {name!r}"
    try:
        with refusing(run, who):
            result = run.looking(handler.function, *values)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("a query handler must be a plain function; this one returned a coroutine")
        return handler.signature.encode_result(result)
    except AbandonStep:
        blocked = run.blocked
        raise QueryFailedError(f"query {name!r} was abandoned: {blocked.message if blocked else 'let go'}") from None
    except Exception as error:
        failure = failure_of(error)
        raise QueryFailedError(f"query {name!r} failed: {failure.type}: {failure.message}", failure=failure) from error
    finally:
        block_if_disturbed(run, who)


def handlers(run: Run) -> Handlers:
    """What the run answers to now."""
    messages = run.messages
    return Handlers(
        signals={name: handler.signature.input_schema() for name, handler in sorted(messages.signals.items())},
        queries={name: handler.signature.input_schema() for name, handler in sorted(messages.queries.items())},
        updates={name: handler.signature.input_schema() for name, handler in sorted(messages.updates.items())},
    )


def stack(run: Run) -> list[TaskStack]:
    """Where each task that has not ended waits, the main one first."""
    live = [task for task in run.tasks if not task.done()]
    return [TaskStack(task.get_name(), _frames(task)) for task in live[:MOST_TASKS]]


def _frames(task: asyncio.Task[Any]) -> list[Frame]:
    frames: list[Frame] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(frames) < MOST_FRAMES:
        code: CodeType | None = getattr(awaited, "cr_code", None) or getattr(awaited, "ag_code", None)
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if code is not None and frame is not None and not _is_ours(frame.f_globals, code):
            line = frame.f_lineno or code.co_firstlineno
            text = linecache.getline(code.co_filename, line).strip()
            frames.append(Frame(code.co_filename, line, code.co_name, text))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
    return frames


def _is_ours(names: dict[str, Any], code: CodeType) -> bool:
    return str(names.get("__name__", "")).startswith("harvest.") or guard.is_standard_library(code.co_filename)
