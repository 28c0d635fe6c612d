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
from harvest.operations.routing import reach, routed
from harvest.operations.signalling import refusal, unchanged
from harvest.shards import Shards
from harvest.store import appends, closings


class Cancelled(Struct, frozen=True):
    """A second request is no error: `newly_cancelled` is false. `execution_id` is the run that was reached.

    `routed_execution_id` is the same where another of its chain was asked for; so in Terminated.
    """

    execution_id: UUID
    state: str
    newly_cancelled: bool
    reason: str
    routed_execution_id: UUID | None = None


class Terminated(Struct, frozen=True):
    """A run that was terminated already is no error: `newly_terminated` is false."""

    execution_id: UUID
    state: str
    newly_terminated: bool
    routed_execution_id: UUID | None = None


async def cancel(shards: Shards, actor: Actor, execution_id: UUID, *, reason: str) -> Cancelled:
    """Ask a run, or the live run of its chain, to end; its code may clean up first.

    A paused run hears of it when it is resumed. Raises ExecutionClosedError, ExecutionNotFoundError.
    """
    reason = checked_reason(reason)
    store = shards.store_of(ExecutionId(int=execution_id.int))
    data = encode_data(WorkflowCancelRequested(reason=reason, actor=actor.name))

    async def ask(target: UUID) -> appends.Appending:
        audit = audit_entry(actor, "workflow.cancel", shard_id=store.shard_id, target_id=str(target), reason=reason)
        return await appends.append(store, target, EventKind.WORKFLOW_CANCEL_REQUESTED, data, audit, once=True)

    reached, answer = await reach(store, execution_id, ask)
    if answer.state is not None and answer.state.is_open:
        if answer.written:
            store.waker.wake(answer.holder)
            store.hints.touch(answer.partition)
        else:
            await unchanged(shards, actor, "workflow.cancel", reached, "cancellation was requested before")
        return Cancelled(reached, answer.state.name, answer.written, reason, routed(execution_id, reached))
    error = refusal(reached, answer, "cannot be cancelled")
    await record(shards, actor, "workflow.cancel", "execution", str(reached), "failed", error.message)
    raise error


async def terminate(shards: Shards, actor: Actor, execution_id: UUID, *, reason: str) -> Terminated:
    """End a run, or the live run of its chain, at once; no user code runs.

    Raises ExecutionClosedError, ExecutionNotFoundError.
    """
    reason = checked_reason(reason)
    store = shards.store_of(ExecutionId(int=execution_id.int))
    data = encode_data(WorkflowTerminated(reason=reason, actor=actor.name))

    async def end(target: UUID) -> appends.Appending:
        audit = audit_entry(actor, "workflow.terminate", shard_id=store.shard_id, target_id=str(target), reason=reason)
        return await closings.close(store, target, EventKind.WORKFLOW_TERMINATED, data, State.TERMINATED, audit)

    reached, answer = await reach(store, execution_id, end)
    if answer.written:
        if answer.woken:
            # Its holder, and whoever delivers what others are told of the end.
            store.waker.wake(answer.holder)
        store.hints.touch(answer.partition)
        return Terminated(reached, State.TERMINATED.name, True, routed(execution_id, reached))
    if answer.state is State.TERMINATED:
        await unchanged(shards, actor, "workflow.terminate", reached, "the run was terminated before")
        return Terminated(reached, answer.state.name, False, routed(execution_id, reached))
    error = refusal(reached, answer, "cannot be terminated")
    await record(shards, actor, "workflow.terminate", "execution", str(reached), "failed", error.message)
    raise error


def checked_reason(reason: str) -> str:
    """A reason as it is kept: cut, and refused where it cannot be stored."""
    check_text(reason, what="reason", most=4 * REASON_CHARACTERS, empty=True)
    return reason[:REASON_CHARACTERS]
