"""What one decision writes, before it is known where in history it will stand."""

from __future__ import annotations

import asyncio

from harvest.errors import PayloadError, ResultTypeError
from harvest.history.data import Failure, WorkflowCancelled, WorkflowCompleted, WorkflowFailed
from harvest.history.events import encode_data
from harvest.history.kinds import EventKind
from harvest.history.limits import HISTORY_BYTES_HARD, HISTORY_EVENTS_HARD
from harvest.replay.failures import failure_of
from harvest.replay.run import Run

from msgspec import Raw, Struct  # isort: skip


class Outcome(Struct, frozen=True):
    """How a run ends: the terminal event, and what people read of it."""

    kind: EventKind
    payload: bytes
    result: bytes | None = None
    failure: bytes | None = None


def outcome_of(run: Run) -> Outcome | None:
    """The end of a run whose function has returned or raised, else None."""
    if run.main is None or not run.main.done():
        return None
    try:
        error = asyncio.CancelledError() if run.main.cancelled() else run.main.exception()
    except asyncio.CancelledError as cancelled:
        error = cancelled
    if error is None:
        return _completed(run)
    if isinstance(error, asyncio.CancelledError) and run.cancel_reason is not None:
        return Outcome(EventKind.WORKFLOW_CANCELLED, encode_data(WorkflowCancelled(reason=run.cancel_reason)))
    return failed(failure_of(error))


def failed(failure: Failure) -> Outcome:
    """A run that ends FAILED for this reason."""
    return Outcome(
        EventKind.WORKFLOW_FAILED, encode_data(WorkflowFailed(failure=failure)), failure=encode_data(failure)
    )


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
        return failed(failure_of(error))
    completed = WorkflowCompleted(output=Raw(result), unhandled_signals=run.unhandled_signals())
    return Outcome(EventKind.WORKFLOW_COMPLETED, encode_data(completed), result=result)
