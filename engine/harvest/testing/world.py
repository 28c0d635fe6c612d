"""The engine of an environment: it decides and commits in memory as a worker does on a database (design 3 and 4).

What a decision writes is what the worker's own `Decider` puts into a `Batch`; here the batch goes into dictionaries.
Everything in this module happens at once: time passes, and activities run, elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.definitions.registry import Registry
from harvest.errors import DecisionFailedError, HarvestError, NonDeterminismError
from harvest.history.data import Failure, WorkflowStarted
from harvest.history.deliveries import DeliveryKind
from harvest.history.events import EMPTY, Event, encode_data
from harvest.history.kinds import RESOLVING, EventKind
from harvest.history.states import CLOSES_AS, State
from harvest.replay.commands import ScheduleActivity
from harvest.replay.verifier import verify
from harvest.store.commit import Batch
from harvest.testing.activities import WORKER, Activities
from harvest.testing.clock import VirtualClock
from harvest.testing.deliveries import Deliveries
from harvest.testing.execution import Child, Execution
from harvest.testing.mocking import Mock
from harvest.testing.sessions import Sessions
from harvest.worker.deciding import Decider, Decision
from harvest.worker.options import Counters
from harvest.worker.watch import StepWatch

_FIRED = int(EventKind.TIMER_FIRED)


class World:
    """All runs of an environment, and what is to be done about them now."""

    def __init__(
        self, registry: Registry, clock: VirtualClock, mocks: dict[str, Mock], *, checks: Callable[[Execution], bool]
    ) -> None:
        self.registry = registry
        self.clock = clock
        self.executions: dict[UUID, Execution] = {}
        self.by_key: dict[UUID, list[Execution]] = {}
        self.children: dict[UUID, Child] = {}
        self.troubled: list[Execution] = []
        self.activities = Activities(self, registry, mocks)
        self.deliveries = Deliveries(self)
        self.sessions = Sessions(self)
        self.on_closed: list[Callable[[Execution], None]] = [self.deliveries.closed, self.sessions.closed]
        self.listeners: list[asyncio.Event] = []
        self.changes = 0
        self.trouble: BaseException | None = None
        self._checks = checks
        counters = Counters()
        self._decider = Decider(registry, self.activities, StepWatch(counters), counters, WORKER)
        self._jobs: deque[Callable[[], None]] = deque()
        self._is_running = False

    # Doing what there is to do

    def do(self, job: Callable[[], None]) -> None:
        """Do it after all that is to be done already."""
        self._jobs.append(job)

    def run(self) -> None:
        """Decide and deliver until nothing is left to do at this instant."""
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._jobs:
                self._jobs.popleft()()
        except BaseException as error:
            # Whoever waits is told; the one who happened to bring the news is none of them.
            self.trouble = error
        finally:
            self._is_running = False

    def changed(self) -> None:
        """Something has happened in real time: whoever waits looks again."""
        self.changes += 1
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener.set()

    # Runs

    def create(
        self,
        execution_id: UUID,
        started: WorkflowStarted,
        carried: list[tuple[int, bytes]],
        *,
        delay: float = 0.0,
        memo: bytes | None = None,
    ) -> Execution:
        """A new run, with the events that come with its start."""
        now = self.clock.now
        rows = [(int(EventKind.WORKFLOW_STARTED), encode_data(started)), *carried]
        events = [Event(event_id, kind, 0, now, data) for event_id, (kind, data) in enumerate(rows, 1)]
        execution = Execution(execution_id, started, events, now, now + timedelta(seconds=delay))
        execution.memo = memo
        self.executions[execution_id] = execution
        self.by_key.setdefault(execution.key, []).append(execution)
        ends = [started.chain_deadline]
        if started.execution_timeout_seconds is not None:
            ends.append(now + timedelta(seconds=delay + started.execution_timeout_seconds))
        deadline = min((end for end in ends if end is not None), default=None)
        if deadline is not None:
            execution.deadline = self.clock.at(deadline, lambda: self.deliveries.time_out(execution, deadline))
        if delay:
            self.clock.at(execution.due_at, lambda: self.wake(execution))
        else:
            self.wake(execution)
        return execution

    def newest(self, key: UUID) -> Execution | None:
        """The open run of a business key, else the newest; None where there was none."""
        found = self.by_key.get(key, [])
        return next((each for each in found if each.state.is_open), found[-1] if found else None)

    def current(self, execution_id: UUID) -> Execution | None:
        """The newest run of a run's chain, or None where there is no such run."""
        execution = self.executions.get(execution_id)
        while execution is not None and execution.successor is not None:
            execution = execution.successor
        return execution

    def append(self, execution: Execution, kind: EventKind, seq: int, data: Struct | bytes) -> Event | None:
        """Write an event of an open run; None where it has ended."""
        if not execution.state.is_open:
            return None
        encoded = data if isinstance(data, bytes) else encode_data(data)
        event = Event(len(execution.events) + 1, int(kind), seq, self.clock.now, encoded)
        execution.events.append(event)
        if kind in RESOLVING:
            self.wake(execution)
        return event

    def wake(self, execution: Execution) -> None:
        """Something has come for a run."""
        if not execution.queued:
            execution.queued = True
            self.do(lambda: self._decide(execution))

    # Decisions

    def _decide(self, execution: Execution) -> None:
        execution.queued = False
        if execution.state is not State.RUNNING or execution.blocked or self.clock.now < execution.due_at:
            return
        work = execution.work
        if work.run is None:
            if self.registry.workflow(execution.started.workflow_name, execution.started.version) is None:
                return
            work.delta = list(execution.events)
            work.decided_through_hint = execution.decided_through
        else:
            work.delta = execution.events[work.next_event_id - 1 :]
            if not work.delta:
                return
        error = self._decider.step(work, self.clock.now)
        if error is not None:
            self._block(execution, error)
            return
        batch = Batch()
        try:
            decision = self._decider.fill(batch, work, self.clock.now)
        except Exception as failed:
            self._block(execution, DecisionFailedError(f"writing this decision failed: {failed!r}"))
            raise
        self._commit(execution, batch, decision)

    def _block(self, execution: Execution, error: HarvestError) -> None:
        run = execution.work.run
        if run is not None and error.__cause__ is None:
            bug = run.failure or _exception_of(run.main)
            error.__cause__ = bug if isinstance(bug, Exception) else None
        execution.blocked = error
        self.troubled.append(execution)
        self.activities.forget(execution)
        self.changed()

    def _commit(self, execution: Execution, batch: Batch, decision: Decision) -> None:
        """Keep what a decision has written, and let what follows from it begin."""
        work, run, now = execution.work, execution.work.run, self.clock.now
        assert run is not None
        for _, event_id, kind, seq, at, data in batch.events:
            assert event_id == len(execution.events) + 1
            execution.events.append(Event(event_id, kind, seq, at or now, data))
        execution.decided_through = decision.next_event_id - 1
        work.next_event_id = decision.next_event_id
        work.history_bytes += decision.size
        for _, attributes, details in batch.details:
            execution.show(attributes, details)
        execution.progress += decision.progress
        asked = dict(run.asked)
        if decision.outcome is None:
            run.recorded(execution.decided_through)
        for _, seq in batch.cancels:
            self._cancel(execution, seq)
        for _, seq, fires_at in batch.timers:
            self._start_timer(execution, seq, fires_at)
        for row in batch.activities:
            command = asked[int(EventKind.ACTIVITY_SCHEDULED), row[1]]
            assert isinstance(command, ScheduleActivity)
            self.activities.schedule(execution, command)
        self.activities.sync_locals(execution)
        self.sessions.commit(execution, batch)
        self._relate(execution, batch, decision)
        if decision.outcome is not None:
            failure = decision.outcome.failure
            execution.result = decision.outcome.result
            execution.failure = None if failure is None else msgspec.json.decode(failure, type=Failure)
            self.close(execution, CLOSES_AS[decision.outcome.kind])

    def _start_timer(self, execution: Execution, seq: int, fires_at: Any) -> None:
        def fire() -> None:
            del execution.timers[seq]
            self.append(execution, EventKind.TIMER_FIRED, seq, EMPTY)

        execution.timers[seq] = self.clock.at(fires_at, fire)

    def _cancel(self, execution: Execution, seq: int) -> None:
        timer = execution.timers.pop(seq, None)
        if timer is not None:
            timer.cancel()
        self.activities.cancel(execution, seq)

    def _relate(self, execution: Execution, batch: Batch, decision: Decision) -> None:
        """What a decision means for others: its children, its successor, and what it sends."""
        onward = decision.outcome.onward if decision.outcome is not None else None
        heir = onward.execution_id if onward is not None and onward.keeps_children else None
        newborn = []
        for row in batch.children:
            child = Child(execution.execution_id, seq=row[1], policy=row[3], awaited=row[4])
            if heir is not None:
                child.parent, child.awaited = heir, False
            if decision.outcome is None or heir is not None:
                self.children[row[2]] = child
            else:
                newborn.append((row[2], child))
        if onward is not None:
            execution.successor = self.create(
                onward.execution_id, onward.started, onward.carried, delay=onward.delay, memo=execution.memo
            )
            execution.successor.search_attributes = dict(execution.search_attributes)
        for _, seq, kind, target, _, data in batch.deliveries:
            self.deliveries.post(execution, seq, DeliveryKind(kind), target, data)
        if batch.cascades or decision.outcome is not None:
            if heir is not None:
                self._inherit(execution, heir)
            elif decision.outcome is not None:
                self.deliveries.orphan(execution, newborn)

    def _inherit(self, execution: Execution, heir: UUID) -> None:
        for child in self.children.values():
            if child.parent == execution.execution_id:
                child.parent, child.awaited = heir, False

    def close(self, execution: Execution, state: State) -> None:
        """A run has its terminal event: nothing of it goes on."""
        execution.state = state
        execution.closed_at = self.clock.now
        self.activities.forget(execution)
        for due in (*execution.timers.values(), execution.deadline):
            if due is not None:
                due.cancel()
        execution.timers.clear()
        execution.let_go()
        self.check(execution)
        for told in self.on_closed:
            told(execution)
        self.changed()

    def check(self, execution: Execution) -> None:
        """Replay a run from its own history: it must come to the same (design 3)."""
        definition = self.registry.workflow(execution.started.workflow_name, execution.started.version)
        if definition is None or execution.blocked is not None or not self._checks(execution):
            return
        verdict = verify(execution.document(), definition)
        if not verdict.is_clean:
            self.troubled.append(execution)
            execution.disagreement = NonDeterminismError(
                f"{execution.title} does not come to the same when it is replayed from its own history, so what it "
                f"does follows from more than its history: {verdict.message}",
                **({} if verdict.divergence is None else msgspec.to_builtins(verdict.divergence)),
            )


def _exception_of(task: asyncio.Task[Any] | None) -> BaseException | None:
    if task is None or not task.done() or task.cancelled():
        return None
    return task.exception()
