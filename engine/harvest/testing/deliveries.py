"""What one run of an environment does to another: children, close policies, external operations (design 4)."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
from msgspec import Raw

from harvest.definitions.options import WorkflowOptions
from harvest.history import payload
from harvest.history.data import (
    ChildWorkflowFailed,
    ExternalAwaitFailed,
    ExternalAwaitResolved,
    ExternalDelivered,
    ExternalFailed,
    Failure,
    SignalReceived,
    Target,
    WorkflowCancelRequested,
    WorkflowExecutionTimedOut,
    WorkflowStarted,
    WorkflowTerminated,
)
from harvest.history.deliveries import (
    CLOSE_POLICIES,
    Cancel,
    ChildClosed,
    ChildStart,
    ClosePolicy,
    DeliveryKind,
    ExternalAwait,
    ExternalCancel,
    ExternalSignal,
)
from harvest.history.endings import child_failed, failure_of_end, failure_of_erased
from harvest.history.erasing import ERASED
from harvest.history.events import Event, encode_data
from harvest.history.ids import business_key
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.replay.describing import target_text
from harvest.testing.execution import Child, Execution

if TYPE_CHECKING:
    from harvest.testing.world import World

_ORPHANED: Final = "its parent has ended"
_DATA: Final[dict[DeliveryKind, Any]] = {
    DeliveryKind.CHILD_START: ChildStart,
    DeliveryKind.CHILD_CLOSED: ChildClosed,
    DeliveryKind.CHILD_CANCEL: Cancel,
    DeliveryKind.CLOSE_POLICY: ClosePolicy,
    DeliveryKind.EXTERNAL_SIGNAL: ExternalSignal,
    DeliveryKind.EXTERNAL_CANCEL: ExternalCancel,
    DeliveryKind.EXTERNAL_AWAIT: ExternalAwait,
}


class Deliveries:
    """Makes deliveries in the order in which they were posted, and keeps those that wait for a run's end."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._awaiting: list[tuple[Execution, int, UUID]] = []
        self._make: Final[dict[DeliveryKind, Any]] = {
            DeliveryKind.CHILD_START: self._start_child,
            DeliveryKind.CHILD_CLOSED: self._child_closed,
            DeliveryKind.CHILD_CANCEL: self._cancel_child,
            DeliveryKind.CLOSE_POLICY: self._close_policy,
            DeliveryKind.EXTERNAL_SIGNAL: self._signal,
            DeliveryKind.EXTERNAL_CANCEL: self._cancel,
            DeliveryKind.EXTERNAL_AWAIT: self._await,
        }

    def post(self, source: Execution, seq: int, kind: DeliveryKind, target: UUID, data: bytes) -> None:
        """Something for another run."""
        made = msgspec.json.decode(data, type=_DATA[kind])
        self._world.do(partial(self._make[kind], source, seq, target, made))

    # Ends

    def request_cancel(self, execution: Execution, reason: str, actor: str = "") -> bool:
        """Ask a run to end; False when that was asked before."""
        if execution.cancel_requested:
            return False
        execution.cancel_requested = True
        data = WorkflowCancelRequested(reason=reason, actor=actor)
        self._world.append(execution, EventKind.WORKFLOW_CANCEL_REQUESTED, 0, data)
        return True

    def terminate(self, execution: Execution, reason: str, actor: str = "") -> None:
        """End a run at once."""
        data = WorkflowTerminated(reason=reason, actor=actor)
        self._end(execution, EventKind.WORKFLOW_TERMINATED, data, State.TERMINATED, reason)

    def time_out(self, execution: Execution, deadline: datetime) -> None:
        """A run's deadline has passed."""
        data = WorkflowExecutionTimedOut(deadline=deadline)
        self._end(execution, EventKind.WORKFLOW_EXECUTION_TIMED_OUT, data, State.TIMED_OUT, "")

    def _end(self, execution: Execution, kind: EventKind, data: msgspec.Struct, state: State, reason: str) -> None:
        if self._world.append(execution, kind, 0, data) is None:
            return
        if execution.started.reports:
            failure = failure_of_end(state, execution.started.workflow_name, execution.started.workflow_id, reason)
            told = child_failed(str(execution.first_id), state, failure)
            parent = UUID(execution.started.parent_id)
            self.post(execution, 0, DeliveryKind.CHILD_CLOSED, parent, told)
        self._world.close(execution, state)
        self.orphan(execution, [])

    def orphan(self, execution: Execution, newborn: list[tuple[UUID, Child]]) -> None:
        """A run has ended: the close policies of its open children, and of those that it has just asked for."""
        children = self._world.children
        mine = [(first, child) for first, child in children.items() if child.parent == execution.execution_id]
        for first, child in [*mine, *newborn]:
            children.pop(first, None)
            if child.policy:
                action = encode_data(ClosePolicy(CLOSE_POLICIES[child.policy]))
                self.post(execution, child.seq, DeliveryKind.CLOSE_POLICY, first, action)

    # Children

    def _start_child(self, source: Execution, seq: int, target: UUID, start: ChildStart) -> None:
        key = business_key(start.tenant, start.workflow_name, start.workflow_id)
        taken = self._world.newest(key)
        if taken is not None and taken.state.is_open:
            self._refuse_child(target, start, taken.execution_id)
            return
        latest = self._world.registry.latest(start.workflow_name)
        version = start.version or (latest.version if latest is not None else 1)
        definition = self._world.registry.workflow(start.workflow_name, version)
        # What the parent did not say is as the child's code declares it.
        declared = definition.options if definition is not None else WorkflowOptions()
        chain = declared.chain_execution_timeout
        retry = start.retry or declared.retry
        started = WorkflowStarted(
            workflow_name=start.workflow_name,
            workflow_id=start.workflow_id,
            version=version,
            seed=target.int & ((1 << 61) - 1),
            input=start.input,
            queue=start.queue or declared.queue,
            execution_timeout_seconds=start.execution_timeout or declared.execution_timeout,
            tenant=start.tenant,
            priority=start.priority,
            parent_id=start.parent_id,
            root_id=start.root_id,
            reports=start.reports,
            retry=None if retry is None or retry.max_attempts <= 1 else retry,
            chain_deadline=None if chain is None else self._world.clock.now + timedelta(seconds=chain),
        )
        memo = bytes(start.memo)
        self._world.create(target, started, [], memo=None if memo == payload.NULL else memo)

    def _refuse_child(self, target: UUID, start: ChildStart, holder: UUID) -> None:
        failure = Failure(
            "WorkflowAlreadyStarted",
            f"workflow {start.workflow_name!r} with id {start.workflow_id!r} runs already, as execution {holder}",
        )
        data = encode_data(ChildWorkflowFailed(failure, "REJECTED"))
        self._tell_parent(target, EventKind.CHILD_WORKFLOW_FAILED, data)

    def _child_closed(self, source: Execution, seq: int, target: UUID, closed: ChildClosed) -> None:
        self._tell_parent(UUID(closed.first_execution_id), EventKind(closed.kind), bytes(closed.data))

    def _tell_parent(self, first: UUID, kind: EventKind, data: bytes) -> None:
        """The end of a child, for the run that has it now, if it waits for it."""
        child = self._world.children.pop(first, None)
        parent = None if child is None else self._world.executions.get(child.parent)
        if child is not None and child.awaited and parent is not None:
            self._world.append(parent, kind, child.seq, data)

    def _cancel_child(self, source: Execution, seq: int, target: UUID, cancel: Cancel) -> None:
        child = self._world.current(target)
        if child is not None and child.state.is_open:
            self.request_cancel(child, cancel.reason, _actor(source))

    def _close_policy(self, source: Execution, seq: int, target: UUID, policy: ClosePolicy) -> None:
        child = self._world.current(target)
        if child is None or not child.state.is_open:
            return
        if policy.action == "terminate":
            self.terminate(child, _ORPHANED)
        else:
            self.request_cancel(child, _ORPHANED, _actor(source))

    # Runs that somebody else started

    def _find(self, source: Execution, target: Target) -> Execution | None:
        if target.execution_id:
            return self._world.current(UUID(target.execution_id))
        found = self._world.newest(business_key(source.started.tenant, target.workflow_name, target.workflow_id))
        return None if found is None else self._world.current(found.execution_id)

    def _signal(self, source: Execution, seq: int, target: UUID, signal: ExternalSignal) -> None:
        found = self._find(source, signal.target)
        if found is not None:
            event = self._world.append(
                found, EventKind.SIGNAL_RECEIVED, 0, SignalReceived(signal.name, signal.payload, _actor(source))
            )
            self._answer(source, seq, found, event, EventKind.EXTERNAL_SIGNAL_DELIVERED)
        else:
            self._unknown(source, seq, signal.target, EventKind.EXTERNAL_SIGNAL_FAILED)

    def _cancel(self, source: Execution, seq: int, target: UUID, cancel: ExternalCancel) -> None:
        found = self._find(source, cancel.target)
        if found is not None:
            event = found.events[-1] if found.state.is_open else None
            if event is not None:
                self.request_cancel(found, cancel.reason, _actor(source))
            self._answer(source, seq, found, event, EventKind.EXTERNAL_CANCEL_DELIVERED)
        else:
            self._unknown(source, seq, cancel.target, EventKind.EXTERNAL_CANCEL_FAILED)

    def _answer(self, source: Execution, seq: int, found: Execution, event: Event | None, delivered: EventKind) -> None:
        if event is not None:
            self._world.append(source, delivered, seq, ExternalDelivered(str(found.execution_id)))
            return
        failed = EventKind(delivered + 1)
        data = ExternalFailed("target_terminal", f"{found.title} has ended {found.state.name}")
        self._world.append(source, failed, seq, data)

    def _unknown(self, source: Execution, seq: int, target: Target, failed: EventKind) -> None:
        data = ExternalFailed("target_unknown", f"there is no execution {target_text(target)}")
        self._world.append(source, failed, seq, data)

    def _await(self, source: Execution, seq: int, target: UUID, await_: ExternalAwait) -> None:
        found = self._find(source, await_.target)
        if found is None:
            failure = Failure("ExecutionNotFound", f"there is no execution {target_text(await_.target)}")
            data = ExternalAwaitFailed(failure, "UNKNOWN")
            self._world.append(source, EventKind.EXTERNAL_AWAIT_FAILED, seq, data)
        elif found.state.is_open:
            self._awaiting.append((source, seq, found.execution_id))
        else:
            self._resolve(source, seq, found)

    def closed(self, execution: Execution) -> None:
        """A run has ended, and does not go on as another: whoever waits for its end hears of it."""
        if execution.successor is not None:
            return
        waiting, self._awaiting = self._awaiting, []
        for source, seq, awaited in waiting:
            if self._world.current(awaited) is execution:
                self._resolve(source, seq, execution)
            else:
                self._awaiting.append((source, seq, awaited))

    def _resolve(self, source: Execution, seq: int, ended: Execution) -> None:
        names = ended.started.workflow_name, ended.started.workflow_id
        if ended.state is State.COMPLETED and ended.result != ERASED:
            data: msgspec.Struct = ExternalAwaitResolved(Raw(ended.result or b"null"))
            self._world.append(source, EventKind.EXTERNAL_AWAIT_RESOLVED, seq, data)
            return
        if ended.state is State.COMPLETED:
            failure = failure_of_erased(*names)
        else:
            failure = ended.failure or failure_of_end(ended.state, *names)
        self._world.append(source, EventKind.EXTERNAL_AWAIT_FAILED, seq, ExternalAwaitFailed(failure, ended.state.name))


def _actor(source: Execution) -> str:
    return f"execution:{source.execution_id}"
