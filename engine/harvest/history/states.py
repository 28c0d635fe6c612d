"""The states of an execution: numbers in the hot row, words everywhere else (answers 1, reference 3.1)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from harvest.history.kinds import EventKind


class State(IntEnum):
    """Open states come first, so that "open" is one comparison."""

    RUNNING = 0
    PAUSED = 1
    MIGRATING = 8
    MIGRATED = 9
    COMPLETED = 10
    FAILED = 11
    CANCELLED = 12
    TERMINATED = 13
    TIMED_OUT = 14
    CONTINUED_AS_NEW = 15

    @property
    def is_open(self) -> bool:
        """Whether the run can still go on."""
        return self < State.COMPLETED


FIRST_CLOSED: Final = int(State.COMPLETED)

CLOSES_AS: Final[dict[EventKind, State]] = {
    EventKind.WORKFLOW_COMPLETED: State.COMPLETED,
    EventKind.WORKFLOW_FAILED: State.FAILED,
    EventKind.WORKFLOW_CANCELLED: State.CANCELLED,
    EventKind.WORKFLOW_CONTINUED_AS_NEW: State.CONTINUED_AS_NEW,
    EventKind.WORKFLOW_EXECUTION_TIMED_OUT: State.TIMED_OUT,
    EventKind.WORKFLOW_TERMINATED: State.TERMINATED,
}
