"""What stands in for an activity or a child workflow in a test."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from harvest.definitions.activity import ActivityContext


class _Special(Enum):
    NEVER = "never"
    UNCLAIMED = "unclaimed"
    REAL = "real"


never: Final = _Special.NEVER
"""It begins and does not end, and says nothing: its timeouts come."""
unclaimed: Final = _Special.UNCLAIMED
"""No worker takes it: its schedule_to_start or schedule_to_close timeout comes."""
real: Final = _Special.REAL
"""The declared function itself."""


class InTurn:
    """One outcome for each call, see `in_turn`."""

    def __init__(self, outcomes: tuple[Any, ...]) -> None:
        self._outcomes = outcomes
        self._next = 0

    def next(self) -> Any:
        """The outcome of the next call; the last one stays."""
        outcome = self._outcomes[min(self._next, len(self._outcomes) - 1)]
        self._next += 1
        return outcome


def in_turn(*outcomes: Any) -> InTurn:
    """The first call has the first outcome, the second the second; the last one holds for all that follow.

    An outcome is what `WorkflowEnvironment.mock` takes: a result, an exception, a function, `never`, `real` …
    """
    if not outcomes:
        raise ValueError("in_turn needs at least one outcome")
    return InTurn(outcomes)


def failing(times: int, error: BaseException | type[BaseException], *, then: Any = real) -> InTurn:
    """Fail so many times with `error`, then have the outcome `then`: by default the declared function runs."""
    return InTurn((*[error] * times, then))


class Call(Struct, frozen=True):
    """One attempt that was made: its arguments, decoded, and its number."""

    args: tuple[Any, ...]
    attempt: int


class Mock:
    """What stands in for one name, and the calls that were made to it."""

    def __init__(self, name: str, outcome: Any) -> None:
        self.name = name
        self.outcome = outcome
        self.calls: list[Call] = []

    def __repr__(self) -> str:
        """What it stands in for, and how often it was called."""
        return f"<Mock of {self.name!r}, {len(self.calls)} calls>"

    def next(self) -> Any:
        """The outcome of the next call: no InTurn."""
        outcome = self.outcome
        while isinstance(outcome, InTurn):
            outcome = outcome.next()
        return outcome

    @property
    def is_unclaimed(self) -> bool:
        """Whether no worker takes it."""
        return self.outcome is unclaimed


async def carry_out(outcome: Any, args: list[Any], context: ActivityContext | None = None) -> Any:
    """Return or raise what the outcome of a call says."""
    if outcome is never:
        await asyncio.get_running_loop().create_future()
    if isinstance(outcome, BaseException):
        raise outcome.with_traceback(None)
    if isinstance(outcome, type) and issubclass(outcome, BaseException):
        raise outcome
    if not callable(outcome):
        return outcome
    if context is not None and _wants_context(outcome):
        args = [context, *args]
    value = outcome(*args)
    return await value if inspect.isawaitable(value) else value


def _wants_context(function: Callable[..., Any]) -> bool:
    try:
        first = next(iter(inspect.signature(function, eval_str=True).parameters.values()), None)
    except (TypeError, ValueError, NameError):
        return False
    return first is not None and first.annotation is ActivityContext
