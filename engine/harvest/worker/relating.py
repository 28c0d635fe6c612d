"""What a decision writes about other runs: children, deliveries, and the run that follows."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from msgspec import Raw

from harvest.history import deliveries
from harvest.history.data import ChildWorkflowFailed, Target
from harvest.history.deliveries import ANYWHERE, CLOSE_POLICIES, DeliveryKind
from harvest.history.endings import failure_of_end
from harvest.history.events import encode_data
from harvest.history.ids import ExecutionId, business_key, parse_execution_id, partition_of, shard_of
from harvest.history.kinds import EventKind
from harvest.history.states import CLOSES_AS
from harvest.replay.continuing import Onward
from harvest.replay.decision import Outcome
from harvest.replay.relations import AwaitExternal, CancelChild, CancelExternal, SignalExternal, StartChild
from harvest.replay.run import Run
from harvest.store.commit import Batch, Successor
from harvest.worker.work import Work

External = SignalExternal | CancelExternal | AwaitExternal


def put_child(batch: Batch, work: Work, run: Run, command: StartChild) -> None:
    """The rows that start a child. One that the parent's end would not touch, and that is not awaited, needs none."""
    options = command.options
    policy, awaited = CLOSE_POLICIES.index(options.close_policy), not options.detached
    reports = awaited or policy > 0
    if reports:
        batch.child(work.execution_id, command.seq, _uuid(command.child_id), policy, awaited)
    start = deliveries.ChildStart(
        workflow_name=command.workflow_name,
        workflow_id=command.workflow_id,
        parent_id=str(work.execution_id),
        root_id=run.started.root_id or run.started.first_execution_id or str(work.execution_id),
        version=command.version,
        queue=options.queue or "",
        priority=options.priority,
        tenant=run.started.tenant,
        input=Raw(command.input),
        execution_timeout=options.execution_timeout,
        retry=options.retry,
        awaited=awaited,
        reports=reports,
        close_policy=options.close_policy,
        refused=command.refused,
    )
    _deliver(batch, work, command.seq, DeliveryKind.CHILD_START, command.child_id, start)


def put_child_cancel(batch: Batch, work: Work, command: CancelChild) -> None:
    """Ask a child to end, whose parent's code no longer waits."""
    cancel = deliveries.Cancel(reason="its parent no longer waits")
    _deliver(batch, work, command.seq, DeliveryKind.CHILD_CANCEL, command.child_id, cancel)


def put_external(batch: Batch, work: Work, run: Run, command: External) -> None:
    """Reach a run that somebody else started. One that is named by its key is looked for when it is delivered."""
    kind, data = _external(command)
    target = command.target
    if target.execution_id:
        _deliver(batch, work, command.seq, kind, parse_execution_id(target.execution_id), data)
    else:
        key = business_key(run.started.tenant, target.workflow_name, target.workflow_id)
        batch.delivery(work.execution_id, command.seq, int(kind), key, ANYWHERE, encode_data(data))


def _external(command: External) -> tuple[DeliveryKind, Any]:
    target: Target = command.target
    if isinstance(command, SignalExternal):
        return DeliveryKind.EXTERNAL_SIGNAL, deliveries.ExternalSignal(target, command.name, Raw(command.input))
    if isinstance(command, CancelExternal):
        return DeliveryKind.EXTERNAL_CANCEL, deliveries.ExternalCancel(target, command.reason)
    return DeliveryKind.EXTERNAL_AWAIT, deliveries.ExternalAwait(target)


def _deliver(batch: Batch, work: Work, seq: int, kind: DeliveryKind, target: ExecutionId, data: Any) -> None:
    batch.delivery(work.execution_id, seq, int(kind), _uuid(target), shard_of(target), encode_data(data))


def put_end(batch: Batch, work: Work, run: Run, outcome: Outcome) -> bool:
    """What others learn of a run's end: successor, parent, children. Tells whether anything is delivered."""
    if outcome.onward is not None:
        batch.successor(work.execution_id, _successor(work, outcome.onward))
    if run.had_children or run.started.previous_execution_id:
        batch.cascade(work.execution_id)
    if outcome.onward is not None or not run.started.reports:
        return run.had_children
    closed = deliveries.ChildClosed(
        first_execution_id=run.started.first_execution_id or str(work.execution_id),
        kind=int(_tells(outcome)),
        data=Raw(_told(work, outcome)),
    )
    _deliver(batch, work, 0, DeliveryKind.CHILD_CLOSED, parse_execution_id(run.started.parent_id), closed)
    return True


def _tells(outcome: Outcome) -> EventKind:
    completed = outcome.kind is EventKind.WORKFLOW_COMPLETED
    return EventKind.CHILD_WORKFLOW_COMPLETED if completed else EventKind.CHILD_WORKFLOW_FAILED


def _told(work: Work, outcome: Outcome) -> bytes:
    if outcome.kind is EventKind.WORKFLOW_COMPLETED:
        return b'{"output":' + (outcome.result or b"null") + b"}"
    state = CLOSES_AS[outcome.kind].name
    if outcome.failure is not None:
        return b'{"failure":' + outcome.failure + b',"state":"' + state.encode() + b'"}'
    failure = failure_of_end(CLOSES_AS[outcome.kind], work.workflow_name, work.workflow_id)
    return encode_data(ChildWorkflowFailed(failure=failure, state=state))


def _successor(work: Work, onward: Onward) -> Successor:
    started = onward.started
    return Successor(
        execution_id=_uuid(onward.execution_id),
        business_key=business_key(started.tenant, started.workflow_name, work.workflow_id),
        workflow_name=started.workflow_name,
        workflow_id=work.workflow_id,
        version=started.version,
        partition=partition_of(work.workflow_id),
        queue=started.queue,
        priority=started.priority,
        started=onward.event(),
        input=bytes(started.input),
        events=onward.carried,
        delay=onward.delay,
        deadline_after=started.execution_timeout_seconds,
        deadline_at=started.chain_deadline,
        repoint=onward.keeps_children,
    )


def _uuid(execution_id: ExecutionId) -> UUID:
    return UUID(int=execution_id.int)
