"""A whole engine in memory for tests: no database, no worker, and time that is skipped when nothing else can happen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, overload
from uuid import UUID, uuid5

from msgspec import Raw, Struct

from harvest.app import Harvest, StartOptions
from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.registry import Registry
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import ExecutionExistsError, HarvestError, WorkflowNotRegisteredError
from harvest.history import payload
from harvest.history.data import WorkflowStarted
from harvest.history.document import HistoryDocument
from harvest.history.ids import business_key, derive_execution_id
from harvest.history.limits import WORKFLOW_ID_BYTES, check_text
from harvest.history.states import State
from harvest.replay import ordered
from harvest.replay.context.base import seconds
from harvest.testing import virtual
from harvest.testing.clock import VirtualClock
from harvest.testing.driving import PATIENCE_SECONDS, Driver
from harvest.testing.execution import Execution, Look
from harvest.testing.explaining import why_open
from harvest.testing.handle import EnvironmentHandle
from harvest.testing.mocking import Call, Mock
from harvest.testing.stand_ins import stand_in
from harvest.testing.world import World

R = TypeVar("R")
A1 = TypeVar("A1")
A2 = TypeVar("A2")
A3 = TypeVar("A3")
START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_ROOT: Final = UUID("5f9b3c5e-0b1d-5d43-9a52-3c9e3f2f7d11")


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
        self._seed = seed
        self._started = 0
        self._replay_check = replay_check
        self._told: set[int] = set()
        self._keys: dict[str, UUID] = {}
        self._world = World(self._registry, VirtualClock(start_at), self._mocks, checks=self._is_checked)
        self._driver = Driver(self._world, patience)

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
        self._driver.stop()
        if error is None:
            for execution in world.executions.values():
                if execution.state.is_open and execution.work.run is not None:
                    world.check(execution)
        world.activities.close()
        for execution in world.executions.values():
            execution.let_go()
        await asyncio.sleep(0)
        unseen = [found for e in world.executions.values() if (found := e.blocked or e.disagreement) is not None]
        if error is None:
            for found in unseen:
                if id(found) not in self._told:
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

    def mock(
        self, what: ActivityDefinition[..., Any] | WorkflowDefinition[..., Any] | str, outcome: Any
    ) -> Mock:
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
    async def start(
        self, workflow: WorkflowDefinition[..., R], /, *args: Any, **options: Any
    ) -> EnvironmentHandle[R]:
        """Start a workflow, or find the run that the policies say stands for it; options as `Harvest.start`.

        It returns when the run has come as far as it can at this instant. Raises WorkflowNotRegisteredError for one
        that the application has not declared, and ExecutionExistsError.
        """
        execution = self._begin(workflow, args, **options)
        await self._driver.settle()
        return EnvironmentHandle(self, execution, workflow.signature)
