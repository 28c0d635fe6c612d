"""A made-up world around one run: whoever is asked answers in a random order, and others write when they like."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Raw, Struct

from harvest.history.data import (
    ActivityCompleted,
    ActivityFailed,
    ActivityStarted,
    ActivityTimedOut,
    ChildWorkflowCompleted,
    ChildWorkflowFailed,
    ExternalAwaitFailed,
    ExternalAwaitResolved,
    ExternalDelivered,
    ExternalFailed,
    Failure,
    LocalActivityCompleted,
    LocalActivityFailed,
    SessionBroken,
    SessionOpened,
    SignalReceived,
    TimerFired,
    UpdateAdmitted,
    WorkflowCancelRequested,
    WorkflowExecutionPaused,
    WorkflowExecutionResumed,
)
from harvest.history.events import Event, encode_data
from harvest.history.kinds import EventKind
from harvest.replay.run import Run
from tests.replay import program
from tests.replay.noting import LUCK, answer_to

START = datetime(2026, 1, 1, tzinfo=UTC)
MOST_SIGNALS = 12
MOST_UPDATES = 8
_CHILD_ENDS = ("FAILED", "FAILED", "CANCELLED", "TERMINATED", "TIMED_OUT", "REJECTED")
_EXTERNALS: dict[int, tuple[EventKind, EventKind]] = {
    EventKind.EXTERNAL_SIGNAL_REQUESTED: (EventKind.EXTERNAL_SIGNAL_DELIVERED, EventKind.EXTERNAL_SIGNAL_FAILED),
    EventKind.EXTERNAL_CANCEL_REQUESTED: (EventKind.EXTERNAL_CANCEL_DELIVERED, EventKind.EXTERNAL_CANCEL_FAILED),
    EventKind.EXTERNAL_AWAIT_REQUESTED: (EventKind.EXTERNAL_AWAIT_RESOLVED, EventKind.EXTERNAL_AWAIT_FAILED),
}


class World:
    """What a database would hold of one run, and what others do to it.

    `activities` says of each open one whether it is eager, `timers` when each fires, `sessions` whether each is open,
    and `hosted` to which an activity belongs; `updates` are those without an answer, by the event that admitted them.
    The `inbox` holds results that a worker would bet on. Who answers is told the input, so that its answer shows whom
    it is for.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = START
        self.events: list[Event] = []
        self.run: Run | None = None
        self.activities: dict[int, bool] = {}
        self.inputs: dict[int, bytes] = {}
        self.children: dict[int, bytes] = {}
        self.externals: dict[int, EventKind] = {}
        self.sessions: dict[int, bool] = {}
        self.hosted: dict[int, int] = {}
        self.timers: dict[int, datetime] = {}
        self.late: list[tuple[int, Callable[[int], tuple[EventKind, Struct]]]] = []
        self.inbox: list[tuple[int, int, bytes]] = []
        self.arrived: list[tuple[int, str, bytes]] = []
        self.updates: dict[int, UpdateAdmitted] = {}
        self.signals = 0
        self.updated = 0
        self.cancelled = 0
        self.paused = False

    def stamp(self) -> datetime:
        """Database time, or a worker's estimate of it that may lie behind."""
        self.now += timedelta(seconds=self.chance.choice((0.0, 0.001, 0.5)))
        return self.now - timedelta(seconds=self.chance.choice((0.0, 0.0, 0.2, 3.0)))

    def append(self, kind: EventKind | int, seq: int, data: Struct | bytes, at: datetime | None = None) -> None:
        """Write an event by itself."""
        encoded = data if isinstance(data, bytes) else encode_data(data)
        self.events.append(Event(len(self.events) + 1, int(kind), seq, at or self.stamp(), encoded))

    # What others send

    def signal(self) -> None:
        self.signals += 1
        name = self.chance.choice(program.SIGNALS)
        self.append_signal(encode_data(SignalReceived(name=name, payload=Raw(b"%d" % self.signals), actor="somebody")))

    def append_signal(self, data: bytes) -> None:
        self.append(EventKind.SIGNAL_RECEIVED, 0, data)
        event = self.events[-1]
        self.arrived.append((event.event_id, event.data().name, data))

    def update(self) -> None:
        self.updated += 1
        known = list(self.run.messages.updates) if self.run is not None else []
        name = self.chance.choice((*program.UPDATES, "nobody's", *3 * known))
        value = b'"no number"' if self.chance.random() < 0.05 else b"%d" % self.chance.randint(0, 99)
        self.append_update(encode_data(UpdateAdmitted(f"u{self.updated}", name, Raw(value), "somebody")))

    def append_update(self, data: bytes) -> None:
        self.append(EventKind.UPDATE_ADMITTED, 0, data)
        event = self.events[-1]
        self.updates[event.event_id] = event.data()

    def cancel(self) -> None:
        self.append(EventKind.WORKFLOW_CANCEL_REQUESTED, 0, WorkflowCancelRequested(reason="enough"))
        self.cancelled = self.cancelled or len(self.events)

    def pause_or_resume(self) -> None:
        self.paused = not self.paused
        if self.paused:
            self.append(EventKind.WORKFLOW_EXECUTION_PAUSED, 0, WorkflowExecutionPaused(reason="lunch"))
        else:
            self.append(EventKind.WORKFLOW_EXECUTION_RESUMED, 0, WorkflowExecutionResumed())

    # What was asked for ends

    def end_activity(self, seq: int, *, merged: bool) -> None:
        kind, data = self._ending_of_activity(seq)
        del self.activities[seq]
        if merged:
            self.inbox.append((int(kind), seq, encode_data(data)))
        else:
            self.append(kind, seq, data)

    def _ending_of_activity(self, seq: int) -> tuple[EventKind, Struct]:
        kind, data = self._result()
        if isinstance(data, ActivityCompleted) and bytes(data.output) == b"null":
            data = ActivityCompleted(output=self._answer(self.inputs.get(seq, b"null")))
        return kind, data

    def _result(self) -> tuple[EventKind, Struct]:
        """How an activity ends; `null` stands for the answer to its input."""
        luck = self.chance.random()
        if luck < 0.85:
            return EventKind.ACTIVITY_COMPLETED, ActivityCompleted()
        if luck < 0.95:
            return EventKind.ACTIVITY_FAILED, ActivityFailed(failure=Failure("ValueError", "no"), attempt=3)
        return EventKind.ACTIVITY_TIMED_OUT, ActivityTimedOut(timeout_type="start_to_close")

    def _answer(self, asked: bytes) -> Raw:
        try:
            salt, seen = msgspec.json.decode(asked, type=tuple[int, int])
        except msgspec.MsgspecError:
            return Raw(b"%d" % self.chance.randint(0, 999))
        return Raw(b"%d" % (answer_to(salt, seen) * LUCK + self.chance.randrange(LUCK)))

    def end_local(self, seq: int, command: Any) -> None:
        """A local activity's result is always a bet."""
        if self.chance.random() < 0.9:
            done = LocalActivityCompleted(self._answer(command.input), 1, command.name, command.digest)
            self.inbox.append((int(EventKind.LOCAL_ACTIVITY_COMPLETED), seq, encode_data(done)))
        else:
            failed = LocalActivityFailed(Failure("ValueError", "no"), 1, command.name, command.digest)
            self.inbox.append((int(EventKind.LOCAL_ACTIVITY_FAILED), seq, encode_data(failed)))

    def end_child(self, seq: int) -> None:
        kind, data = self._ending_of_child(seq)
        del self.children[seq]
        self.append(kind, seq, data)

    def _ending_of_child(self, seq: int) -> tuple[EventKind, Struct]:
        if self.chance.random() < 0.8:
            output = self._answer(self.inputs[seq])
            return EventKind.CHILD_WORKFLOW_COMPLETED, ChildWorkflowCompleted(output=output)
        state = self.chance.choice(_CHILD_ENDS)
        return EventKind.CHILD_WORKFLOW_FAILED, ChildWorkflowFailed(failure=Failure("Gone", "no"), state=state)

    def answer_external(self, seq: int) -> None:
        asked = self.externals.pop(seq)
        good, bad = _EXTERNALS[asked]
        awaited = asked == EventKind.EXTERNAL_AWAIT_REQUESTED
        if self.chance.random() < 0.7:
            output = Raw(b"%d" % self.chance.randint(0, 999))
            self.append(good, seq, ExternalAwaitResolved(output=output) if awaited else ExternalDelivered("e-1"))
        elif awaited:
            state = self.chance.choice((*_CHILD_ENDS, "UNKNOWN"))
            self.append(bad, seq, ExternalAwaitFailed(failure=Failure("Gone", "no"), state=state))
        else:
            self.append(bad, seq, ExternalFailed(self.chance.choice(("target_unknown", "target_terminal"))))

    def open_session(self, seq: int) -> None:
        self.sessions[seq] = True
        self.append(EventKind.SESSION_OPENED, seq, SessionOpened(worker=f"{7:032x}", worker_name="ann"))

    def break_session(self, seq: int) -> None:
        """With it end its activities; one whose result is on its way has come before."""
        reason = self.chance.choice(("worker_lost", "execution_timeout")) if self.sessions[seq] else "creation_timeout"
        inside = [activity for activity in self.activities if self.hosted.get(activity) == seq]
        del self.sessions[seq]
        self.append(EventKind.SESSION_BROKEN, seq, SessionBroken(reason, "ann"))
        for activity in inside:
            del self.activities[activity]
            failure = Failure("SessionBroken", "its session is broken", non_retryable=True)
            self.append(EventKind.ACTIVITY_FAILED, activity, ActivityFailed(failure))

    def breakable(self) -> list[int]:
        """Sessions of whose activities none has a result that is on its way."""
        coming = {self.hosted.get(seq) for _, seq, _ in self.inbox}
        return [seq for seq in self.sessions if seq not in coming]

    def fire(self, seq: int) -> None:
        self.now = max(self.now, self.timers.pop(seq))
        self.append(EventKind.TIMER_FIRED, seq, TimerFired())

    def come_late(self) -> None:
        """What was cancelled ends all the same."""
        seq, ending = self.late.pop()
        kind, data = ending(seq)
        self.append(kind, seq, data)

    # What happens

    def move(self) -> bool:
        """Let one thing happen; False if nothing is left that could."""
        moves = [*self._moves_of_others(), *self._moves_of_asked()]
        if not moves:
            return False
        self.chance.choices([move for _, move in moves], [weight for weight, _ in moves])[0]()
        return True

    def _moves_of_others(self) -> list[tuple[float, Callable[[], None]]]:
        moves: list[tuple[float, Callable[[], None]]] = []
        if self.signals < MOST_SIGNALS:
            moves.append((0.6, self.signal))
        if self.updated < MOST_UPDATES:
            moves.append((0.4, self.update))
        if not self.cancelled:
            moves.append((0.04, self.cancel))
        if moves and self.chance.random() < (0.5 if self.paused else 0.1):
            moves.append((1.0, self.pause_or_resume))
        return moves

    def _moves_of_asked(self) -> list[tuple[float, Callable[[], None]]]:
        chance = self.chance
        moves: list[tuple[float, Callable[[], None]]] = []
        if self.activities:
            seq = chance.choice(list(self.activities))
            merged = self.activities[seq] and self.run is not None
            moves.append((3.0, lambda: self.end_activity(seq, merged=merged)))
        if local := self.open_locals():
            moves.append((3.0, lambda: self.end_local(*chance.choice(local))))
        if self.children:
            child = chance.choice(list(self.children))
            moves.append((2.0, lambda: self.end_child(child)))
        if self.externals:
            external = chance.choice(list(self.externals))
            moves.append((2.0, lambda: self.answer_external(external)))
        if waiting := [seq for seq, is_open in self.sessions.items() if not is_open]:
            asked = chance.choice(waiting)
            moves.append((3.0, lambda: self.open_session(asked)))
        if breakable := self.breakable():
            lost = chance.choice(breakable)
            moves.append((0.4, lambda: self.break_session(lost)))
        if self.timers:
            soonest = min(self.timers, key=self.timers.__getitem__)
            timer = soonest if chance.random() < 0.7 else chance.choice(list(self.timers))
            moves.append((1.5, lambda: self.fire(timer)))
        if self.late:
            moves.append((1.0, self.come_late))
        return moves

    def open_locals(self) -> list[tuple[int, Any]]:
        """Local activities that run in the worker of the warm run."""
        if self.run is None:
            return []
        waiting = {seq for _, seq, _ in self.inbox}
        return [(seq, command) for seq, (_, command) in self.run.locals.items() if seq not in waiting]

    def intrude(self) -> None:
        """Something that others write while a decision is on its way."""
        luck = self.chance.random()
        if self.activities and luck < 0.15:
            seq = self.chance.choice(list(self.activities))
            self.append(EventKind.ACTIVITY_STARTED, seq, ActivityStarted(attempt=2))
        elif luck < 0.2 and (breakable := self.breakable()):
            self.break_session(self.chance.choice(breakable))
        elif self.children and luck < 0.3:
            self.end_child(self.chance.choice(list(self.children)))
        elif self.updated < 2 * MOST_UPDATES and luck < 0.5:
            self.update()
        elif not self.cancelled and luck < (0.7 if self.run is not None and self.run.is_done else 0.515):
            self.cancel()
        elif self.signals < 2 * MOST_SIGNALS and (luck < 0.9 or not self.timers):
            self.signal()
        elif self.timers:
            self.fire(self.chance.choice(list(self.timers)))
