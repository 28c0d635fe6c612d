"""What one decision writes, before it is known where in history it will stand."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from msgspec import Raw, Struct

from harvest.errors import PayloadError, ResultTypeError
from harvest.history.data import (
    Failure,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowContinuedAsNew,
    WorkflowFailed,
)
from harvest.history.events import encode_data
from harvest.history.kinds import EventKind
from harvest.history.limits import HISTORY_BYTES_HARD, HISTORY_EVENTS_HARD
from harvest.replay.continuing import ContinueAsNew, Onward, continued, leaving_with, tried_again
from harvest.replay.failures import failure_of
from harvest.replay.run import Run


class Outcome(Struct, frozen=True):
    """How a run ends: the terminal event, what people read of it, and the run that follows, if one does."""

    kind: EventKind
    payload: bytes
    result: bytes | None = None
    failure: bytes | None = None
    onward: Onward | None = None


def outcome_of(run: Run) -> Outcome | None:
    """The end of a run whose function has returned or raised, else None."""
    if not run.is_done or run.main is None:
        return None
    if run.failure is not None:
        return _failed(run, failure_of(run.failure))
    try:
        error = asyncio.CancelledError() if run.main.cancelled() else run.main.exception()
    except asyncio.CancelledError as cancelled:
        error = cancelled
    if error is None:
        return _completed(run)
    if (leaving := leaving_with(error)) is not None:
        return _continued(run, leaving)
    if isinstance(error, asyncio.CancelledError) and run.cancel_reason is not None:
        return Outcome(EventKind.WORKFLOW_CANCELLED, encode_data(WorkflowCancelled(reason=run.cancel_reason)))
    return _failed(run, failure_of(error))


def failed(failure: Failure) -> Outcome:
    """A run that ends FAILED for this reason, and is not tried again."""
    return Outcome(
        EventKind.WORKFLOW_FAILED, encode_data(WorkflowFailed(failure=failure)), failure=encode_data(failure)
    )


def _failed(run: Run, failure: Failure) -> Outcome:
    onward = tried_again(run, failure)
    if onward is None:
        return failed(failure)
    ended = WorkflowFailed(
        failure=failure,
        retry_execution_id=str(onward.execution_id),
        retry_at=run.now_at + timedelta(seconds=onward.delay),
    )
    return Outcome(EventKind.WORKFLOW_FAILED, encode_data(ended), failure=encode_data(failure), onward=onward)


def _continued(run: Run, leaving: ContinueAsNew) -> Outcome:
    onward = continued(run, leaving)
    ended = WorkflowContinuedAsNew(
        new_execution_id=str(onward.execution_id),
        input=Raw(leaving.input),
        workflow_name=leaving.workflow.name if leaving.workflow is not None else "",
    )
    return Outcome(EventKind.WORKFLOW_CONTINUED_AS_NEW, encode_data(ended), onward=onward)


def history_cap(events: int, size: int) -> Outcome | None:
    """A run over a hard limit of its history, events or bytes of their data, ends FAILED (answers 15)."""
    if events <= HISTORY_EVENTS_HARD and size <= HISTORY_BYTES_HARD:
        return None
    return failed(
        Failure(
            type="HistoryCapExceeded",
            message=f"history has {events:,} events of {size:,} bytes; at most {HISTORY_EVENTS_HARD:,} events and "
            f"{HISTORY_BYTES_HARD:,} bytes are allowed",
            non_retryable=True,
        )
    )


def _completed(run: Run) -> Outcome:
    assert run.main is not None
    try:
        result = run.definition.signature.encode_result(run.main.result())
    except (PayloadError, ResultTypeError) as error:
        return _failed(run, failure_of(error))
    completed = WorkflowCompleted(output=Raw(result), unhandled_signals=run.unhandled_signals())
    return Outcome(EventKind.WORKFLOW_COMPLETED, encode_data(completed), result=result)
