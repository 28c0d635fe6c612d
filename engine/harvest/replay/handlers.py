"""Handlers that workflow code registers for signals, updates and queries; some may only look."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from harvest.definitions.signature import Schema, Signature, signature_of
from harvest.errors import DefinitionError, ForbiddenInWorkflowError
from harvest.history.limits import check_text

if TYPE_CHECKING:
    from harvest.replay.state import RunState


class SignalHandler(Struct, frozen=True):
    """Takes every signal of its name."""

    name: str
    function: Callable[..., Any]
    signature: Signature

    async def call(self, arguments: list[Any]) -> None:
        """Run it, plain or asynchronous."""
        await _called(self.function, arguments)


class UpdateHandler(Struct, frozen=True):
    """Answers every update of its name; the validator may refuse one before anything is done."""

    name: str
    function: Callable[..., Any]
    signature: Signature
    validator: Callable[..., Any] | None = None

    async def call(self, arguments: list[Any]) -> Any:
        """Run it, plain or asynchronous, for its result."""
        return await _called(self.function, arguments)


class QueryHandler(Struct, frozen=True):
    """Answers questions of its name from what the code knows, and changes nothing."""

    name: str
    function: Callable[..., Any]
    signature: Signature


class Handlers(Struct, frozen=True):
    """The names that a run answers to now, with the JSON Schema of what each takes."""

    signals: dict[str, Schema]
    queries: dict[str, Schema]
    updates: dict[str, Schema]


async def _called(function: Callable[..., Any], arguments: list[Any]) -> Any:
    result = function(*arguments)
    return await result if isinstance(result, Awaitable) else result


def signature_of_handler(name: str, function: Callable[..., Any], kind: str) -> Signature:
    """The signature of a handler; raises DefinitionError. Runs of one type share what their code objects share."""
    check_text(name, what=f"{kind} name")
    if not callable(function):
        raise DefinitionError(f"the handler of {kind} {name!r} must be a function")
    if kind == "query" and inspect.iscoroutinefunction(function):
        raise DefinitionError(f"the handler of query {name!r} must be a plain function: it may only look")
    code = getattr(function, "__code__", None)
    key = (code, inspect.ismethod(function), kind, name)
    # Defaults and annotations belong to the function, and so to its run: code alone does not tell them.
    own = (getattr(function, "__defaults__", None), getattr(function, "__annotations__", None))
    known = _signatures.get(key)
    if known is not None and own == (None, known[0]):
        return known[1]
    signature = signature_of(function, skip=0, what=f"{kind} {name!r}", takes_one=True)
    if code is not None and own[0] is None:
        _signatures[key] = (own[1], signature)
    return signature


_signatures: dict[tuple[CodeType | None, bool, str, str], tuple[dict[str, Any] | None, Signature]] = {}


@contextmanager
def refusing(run: RunState, who: str) -> Iterator[None]:
    """While it lasts, every `ctx` call that acts, and every task or future, raises ForbiddenInWorkflowError."""
    before, run.only_looks = run.only_looks, who
    run.disturbed = False
    try:
        yield
    finally:
        run.only_looks = before


def block_if_disturbed(run: RunState, who: str) -> None:
    """Block a run whose code was woken by what may only look: a replay brings back what the code has not done."""
    if run.disturbed:
        run.block(ForbiddenInWorkflowError(f"{who} woke code that waits; it may only look"))
