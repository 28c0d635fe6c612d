"""Options of activities and workflows (reference 2.15 and 7.3), checked where they are written."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from msgspec import Struct

from harvest.errors import DefinitionError
from harvest.history.data import RetryPolicy
from harvest.history.limits import check_text

Jitter = Literal["none", "full", "equal"]
DEFAULT_START_TO_CLOSE_SECONDS = 600.0


class Retry(Struct, frozen=True, kw_only=True):
    """How often and how soon a failed activity is tried again.

    The wait before attempt n+1 is `initial_interval * coefficient ** (n - 1)`, at most `max_interval`. Failures whose
    type is named in `non_retryable` end the activity at once.
    """

    max_attempts: int = 3
    initial_interval: timedelta = timedelta(seconds=1)
    coefficient: float = 2.0
    max_interval: timedelta = timedelta(seconds=300)
    non_retryable: tuple[str, ...] = ()
    jitter: Jitter = "none"

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise DefinitionError(f"max_attempts is {self.max_attempts}; it must be at least 1")
        if self.initial_interval < timedelta(0) or self.max_interval < timedelta(0):
            raise DefinitionError("retry intervals must not be negative")
        if self.coefficient < 1:
            raise DefinitionError(f"coefficient is {self.coefficient}; it must be at least 1")

    def policy(self) -> RetryPolicy:
        """The policy as history records it."""
        return RetryPolicy(
            max_attempts=self.max_attempts,
            initial_interval=self.initial_interval.total_seconds(),
            coefficient=self.coefficient,
            max_interval=self.max_interval.total_seconds(),
            non_retryable=tuple(self.non_retryable),
            jitter=self.jitter,
        )


class ActivityOptions(Struct, frozen=True, kw_only=True):
    """Everything that shapes one activity's execution. Times in seconds; None means no such limit."""

    queue: str | None = None
    priority: int = 0
    schedule_to_start: float | None = None
    start_to_close: float | None = None
    schedule_to_close: float | None = None
    heartbeat: float | None = None
    retry: RetryPolicy = RetryPolicy()


class WorkflowOptions(Struct, frozen=True, kw_only=True):
    """Everything that shapes a workflow's runs."""

    queue: str = "default"
    execution_timeout: float | None = None


def activity_options(
    *,
    queue: str | None,
    priority: int,
    schedule_to_start: timedelta | None,
    start_to_close: timedelta | None,
    schedule_to_close: timedelta | None,
    heartbeat_timeout: timedelta | None,
    retry: Retry | None,
) -> ActivityOptions:
    """Check the options of an activity and fill in the ten-minute floor of `start_to_close` (reference 7.3)."""
    started = _seconds("start_to_close", start_to_close)
    scheduled = _seconds("schedule_to_close", schedule_to_close)
    heartbeat = _seconds("heartbeat_timeout", heartbeat_timeout)
    if started is None and scheduled is None and heartbeat is None:
        started = DEFAULT_START_TO_CLOSE_SECONDS
    if started is not None and heartbeat is not None and heartbeat > started:
        raise DefinitionError("heartbeat_timeout is longer than start_to_close; it must be shorter")
    if started is not None and scheduled is not None and started > scheduled:
        raise DefinitionError("start_to_close is longer than schedule_to_close; it must not be")
    if not -32768 <= priority <= 32767:
        raise DefinitionError(f"priority is {priority}; it must be within -32768 and 32767")
    return ActivityOptions(
        queue=None if queue is None else check_text(queue, what="queue"),
        priority=priority,
        schedule_to_start=_seconds("schedule_to_start", schedule_to_start),
        start_to_close=started,
        schedule_to_close=scheduled,
        heartbeat=heartbeat,
        retry=(retry or Retry()).policy(),
    )


def workflow_options(*, queue: str, execution_timeout: timedelta | None) -> WorkflowOptions:
    """Check the options of a workflow."""
    return WorkflowOptions(
        queue=check_text(queue, what="queue"),
        execution_timeout=_seconds("execution_timeout", execution_timeout),
    )


def _seconds(name: str, value: timedelta | None) -> float | None:
    if value is None:
        return None
    if value <= timedelta(0):
        raise DefinitionError(f"{name} is {value}; it must be positive")
    return value.total_seconds()
