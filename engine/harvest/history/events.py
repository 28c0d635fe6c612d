"""One row of a history, and the encoding of what it holds.

An event's `seq` is the number of the command that it records or resolves, 0 where there is none; of an update's answer
it is the id of the event that admitted the update.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from harvest.errors import PayloadDecodeError, UnknownEventError
from harvest.history import data
from harvest.history.kinds import EventKind

FORMAT: Final = 1
DATA_OF: Final[dict[EventKind, type[Struct]]] = {
    EventKind.WORKFLOW_STARTED: data.WorkflowStarted,
    EventKind.WORKFLOW_COMPLETED: data.WorkflowCompleted,
    EventKind.WORKFLOW_FAILED: data.WorkflowFailed,
    EventKind.WORKFLOW_CANCELLED: data.WorkflowCancelled,
    EventKind.ACTIVITY_SCHEDULED: data.ActivityScheduled,
    EventKind.ACTIVITY_STARTED: data.ActivityStarted,
    EventKind.ACTIVITY_COMPLETED: data.ActivityCompleted,
    EventKind.ACTIVITY_FAILED: data.ActivityFailed,
    EventKind.ACTIVITY_TIMED_OUT: data.ActivityTimedOut,
    EventKind.TIMER_STARTED: data.TimerStarted,
    EventKind.TIMER_FIRED: data.TimerFired,
    EventKind.TIMER_CANCELLED: data.TimerCancelled,
    EventKind.SIGNAL_RECEIVED: data.SignalReceived,
    EventKind.MARKER_RECORDED: data.MarkerRecorded,
    EventKind.WORKFLOW_CONTINUED_AS_NEW: data.WorkflowContinuedAsNew,
    EventKind.WORKFLOW_EXECUTION_TIMED_OUT: data.WorkflowExecutionTimedOut,
    EventKind.WORKFLOW_CANCEL_REQUESTED: data.WorkflowCancelRequested,
    EventKind.ACTIVITY_CANCEL_REQUESTED: data.ActivityCancelRequested,
    EventKind.WORKFLOW_TERMINATED: data.WorkflowTerminated,
    EventKind.CHILD_WORKFLOW_STARTED: data.ChildWorkflowStarted,
    EventKind.CHILD_WORKFLOW_COMPLETED: data.ChildWorkflowCompleted,
    EventKind.CHILD_WORKFLOW_FAILED: data.ChildWorkflowFailed,
    EventKind.LOCAL_ACTIVITY_SCHEDULED: data.LocalActivityScheduled,
    EventKind.LOCAL_ACTIVITY_COMPLETED: data.LocalActivityCompleted,
    EventKind.LOCAL_ACTIVITY_FAILED: data.LocalActivityFailed,
    EventKind.UPDATE_ADMITTED: data.UpdateAdmitted,
    EventKind.UPDATE_COMPLETED: data.UpdateCompleted,
    EventKind.UPDATE_FAILED: data.UpdateFailed,
    EventKind.EXTERNAL_SIGNAL_REQUESTED: data.ExternalSignalRequested,
    EventKind.EXTERNAL_SIGNAL_DELIVERED: data.ExternalDelivered,
    EventKind.EXTERNAL_SIGNAL_FAILED: data.ExternalFailed,
    EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED: data.ChildWorkflowSpawnedDetached,
    EventKind.SIDE_EFFECT_RECORDED: data.SideEffectRecorded,
    EventKind.WORKFLOW_EXECUTION_PAUSED: data.WorkflowExecutionPaused,
    EventKind.WORKFLOW_EXECUTION_RESUMED: data.WorkflowExecutionResumed,
    EventKind.EXTERNAL_CANCEL_REQUESTED: data.ExternalCancelRequested,
    EventKind.EXTERNAL_CANCEL_DELIVERED: data.ExternalDelivered,
    EventKind.EXTERNAL_CANCEL_FAILED: data.ExternalFailed,
    EventKind.EXTERNAL_AWAIT_REQUESTED: data.ExternalAwaitRequested,
    EventKind.EXTERNAL_AWAIT_RESOLVED: data.ExternalAwaitResolved,
    EventKind.EXTERNAL_AWAIT_FAILED: data.ExternalAwaitFailed,
    EventKind.CHILD_CANCEL_REQUESTED: data.ChildCancelRequested,
    EventKind.SESSION_REQUESTED: data.SessionRequested,
    EventKind.SESSION_OPENED: data.SessionOpened,
    EventKind.SESSION_CLOSED: data.SessionClosed,
    EventKind.SESSION_BROKEN: data.SessionBroken,
}
_decoders: Final[dict[int, msgspec.json.Decoder[Any]]] = {
    int(kind): msgspec.json.Decoder(held) for kind, held in DATA_OF.items()
}
_encoder: Final = msgspec.json.Encoder()
EMPTY: Final = b"{}"


class Event(Struct, frozen=True):
    """One row of a history. `payload` is the encoded data struct of its kind; `data()` decodes it."""

    event_id: int
    kind: int
    seq: int
    at: datetime
    payload: bytes

    def data(self) -> Any:
        """The event's data struct; raises UnknownEventError or PayloadDecodeError."""
        decoder = _decoders.get(self.kind)
        if decoder is None:
            raise UnknownEventError(
                f"event {self.event_id} has kind {self.kind}, which this release does not know", kind=self.kind
            )
        try:
            return decoder.decode(self.payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PayloadDecodeError(f"event {self.event_id} cannot be decoded: {error}") from error


def kind_word(kind: int) -> str:
    """The name of a kind, also of one that this release does not know."""
    try:
        return EventKind(kind).word
    except ValueError:
        return f"Unknown{kind}"


def encode_data(held: Struct) -> bytes:
    """Encode an event's data struct; Raw fields go out as the bytes they are."""
    return _encoder.encode(held)
