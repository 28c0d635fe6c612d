"""An engine in memory: it drives a `Run` as a worker does, against a made-up world that answers in a random order.

What is kept of a run is what a database would hold (events, `decided_through`, open activities and timers), and what
each decision was. `tests/replay/differential.py` compares all other ways of getting there with that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Raw, Struct

from harvest.definitions.workflow import WorkflowDefinition
from harvest.history.data import (
    ActivityCompleted,
    ActivityFailed,
    ActivityStarted,
    ActivityTimedOut,
    Failure,
    SignalReceived,
    TimerFired,
    WorkflowCancelRequested,
    WorkflowStarted,
)
from harvest.history.events import EMPTY, Event, encode_data
from harvest.history.ids import ExecutionId
from harvest.history.kinds import EventKind
from harvest.replay.commands import CancelActivity, CancelTimer, ScheduleActivity, StartTimer
from harvest.replay.decision import Outcome, outcome_of
from harvest.replay.run import Identity, Run
from tests.replay.player import NotingContext, Trace

START = datetime(2026, 1, 1, tzinfo=UTC)
IDENTITY = Identity(ExecutionId(int=77), "play", "w-1", "default")
MOST_DECISIONS = 40
Asked = list[tuple[int, int, str]]


class State(Struct, frozen=True):
    """A moment at which a worker might have had to begin anew: how long history was, and how far it was decided."""

    events: int
    decided_through: int


class Decided(Struct, frozen=True):
    """One committed decision: the history it saw, what it asked for, and the end if it was one."""

    saw: int
    decided_through: int
    asked: Asked
    outcome: tuple[int, str] | None
    after: int


class Recording(Struct):
    """All that is known of one finished recording."""

    seed: int
    events: list[Event]
    states: list[State]
    decisions: list[Decided]
    trace: Trace
    replays: int = 0


def asked_by(run: Run) -> Asked:
    """What a run asks for, in a form that can be compared: kind, number, and name with digest or length."""
    found: Asked = []
    for command in run.asked.values():
        if isinstance(command, ScheduleActivity):
            what = f"{command.name} {command.digest}"
        elif isinstance(command, StartTimer):
            what = f"{command.duration} {command.until}"
        else:
            what = ""
        found.append((int(command.kind), command.seq, what))
    return found


def end_of(run: Run) -> tuple[int, str] | None:
    """How a run ends, without the text of a traceback."""
    outcome: Outcome | None = outcome_of(run)
    if outcome is None:
        return None
    if outcome.failure is not None:
        failure = msgspec.json.decode(outcome.failure, type=Failure)
        return int(outcome.kind), f"{failure.type}: {failure.message}"
    return int(outcome.kind), outcome.payload.decode()


def fresh(workflow: WorkflowDefinition[..., Any]) -> tuple[Run, Trace]:
    """A run that nothing was delivered to, and its notes."""
    trace: Trace = []
    run = Run(workflow, IDENTITY, lambda run: NotingContext(run, trace))
    live.append(run)
    return run, trace


def let_go_of_all() -> None:
    """Release what a test has left: collected as it is, its cleanup would run within somebody else's step."""
    for run in live:
        run.release()
    live.clear()


live: list[Run] = []


class Oracle:
    """Records one run of a workflow."""

    def __init__(self, workflow: WorkflowDefinition[..., Any], data: bytes, chance: random.Random) -> None:
        self.workflow = workflow
        self.chance = chance
        self.now = START
        self.recording = Recording(chance.getrandbits(32), [], [], [], [])
        self.events = self.recording.events
        self.decided_through = 0
        self.activities: dict[int, bool] = {}
        self.late: list[int] = []
        self.timers: dict[int, datetime] = {}
        self.inbox: list[tuple[int, int, bytes]] = []
        self.signals = 0
        self.cancelled = False
        self.closed = False
        self.run: Run | None = None
        self.delivered = 0
        # How often something is written between "the loop has run" and "commit".
        self.intrusion = chance.choice((0.0, 0.15, 0.5, 1.0))
        self.eviction = 0.08
        self.append(EventKind.WORKFLOW_STARTED, 0, self._started(data))
        for _ in range(self.carried):
            self.signal()
        self._state()

    def _started(self, data: bytes) -> Struct:
        self.carried = self.chance.choice((0, 0, 0, 1, 2))
        return WorkflowStarted(
            workflow_name=self.workflow.name,
            workflow_id="w-1",
            version=self.workflow.version,
            seed=self.recording.seed,
            input=Raw(data),
            carried=self.carried,
        )

    # The world

    def stamp(self) -> datetime:
        """Database time, or a worker's estimate of it that may lie behind."""
        self.now += timedelta(seconds=self.chance.choice((0.0, 0.001, 0.5)))
        return self.now - timedelta(seconds=self.chance.choice((0.0, 0.0, 0.2, 3.0)))

    def append(self, kind: EventKind, seq: int, data: Struct | bytes, at: datetime | None = None) -> None:
        """Write an event by itself."""
        encoded = data if isinstance(data, bytes) else encode_data(data)
        self.events.append(Event(len(self.events) + 1, int(kind), seq, at or self.stamp(), encoded))

    def _state(self) -> None:
        self.recording.states.append(State(len(self.events), self.decided_through))

    def signal(self) -> None:
        self.signals += 1
        name = self.chance.choice(("alpha", "beta"))
        self.append(EventKind.SIGNAL_RECEIVED, 0, SignalReceived(name=name, payload=Raw(b"%d" % self.signals)))

    def cancel(self) -> None:
        self.cancelled = True
        self.append(EventKind.WORKFLOW_CANCEL_REQUESTED, 0, WorkflowCancelRequested(reason="enough"))

    def end_activity(self, seq: int, *, merged: bool) -> None:
        kind, data = self._result()
        del self.activities[seq]
        if merged:
            self.inbox.append((int(kind), seq, encode_data(data)))
        else:
            self.append(kind, seq, data)

    def _result(self) -> tuple[EventKind, Struct]:
        luck = self.chance.random()
        if luck < 0.85:
            return EventKind.ACTIVITY_COMPLETED, ActivityCompleted(output=Raw(b"%d" % self.chance.randint(0, 999)))
        if luck < 0.95:
            return EventKind.ACTIVITY_FAILED, ActivityFailed(failure=Failure("ValueError", "no"), attempt=3)
        return EventKind.ACTIVITY_TIMED_OUT, ActivityTimedOut(timeout_type="start_to_close")

    def fire(self, seq: int) -> None:
        self.now = max(self.now, self.timers.pop(seq))
        self.append(EventKind.TIMER_FIRED, seq, TimerFired())

    def move(self) -> bool:
        """Let one thing happen; False if nothing is left that could."""
        chance = self.chance
        moves: list[tuple[float, Any]] = [(0.6, self.signal)] if self.signals < 12 else []
        if not self.cancelled:
            moves.append((0.04, self.cancel))
        if self.activities:
            seq = chance.choice(list(self.activities))
            eager = self.activities[seq]
            moves.append((3.0, lambda: self.end_activity(seq, merged=eager and self.run is not None)))
        if self.timers:
            soonest = min(self.timers, key=self.timers.__getitem__)
            timer = soonest if chance.random() < 0.7 else chance.choice(list(self.timers))
            moves.append((1.5, lambda: self.fire(timer)))
        if self.late:
            moves.append((1.0, lambda: self.append(*self._late_result())))
        if not moves:
            return False
        chance.choices([m for _, m in moves], [w for w, _ in moves])[0]()
        return True

    def _late_result(self) -> tuple[EventKind, int, Struct]:
        kind, data = self._result()
        return kind, self.late.pop(), data

    def intrude(self) -> None:
        """Something that others write while a decision is on its way."""
        if self.activities and self.chance.random() < 0.2:
            seq = self.chance.choice(list(self.activities))
            self.append(EventKind.ACTIVITY_STARTED, seq, ActivityStarted(attempt=2))
        elif self.signals < 30 and (self.chance.random() < 0.7 or not self.timers):
            self.signal()
        elif self.timers:
            self.fire(self.chance.choice(list(self.timers)))
        if self.chance.random() < 0.3:
            self._state()

    # The worker

    def record(self) -> Recording:
        """Run until the workflow ends, nothing can happen any more, or it has gone on for long enough."""
        for _ in range(MOST_DECISIONS):
            self.decide()
            if self.closed:
                break
            happened = [self.move() for _ in range(self.chance.choice((1, 1, 1, 2, 4)))]
            if self.chance.random() < self.eviction:
                self.drop()
            if not any(happened):
                break
            self._state()
        # What happened after the last decision has been seen by no warm run: there is nothing to compare with.
        decided = self.recording.decisions[-1].after
        self.recording.states = [state for state in self.recording.states if state.events <= decided]
        self.drop()
        return self.recording

    def drop(self) -> None:
        """The resident is evicted; results that wait for it are written by themselves."""
        for kind, seq, data in self.inbox:
            self.append(EventKind(kind), seq, data)
        self.inbox.clear()
        if self.run is not None:
            assert self.run.release(), "the run did not let go"
            self.run = None

    def decide(self) -> None:
        """One decision, tried again as long as others write first."""
        tries = 0
        while True:
            run = self.step()
            assert run.blocked is None, f"blocked: {run.blocked}"
            consumed = self.consume(run)
            assert run.blocked is None, f"blocked: {run.blocked}"
            tries += 1
            if tries < 4 and self.chance.random() < self.intrusion:
                before = len(self.events)
                self.intrude()
                if len(self.events) > before:
                    if consumed:
                        self.inbox = [(event.kind, event.seq, event.payload) for event in consumed]
                        self.drop()
                        self._state()
                    continue
            self.commit(run, consumed)
            return

    def step(self) -> Run:
        if self.run is None:
            self.run, self.recording.trace = fresh(self.workflow)
            self.recording.replays += 1
            self.run.replay(list(self.events), self.decided_through)
        else:
            self.run.deliver(self.events[self.delivered :])
        self.delivered = len(self.events)
        return self.run

    def consume(self, run: Run) -> list[Event]:
        consumed = []
        for kind, seq, data in self.inbox:
            consumed.append(Event(len(self.events) + len(consumed) + 1, kind, seq, self.stamp(), data))
        self.inbox.clear()
        if consumed:
            run.deliver(consumed)
        return consumed

    def commit(self, run: Run, consumed: Sequence[Event]) -> None:
        self.events.extend(consumed)
        saw = len(self.events)
        asked, outcome = asked_by(run), outcome_of(run)
        through = self.decided_through
        for command in run.asked.values():
            self._write(command)
        if outcome is not None:
            self.append(outcome.kind, 0, outcome.payload)
            self.closed = True
        self.recording.decisions.append(Decided(saw, through, asked, end_of(run), len(self.events)))
        self.decided_through = self.delivered = len(self.events)
        if outcome is None:
            run.recorded(self.decided_through)
            self.agree(run)
            self._state()

    def _write(self, command: Any) -> None:
        if isinstance(command, StartTimer):
            fires_at = command.until or self.now + timedelta(seconds=command.duration)
            self.timers[command.seq] = fires_at
            self.append(command.kind, command.seq, command.payload_at(fires_at))
        elif isinstance(command, ScheduleActivity):
            self.activities[command.seq] = eager = self.chance.random() < 0.6
            self.append(command.kind, command.seq, command.payload())
            if eager:
                self.append(EventKind.ACTIVITY_STARTED, command.seq, ActivityStarted(attempt=1))
        else:
            self.append(command.kind, command.seq, EMPTY)
            if isinstance(command, CancelTimer):
                self.timers.pop(command.seq, None)
            elif isinstance(command, CancelActivity) and self.activities.pop(command.seq, None) is not None:
                self.late.append(command.seq)

    def agree(self, run: Run) -> None:
        """The parked code waits for what the database has, no more and no less."""
        assert set(run.timers) == set(self.timers), f"timers {set(run.timers)} in code, {set(self.timers)} in store"
        assert not any(timer.cancelled() for timer in run.timers.values()), "a timer that the code has dropped goes on"
        taken = sum(what.startswith("signal ") for _, what, _ in self.recording.trace)
        assert taken + run.unhandled_signals() == self.signals, f"{taken} signals taken of {self.signals}"
        in_code, in_store = set(run.pending), set(self.activities) | {seq for _, seq, _ in self.inbox}
        assert in_code == in_store, f"activities {in_code} in code, {in_store} in store"
