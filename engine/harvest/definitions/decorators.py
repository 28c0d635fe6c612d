"""What `@app.activity(...)` and `@app.workflow(...)` with options return, with the types of what they declare."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

from harvest.definitions.activity import ActivityContext, ActivityDefinition
from harvest.definitions.workflow import WorkflowDefinition

P = ParamSpec("P")
R = TypeVar("R")


class ActivityDecorator:
    """What `@app.activity(...)` with options returns."""

    def __init__(self, register: Callable[[Callable[..., Any]], ActivityDefinition[..., Any]]) -> None:
        self._register = register

    @overload
    def __call__(
        self, function: Callable[Concatenate[ActivityContext, P], Awaitable[R]]
    ) -> ActivityDefinition[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]]) -> ActivityDefinition[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[ActivityContext, P], R]) -> ActivityDefinition[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> ActivityDefinition[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        """Declare the function."""
        return self._register(function)


class WorkflowDecorator:
    """What `@app.workflow(...)` with options returns."""

    def __init__(self, register: Callable[[Callable[..., Any]], WorkflowDefinition[..., Any]]) -> None:
        self._register = register

    def __call__(self, function: Callable[Concatenate[Any, P], Awaitable[R]]) -> WorkflowDefinition[P, R]:
        """Declare the function."""
        declared: Any = self._register(function)
        return cast("WorkflowDefinition[P, R]", declared)
