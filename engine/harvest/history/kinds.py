"""The kinds of event that a history holds (reference 7.1 with the changes of design 3).

A kind's number is written to disk and never reused.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


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
    CHILD_WORKFLOW_STARTED = 15
    CHILD_WORKFLOW_COMPLETED = 16
    CHILD_WORKFLOW_FAILED = 17
    MARKER_RECORDED = 18
    WORKFLOW_CONTINUED_AS_NEW = 19
    LOCAL_ACTIVITY_SCHEDULED = 20
    LOCAL_ACTIVITY_COMPLETED = 21
    LOCAL_ACTIVITY_FAILED = 22
    UPDATE_ADMITTED = 28
    UPDATE_COMPLETED = 29
    UPDATE_FAILED = 30
    EXTERNAL_SIGNAL_REQUESTED = 33
    EXTERNAL_SIGNAL_DELIVERED = 34
    EXTERNAL_SIGNAL_FAILED = 35
    CHILD_WORKFLOW_SPAWNED_DETACHED = 36
    WORKFLOW_EXECUTION_TIMED_OUT = 38
    SIDE_EFFECT_RECORDED = 39
    WORKFLOW_EXECUTION_PAUSED = 40
    WORKFLOW_EXECUTION_RESUMED = 41
    EXTERNAL_CANCEL_REQUESTED = 42
    EXTERNAL_CANCEL_DELIVERED = 43
    EXTERNAL_CANCEL_FAILED = 44
    EXTERNAL_AWAIT_REQUESTED = 47
    EXTERNAL_AWAIT_RESOLVED = 48
    EXTERNAL_AWAIT_FAILED = 49
    WORKFLOW_CANCEL_REQUESTED = 60
    ACTIVITY_CANCEL_REQUESTED = 61
    CHILD_CANCEL_REQUESTED = 62
    WORKFLOW_TERMINATED = 63
    SESSION_REQUESTED = 64
    SESSION_OPENED = 65
    SESSION_CLOSED = 66
    SESSION_BROKEN = 67

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
        EventKind.CHILD_WORKFLOW_STARTED,
        EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED,
        EventKind.CHILD_CANCEL_REQUESTED,
        EventKind.LOCAL_ACTIVITY_SCHEDULED,
        EventKind.SIDE_EFFECT_RECORDED,
        EventKind.UPDATE_COMPLETED,
        EventKind.UPDATE_FAILED,
        EventKind.EXTERNAL_SIGNAL_REQUESTED,
        EventKind.EXTERNAL_CANCEL_REQUESTED,
        EventKind.EXTERNAL_AWAIT_REQUESTED,
        EventKind.SESSION_REQUESTED,
        EventKind.SESSION_CLOSED,
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
        EventKind.CHILD_WORKFLOW_COMPLETED,
        EventKind.CHILD_WORKFLOW_FAILED,
        EventKind.LOCAL_ACTIVITY_COMPLETED,
        EventKind.LOCAL_ACTIVITY_FAILED,
        EventKind.UPDATE_ADMITTED,
        EventKind.EXTERNAL_SIGNAL_DELIVERED,
        EventKind.EXTERNAL_SIGNAL_FAILED,
        EventKind.EXTERNAL_CANCEL_DELIVERED,
        EventKind.EXTERNAL_CANCEL_FAILED,
        EventKind.EXTERNAL_AWAIT_RESOLVED,
        EventKind.EXTERNAL_AWAIT_FAILED,
        EventKind.SESSION_OPENED,
        EventKind.SESSION_BROKEN,
    }
)
