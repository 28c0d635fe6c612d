"""Options of activities and workflows (reference 2.15 and 7.3), checked where they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from harvest.errors import DefinitionError
from harvest.history.data import RetryPolicy
from harvest.history.limits import check_text

Jitter = Literal["none", "full", "equal"]
DEFAULT_START_TO_CLOSE_SECONDS = 600.0
_NEVER_BUGS: Final = (asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit)


class Retry(Struct, frozen=True, kw_only=True):
    """How often and how soon a failed activity, or a failed workflow, is tried again.

    The wait before attempt n+1 is `initial_interval * coefficient ** (n - 1)`, at most `max_interval`. Failures whose
    type is named in `non_retryable` end it at once.
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
    explicit_retry: bool = False


class WorkflowOptions(Struct, frozen=True, kw_only=True):
    """Everything that shapes a workflow's runs. Times in seconds.

    `execution_timeout` is the limit of one run, `chain_execution_timeout` that of a run with all that follow it as new
    or as a retry. `block_on` are the exceptions that stop a run as a bug to be mended instead of ending it.
    """

    queue: str = "default"
    execution_timeout: float | None = None
    chain_execution_timeout: float | None = None
    retry: RetryPolicy | None = None
    block_on: tuple[type[BaseException], ...] = ()

    def published(self) -> dict[str, Any]:
        """What a start needs of them where the code is not at hand, as JSON can say it."""
        return {
            "queue": self.queue,
            "execution_timeout": self.execution_timeout,
            "chain_execution_timeout": self.chain_execution_timeout,
            "retry": None if self.retry is None else msgspec.to_builtins(self.retry),
        }


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
        explicit_retry=retry is not None,
    )


def workflow_options(
    *,
    queue: str,
    execution_timeout: timedelta | None,
    chain_execution_timeout: timedelta | None = None,
    retry: Retry | None = None,
    block_on: Sequence[type[BaseException]] = (),
) -> WorkflowOptions:
    """Check the options of a workflow."""
    for kind in block_on:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise DefinitionError(f"block_on holds {kind!r}; it must hold types of exceptions")
        if any(issubclass(kind, never) or issubclass(never, kind) for never in _NEVER_BUGS):
            raise DefinitionError(
                f"block_on holds {kind.__name__}: that is how a run is cancelled, or a worker stopped"
            )
    run = _seconds("execution_timeout", execution_timeout)
    chain = _seconds("chain_execution_timeout", chain_execution_timeout)
    if run is not None and chain is not None and run > chain:
        raise DefinitionError("execution_timeout is longer than chain_execution_timeout; it must not be")
    return WorkflowOptions(
        queue=check_text(queue, what="queue"),
        execution_timeout=run,
        chain_execution_timeout=chain,
        retry=None if retry is None else retry.policy(),
        block_on=tuple(block_on),
    )


def _seconds(name: str, value: timedelta | None) -> float | None:
    if value is None:
        return None
    if value <= timedelta(0):
        raise DefinitionError(f"{name} is {value}; it must be positive")
    return value.total_seconds()
