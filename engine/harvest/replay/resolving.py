"""How the end of what a run has asked for reaches the code that waits: one handler for each kind of event."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from harvest.errors import (
    ActivityError,
    ActivityTimeoutError,
    ChildWorkflowError,
    ExternalWorkflowError,
    HarvestError,
    PayloadDecodeError,
)
from harvest.history import payload
from harvest.history.data import (
    ActivityFailed,
    ActivityTimedOut,
    ChildWorkflowFailed,
    ExternalAwaitFailed,
    ExternalFailed,
    Failure,
    SessionOpened,
)
from harvest.history.events import Event
from harvest.history.kinds import EventKind
from harvest.replay.describing import target_text
from harvest.replay.failures import exception_of
from harvest.replay.loop import WorkflowFuture
from harvest.replay.sessions import BROKEN_TYPE

if TYPE_CHECKING:
    from harvest.replay.run import Run

Decoder = msgspec.json.Decoder[Any]
Waiting = dict[int, tuple[WorkflowFuture, Any]]
# Of a run that completed there is only one thing that cannot be told: a result that was erased.
_AWAIT_REASONS: Final = {"UNKNOWN": "target_unknown", "COMPLETED": "payloads_erased"}


def _taken(waiting: Waiting, event: Event) -> tuple[WorkflowFuture, Any] | None:
    """Who waits for what this event ends; None where the code has turned away."""
    found = waiting.pop(event.seq, None)
    return None if found is None or found[0].done() else found


def _give(run: Run, event: Event, future: WorkflowFuture, output: bytes, decoder: Decoder | None, what: str) -> None:
    try:
        future.set_result(decoder.decode(output) if decoder else payload.decode(output))
    except Exception as error:  # a type's own __post_init__ may raise anything
        run.block(
            PayloadDecodeError(
                f"the recorded result of {what} does not fit its declared type: {error}", event_id=event.event_id
            )
        )


def _raise(future: WorkflowFuture, error: HarvestError, failure: Failure | None) -> None:
    error.__cause__ = exception_of(failure)
    future.set_exception(error)


def _activity_completed(run: Run, event: Event) -> None:
    if found := _taken(run.pending, event):
        future, command = found
        decoder = command.definition.signature.result_decoder if command.definition else None
        _give(run, event, future, bytes(event.data().output), decoder, f"activity {command.name!r}")


def _activity_failed(run: Run, event: Event) -> None:
    if found := _taken(run.pending, event):
        data: ActivityFailed = event.data()
        session = found[1].session
        if session is not None and session.broken and data.failure.type == BROKEN_TYPE:
            found[0].set_exception(session.error())
            return
        _raise(found[0], _activity_error("activity", found[1].name, data.failure, data.attempt), data.failure)


def _activity_error(what: str, name: str, failure: Failure, attempt: int) -> ActivityError:
    return ActivityError(
        f"{what} {name!r} failed: {failure.type}: {failure.message}",
        activity=name,
        type=failure.type,
        attempt=attempt,
    )


def _activity_timed_out(run: Run, event: Event) -> None:
    if found := _taken(run.pending, event):
        data: ActivityTimedOut = event.data()
        error = ActivityTimeoutError(
            f"activity {found[1].name!r} ran into its {data.timeout_type} timeout",
            activity=found[1].name,
            type="TimeoutError",
            timeout_type=data.timeout_type,
            attempt=data.attempt,
        )
        _raise(found[0], error, data.last_failure)


def _local_taken(run: Run, event: Event) -> tuple[WorkflowFuture, Any, Any] | None:
    """Who waits for a local activity's end, and the data of that end.

    A worker that let go of the run writes what it has by itself. After others wrote first, or with other code, the
    number may be another call's by then: the end of another is nobody's, in this replay and in all that follow.
    """
    if (found := run.locals.get(event.seq)) is None:
        return None
    ended = event.data()
    asked = found[1]
    if run.replaying and (scheduled := run.versions.locals.get(event.seq)) is not None:
        asked = scheduled.data()
    if ended.digest and (ended.name, ended.digest) != (asked.name, asked.digest):
        return None
    taken = _taken(run.locals, event)
    return None if taken is None else (*taken, ended)


def _local_completed(run: Run, event: Event) -> None:
    if found := _local_taken(run, event):
        future, command, ended = found
        decoder = command.definition.signature.result_decoder
        _give(run, event, future, bytes(ended.output), decoder, f"local activity {command.name!r}")


def _local_failed(run: Run, event: Event) -> None:
    if found := _local_taken(run, event):
        future, command, ended = found
        _raise(future, _activity_error("local activity", command.name, ended.failure, ended.attempt), ended.failure)


def _child_completed(run: Run, event: Event) -> None:
    if found := _taken(run.children, event):
        future, command = found
        decoder = command.signature.result_decoder if command.signature else None
        _give(run, event, future, bytes(event.data().output), decoder, f"child workflow {command.workflow_name!r}")


def _child_failed(run: Run, event: Event) -> None:
    if found := _taken(run.children, event):
        data: ChildWorkflowFailed = event.data()
        command = found[1]
        error = ChildWorkflowError(
            f"child workflow {command.workflow_name!r} ended {data.state}: {data.failure.type}: {data.failure.message}",
            workflow_name=command.workflow_name,
            workflow_id=command.workflow_id,
            execution_id=str(command.child_id),
            state=data.state,
            type=data.failure.type,
        )
        _raise(found[0], error, data.failure)


def _external_delivered(run: Run, event: Event) -> None:
    if found := _taken(run.externals, event):
        found[0].set_result(None)


def _external_failed(run: Run, event: Event) -> None:
    if found := _taken(run.externals, event):
        data: ExternalFailed = event.data()
        error = ExternalWorkflowError(
            f"{found[1].describe()} came to nothing: {data.reason_code}{data.message and f': {data.message}'}",
            reason_code=data.reason_code,
        )
        _raise(found[0], error, None)


def _external_resolved(run: Run, event: Event) -> None:
    if found := _taken(run.externals, event):
        what = f"the execution {target_text(found[1].target)}"
        _give(run, event, found[0], bytes(event.data().output), None, what)


def _external_await_failed(run: Run, event: Event) -> None:
    if found := _taken(run.externals, event):
        data: ExternalAwaitFailed = event.data()
        error = ExternalWorkflowError(
            f"{target_text(found[1].target)} ended {data.state}: {data.failure.type}: {data.failure.message}",
            reason_code=_AWAIT_REASONS.get(data.state, "not_completed"),
            state=data.state,
        )
        _raise(found[0], error, data.failure)


def _session_opened(run: Run, event: Event) -> None:
    found = run.sessions.get(event.seq)
    if found is None or found[0].done():
        return
    future, session = found
    data: SessionOpened = event.data()
    session.worker, session.worker_name = data.worker, data.worker_name
    future.set_result(None)


def _session_broken(run: Run, event: Event) -> None:
    """Its activities that have not ended fail in the events that follow."""
    found = run.sessions.pop(event.seq, None)
    if found is None:
        return
    future, session = found
    session.broken = event.data().reason
    if not future.done():
        future.set_exception(session.error())


def _timer_fired(run: Run, event: Event) -> None:
    timer = run.timers.pop(event.seq, None)
    if timer is not None:
        run.loop.ready.append(timer)


HANDLERS: Final[dict[int, Callable[[Run, Event], None]]] = {
    EventKind.WORKFLOW_STARTED: lambda run, event: run.on_started(event),
    EventKind.WORKFLOW_CANCEL_REQUESTED: lambda run, event: run.on_cancel_requested(event),
    EventKind.SIGNAL_RECEIVED: lambda run, event: run.messages.received(event),
    EventKind.UPDATE_ADMITTED: lambda run, event: run.messages.admit(event),
    EventKind.ACTIVITY_COMPLETED: _activity_completed,
    EventKind.ACTIVITY_FAILED: _activity_failed,
    EventKind.ACTIVITY_TIMED_OUT: _activity_timed_out,
    EventKind.TIMER_FIRED: _timer_fired,
    EventKind.LOCAL_ACTIVITY_COMPLETED: _local_completed,
    EventKind.LOCAL_ACTIVITY_FAILED: _local_failed,
    EventKind.CHILD_WORKFLOW_COMPLETED: _child_completed,
    EventKind.CHILD_WORKFLOW_FAILED: _child_failed,
    EventKind.EXTERNAL_SIGNAL_DELIVERED: _external_delivered,
    EventKind.EXTERNAL_SIGNAL_FAILED: _external_failed,
    EventKind.EXTERNAL_CANCEL_DELIVERED: _external_delivered,
    EventKind.EXTERNAL_CANCEL_FAILED: _external_failed,
    EventKind.EXTERNAL_AWAIT_RESOLVED: _external_resolved,
    EventKind.EXTERNAL_AWAIT_FAILED: _external_await_failed,
    EventKind.SESSION_OPENED: _session_opened,
    EventKind.SESSION_BROKEN: _session_broken,
}
