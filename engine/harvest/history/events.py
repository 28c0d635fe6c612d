"""The kinds of event a history holds, and their data (reference 7.1 with the changes of design 3).

A kind's number is written to disk and never reused. An event's `seq` is the number of the command that it records or
resolves, 0 where there is none. Struct fields are additive: an old row always decodes.
"""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from harvest.errors import PayloadDecodeError, UnknownEventError

FORMAT: Final = 1
_NULL: Final = Raw(b"null")


class EventKind(IntEnum):
    """What happened. Numbers 1 to 51 are the order of reference 7.1; ours follow from 60."""

    WORKFLOW_STARTED = 1
    WORKFLOW_COMPLETED = 2
    WORKFLOW_FAILED = 3
    WORKFLOW_CANCELLED = 4
    ACTIVITY_SCHEDULED = 5
    ACTIVITY_STARTED = 6
    ACTIVITY_COMPLETED = 7
    ACTIVITY_FAILED = 8
    ACTIVITY_TIMED_OUT = 9
    TIMER_STARTED = 11
    TIMER_FIRED = 12
    TIMER_CANCELLED = 13
    SIGNAL_RECEIVED = 14
    MARKER_RECORDED = 18
    WORKFLOW_CONTINUED_AS_NEW = 19
    WORKFLOW_EXECUTION_TIMED_OUT = 38
    WORKFLOW_CANCEL_REQUESTED = 60
    ACTIVITY_CANCEL_REQUESTED = 61
    WORKFLOW_TERMINATED = 63

    @property
    def word(self) -> str:
        """The name that API, pages and docs use: `ActivityScheduled`."""
        return "".join(part.capitalize() for part in self.name.split("_"))


TERMINAL: Final = frozenset(
    {
        EventKind.WORKFLOW_COMPLETED,
        EventKind.WORKFLOW_FAILED,
        EventKind.WORKFLOW_CANCELLED,
        EventKind.WORKFLOW_CONTINUED_AS_NEW,
        EventKind.WORKFLOW_EXECUTION_TIMED_OUT,
        EventKind.WORKFLOW_TERMINATED,
    }
)
# Events of these kinds are what a workflow's own commands wrote; replay matches them, nothing is delivered.
COMMANDS: Final = frozenset(
    {
        EventKind.ACTIVITY_SCHEDULED,
        EventKind.TIMER_STARTED,
        EventKind.TIMER_CANCELLED,
        EventKind.ACTIVITY_CANCEL_REQUESTED,
        EventKind.MARKER_RECORDED,
    }
)
# Events of these kinds wake workflow code.
RESOLVING: Final = frozenset(
    {
        EventKind.WORKFLOW_STARTED,
        EventKind.ACTIVITY_COMPLETED,
        EventKind.ACTIVITY_FAILED,
        EventKind.ACTIVITY_TIMED_OUT,
        EventKind.TIMER_FIRED,
        EventKind.SIGNAL_RECEIVED,
        EventKind.WORKFLOW_CANCEL_REQUESTED,
    }
)


class Failure(Struct, frozen=True, omit_defaults=True):
    """Why something failed, as history keeps it."""

    type: str
    message: str
    traceback: str = ""
    non_retryable: bool = False
    cause: Failure | None = None


class RetryPolicy(Struct, frozen=True, omit_defaults=True):
    """Reference 2.15. Intervals in seconds."""

    max_attempts: int = 3
    initial_interval: float = 1.0
    coefficient: float = 2.0
    max_interval: float = 300.0
    non_retryable: tuple[str, ...] = ()
    jitter: str = "none"


class WorkflowStarted(Struct, frozen=True, omit_defaults=True):
    """First event. `carried` events that follow it were written by the same transaction (design 3)."""

    workflow_name: str
    workflow_id: str
    version: int
    seed: int
    input: Raw = _NULL
    queue: str = "default"
    carried: int = 0
    execution_timeout_seconds: float | None = None
    build: str = ""


class WorkflowCompleted(Struct, frozen=True, omit_defaults=True):
    """The workflow returned `output`."""

    output: Raw = _NULL
    unhandled_signals: int = 0


class WorkflowFailed(Struct, frozen=True):
    """An exception left the workflow, or a limit ended it."""

    failure: Failure


class WorkflowCancelled(Struct, frozen=True, omit_defaults=True):
    """Cancellation left the workflow."""

    reason: str = ""


class WorkflowCancelRequested(Struct, frozen=True, omit_defaults=True):
    """Somebody asked the workflow to end in its own time."""

    reason: str = ""
    actor: str = ""


class WorkflowTerminated(Struct, frozen=True, omit_defaults=True):
    """Somebody ended the run at once; no user code ran."""

    reason: str = ""
    actor: str = ""


class WorkflowExecutionTimedOut(Struct, frozen=True):
    """The run's deadline passed."""

    deadline: datetime


class ActivityScheduled(Struct, frozen=True, omit_defaults=True):
    """The workflow asked for an activity. All times in seconds; the policy is frozen here."""

    name: str
    digest: str
    input: Raw = _NULL
    queue: str = "default"
    priority: int = 0
    schedule_to_start: float | None = None
    start_to_close: float | None = None
    schedule_to_close: float | None = None
    heartbeat: float | None = None
    retry: RetryPolicy = RetryPolicy()


class ActivityStarted(Struct, frozen=True, omit_defaults=True):
    """An attempt began. Nothing is delivered; `last_failure` is that of the attempt before."""

    attempt: int
    worker: str = ""
    last_failure: Failure | None = None


class ActivityCompleted(Struct, frozen=True, omit_defaults=True):
    """The activity returned `output`."""

    output: Raw = _NULL
    attempt: int = 1


class ActivityFailed(Struct, frozen=True, omit_defaults=True):
    """The last attempt failed, or the failure must not be retried."""

    failure: Failure
    attempt: int = 1


class ActivityTimedOut(Struct, frozen=True, omit_defaults=True):
    """A timeout ended the activity: schedule_to_start, start_to_close, schedule_to_close or heartbeat."""

    timeout_type: str
    attempt: int = 1
    last_failure: Failure | None = None


class ActivityCancelRequested(Struct, frozen=True):
    """The workflow no longer waits for the activity; a late result is recorded and ignored."""


class TimerStarted(Struct, frozen=True, omit_defaults=True):
    """A durable timer; `fires_at` is database time. `until` is set where the workflow named an instant."""

    duration: float
    fires_at: datetime
    until: datetime | None = None


class TimerFired(Struct, frozen=True):
    """The timer's time came."""


class TimerCancelled(Struct, frozen=True):
    """The workflow dropped the timer."""


class SignalReceived(Struct, frozen=True, omit_defaults=True):
    """A message for the workflow."""

    name: str
    payload: Raw = _NULL
    actor: str = ""


class MarkerRecorded(Struct, frozen=True, omit_defaults=True):
    """A named decision that replay must repeat, such as a version."""

    name: str
    details: Raw = _NULL


class WorkflowContinuedAsNew(Struct, frozen=True, omit_defaults=True):
    """The run ended and goes on as another."""

    new_execution_id: str
    input: Raw = _NULL


DATA_OF: Final[dict[EventKind, type[Struct]]] = {
    EventKind.WORKFLOW_STARTED: WorkflowStarted,
    EventKind.WORKFLOW_COMPLETED: WorkflowCompleted,
    EventKind.WORKFLOW_FAILED: WorkflowFailed,
    EventKind.WORKFLOW_CANCELLED: WorkflowCancelled,
    EventKind.ACTIVITY_SCHEDULED: ActivityScheduled,
    EventKind.ACTIVITY_STARTED: ActivityStarted,
    EventKind.ACTIVITY_COMPLETED: ActivityCompleted,
    EventKind.ACTIVITY_FAILED: ActivityFailed,
    EventKind.ACTIVITY_TIMED_OUT: ActivityTimedOut,
    EventKind.TIMER_STARTED: TimerStarted,
    EventKind.TIMER_FIRED: TimerFired,
    EventKind.TIMER_CANCELLED: TimerCancelled,
    EventKind.SIGNAL_RECEIVED: SignalReceived,
    EventKind.MARKER_RECORDED: MarkerRecorded,
    EventKind.WORKFLOW_CONTINUED_AS_NEW: WorkflowContinuedAsNew,
    EventKind.WORKFLOW_EXECUTION_TIMED_OUT: WorkflowExecutionTimedOut,
    EventKind.WORKFLOW_CANCEL_REQUESTED: WorkflowCancelRequested,
    EventKind.ACTIVITY_CANCEL_REQUESTED: ActivityCancelRequested,
    EventKind.WORKFLOW_TERMINATED: WorkflowTerminated,
}
_decoders: Final[dict[int, msgspec.json.Decoder[Any]]] = {
    int(kind): msgspec.json.Decoder(data) for kind, data in DATA_OF.items()
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


def encode_data(data: Struct) -> bytes:
    """Encode an event's data struct; Raw fields go out as the bytes they are."""
    return _encoder.encode(data)
