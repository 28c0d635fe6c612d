"""Ending runs: a cancel request that the workflow answers in its own time, and termination at once (answers 7)."""

from __future__ import annotations

from uuid import UUID

from msgspec import Struct

from harvest.history.data import WorkflowCancelRequested, WorkflowTerminated
from harvest.history.events import encode_data
from harvest.history.ids import ExecutionId
from harvest.history.kinds import EventKind
from harvest.history.limits import REASON_CHARACTERS, check_text
from harvest.history.states import State
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.auditing import record
from harvest.operations.signalling import refusal, unchanged
from harvest.shards import Shards
from harvest.store import appends


class Cancelled(Struct, frozen=True):
    """A second request is no error: `newly_cancelled` is false."""

    execution_id: UUID
    state: str
    newly_cancelled: bool
    reason: str


class Terminated(Struct, frozen=True):
    """A run that was terminated already is no error: `newly_terminated` is false."""

    execution_id: UUID
    state: str
    newly_terminated: bool


async def cancel(shards: Shards, actor: Actor, execution_id: UUID, *, reason: str) -> Cancelled:
    """Ask a run to end; its code may clean up first. Raises ExecutionClosedError, ExecutionNotFoundError."""
    reason = _reason(reason)
    store = shards.store_of(ExecutionId(int=execution_id.int))
    answer = await appends.append(
        store,
        execution_id,
        EventKind.WORKFLOW_CANCEL_REQUESTED,
        encode_data(WorkflowCancelRequested(reason=reason, actor=actor.name)),
        audit_entry(actor, "workflow.cancel", shard_id=store.shard_id, target_id=str(execution_id), reason=reason),
        once=True,
    )
    if answer.written:
        store.waker.wake(answer.holder)
        store.hints.touch(answer.partition)
        return Cancelled(execution_id, State.RUNNING.name, True, reason)
    if answer.state is not None and answer.state.is_open:
        await unchanged(shards, actor, "workflow.cancel", execution_id, "cancellation was requested before")
        return Cancelled(execution_id, answer.state.name, False, reason)
    error = refusal(execution_id, answer, "cannot be cancelled")
    await record(shards, actor, "workflow.cancel", "execution", str(execution_id), "failed", error.message)
    raise error


async def terminate(shards: Shards, actor: Actor, execution_id: UUID, *, reason: str) -> Terminated:
    """End a run at once; no user code runs. Raises ExecutionClosedError, ExecutionNotFoundError."""
    reason = _reason(reason)
    store = shards.store_of(ExecutionId(int=execution_id.int))
    answer = await appends.close(
        store,
        execution_id,
        EventKind.WORKFLOW_TERMINATED,
        encode_data(WorkflowTerminated(reason=reason, actor=actor.name)),
        State.TERMINATED,
        audit_entry(actor, "workflow.terminate", shard_id=store.shard_id, target_id=str(execution_id), reason=reason),
    )
    if answer.written:
        if answer.holder is not None:
            store.waker.wake(answer.holder)
        store.hints.touch(answer.partition)
        return Terminated(execution_id, State.TERMINATED.name, True)
    if answer.state is State.TERMINATED:
        await unchanged(shards, actor, "workflow.terminate", execution_id, "the run was terminated before")
        return Terminated(execution_id, answer.state.name, False)
    error = refusal(execution_id, answer, "cannot be terminated")
    await record(shards, actor, "workflow.terminate", "execution", str(execution_id), "failed", error.message)
    raise error


def _reason(reason: str) -> str:
    check_text(reason, what="reason", most=4 * REASON_CHARACTERS, empty=True)
    return reason[:REASON_CHARACTERS]
