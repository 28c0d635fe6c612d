"""A workflow as declared, and the check of its source for what cannot be replayed."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Generic, ParamSpec, TypeVar

from harvest.definitions import lint
from harvest.definitions.children import ChildOptions, ChildPlacement, ClosePolicy, child_options
from harvest.definitions.options import Retry, WorkflowOptions
from harvest.definitions.signature import Schema, Signature, signature_of, type_schema
from harvest.errors import DefinitionError

P = ParamSpec("P")
R = TypeVar("R")

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
        updates: dict[str, Schema] | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.version = version
        self.options = options
        self.signature = signature
        self.signals = signals
        self.updates = updates or {}
        self.child = ChildOptions()
        self.description = inspect.cleandoc(function.__doc__ or "")
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function with a context of your own, as a test may."""
        return self.function(*args, **kwargs)

    def with_options(
        self,
        *,
        workflow_id: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        detached: bool = False,
        close_policy: ClosePolicy | None = None,
        deadline: timedelta | None = None,
        execution_timeout: timedelta | None = None,
        retry: Retry | None = None,
        placement: ChildPlacement = ChildPlacement.ParentShard,
    ) -> WorkflowDefinition[P, R]:
        """The same workflow, started as a child with these options in one call; raises DefinitionError.

        `deadline` is how long the parent waits; `execution_timeout` ends the child by itself. See `child_options`.
        """
        changed = copy.copy(self)
        changed.child = child_options(
            workflow_id=workflow_id,
            queue=queue,
            priority=priority,
            detached=detached,
            close_policy=close_policy,
            deadline=deadline,
            execution_timeout=execution_timeout,
            retry=retry,
            placement=placement,
        )
        return changed


def define_workflow(
    function: Callable[..., Any],
    *,
    name: str,
    version: int,
    options: WorkflowOptions,
    signals: dict[str, Any] | None,
    updates: dict[str, Any] | None = None,
    allow_nondeterministic_apis: bool = False,
) -> WorkflowDefinition[..., Any]:
    """Check a function and make a workflow of it; raises DefinitionError.

    `signals` and `updates` map the names of those that the workflow takes to their types; the console makes forms of
    them. Without `allow_nondeterministic_apis` the source is read for what cannot be replayed.
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
    if not allow_nondeterministic_apis:
        lint.refuse(function, what)
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
        updates={
            update: type_schema(of_type, what=f"update {update!r} of {what}")
            for update, of_type in (updates or {}).items()
        },
    )
