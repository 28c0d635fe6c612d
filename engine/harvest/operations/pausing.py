"""Holding a run and letting it go on. What comes meanwhile is kept in its history, and seen when it is resumed."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.history.data import WorkflowExecutionPaused, WorkflowExecutionResumed
from harvest.history.events import encode_data
from harvest.history.ids import ExecutionId
from harvest.history.states import State
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.auditing import record
from harvest.operations.closing import checked_reason
from harvest.operations.routing import reach, routed
from harvest.operations.signalling import refusal, unchanged
from harvest.shards import Shards
from harvest.store import pausing
from harvest.store.store import Store


class PausedRun(Struct, frozen=True, kw_only=True):
    """A run that is held: since when, why and by whom. A second pause changes nothing: `newly_paused` is false.

    `routed_execution_id` is the run that was reached, where another of its chain was asked for; so in ResumedRun.
    """

    execution_id: UUID
    state: str
    newly_paused: bool
    paused_at: datetime | None
    reason: str
    actor: str
    routed_execution_id: UUID | None = None


class ResumedRun(Struct, frozen=True, kw_only=True):
    """A run that goes on, and how long it was held. One that was not held is no error: `newly_resumed` is false."""

    execution_id: UUID
    state: str
    newly_resumed: bool
    pause_duration_secs: float
    routed_execution_id: UUID | None = None


async def pause(shards: Shards, actor: Actor, execution_id: UUID, *, reason: str = "") -> PausedRun:
    """Hold a run, or the live run of its chain: nothing of it is decided and no activity of it begins until the resume.

    Activities that run now go on, and their results are kept; local ones run again after the resume. The deadline moves
    by the length of the pause. Raises ExecutionClosedError, ExecutionNotFoundError.
    """
    reason = checked_reason(reason)
    store = shards.store_of(ExecutionId(int=execution_id.int))
    data = encode_data(WorkflowExecutionPaused(reason=reason, actor=actor.name))

    async def hold(target: UUID) -> pausing.Paused:
        audit = audit_entry(actor, "workflow.pause", shard_id=store.shard_id, target_id=str(target), reason=reason)
        return await pausing.pause(store, target, data, audit)

    reached, answer = await reach(store, execution_id, hold)
    if answer.state is not State.PAUSED:
        raise await _refused(shards, actor, "workflow.pause", reached, answer, "cannot be paused")
    if answer.written:
        _told(store, answer)
    else:
        await unchanged(shards, actor, "workflow.pause", reached, "the run was paused before")
    event = msgspec.json.decode(answer.event or b"{}", type=WorkflowExecutionPaused)
    return PausedRun(
        execution_id=reached,
        state=answer.state.name,
        newly_paused=answer.written,
        paused_at=answer.at,
        reason=event.reason,
        actor=event.actor,
        routed_execution_id=routed(execution_id, reached),
    )


async def resume(shards: Shards, actor: Actor, execution_id: UUID) -> ResumedRun:
    """Let a run, or the live run of its chain, go on with all that came meanwhile.

    Raises ExecutionClosedError, ExecutionNotFoundError.
    """
    store = shards.store_of(ExecutionId(int=execution_id.int))
    data = encode_data(WorkflowExecutionResumed(actor=actor.name))

    async def let_go(target: UUID) -> pausing.Paused:
        audit = audit_entry(actor, "workflow.resume", shard_id=store.shard_id, target_id=str(target))
        return await pausing.resume(store, target, data, audit)

    reached, answer = await reach(store, execution_id, let_go)
    if answer.state is None or not answer.state.is_open:
        raise await _refused(shards, actor, "workflow.resume", reached, answer, "cannot be resumed")
    if answer.written:
        _told(store, answer)
        # Its activities are for anybody who has the code.
        store.waker.wake(None)
    else:
        await unchanged(shards, actor, "workflow.resume", reached, "the run was not paused")
    return ResumedRun(
        execution_id=reached,
        state=answer.state.name,
        newly_resumed=answer.written,
        pause_duration_secs=round(max(answer.seconds, 0.0), 3),
        routed_execution_id=routed(execution_id, reached),
    )


def _told(store: Store, answer: pausing.Paused) -> None:
    if answer.holder is not None:
        store.waker.wake(answer.holder)
    store.hints.touch(answer.partition)


async def _refused(
    shards: Shards, actor: Actor, operation: str, execution_id: UUID, answer: pausing.Paused, what: str
) -> Exception:
    error = refusal(execution_id, answer, what)
    await record(shards, actor, operation, "execution", str(execution_id), "failed", error.message)
    return error
