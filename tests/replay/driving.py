"""A run driven by hand: its events are written as a test says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Raw, Struct

from harvest.history.data import (
    ActivityCompleted,
    ActivityFailed,
    ChildWorkflowCompleted,
    ChildWorkflowFailed,
    ExternalAwaitFailed,
    ExternalAwaitResolved,
    ExternalDelivered,
    ExternalFailed,
    Failure,
    LocalActivityCompleted,
    LocalActivityFailed,
    RetryPolicy,
    SignalReceived,
    TimerFired,
    UpdateAdmitted,
    WorkflowCancelRequested,
    WorkflowStarted,
)
from harvest.history.events import Event, encode_data
from harvest.history.kinds import EventKind
from harvest.replay.context import WorkflowContext
from harvest.replay.decision import Outcome, outcome_of
from harvest.replay.placing import Placer
from harvest.replay.run import Run
from tests.replay.oracle import IDENTITY, START, live
from tests.replay.player import as_workflow


class Driven:
    """A run and the history that it was given."""

    def __init__(
        self,
        function: Callable[..., Any],
        value: Any = None,
        *,
        seed: int = 5,
        carried: int = 0,
        retry: RetryPolicy | None = None,
        chain_deadline: datetime | None = None,
        placer: Placer | None = None,
    ) -> None:
        self.placer = placer
        self.workflow = as_workflow(function, "driven")
        self.run = self._run()
        self.events: list[Event] = []
        self.at = START
        self.tick = timedelta(seconds=1)
        data = WorkflowStarted(
            "driven",
            "w-1",
            1,
            seed,
            Raw(msgspec.json.encode(value)),
            carried=carried,
            retry=retry,
            chain_deadline=chain_deadline,
        )
        self.event(EventKind.WORKFLOW_STARTED, 0, data)

    def event(self, kind: EventKind, seq: int = 0, data: Struct | None = None, at: datetime | None = None) -> None:
        """The next event, delivered at once."""
        self.at += self.tick
        encoded = b"{}" if data is None else encode_data(data)
        event = Event(len(self.events) + 1, int(kind), seq, at or self.at, encoded)
        self.events.append(event)
        self.run.deliver([event])

    def completed(self, seq: int, value: Any = None) -> None:
        self.event(EventKind.ACTIVITY_COMPLETED, seq, ActivityCompleted(output=Raw(msgspec.json.encode(value))))

    def failed(self, seq: int, kind: str = "ValueError") -> None:
        self.event(EventKind.ACTIVITY_FAILED, seq, ActivityFailed(Failure(kind, "no")))

    def fired(self, seq: int) -> None:
        self.event(EventKind.TIMER_FIRED, seq, TimerFired())

    def signal(self, name: str, value: Any = None) -> None:
        self.event(EventKind.SIGNAL_RECEIVED, 0, SignalReceived(name, Raw(msgspec.json.encode(value))))

    def update(self, name: str, value: Any = None) -> None:
        """An update; its id is `u` and the number of its event."""
        data = UpdateAdmitted(f"u{len(self.events) + 1}", name, Raw(msgspec.json.encode(value)))
        self.event(EventKind.UPDATE_ADMITTED, 0, data)

    def local_completed(self, seq: int, value: Any = None, name: str = "", digest: str = "") -> None:
        data = LocalActivityCompleted(Raw(msgspec.json.encode(value)), 1, name, digest)
        self.event(EventKind.LOCAL_ACTIVITY_COMPLETED, seq, data)

    def local_failed(self, seq: int, kind: str = "ValueError") -> None:
        self.event(EventKind.LOCAL_ACTIVITY_FAILED, seq, LocalActivityFailed(Failure(kind, "no")))

    def child_completed(self, seq: int, value: Any = None) -> None:
        output = Raw(msgspec.json.encode(value))
        self.event(EventKind.CHILD_WORKFLOW_COMPLETED, seq, ChildWorkflowCompleted(output))

    def child_failed(self, seq: int, state: str = "FAILED", kind: str = "ValueError") -> None:
        self.event(EventKind.CHILD_WORKFLOW_FAILED, seq, ChildWorkflowFailed(Failure(kind, "no"), state))

    def signalled(self, seq: int) -> None:
        self.event(EventKind.EXTERNAL_SIGNAL_DELIVERED, seq, ExternalDelivered("e-1"))

    def unreachable(self, kind: EventKind, seq: int, reason: str = "target_unknown") -> None:
        self.event(kind, seq, ExternalFailed(reason))

    def other_completed(self, seq: int, value: Any = None) -> None:
        output = Raw(msgspec.json.encode(value))
        self.event(EventKind.EXTERNAL_AWAIT_RESOLVED, seq, ExternalAwaitResolved(output))

    def other_failed(self, seq: int, state: str = "FAILED") -> None:
        self.event(EventKind.EXTERNAL_AWAIT_FAILED, seq, ExternalAwaitFailed(Failure("ValueError", "no"), state))

    def cancel(self) -> None:
        self.event(EventKind.WORKFLOW_CANCEL_REQUESTED, 0, WorkflowCancelRequested(reason="enough"))

    def committed(self) -> None:
        """Write what was asked for, as a commit does."""
        for command in list(self.run.asked.values()):
            payload_at = getattr(command, "payload_at", None)
            payload = getattr(command, "payload", lambda: b"{}")
            data = payload_at(self.at) if payload_at is not None else payload()
            self.events.append(Event(len(self.events) + 1, int(command.kind), command.seq, self.at, data))
        self.run.recorded(len(self.events))

    @property
    def asked(self) -> list[tuple[str, int]]:
        """Kinds and numbers of what is asked for now."""
        return [(command.kind.word, command.seq) for command in self.run.asked.values()]

    @property
    def outcome(self) -> Outcome | None:
        return outcome_of(self.run)

    @property
    def failure(self) -> Failure:
        """Why the run has failed."""
        outcome = self.outcome
        assert outcome is not None, "the run is still open"
        assert outcome.failure is not None, f"the run ended as {outcome.kind.word}"
        return msgspec.json.decode(outcome.failure, type=Failure)

    @property
    def result(self) -> Any:
        """What the run has returned."""
        outcome = self.outcome
        assert outcome is not None, f"the run is still open, blocked: {self.run.blocked}"
        assert outcome.result is not None, f"the run ended as {outcome.kind.word}: {outcome.payload!r}"
        return msgspec.json.decode(outcome.result)

    def query(self, name: str, value: Any = None) -> Any:
        """What the run answers now."""
        return msgspec.json.decode(self.run.query(name, msgspec.json.encode(value)))

    def replayed(self, function: Callable[..., Any] | None = None) -> Run:
        """A cold replay of all that was written, by this code or by another's."""
        run = self._run(function)
        run.replay(self.events, self.run.decided_through)
        return run

    def goes_on_as(self, function: Callable[..., Any]) -> Driven:
        """The same history, gone on with by other code: what a deploy does to an open run."""
        other = object.__new__(Driven)
        other.__dict__.update(self.__dict__, events=list(self.events), workflow=as_workflow(function, "driven"))
        other.run = self.replayed(function)
        return other

    def _run(self, function: Callable[..., Any] | None = None) -> Run:
        workflow = self.workflow if function is None else as_workflow(function, "driven")
        run = Run(workflow, IDENTITY, WorkflowContext, self.placer)
        live.append(run)
        return run
