"""Which events begin a step of a timeline, and which end one."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from harvest.history.kinds import EventKind


class StepKind(Struct, frozen=True):
    """One kind of step: the event that begins it, and those that end it with the outcome that each means.

    A step without an ending is an instant, whose outcome is `instant`. Events belong together by their `seq`; with
    `by_event` the beginning event's id is what the ending one has as its `seq`. `works` tells that the run is busy
    with it, and not merely waiting.
    """

    word: str
    begins: EventKind
    ends: dict[EventKind, str] = {}
    instant: str = ""
    by_event: bool = False
    works: bool = False


ATTEMPT: Final = EventKind.ACTIVITY_STARTED
STEP_KINDS: Final = (
    StepKind(
        "activity",
        EventKind.ACTIVITY_SCHEDULED,
        {
            EventKind.ACTIVITY_COMPLETED: "completed",
            EventKind.ACTIVITY_FAILED: "failed",
            EventKind.ACTIVITY_TIMED_OUT: "timed_out",
            EventKind.ACTIVITY_CANCEL_REQUESTED: "cancelled",
        },
        works=True,
    ),
    StepKind(
        "local_activity",
        EventKind.LOCAL_ACTIVITY_SCHEDULED,
        {EventKind.LOCAL_ACTIVITY_COMPLETED: "completed", EventKind.LOCAL_ACTIVITY_FAILED: "failed"},
        works=True,
    ),
    StepKind(
        "child",
        EventKind.CHILD_WORKFLOW_STARTED,
        {
            EventKind.CHILD_WORKFLOW_COMPLETED: "completed",
            EventKind.CHILD_WORKFLOW_FAILED: "failed",
            EventKind.CHILD_CANCEL_REQUESTED: "cancelled",
        },
        works=True,
    ),
    StepKind("detached_child", EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED, instant="spawned"),
    StepKind(
        "timer",
        EventKind.TIMER_STARTED,
        {EventKind.TIMER_FIRED: "fired", EventKind.TIMER_CANCELLED: "cancelled"},
    ),
    StepKind("signal", EventKind.SIGNAL_RECEIVED, instant="received", by_event=True),
    StepKind(
        "update",
        EventKind.UPDATE_ADMITTED,
        {EventKind.UPDATE_COMPLETED: "completed", EventKind.UPDATE_FAILED: "failed"},
        by_event=True,
    ),
    StepKind(
        "external_signal",
        EventKind.EXTERNAL_SIGNAL_REQUESTED,
        {EventKind.EXTERNAL_SIGNAL_DELIVERED: "delivered", EventKind.EXTERNAL_SIGNAL_FAILED: "failed"},
    ),
    StepKind(
        "external_cancel",
        EventKind.EXTERNAL_CANCEL_REQUESTED,
        {EventKind.EXTERNAL_CANCEL_DELIVERED: "delivered", EventKind.EXTERNAL_CANCEL_FAILED: "failed"},
    ),
    StepKind(
        "external_await",
        EventKind.EXTERNAL_AWAIT_REQUESTED,
        {EventKind.EXTERNAL_AWAIT_RESOLVED: "completed", EventKind.EXTERNAL_AWAIT_FAILED: "failed"},
        works=True,
    ),
    StepKind(
        "session",
        EventKind.SESSION_REQUESTED,
        {EventKind.SESSION_CLOSED: "closed", EventKind.SESSION_BROKEN: "broken"},
    ),
    # Its end has no number: it is the next one of its kind.
    StepKind(
        "pause",
        EventKind.WORKFLOW_EXECUTION_PAUSED,
        {EventKind.WORKFLOW_EXECUTION_RESUMED: "resumed"},
        by_event=True,
    ),
)
STEP_BY_BEGIN: Final = {int(kind.begins): kind for kind in STEP_KINDS}
