"""A workflow as declared, and the check of its source for what cannot be replayed."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Final, Generic, ParamSpec, TypeVar

from harvest.definitions.options import WorkflowOptions
from harvest.definitions.signature import Schema, Signature, signature_of, type_schema
from harvest.errors import DefinitionError

P = ParamSpec("P")
R = TypeVar("R")
# C types whose clocks no shim can reach at run time, so the source is read instead (design 3).
CLOCK_CALLS: Final = {
    ("datetime", "now"): "ctx.now()",
    ("datetime", "utcnow"): "ctx.now()",
    ("datetime", "today"): "ctx.now()",
    ("date", "today"): "ctx.now().date()",
}


RESERVED_NAMES: Final = frozenset({"by-id", "count", "registered"})


class WorkflowDefinition(Generic[P, R]):
    """A declared workflow. Calling it calls the function itself."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        version: int,
        options: WorkflowOptions,
        signature: Signature,
        signals: dict[str, Schema],
    ) -> None:
        self.function = function
        self.name = name
        self.version = version
        self.options = options
        self.signature = signature
        self.signals = signals
        self.description = inspect.cleandoc(function.__doc__ or "")
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function with a context of your own, as a test may."""
        return self.function(*args, **kwargs)


def define_workflow(
    function: Callable[..., Any],
    *,
    name: str,
    version: int,
    options: WorkflowOptions,
    signals: dict[str, Any] | None,
) -> WorkflowDefinition[..., Any]:
    """Check a function and make a workflow of it; raises DefinitionError.

    `signals` maps the names of the signals that the workflow takes to their types; the console makes forms of them.
    """
    what = f"workflow {name!r}"
    if name in RESERVED_NAMES:
        raise DefinitionError(f"{what} has a name that the API's paths use; choose another")
    if not inspect.iscoroutinefunction(function):
        raise DefinitionError(f"{what} must be declared with `async def`")
    if not inspect.signature(function).parameters:
        raise DefinitionError(f"{what} must take its context as first parameter: `ctx: WorkflowContext`")
    if version < 1:
        raise DefinitionError(f"{what} has version {version}; versions start at 1")
    _refuse_clock_calls(function, what)
    return WorkflowDefinition(
        function,
        name=name,
        version=version,
        options=options,
        signature=signature_of(function, skip=1, what=what),
        signals={
            signal: type_schema(of_type, what=f"signal {signal!r} of {what}")
            for signal, of_type in (signals or {}).items()
        },
    )


def _refuse_clock_calls(function: Callable[..., Any], what: str) -> None:
    """Read the function and the functions of its module that it calls; raises DefinitionError naming the line."""
    function = inspect.unwrap(function)
    seen: set[Callable[..., Any]] = set()
    unread = [function]
    while unread:
        current = unread.pop()
        if current in seen:
            continue
        seen.add(current)
        for call in _calls_of(current):
            if isinstance(call.func, ast.Attribute):
                _refuse_clock_call(call, call.func, current, what)
            elif isinstance(call.func, ast.Name):
                called = current.__globals__.get(call.func.id)
                if inspect.isfunction(called) and called.__module__ == function.__module__:
                    unread.append(called)


def _calls_of(function: Callable[..., Any]) -> list[ast.Call]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _refuse_clock_call(call: ast.Call, attribute: ast.Attribute, function: Callable[..., Any], what: str) -> None:
    owner = attribute.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    known = function.__globals__.get(name) if isinstance(owner, ast.Name) else None
    instead = CLOCK_CALLS.get((getattr(known, "__name__", name), attribute.attr))
    if instead is None or (known is not None and getattr(known, "__module__", "") != "datetime"):
        return
    line = function.__code__.co_firstlineno + call.lineno - 1
    raise DefinitionError(
        f"{what} calls {name}.{attribute.attr}() on line {line}: a replay would see another time; use {instead}",
        line=line,
    )
