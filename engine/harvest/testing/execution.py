"""One run of an environment: what a database would hold of it, and its code while it is parked."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.errors import HarvestError
from harvest.history import payload
from harvest.history.data import Failure, WorkflowStarted
from harvest.history.document import HistoryDocument, document_event
from harvest.history.events import Event
from harvest.history.ids import business_key, partition_of
from harvest.history.states import State
from harvest.replay.inspecting import TaskStack
from harvest.replay.waits import Wait, waits_of
from harvest.testing.clock import Due
from harvest.worker.work import Work

if TYPE_CHECKING:
    from harvest.testing.attempts import Activity


class Child(Struct):
    """A child that reports its end to `parent`, or has a close policy (its place in CLOSE_POLICIES)."""

    parent: UUID
    seq: int
    policy: int
    awaited: bool


class Look(Struct, frozen=True, kw_only=True):
    """A run as people see it: what it waits for, where its code stands, and what it shows.

    `waits` and `stack` are empty for a run that has ended. `details` and `progress` are decoded JSON.
    """

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    state: str
    events: int
    waits: list[Wait]
    stack: list[TaskStack]
    details: Any
    search_attributes: dict[str, Any]
    progress: list[Any]
    memo: Any


class Execution:
    """A run. `due_at` is when its code may first run; `successor` is the run that it went on as."""

    def __init__(
        self, execution_id: UUID, started: WorkflowStarted, events: Iterable[Event], now: datetime, due_at: datetime
    ) -> None:
        self.execution_id = execution_id
        self.started = started
        self.events = list(events)
        self.key = business_key(started.tenant, started.workflow_name, started.workflow_id)
        self.work = Work(
            execution_id,
            partition=partition_of(started.workflow_id),
            workflow_name=started.workflow_name,
            workflow_id=started.workflow_id,
            version=started.version,
            queue=started.queue,
            deadline_at=None,
        )
        self.state = State.RUNNING
        self.decided_through = 0
        self.started_at = now
        self.due_at = due_at
        self.closed_at: datetime | None = None
        self.paused_at: datetime | None = None
        self.deadline: Due | None = None
        self.timers: dict[int, Due] = {}
        self.activities: dict[int, Activity] = {}
        self.result: bytes | None = None
        self.failure: Failure | None = None
        self.successor: Execution | None = None
        self.cancel_requested = False
        self.queued = False
        self.blocked: HarvestError | None = None
        self.disagreement: HarvestError | None = None
        self.keys: set[str] = set()
        self.memo: bytes | None = None
        self.details: bytes | None = None
        self.search_attributes: dict[str, Any] = {}
        self.progress: list[bytes] = []

    @property
    def first_id(self) -> UUID:
        """The first run of its chain."""
        first = self.started.first_execution_id
        return UUID(first) if first else self.execution_id

    @property
    def root(self) -> str:
        """The run at the top of its family."""
        return self.started.root_id or str(self.first_id)

    @property
    def title(self) -> str:
        """Which run it is, for people."""
        return f"workflow {self.started.workflow_name!r} ({self.started.workflow_id})"

    def show(self, attributes: str | None, details: bytes | None) -> None:
        """Keep what the code shows."""
        if attributes is not None:
            merged = {**self.search_attributes, **msgspec.json.decode(attributes)}
            self.search_attributes = {name: value for name, value in merged.items() if value is not None}
        if details is not None:
            self.details = details

    def waits(self) -> list[Wait]:
        """What the code waits for."""
        return waits_of(self.work.run) if self.work.run is not None and self.work.run.main is not None else []

    def stack(self) -> list[TaskStack]:
        """Where its tasks stand."""
        return self.work.run.stack() if self.work.run is not None and self.work.run.main is not None else []

    def look(self) -> Look:
        """The run as people see it."""
        return Look(
            execution_id=self.execution_id,
            workflow_name=self.started.workflow_name,
            workflow_id=self.started.workflow_id,
            state=self.state.name,
            events=len(self.events),
            waits=self.waits(),
            stack=self.stack(),
            details=None if self.details is None else payload.decode(self.details),
            search_attributes=dict(self.search_attributes),
            progress=[payload.decode(chunk) for chunk in self.progress],
            memo=None if self.memo is None else payload.decode(self.memo),
        )

    def document(self) -> HistoryDocument:
        """Its history, as an export has it."""
        started = self.started
        return HistoryDocument(
            workflow_name=started.workflow_name,
            workflow_id=started.workflow_id,
            version=started.version,
            execution_id=self.execution_id,
            tenant=started.tenant,
            state=self.state.name,
            queue=started.queue,
            parent_id=UUID(started.parent_id) if started.parent_id else None,
            root_id=UUID(started.root_id) if started.root_id else self.first_id,
            first_execution_id=self.first_id,
            previous_execution_id=UUID(started.previous_execution_id) if started.previous_execution_id else None,
            started_at=self.started_at,
            closed_at=self.closed_at,
            decided_through=self.decided_through,
            events=[
                document_event(event_id=e.event_id, kind=e.kind, seq=e.seq, at=e.at, payload=e.payload)
                for e in self.events
            ],
        )

    def let_go(self) -> None:
        """Unwind its code; what it has under way is no longer awaited."""
        run, self.work.run = self.work.run, None
        if run is not None:
            run.release()
