"""The facts of a run, and what every part of the context stands on."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import MutableMapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from harvest.history.data import Failure
from harvest.history.ids import ExecutionId, parse_execution_id
from harvest.history.limits import HISTORY_EVENTS_SOFT
from harvest.replay.run import Run

_log = logging.getLogger("harvest.workflow")
DEADLINE_SHARE = 0.8


class WorkflowInfo(Struct, frozen=True, kw_only=True):
    """Facts of the run. `history_events` counts up to the event delivered, so that it replays alike.

    `attempt` counts the runs of a workflow-level retry; `last_failure` is why the one before failed.
    """

    execution_id: ExecutionId
    workflow_name: str
    workflow_id: str
    version: int
    queue: str
    started_at: datetime
    history_events: int
    attempt: int = 1
    parent_id: ExecutionId | None = None
    first_execution_id: ExecutionId | None = None
    previous_execution_id: ExecutionId | None = None
    deadline: datetime | None = None
    last_failure: Failure | None = None


class WorkflowLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that is silent while history is replayed."""

    def __init__(self, run: Run) -> None:
        identity = run.identity
        super().__init__(
            _log,
            {
                "execution_id": str(identity.execution_id),
                "workflow_name": identity.workflow_name,
                "workflow_id": identity.workflow_id,
            },
        )
        self._run = run

    def isEnabledFor(self, level: int) -> bool:
        return not self._run.replaying and not self._run.released and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class WorkflowRandom(random.Random):
    """A generator that a query handler cannot draw from: a replay would draw other numbers."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.seed)
        self._run = run

    def random(self) -> float:
        self._run.check_may_act()
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        self._run.check_may_act()
        return super().getrandbits(k)


class ContextBase:
    """The run behind a context, and what it knows of itself."""

    __slots__ = ("_log", "_random", "_run", "_uuids")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._random: random.Random | None = None
        self._uuids: random.Random | None = None
        self._log: WorkflowLogger | None = None

    def now(self) -> datetime:
        """The time of the latest event delivered, in UTC. It never goes back, and stands still within a step."""
        self._run.check_usable()
        return self._run.now_at

    def random(self) -> random.Random:
        """A generator seeded by the run."""
        self._run.check_may_act()
        if self._random is None:
            self._random = WorkflowRandom(self._run)
        return self._random

    def uuid4(self) -> uuid.UUID:
        """A UUID that is the same on every replay."""
        self._run.check_may_act()
        if self._uuids is None:
            self._uuids = random.Random(f"uuid:{self._run.seed}")
        return uuid.UUID(int=self._uuids.getrandbits(128), version=4)

    @property
    def log(self) -> WorkflowLogger:
        """A logger that speaks only when the code is live, with the run's ids in `extra`."""
        if self._log is None:
            self._log = WorkflowLogger(self._run)
        return self._log

    def is_cancelled(self) -> bool:
        """Whether cancellation was requested."""
        self._run.check_usable()
        return self._run.cancel_reason is not None

    def is_replaying(self) -> bool:
        """Whether this step happened before. For what is outside of history only; a workflow must not decide by it."""
        self._run.check_usable()
        return self._run.replaying

    @property
    def info(self) -> WorkflowInfo:
        """Facts of the run, up to the event delivered."""
        run = self._run
        run.check_usable()
        started = run.started
        return WorkflowInfo(
            execution_id=run.identity.execution_id,
            workflow_name=run.identity.workflow_name,
            workflow_id=run.identity.workflow_id,
            version=run.definition.version,
            queue=run.identity.queue,
            started_at=run.started_at,
            history_events=run.seen_through,
            attempt=started.attempt,
            parent_id=_id(started.parent_id),
            first_execution_id=_id(started.first_execution_id) or run.identity.execution_id,
            previous_execution_id=_id(started.previous_execution_id),
            deadline=run.deadline,
            last_failure=started.last_failure,
        )

    def time_until_deadline(self) -> timedelta | None:
        """What is left until the run, or its chain, is timed out; None without a deadline."""
        self._run.check_usable()
        deadline = self._run.deadline
        return None if deadline is None else max(timedelta(0), deadline - self._run.now_at)

    def should_continue_as_new(self) -> bool:
        """Whether history has grown so long, or the deadline come so near, that a fresh run is due.

        True from 10,000 events on, and once 80 % of the time that the run was given has passed.
        """
        run = self._run
        run.check_usable()
        if run.seen_through >= HISTORY_EVENTS_SOFT:
            return True
        deadline = run.deadline
        return deadline is not None and run.now_at >= run.started_at + DEADLINE_SHARE * (deadline - run.started_at)


def _id(text: str) -> ExecutionId | None:
    return parse_execution_id(text) if text else None


def seconds(value: timedelta | float) -> float:
    """A duration, given as a timedelta or seconds, in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
