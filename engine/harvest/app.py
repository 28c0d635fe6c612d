"""The roof: `Harvest`, a registry of workflows and activities and a client in one (design 2)."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast, overload
from uuid import UUID

from harvest.client import WorkflowHandle
from harvest.definitions.activity import ActivityContext, ActivityDefinition, define_activity
from harvest.definitions.options import Retry, activity_options, workflow_options
from harvest.definitions.registry import Registry
from harvest.definitions.workflow import WorkflowDefinition, define_workflow
from harvest.errors import ConfigurationError
from harvest.history import payload
from harvest.history.ids import parse_execution_id
from harvest.history.limits import check_text
from harvest.operations import starting
from harvest.operations.actor import in_process
from harvest.replay import ordered
from harvest.shards import Shards

P = ParamSpec("P")
R = TypeVar("R")
A1 = TypeVar("A1")
A2 = TypeVar("A2")
A3 = TypeVar("A3")
A4 = TypeVar("A4")
ReusePolicy = Literal["allow_duplicate", "reject_duplicate", "allow_duplicate_failed_only", "terminate_if_running"]
ConflictPolicy = Literal["unspecified", "fail", "use_existing", "terminate_existing"]


class StartOptions(TypedDict, total=False):
    """Keyword options of `Harvest.start`."""

    workflow_id: str | None
    idempotency_key: str | None
    queue: str | None
    priority: int
    execution_timeout: timedelta | None
    reuse_policy: ReusePolicy
    conflict_policy: ConflictPolicy
    memo: Any


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


class Harvest:
    """An application's workflows and activities, and the way to start and reach them.

    Declare with `@app.workflow` and `@app.activity`. As a client it connects on first use to the databases of
    `HARVEST_DATABASE_URLS` or `HARVEST_DATABASE_URL`, else to those of a `harvest dev` that runs in this folder; or to
    those given to `connect`.
    """

    def __init__(self) -> None:
        self.registry = Registry()
        self._shards: Shards | None = None
        ordered.install()

    # Declaring

    @overload
    def activity(
        self, function: Callable[Concatenate[ActivityContext, P], Awaitable[R]], /
    ) -> ActivityDefinition[P, R]: ...
    @overload
    def activity(self, function: Callable[P, Awaitable[R]], /) -> ActivityDefinition[P, R]: ...
    @overload
    def activity(self, function: Callable[Concatenate[ActivityContext, P], R], /) -> ActivityDefinition[P, R]: ...
    @overload
    def activity(self, function: Callable[P, R], /) -> ActivityDefinition[P, R]: ...
    @overload
    def activity(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        schedule_to_start: timedelta | None = None,
        start_to_close: timedelta | None = None,
        schedule_to_close: timedelta | None = None,
        heartbeat_timeout: timedelta | None = None,
        retry: Retry | None = None,
    ) -> ActivityDecorator: ...
    def activity(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        schedule_to_start: timedelta | None = None,
        start_to_close: timedelta | None = None,
        schedule_to_close: timedelta | None = None,
        heartbeat_timeout: timedelta | None = None,
        retry: Retry | None = None,
    ) -> Any:
        """Declare an activity: an async function, or a plain one that runs in a thread.

        A first parameter annotated `ActivityContext` is filled in by the worker. Raises DefinitionError.
        """
        options = activity_options(
            queue=queue,
            priority=priority,
            schedule_to_start=schedule_to_start,
            start_to_close=start_to_close,
            schedule_to_close=schedule_to_close,
            heartbeat_timeout=heartbeat_timeout,
            retry=retry,
        )

        def register(declared: Callable[..., Any]) -> ActivityDefinition[..., Any]:
            called = check_text(declared.__name__ if name is None else name, what="activity name")
            activity = define_activity(declared, name=called, options=options)
            self.registry.add_activity(activity)
            return activity

        return register(function) if function is not None else ActivityDecorator(register)

    @overload
    def workflow(self, function: Callable[Concatenate[Any, P], Awaitable[R]], /) -> WorkflowDefinition[P, R]: ...
    @overload
    def workflow(
        self,
        /,
        *,
        name: str | None = None,
        version: int = 1,
        queue: str = "default",
        execution_timeout: timedelta | None = None,
        signals: Mapping[str, Any] | None = None,
    ) -> WorkflowDecorator: ...
    def workflow(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        version: int = 1,
        queue: str = "default",
        execution_timeout: timedelta | None = None,
        signals: Mapping[str, Any] | None = None,
    ) -> Any:
        """Declare a workflow: an async function whose first parameter is its context.

        `signals` names the signals it takes with their types, for the console's forms. Raises DefinitionError.
        """
        options = workflow_options(queue=queue, execution_timeout=execution_timeout)

        def register(declared: Callable[..., Any]) -> WorkflowDefinition[..., Any]:
            called = check_text(declared.__name__ if name is None else name, what="workflow name")
            workflow = define_workflow(
                declared, name=called, version=version, options=options, signals=dict(signals or {})
            )
            ordered.rebind(declared)
            self.registry.add_workflow(workflow)
            return workflow

        return register(function) if function is not None else WorkflowDecorator(register)

    # Being a client

    async def connect(self, urls: Mapping[int, str] | str | None = None) -> Self:
        """Use these databases: one URL, or one for each shard; without any, as the class describes."""
        await self.close()
        found = {0: urls} if isinstance(urls, str) else urls or _databases()
        self._shards = await Shards.open(found)
        return self

    async def close(self) -> None:
        """Close the client's connections."""
        shards, self._shards = self._shards, None
        if shards is not None:
            await shards.close()

    async def __aenter__(self) -> Self:
        if self._shards is None:
            await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # One form for each number of arguments: a ParamSpec leaves no room for keyword options of our own.
    @overload
    async def start(
        self, workflow: WorkflowDefinition[[], R], /, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[R]: ...
    @overload
    async def start(
        self, workflow: WorkflowDefinition[[A1], R], a1: A1, /, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[R]: ...
    @overload
    async def start(
        self, workflow: WorkflowDefinition[[A1, A2], R], a1: A1, a2: A2, /, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[R]: ...
    @overload
    async def start(
        self, workflow: WorkflowDefinition[[A1, A2, A3], R], a1: A1, a2: A2, a3: A3, /, **options: Unpack[StartOptions]
    ) -> WorkflowHandle[R]: ...
    @overload
    async def start(
        self,
        workflow: WorkflowDefinition[[A1, A2, A3, A4], R],
        a1: A1,
        a2: A2,
        a3: A3,
        a4: A4,
        /,
        *more: Any,
        **options: Unpack[StartOptions],
    ) -> WorkflowHandle[R]: ...
    async def start(
        self,
        workflow: WorkflowDefinition[..., R],
        /,
        *args: Any,
        workflow_id: str | None = None,
        idempotency_key: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        execution_timeout: timedelta | None = None,
        reuse_policy: ReusePolicy = "allow_duplicate",
        conflict_policy: ConflictPolicy = "unspecified",
        memo: Any = None,
    ) -> WorkflowHandle[R]:
        """Start a workflow, or find the run that the policies say stands for it.

        Runs of a higher `priority` are taken first; 0 is usual. With an `idempotency_key`, a repeated start within 24
        hours finds the run of the first. Raises WorkflowNotRegisteredError until a worker has registered the type, and
        the errors of `operations.starting.start`.
        """
        shards = await self._connected()
        started = await starting.start(
            shards,
            in_process("app.start"),
            workflow_name=workflow.name,
            workflow_id=workflow_id,
            input=workflow.signature.encode(args, {}),
            queue=queue,
            priority=priority,
            memo=None if memo is None else payload.encode(memo, what="memo"),
            execution_timeout_secs=None if execution_timeout is None else execution_timeout.total_seconds(),
            reuse_policy=reuse_policy,
            conflict_policy=conflict_policy,
            idempotency_key=idempotency_key,
        )
        return WorkflowHandle(shards, started.execution_id, workflow.signature, started.workflow_id)

    async def handle(
        self, execution_id: UUID | str, workflow: WorkflowDefinition[P, R] | None = None
    ) -> WorkflowHandle[R]:
        """A handle to an execution that exists already; with its workflow, the result has its type.

        Raises InvalidRequestError for text that is no execution id. Whether the execution exists shows when it is used.
        """
        found = execution_id if isinstance(execution_id, UUID) else parse_execution_id(execution_id)
        return WorkflowHandle(await self._connected(), found, workflow.signature if workflow else None)

    async def _connected(self) -> Shards:
        if self._shards is None:
            await self.connect()
        assert self._shards is not None
        return self._shards


def _databases() -> dict[int, str]:
    """Where the environment, or a `harvest dev` in this folder, says that the shards are."""
    several = os.environ.get("HARVEST_DATABASE_URLS")
    if several:
        pairs = [part.strip().partition("=") for part in several.split(",")]
        if not all(shard.isdigit() and url for shard, _, url in pairs):
            raise ConfigurationError("HARVEST_DATABASE_URLS must look like 0=postgresql://…,1=postgresql://…")
        return {int(shard): url for shard, _, url in pairs}
    one = os.environ.get("HARVEST_DATABASE_URL")
    if one:
        return {0: one}
    path = Path(os.environ.get("HARVEST_DATA_DIR", ".harvest")) / "databases.json"
    if path.is_file():
        return {int(shard): url for shard, url in json.loads(path.read_text()).items()}
    raise ConfigurationError(
        "no database is configured: set HARVEST_DATABASE_URLS (0=postgresql://…,1=…) or HARVEST_DATABASE_URL, "
        "or run `harvest dev` in this folder"
    )
