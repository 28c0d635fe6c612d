"""The roof: `Harvest`, a registry of workflows and activities and a client in one (design 2)."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from harvest.client import (
    ConflictPolicy,
    ReusePolicy,
    RunOptions,
    StartedItem,
    StartItem,
    StartOptions,
    WorkflowHandle,
    encode_arguments,
    seconds_of,
    start_request,
)
from harvest.definitions.activity import ActivityContext, ActivityDefinition, define_activity
from harvest.definitions.decorators import ActivityDecorator, WorkflowDecorator
from harvest.definitions.options import Retry, activity_options, workflow_options
from harvest.definitions.registry import Registry
from harvest.definitions.workflow import WorkflowDefinition, define_workflow
from harvest.errors import ConfigurationError
from harvest.history import payload as payloads
from harvest.history.ids import parse_execution_id
from harvest.history.limits import check_text
from harvest.operations import batch_starting, starting, with_start
from harvest.operations.actor import in_process
from harvest.replay import ordered
from harvest.shards import Placement, ShardRouter, Shards, configured, warn_at_boot

P = ParamSpec("P")
R = TypeVar("R")
A1 = TypeVar("A1")
A2 = TypeVar("A2")
A3 = TypeVar("A3")
A4 = TypeVar("A4")


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
        chain_execution_timeout: timedelta | None = None,
        retry: Retry | None = None,
        block_on: Sequence[type[BaseException]] = (),
        signals: Mapping[str, Any] | None = None,
        updates: Mapping[str, Any] | None = None,
        allow_nondeterministic_apis: bool = False,
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
        chain_execution_timeout: timedelta | None = None,
        retry: Retry | None = None,
        block_on: Sequence[type[BaseException]] = (),
        signals: Mapping[str, Any] | None = None,
        updates: Mapping[str, Any] | None = None,
        allow_nondeterministic_apis: bool = False,
    ) -> Any:
        """Declare a workflow: an async function whose first parameter is its context.

        `execution_timeout` bounds one run, `chain_execution_timeout` it and all that follow it. A run that fails is
        tried again as `retry` says, by a run linked to it; without it, it is not. An exception of `block_on` stops the
        run as a bug, to go on when the code is mended, instead of failing it. `signals` and `updates` name those that
        it takes with their types, for the console's forms. The source is read for what cannot be replayed, unless
        `allow_nondeterministic_apis` says that its author knows better. Raises DefinitionError.
        """
        options = workflow_options(
            queue=queue,
            execution_timeout=execution_timeout,
            chain_execution_timeout=chain_execution_timeout,
            retry=retry,
            block_on=block_on,
        )

        def register(declared: Callable[..., Any]) -> WorkflowDefinition[..., Any]:
            called = check_text(declared.__name__ if name is None else name, what="workflow name")
            workflow = define_workflow(
                declared,
                name=called,
                version=version,
                options=options,
                signals=dict(signals or {}),
                updates=dict(updates or {}),
                allow_nondeterministic_apis=allow_nondeterministic_apis,
            )
            ordered.rebind(declared)
            self.registry.add_workflow(workflow)
            return workflow

        return register(function) if function is not None else WorkflowDecorator(register)

    # Being a client

    async def connect(self, urls: Mapping[int, str] | str | None = None, *, router: ShardRouter | None = None) -> Self:
        """Use these databases: one URL, or one for each shard; without any, as the class describes.

        Without a `router` it is that of HARVEST_WRITABLE_SHARDS and the other variables of `configured`.
        """
        await self.close()
        found = {0: urls} if isinstance(urls, str) else urls or _databases()
        self._shards = await Shards.open(found, router or configured(os.environ, found))
        warn_at_boot(self._shards.router, found)
        return self

    @property
    def databases(self) -> dict[int, str]:
        """The databases that the client uses, by shard; empty where it is not connected."""
        return {} if self._shards is None else {shard: store.url for shard, store in self._shards.stores.items()}

    @property
    def router(self) -> ShardRouter | None:
        """Which shard a run lives on, as the client decides it; None while it is not connected."""
        return None if self._shards is None else self._shards.router

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
        reuse_policy: ReusePolicy = "allow_duplicate",
        conflict_policy: ConflictPolicy = "unspecified",
        shard_id: int | None = None,
        residency_key: str | None = None,
        **options: Unpack[RunOptions],
    ) -> WorkflowHandle[R]:
        """Start a workflow, or find the run that the policies say stands for it.

        Runs of a higher `priority` are taken first; 0 is usual. With an `idempotency_key`, a repeated start within 24
        hours finds the run of the first. `shard_id` or `residency_key` says where it lives, and all that follow from
        it: see `resolve_placement`. Raises WorkflowNotRegisteredError until a worker has registered the type, and the
        errors of `operations.starting.start`.
        """
        shards = await self._connected()
        started = await starting.start_one(
            shards,
            in_process("app.start"),
            start_request(workflow, args, placement=Placement(shard_id, residency_key), **options),
            reuse_policy=reuse_policy,
            conflict_policy=conflict_policy,
        )
        return WorkflowHandle(shards, started.execution_id, workflow.signature, started.workflow_id)

    async def resolve_placement(
        self,
        workflow: WorkflowDefinition[..., Any],
        workflow_id: str,
        *,
        shard_id: int | None = None,
        residency_key: str | None = None,
    ) -> int:
        """The shard that `start` would begin such a run on now; nothing is asked or begun.

        Raises PlacementError where it would be refused, and NoWritableShardError while every shard is being drained.
        """
        router = (await self._connected()).router
        return router.resolve(workflow.name, workflow_id, Placement(shard_id, residency_key))

    async def signal_with_start(
        self,
        workflow: WorkflowDefinition[..., R],
        /,
        *args: Any,
        signal: str,
        payload: Any = None,
        reuse_policy: ReusePolicy = "allow_duplicate",
        **options: Unpack[RunOptions],
    ) -> WorkflowHandle[R]:
        """Signal the open run of `workflow_id`, or start it with the signal: one transaction.

        `args` are used where a run begins; the signal is then in its history before its code runs. Raises as `start`
        and `WorkflowHandle.signal` do.
        """
        shards = await self._connected()
        started = await with_start.signal_with_start(
            shards,
            in_process("app.signal_with_start"),
            start_request(workflow, args, **options),
            signal,
            payloads.encode(payload, what=f"the payload of signal {signal!r}"),
            reuse_policy=reuse_policy,
        )
        return WorkflowHandle(shards, started.execution_id, workflow.signature, started.workflow_id)

    async def update_with_start(
        self,
        workflow: WorkflowDefinition[..., R],
        /,
        *args: Any,
        update: str,
        update_args: tuple[Any, ...] = (),
        result_type: Any = Any,
        timeout: timedelta | float | None = None,
        reuse_policy: ReusePolicy = "allow_duplicate",
        **options: Unpack[RunOptions],
    ) -> tuple[WorkflowHandle[R], Any]:
        """Send an update to the open run of `workflow_id`, or start it with the update: one transaction.

        Returns the run and the answer of the update's handler, decoded as `result_type`. Raises as `start` and
        `WorkflowHandle.update` do, and ExecutionPausedError for a paused run.
        """
        shards = await self._connected()
        done = await with_start.update_with_start(
            shards,
            in_process("app.update_with_start"),
            start_request(workflow, args, **options),
            update,
            encode_arguments(update_args, f"the input of update {update!r}"),
            reuse_policy=reuse_policy,
            timeout=seconds_of(timeout),
        )
        handle: WorkflowHandle[R] = WorkflowHandle(
            shards, done.started.execution_id, workflow.signature, done.started.workflow_id
        )
        output = done.updated.output or payloads.NULL
        return handle, payloads.decode(output, result_type, what=f"the answer of update {update!r}")

    async def start_batch(self, items: Sequence[StartItem], *, atomic: bool = False) -> list[StartedItem]:
        """Start many runs, 1,000 at most; what became of each, in their order.

        Atomic, all of them begin or none does: they must then lie on one shard. Raises BatchTooLargeError, and of an
        atomic batch BatchRefusedError.
        """
        shards = await self._connected()
        requests = [item.request() for item in items]
        done = await batch_starting.start_batch(shards, in_process("app.start_batch"), requests, atomic=atomic)
        return [
            StartedItem(
                None
                if each.started is None
                else WorkflowHandle(
                    shards, each.started.execution_id, item.workflow.signature, each.started.workflow_id
                ),
                each.error,
                each.started is not None and each.started.started_fresh,
            )
            for each, item in zip(done, items, strict=True)
        ]

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
