"""An engine in memory: it drives a `Run` as a worker does, in a made-up world (`world.py`).

What is kept of a run is what a database would hold, and what each decision was. `tests/replay/differential.py` compares
all other ways of getting there with that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Raw

from harvest.definitions.workflow import WorkflowDefinition
from harvest.history.data import ActivityStarted, RetryPolicy, WorkflowStarted
from harvest.history.events import EMPTY, Event, encode_data
from harvest.history.kinds import EventKind
from harvest.replay.commands import CancelActivity, CancelTimer, ScheduleActivity, StartTimer
from harvest.replay.continuing import Onward
from harvest.replay.decision import Outcome, outcome_of
from harvest.replay.records import AnswerUpdate, RunLocal
from harvest.replay.relations import AwaitExternal, CancelChild, CancelExternal, SignalExternal, StartChild
from harvest.replay.run import Run
from harvest.replay.sessions import CloseSession, OpenSession
from harvest.replay.state import Identity
from tests.replay.acting import ACTS
from tests.replay.noting import NEW_BUILD, OLD_BUILD
from tests.replay.recording import (
    IDENTITY,
    NOTHING_SHOWN,
    Decided,
    Recording,
    State,
    answer_of,
    asked_by,
    end_of,
    fresh,
    let_go_of_all,
    live,
    refusal_of,
    shown_by,
)
from tests.replay.world import START, World

__all__ = ["IDENTITY", "START", "Oracle", "fresh", "let_go_of_all", "live"]
MOST_DECISIONS = 40
LONGEST_CHAIN = 6


class Oracle(World):
    """Records one run of a workflow, and those that follow it. `others` are types it may go on as."""

    def __init__(
        self,
        workflow: WorkflowDefinition[..., Any],
        data: bytes,
        chance: random.Random,
        others: Sequence[WorkflowDefinition[..., Any]] = (),
    ) -> None:
        super().__init__(chance)
        self.others = {definition.name: definition for definition in (workflow, *others)}
        # How often something is written between "the loop has run" and "commit".
        self.intrusion = chance.choice((0.0, 0.15, 0.5, 1.0))
        self.eviction = 0.08
        self.build = chance.choice((OLD_BUILD, NEW_BUILD, NEW_BUILD))
        self._begin(workflow, IDENTITY, self._started(workflow, data))
        for _ in range(self._carried):
            chance.choice((self.signal, self.update))()
        self._state()

    def _started(self, workflow: WorkflowDefinition[..., Any], data: bytes) -> WorkflowStarted:
        chance = self.chance
        self._carried = chance.choice((0, 0, 0, 1, 2))
        retry = RetryPolicy(max_attempts=chance.randint(2, 3), non_retryable=("LimitError",))
        return WorkflowStarted(
            workflow_name=workflow.name,
            workflow_id="w-1",
            version=workflow.version,
            seed=chance.getrandbits(32),
            input=Raw(data),
            carried=self._carried,
            execution_timeout_seconds=chance.choice((None, None, 120.0)),
            chain_deadline=chance.choice((None, None, START + timedelta(seconds=300))),
            retry=chance.choice((None, None, None, retry)),
        )

    def _begin(self, workflow: WorkflowDefinition[..., Any], identity: Identity, started: WorkflowStarted) -> None:
        self.workflow = workflow
        self.recording = Recording(started.seed, identity, workflow, self.events)
        self.decided_through = 0
        self.delivered = 0
        self.closed: Outcome | None = None
        self._bets: list[State] = []
        self.append(EventKind.WORKFLOW_STARTED, 0, started)

    def _state(self, answer: str | None = None) -> None:
        self.recording.states.append(State(len(self.events), self.decided_through, self.build, answer))

    # The worker

    def record(self, chain: int = 1) -> Recording:
        """Run until the workflow ends, nothing can happen any more, or it has gone on for long enough."""
        for _ in range(MOST_DECISIONS):
            self.decide()
            if self.closed is not None:
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
        if self.closed is not None and self.closed.onward is not None and chain < LONGEST_CHAIN:
            self.recording.successor = self._follow(self.closed.onward).record(chain + 1)
        return self.recording

    def _follow(self, onward: Onward) -> Oracle:
        """The world of the run that follows: what was carried over is there before its code runs."""
        then = Oracle.__new__(Oracle)
        World.__init__(then, self.chance)
        then.others, then.intrusion, then.eviction, then.build = self.others, self.intrusion, self.eviction, self.build
        then.now, then.signals, then.updated = self.now, self.signals, self.updated
        identity = Identity(onward.execution_id, onward.started.workflow_name, "w-1", onward.started.queue)
        then._begin(self.others[onward.started.workflow_name], identity, onward.started)
        for kind, data in onward.carried:
            if kind == EventKind.SIGNAL_RECEIVED:
                then.append_signal(data)
            elif kind == EventKind.UPDATE_ADMITTED:
                then.append_update(data)
            else:
                then.cancel()
        then._state()
        return then

    def drop(self) -> None:
        """The resident is evicted; results that wait for it are written by themselves, if they are not lost."""
        for kind, seq, data in self.inbox:
            local = kind in (EventKind.LOCAL_ACTIVITY_COMPLETED, EventKind.LOCAL_ACTIVITY_FAILED)
            if not local or self.chance.random() < 0.8:
                self.append(EventKind(kind), seq, data)
        self.inbox.clear()
        if self.run is not None:
            assert self.run.release(), "the run did not let go"
            self.run = None
        if self.build == OLD_BUILD and self.chance.random() < 0.5:
            self._deploy()

    def _deploy(self) -> None:
        """New code from here on: what is not decided yet will be decided by it."""
        self.build = NEW_BUILD
        self.recording.states = [
            state if state.events <= self.decided_through else State(state.events, state.decided_through)
            for state in self.recording.states
        ]

    def decide(self) -> None:
        """One decision, tried again as long as others write first."""
        tries = 0
        while True:
            run = self.step()
            assert run.blocked is None, f"blocked: {run.blocked}"
            consumed = self.consume(run, [])
            self.hold(run, consumed)
            assert run.blocked is None, f"blocked: {run.blocked}"
            tries += 1
            if tries < 4 and self.chance.random() < self.intrusion:
                before = len(self.events)
                self.intrude()
                if self.chance.random() < 0.3:
                    self._state()
                if len(self.events) > before:
                    if consumed:
                        self.inbox = [(event.kind, event.seq, event.payload) for event in consumed]
                        self.drop()
                        self._state()
                    continue
            self.commit(run, consumed)
            return

    def step(self) -> Run:
        self._bets.clear()
        if self.run is None:
            self.run, self.recording.trace = fresh(self.workflow, self.recording.identity, self.build)
            self.recording.replays += 1
            self.run.replay(list(self.events), self.decided_through)
            self._ask(self.run, len(self.events))
        else:
            for event in self.events[self.delivered :]:
                self.run.deliver([event])
                self._ask(self.run, event.event_id)
        self.delivered = len(self.events)
        self.recording.states += self._bets
        self._bets.clear()
        return self.run

    def consume(self, run: Run, consumed: list[Event]) -> list[Event]:
        """Deliver the results that wait, as the events that they will be if nothing comes between."""
        for kind, seq, data in self.inbox:
            event = Event(len(self.events) + len(consumed) + 1, kind, seq, self.stamp(), data)
            consumed.append(event)
            run.deliver([event])
            self._ask(run, event.event_id)
        self.inbox.clear()
        return consumed

    def hold(self, run: Run, consumed: list[Event]) -> None:
        """A run that only goes from one local activity to the next is committed once."""
        while self.chance.random() < 0.7 and run.blocked is None and not run.is_done:
            local = self.open_locals()
            only_locals = all(isinstance(command, RunLocal) for command in run.asked.values())
            if not local or not only_locals or shown_by(run) != NOTHING_SHOWN:
                return
            self.end_local(*self.chance.choice(local))
            self.consume(run, consumed)

    def _ask(self, run: Run, events: int) -> None:
        """A question may come between any two events. It changes nothing."""
        if run.blocked is not None or self.chance.random() < 0.6:
            return
        before = (asked_by(run), shown_by(run), len(self.recording.trace), run.sequence, len(run.loop.ready))
        if run.messages.queries:
            found = refusal_of(run, self.chance.randrange(ACTS))
            assert "may only look" in found, f"a query has acted: {found}"
        answer = answer_of(run)
        after = (asked_by(run), shown_by(run), len(self.recording.trace), run.sequence, len(run.loop.ready))
        assert after == before, f"a query has changed {before} to {after}"
        self._bets.append(State(events, self.decided_through, self.build, answer))

    def commit(self, run: Run, consumed: Sequence[Event]) -> None:
        self.events.extend(consumed)
        self.recording.states += self._bets
        saw = len(self.events)
        asked, shown, outcome = asked_by(run), shown_by(run), outcome_of(run)
        through = self.decided_through
        for command in list(run.asked.values()):
            self._write(command)
        if outcome is not None:
            self.append(outcome.kind, 0, outcome.payload)
            self.closed = outcome
            self._agree_at_end(run, outcome)
        decided = Decided(saw, through, self.build, asked, shown, end_of(run), len(self.events))
        self.recording.decisions.append(decided)
        self.decided_through = self.delivered = len(self.events)
        if outcome is None:
            run.recorded(self.decided_through)
            self.agree(run)
            self._bets.clear()
            self._ask(run, len(self.events))
            self.recording.states += self._bets
            self._state()

    def _write(self, command: Any) -> None:
        if isinstance(command, StartTimer):
            fires_at = command.until or self.now + timedelta(seconds=command.duration)
            self.timers[command.seq] = fires_at
            self.append(command.kind, command.seq, command.payload_at(fires_at))
            return
        self.append(command.kind, command.seq, command.payload() if hasattr(command, "payload") else EMPTY)
        if isinstance(command, ScheduleActivity):
            self.inputs[command.seq] = command.input
            self.activities[command.seq] = eager = self.chance.random() < 0.6
            if command.session is not None:
                self.hosted[command.seq] = command.session.seq
            if eager:
                self.append(EventKind.ACTIVITY_STARTED, command.seq, ActivityStarted(attempt=1))
        elif isinstance(command, StartChild) and not command.options.detached:
            self.inputs[command.seq] = command.input
            self.children[command.seq] = command.input
        elif isinstance(command, SignalExternal | CancelExternal | AwaitExternal):
            self.externals[command.seq] = command.kind
        elif isinstance(command, OpenSession):
            self.sessions[command.seq] = False
        elif isinstance(command, CloseSession):
            # It may have broken after the code had done with it.
            self.sessions.pop(command.seq, None)
        elif isinstance(command, AnswerUpdate):
            assert command.seq in self.updates, f"update {command.update_id} is answered once more"
            assert self.updates.pop(command.seq).update_id == command.update_id
        elif isinstance(command, CancelTimer):
            self.timers.pop(command.seq, None)
        elif isinstance(command, CancelActivity) and self.activities.pop(command.seq, None) is not None:
            self.late.append((command.seq, self._ending_of_activity))
        elif isinstance(command, CancelChild) and self.children.pop(command.seq, None) is not None:
            self.late.append((command.seq, self._ending_of_child))

    # What must hold

    def agree(self, run: Run) -> None:
        """The parked code waits for what the database has, no more and no less."""
        assert set(run.timers) == set(self.timers), f"timers {set(run.timers)} in code, {set(self.timers)} in store"
        assert not any(timer.cancelled() for timer in run.timers.values()), "a timer that the code has dropped goes on"
        unread = self._unread()
        assert run.unhandled_signals() == len(unread), f"{run.messages.unhandled()} signals unread, not {unread}"
        in_code, in_store = set(run.pending), set(self.activities) | {seq for _, seq, _ in self.inbox}
        assert in_code == in_store, f"activities {in_code} in code, {in_store} in store"
        assert set(run.children) == set(self.children), f"children {set(run.children)}, {set(self.children)} in store"
        assert set(run.externals) <= set(self.externals), f"others {set(run.externals)}, {set(self.externals)} in store"
        assert set(run.sessions) == set(self.sessions), f"sessions {set(run.sessions)}, {set(self.sessions)} in store"
        under_way = set(run.messages.admitted)
        assert under_way == set(self.updates), f"updates {under_way} in code, {set(self.updates)} in store"
        lost = [each.update_id for each in self.updates.values() if each.name not in run.messages.updates]
        assert not lost, f"nobody refuses updates {lost}"

    def _unread(self) -> list[tuple[int, int, bytes]]:
        """Signals that the code has not noted, by what arrived: event, kind and data."""
        taken = {(what, value) for _, what, value in self.recording.trace if what.startswith("signal ")}
        return [
            (event_id, int(EventKind.SIGNAL_RECEIVED), data)
            for event_id, name, data in self.arrived
            if (f"signal {name}", repr(_value_of(data))) not in taken
        ]

    def _agree_at_end(self, run: Run, outcome: Outcome) -> None:
        """Every update is answered or carried, and so is every signal and cancel request that came too late."""
        carried = []
        if outcome.onward is not None:
            carried = self._unread()
            carried += [(e, int(EventKind.UPDATE_ADMITTED), encode_data(u)) for e, u in self.updates.items()]
        else:
            assert not self.updates, f"updates {self.updates} have no answer"
        ended = max((at for at, what, _ in self.recording.trace if what == "out"), default=0)
        if outcome.onward is not None and self.cancelled > ended:
            cancel = self.events[self.cancelled - 1]
            carried.append((cancel.event_id, cancel.kind, cancel.payload))
        expected = [(kind, data) for _, kind, data in sorted(carried)]
        found = outcome.onward.carried if outcome.onward is not None else []
        assert found == expected, f"carried over are {found}, not {expected}"


def _value_of(data: bytes) -> Any:
    return msgspec.json.decode(msgspec.json.decode(data, type=dict[str, Raw])["payload"])
