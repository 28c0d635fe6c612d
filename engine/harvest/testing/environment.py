"""A whole engine in memory for tests: no database, no worker, and time that is skipped when nothing else can happen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, overload
from uuid import UUID

from msgspec import Raw, Struct

from harvest.app import Harvest
from harvest.client import ReusePolicy, RunOptions, StartOptions, encode_arguments
from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.llm_usage import LlmUsage
from harvest.definitions.registry import Registry
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import ExecutionNotFoundError, HarvestError
from harvest.history import payload as payloads
from harvest.history.data import SignalReceived, UpdateAdmitted
from harvest.history.document import HistoryDocument
from harvest.history.ids import business_key, parse_execution_id
from harvest.history.kinds import EventKind
from harvest.history.limits import check_text
from harvest.operations.updating import key_id
from harvest.replay import ordered
from harvest.replay.context.base import seconds
from harvest.testing import virtual
from harvest.testing.clock import VirtualClock
from harvest.testing.driving import PATIENCE_SECONDS, Driver
from harvest.testing.execution import Execution, Look
from harvest.testing.explaining import why_open
from harvest.testing.handle import EnvironmentHandle, EnvironmentUpdate
from harvest.testing.mocking import Call, Mock
from harvest.testing.stand_ins import stand_in
from harvest.testing.starting import Starter, start_options
from harvest.testing.world import World

R = TypeVar("R")
A1 = TypeVar("A1")
A2 = TypeVar("A2")
A3 = TypeVar("A3")
START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class WorkflowEnvironment:
    """Runs the workflows of an application in this process, as a worker would.

        async with WorkflowEnvironment(app) as env:
            env.mock(charge, Receipt("r-1"))
            handle = await env.start(order_flow, Order(...))
            await handle.signal("approved", Approval("ann"))
            assert await handle.result() == ...

    Declared activities really run unless they are mocked. `start_at` is the time that it begins with, `seed` what
    `ctx.random` and ids follow from: a test does the same each time. With `replay_check`, each run is replayed from its
    own history when it ends, and must come to the same. `patience` is how many real seconds an activity may take.
    """

    def __init__(
        self,
        app: Harvest | Registry,
        *,
        start_at: datetime = START,
        seed: int = 0,
        replay_check: bool = True,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        declared = app.registry if isinstance(app, Harvest) else app
        self._registry = Registry()
        for activity in declared.activities.values():
            self._registry.add_activity(activity)
        for workflow in declared.workflows.values():
            self._registry.add_workflow(workflow)
        self._mocks: dict[str, Mock] = {}
        self._declared = dict(declared.workflows)
        self._replay_check = replay_check
        self._told: set[int] = set()
        self._world = World(self._registry, VirtualClock(start_at), self._mocks, checks=self._is_checked)
        self._driver = Driver(self._world, patience)
        self._starter = Starter(self._world, seed)

    async def __aenter__(self) -> Self:
        ordered.install()
        virtual.install()
        for activity in self._registry.activities.values():
            virtual.rebind(activity.function)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of everything. What blocked a run, or a replay that disagreed, is raised if nobody has seen it."""
        world = self._world
        await self._driver.stop()
        if error is None:
            for execution in world.executions.values():
                if execution.state.is_open and execution.work.run is not None:
                    world.check(execution)
        for execution in world.executions.values():
            execution.let_go()
        await world.activities.close()
        if error is None:
            for execution in world.troubled:
                found = execution.blocked or execution.disagreement
                if found is not None and id(found) not in self._told:
                    raise found

    # Time

    def now(self) -> datetime:
        """The environment's time, in UTC."""
        return self._world.clock.now

    async def skip(self, duration: timedelta | float) -> None:
        """Let so much time pass, with all that is due meanwhile."""
        await self._driver.skip(self.now() + timedelta(seconds=seconds(duration)))

    def after(self, delay: timedelta | float, act: Callable[[], Awaitable[Any] | Any]) -> None:
        """Do something when so much time has passed: `env.after(3600, lambda: handle.signal("approved"))`."""
        self._driver.after(seconds(delay), act)

    def _alarm(self, timeout: timedelta | float | None) -> asyncio.Event:
        late = asyncio.Event()
        if timeout is not None:
            self._world.clock.after(seconds(timeout), late.set)
        return late

    # Standing in

    def mock(self, what: ActivityDefinition[..., Any] | WorkflowDefinition[..., Any] | str, outcome: Any) -> Mock:
        """Have `outcome` stand in for an activity, or for a workflow that is started as a child, from now on.

        A result; an exception, which fails each attempt; a function, plain or async, called with the arguments (and the
        ActivityContext, where its first parameter is annotated so); `in_turn`, `failing`, `never`, `unclaimed`, `real`.
        A name, as text, stands for what is called by that name. The answer knows the calls that were made.
        """
        name = what if isinstance(what, str) else what.name
        mock = self._mocks[name] = Mock(name, outcome)
        if not isinstance(what, ActivityDefinition):
            declared = self._registry.latest(name) if isinstance(what, str) else what
            if declared is not None or name not in self._registry.activities:
                made = stand_in(mock, declared)
                self._registry.workflows[made.name, made.version] = made
                self._registry._latest[made.name] = made
        return mock

    def calls(self, activity: ActivityDefinition[..., Any] | str) -> list[Call]:
        """The attempts that were made of an activity, real or mocked, in their order."""
        return list(self._world.activities.calls.get(activity if isinstance(activity, str) else activity.name, []))

    def llm_usage(self, handle: EnvironmentHandle[Any] | None = None) -> list[LlmUsage]:
        """What activities have reported of language models, in its order: of every run, or of the handle's own."""
        reported = self._world.activities.llm_usage
        return [usage for run, usage in reported if handle is None or run == handle.execution_id]

    # Runs

    @overload
    async def start(
        self, workflow: WorkflowDefinition[[], R], /, **options: Unpack[StartOptions]
    ) -> EnvironmentHandle[R]: ...
    @overload
    async def start(
        self, workflow: WorkflowDefinition[[A1], R], a1: A1, /, **options: Unpack[StartOptions]
    ) -> EnvironmentHandle[R]: ...
    @overload
    async def start(
        self, workflow: WorkflowDefinition[[A1, A2], R], a1: A1, a2: A2, /, **options: Unpack[StartOptions]
    ) -> EnvironmentHandle[R]: ...
    @overload
    async def start(
        self,
        workflow: WorkflowDefinition[..., R],
        a1: Any,
        a2: Any,
        a3: Any,
        /,
        *more: Any,
        **options: Unpack[StartOptions],
    ) -> EnvironmentHandle[R]: ...
    async def start(self, workflow: WorkflowDefinition[..., R], /, *args: Any, **options: Any) -> EnvironmentHandle[R]:
        """Start a workflow, or find the run that the policies say stands for it; options as `Harvest.start`.

        It returns when the run has come as far as it can at this instant. Raises WorkflowNotRegisteredError for one
        that the application has not declared, and ExecutionExistsError.
        """
        execution, _ = self._starter.start(workflow, args, start_options(options))
        return await self._settled(execution, workflow)

    async def signal_with_start(
        self,
        workflow: WorkflowDefinition[..., R],
        /,
        *args: Any,
        signal: str,
        payload: Any = None,
        reuse_policy: ReusePolicy = "allow_duplicate",
        **options: Unpack[RunOptions],
    ) -> EnvironmentHandle[R]:
        """Signal the open run of `workflow_id`, or start it with the signal, as `Harvest.signal_with_start`."""
        data = SignalReceived(signal, Raw(payloads.encode(payload, what=f"the payload of signal {signal!r}")), "test")
        execution = self._start_with(workflow, args, options, reuse_policy, (EventKind.SIGNAL_RECEIVED, data))
        return await self._settled(execution, workflow)

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
    ) -> tuple[EnvironmentHandle[R], Any]:
        """Send an update to the open run of `workflow_id`, or start it with it, as `Harvest.update_with_start`."""
        key = options.get("idempotency_key")
        data = self._update_data(update, encode_arguments(update_args, f"the input of update {update!r}"), key)
        execution = self._start_with(workflow, args, options, reuse_policy, (EventKind.UPDATE_ADMITTED, data))
        sent = EnvironmentUpdate(self, execution.execution_id, data.update_id, result_type)
        answer = await sent.result(timeout)
        return EnvironmentHandle(self, execution, workflow.signature), answer

    def _start_with(
        self,
        workflow: WorkflowDefinition[..., Any],
        args: tuple[Any, ...],
        options: RunOptions,
        reuse_policy: ReusePolicy,
        message: tuple[EventKind, Struct],
    ) -> Execution:
        asked = start_options({**options, "reuse_policy": reuse_policy})
        execution, is_new = self._starter.start(workflow, args, asked, message)
        key = asked.idempotency_key
        if not is_new and (key is None or self._is_new_key(execution, f"{message[0].word} {key}")):
            self._world.append(execution, message[0], 0, message[1])
        elif key is not None:
            execution.keys.add(f"{message[0].word} {key}")
        return execution

    async def _settled(self, execution: Execution, workflow: WorkflowDefinition[..., R]) -> EnvironmentHandle[R]:
        await self._driver.settle()
        return EnvironmentHandle(self, execution, workflow.signature)

    def handle(
        self, execution_id: UUID | str, workflow: WorkflowDefinition[..., R] | None = None
    ) -> EnvironmentHandle[R]:
        """A handle to a run by its execution id, such as a child's. Raises ExecutionNotFoundError."""
        found = execution_id if isinstance(execution_id, UUID) else parse_execution_id(execution_id)
        execution = self._world.executions.get(found)
        if execution is None:
            raise ExecutionNotFoundError(f"there is no execution {found}", execution_id=str(found))
        return EnvironmentHandle(self, execution, workflow.signature if workflow else None)

    def handle_by_id(self, workflow: WorkflowDefinition[..., R], workflow_id: str) -> EnvironmentHandle[R]:
        """A handle to the open, else the newest, run of a workflow id. Raises ExecutionNotFoundError."""
        execution = self._world.newest(business_key("default", workflow.name, workflow_id))
        if execution is None:
            raise ExecutionNotFoundError(f"there is no run of workflow {workflow.name!r} with id {workflow_id!r}")
        return EnvironmentHandle(self, execution, workflow.signature)

    def runs(self) -> list[Look]:
        """Every run of this environment, children and successors too, in the order of their start."""
        return [execution.look() for execution in self._world.executions.values()]

    def look(self, handle: EnvironmentHandle[Any]) -> Look:
        """The newest run of a handle's chain as people see it: what it waits for, where it stands, what it shows."""
        return handle._execution.look()

    def history(self, handle: EnvironmentHandle[Any]) -> HistoryDocument:
        """The history of the handle's own run, as an export has it: to be replayed, or kept as a golden history."""
        return self._world.executions[handle.execution_id].document()

    async def break_sessions(self, handle: EnvironmentHandle[Any]) -> int:
        """Let the worker die that runs the open sessions of a run; returns how many sessions that broke."""
        broken = self._world.sessions.lose(handle._execution)
        await self._driver.settle()
        return broken

    # For handles

    def _update_data(self, name: str, input: bytes, idempotency_key: str | None) -> UpdateAdmitted:
        check_text(name, what="update name")
        update_id = self._starter.next_id() if idempotency_key is None else key_id(idempotency_key)
        return UpdateAdmitted(str(update_id), name, Raw(input), "test")

    def _is_new_key(self, execution: Execution, key: str) -> bool:
        known = key in execution.keys
        execution.keys.add(key)
        return not known

    def _why_open(self, execution: Execution) -> str:
        return why_open(self._world, execution)

    def _trouble_of(self, execution: Execution) -> HarvestError | None:
        """What blocks a run, or another of its family, or a replay of it that disagreed."""
        for other in self._world.troubled:
            if other.root == execution.root:
                found = other.blocked or other.disagreement
                self._told.add(id(found))
                return found
        return None

    def _is_checked(self, execution: Execution) -> bool:
        name = execution.started.workflow_name
        declared = self._registry.workflow(name, execution.started.version)
        return self._replay_check and declared is self._declared.get((name, execution.started.version))
