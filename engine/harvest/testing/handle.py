"""A handle to a run of an environment, of the same shape as the client's."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from msgspec import Raw

from harvest.client import encode_arguments
from harvest.definitions.signature import Signature
from harvest.errors import (
    ExecutionClosedError,
    HarvestError,
    QueryFailedError,
    ResultTimeoutError,
    UpdateFailedError,
    UpdateRejectedError,
    UpdateTimeoutError,
    WorkflowFailedError,
)
from harvest.history import payload
from harvest.history.data import (
    SignalReceived,
    UpdateFailed,
    WorkflowExecutionPaused,
    WorkflowExecutionResumed,
)
from harvest.history.kinds import EventKind
from harvest.history.limits import check_text
from harvest.history.states import State
from harvest.replay.context.base import seconds
from harvest.replay.failures import exception_of
from harvest.testing.execution import Execution

if TYPE_CHECKING:
    from harvest.testing.environment import WorkflowEnvironment

R = TypeVar("R")
_ANSWERS = (EventKind.UPDATE_COMPLETED, EventKind.UPDATE_FAILED)


class EnvironmentHandle(Generic[R]):
    """One run of an environment, and those that it goes on as.

    Every call returns once all has happened that follows from it at that instant; only `result` and `update` let time
    pass, and only when nothing else can happen.
    """

    def __init__(self, env: WorkflowEnvironment, execution: Execution, signature: Signature | None) -> None:
        self.execution_id = execution.execution_id
        self.workflow_id = execution.started.workflow_id
        self._env = env
        self._signature = signature

    def __repr__(self) -> str:
        """Which execution it is."""
        return f"<EnvironmentHandle {self._execution.title} {self.execution_id}>"

    @property
    def _execution(self) -> Execution:
        found = self._env._world.current(self.execution_id)
        assert found is not None
        return found

    @property
    def state(self) -> str:
        """The state of the newest run of its chain, in upper case."""
        return self._execution.state.name

    async def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for the end and return the result; time is skipped whenever nothing else can happen.

        Raises WorkflowFailedError when the run did not complete, whose cause is the failure; at once what blocks it or
        one of its children; and ResultTimeoutError when nothing that could happen would end it, or after `timeout` of
        virtual time.
        """
        late = self._env._alarm(timeout)
        ended = await self._env._driver.until(
            lambda: not self._execution.state.is_open or self._blocked() is not None or late.is_set()
        )
        blocked = self._blocked()
        if blocked is not None:
            raise blocked
        execution = self._execution
        if execution.state.is_open:
            why = f"is still open: {self._env._why_open(execution)}"
            if ended:
                why = (
                    f"is still open after {seconds(timeout or 0):g} s of virtual time; {self._env._why_open(execution)}"
                )
            raise ResultTimeoutError(f"{execution.title} {why}", execution_id=str(execution.execution_id))
        if execution.state is not State.COMPLETED:
            failure = execution.failure
            told = f": {failure.type}: {failure.message}" if failure else ""
            raise WorkflowFailedError(
                f"execution {execution.execution_id} ended {execution.state.name}{told}",
                execution_id=str(execution.execution_id),
                state=execution.state.name,
                type=failure.type if failure else None,
                failure_type=failure.type if failure else None,
            ) from exception_of(failure)
        value: R = payload.decode(execution.result or b"null", self._signature.result if self._signature else Any)
        return value

    def _blocked(self) -> HarvestError | None:
        return self._env._trouble_of(self._execution)

    async def signal(self, name: str, value: Any = None, *, idempotency_key: str | None = None) -> None:
        """Send a signal. With a key, a repeated call is taken once. Raises ExecutionClosedError."""
        check_text(name, what="signal name")
        data = payload.encode(value, what=f"the payload of signal {name!r}")
        execution = self._open("takes no signals")
        if idempotency_key is None or self._env._is_new_key(
            execution, f"{EventKind.SIGNAL_RECEIVED.word} {idempotency_key}"
        ):
            signal = SignalReceived(name, Raw(data), "test")
            self._env._world.append(execution, EventKind.SIGNAL_RECEIVED, 0, signal)
        await self._env._driver.settle()

    async def query(self, name: str, *args: Any, result_type: Any = Any) -> Any:
        """What the run's query handler answers, decoded as `result_type`.

        Raises QueryNotFoundError, QueryFailedError, ExecutionClosedError.
        """
        await self._env._driver.settle()
        execution = self._open("its code answers no more")
        if execution.blocked is not None:
            raise execution.blocked
        run = execution.work.run
        if run is None or run.main is None:
            raise QueryFailedError(f"the code of {execution.title} has not begun", type="NotBegun")
        return payload.decode(run.query(name, encode_arguments(args, f"the arguments of query {name!r}")), result_type)

    async def update(
        self,
        name: str,
        *args: Any,
        result_type: Any = Any,
        timeout: timedelta | float | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Have the run's update handler answer; time is skipped when nothing else can happen.

        Raises UpdateRejectedError, UpdateFailedError, UpdateTimeoutError, ExecutionClosedError.
        """
        sent = self._send_update(name, args, result_type, idempotency_key)
        return await sent.result(timeout)

    async def start_update(
        self, name: str, *args: Any, result_type: Any = Any, idempotency_key: str | None = None
    ) -> EnvironmentUpdate:
        """Send an update without waiting for its answer. Raises ExecutionClosedError."""
        sent = self._send_update(name, args, result_type, idempotency_key)
        await self._env._driver.settle()
        return sent

    def _send_update(
        self, name: str, args: tuple[Any, ...], result_type: Any, idempotency_key: str | None
    ) -> EnvironmentUpdate:
        execution = self._open("takes no updates")
        data = self._env._update_data(name, encode_arguments(args, f"the input of update {name!r}"), idempotency_key)
        if idempotency_key is None or self._env._is_new_key(
            execution, f"{EventKind.UPDATE_ADMITTED.word} {idempotency_key}"
        ):
            self._env._world.append(execution, EventKind.UPDATE_ADMITTED, 0, data)
        return EnvironmentUpdate(self._env, self.execution_id, data.update_id, result_type)

    async def cancel(self, reason: str = "") -> bool:
        """Ask the run to end; its code may clean up first. False when that was asked before."""
        asked = self._env._world.deliveries.request_cancel(self._open("cannot be cancelled"), reason, "test")
        await self._env._driver.settle()
        return asked

    async def terminate(self, reason: str = "") -> bool:
        """End the run at once, without running its code. False when it was terminated before."""
        if self._execution.state is State.TERMINATED:
            return False
        self._env._world.deliveries.terminate(self._open("cannot be terminated"), reason, "test")
        await self._env._driver.settle()
        return True

    async def pause(self, reason: str = "") -> bool:
        """Hold the run: nothing of it is decided and no activity of it begins. False when it was held before."""
        execution = self._open("cannot be paused")
        if execution.state is State.PAUSED:
            return False
        world = self._env._world
        world.append(execution, EventKind.WORKFLOW_EXECUTION_PAUSED, 0, WorkflowExecutionPaused(reason, "test"))
        execution.state = State.PAUSED
        execution.paused_at = world.clock.now
        world.activities.pause(execution)
        if execution.deadline is not None:
            execution.deadline.hold()
        await self._env._driver.settle()
        return True

    async def resume(self) -> bool:
        """Let the run go on with all that came meanwhile. False when it was not held."""
        execution, world = self._open("cannot be resumed"), self._env._world
        if execution.paused_at is None:
            return False
        execution.state = State.RUNNING
        length = (world.clock.now - execution.paused_at).total_seconds()
        execution.paused_at = None
        world.append(execution, EventKind.WORKFLOW_EXECUTION_RESUMED, 0, WorkflowExecutionResumed("test"))
        world.activities.resume(execution, length)
        if execution.deadline is not None:
            execution.deadline = world.clock.postponed(execution.deadline, length)
        world.wake(execution)
        await self._env._driver.settle()
        return True

    def _open(self, what: str) -> Execution:
        execution = self._execution
        if not execution.state.is_open:
            raise ExecutionClosedError(
                f"execution {execution.execution_id} has ended ({execution.state.name}); it {what}",
                execution_id=str(execution.execution_id),
                state=execution.state.name,
            )
        return execution


class EnvironmentUpdate:
    """An update that is in a run's history: await its answer."""

    def __init__(self, env: WorkflowEnvironment, execution_id: UUID, update_id: str, result_type: Any) -> None:
        self.execution_id = execution_id
        self.update_id = update_id
        self._env = env
        self._result_type = result_type

    async def result(self, timeout: timedelta | float | None = None) -> Any:
        """The answer of the handler; time is skipped when nothing else can happen, `timeout` of it at most.

        Raises UpdateRejectedError, UpdateFailedError and UpdateTimeoutError, and what blocks the run.
        """
        env, late = self._env, self._env._alarm(timeout)
        await env._driver.until(lambda: self._answer() is not None or late.is_set() or self._is_over())
        answer, execution = self._answer(), self._execution
        if answer is not None:
            return _told(answer, self.update_id, self._result_type)
        blocked = env._trouble_of(execution)
        if blocked is not None:
            raise blocked
        if not execution.state.is_open:
            raise UpdateFailedError(
                f"{execution.title} ended before it answered update {self.update_id}", failure_type="WorkflowEnded"
            )
        raise UpdateTimeoutError(
            f"update {self.update_id} was admitted and is not answered: {env._why_open(execution)}",
            update_id=self.update_id,
        )

    @property
    def _execution(self) -> Execution:
        found = self._env._world.current(self.execution_id)
        assert found is not None
        return found

    def _is_over(self) -> bool:
        return self._env._trouble_of(self._execution) is not None or not self._execution.state.is_open

    def _answer(self) -> Any:
        execution: Execution | None = self._env._world.executions[self.execution_id]
        while execution is not None:
            for event in execution.events:
                if event.kind in _ANSWERS and (answer := event.data()).update_id == self.update_id:
                    return answer
            execution = execution.successor
        return None


def _told(answer: Any, update_id: str, result_type: Any) -> Any:
    if not isinstance(answer, UpdateFailed):
        return payload.decode(bytes(answer.output), result_type, what=f"the answer of {update_id}")
    kind, word = (UpdateRejectedError, "rejected") if answer.rejected else (UpdateFailedError, "failed")
    raise kind(
        f"update {update_id} {word}: {answer.failure.type}: {answer.failure.message}",
        update_id=update_id,
        failure_type=answer.failure.type,
    ) from exception_of(answer.failure)
