"""The runs that a worker holds on one shard, and what comes for them: events, results, the end of waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from uuid import UUID

from harvest import clock
from harvest.history.events import Event
from harvest.history.kinds import EventKind
from harvest.worker.locals import LocalRunner
from harvest.worker.work import Residents, Result, Work

_ENDS_OF_ACTIVITIES: Final = frozenset(
    (EventKind.ACTIVITY_COMPLETED, EventKind.ACTIVITY_FAILED, EventKind.ACTIVITY_TIMED_OUT)
)


class HeldRuns:
    """Runs whose task this worker holds, those of them that wait to be decided, and the parked ones in memory."""

    def __init__(
        self, residents: Residents, local_runner: Callable[[Callable[[UUID, Result], None]], LocalRunner]
    ) -> None:
        self.held: dict[UUID, Work] = {}
        self.residents = residents
        self.locals = local_runner(self.deliver_local)
        self._queue: deque[Work] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def backlog(self) -> int:
        """Runs that wait to be decided."""
        return len(self._queue)

    def is_deciding(self, work: Work) -> bool:
        """Whether a run is about to be decided here, or its decision on the way."""
        return self.held.get(work.execution_id) is work and (work.busy or work.queued)

    def ready(self, work: Work) -> None:
        """Something has come for this run."""
        if not work.queued and not work.busy and self.held.get(work.execution_id) is work:
            work.queued = True
            self._queue.append(work)
            self._idle.clear()
            self._wake.set()

    def bring(self, work: Work, events: list[Event]) -> None:
        """Events that others wrote, in order from the first on that the run wants."""
        for event in events:
            if event.kind in _ENDS_OF_ACTIVITIES:
                # The database's account of an eager activity has ended without this worker.
                work.inflight.pop(event.seq, None)
        work.cached = 0
        if work.run is None and (history := work.history):
            work.history = None
            if not events or events[0].event_id == history[-1].event_id + 1:
                work.cached = len(history)
                events = history + events
        work.delta = events

    def deliver(self, execution_id: UUID, result: Result) -> bool:
        """An eager activity has ended; False when its run is not here any more."""
        work = self.held.get(execution_id)
        if work is None or work.inflight.get(result.seq) != result.attempt:
            return False
        work.inbox.append(result)
        work.woken = work.woken or clock.nanoseconds()
        self.ready(work)
        return True

    def deliver_local(self, execution_id: UUID, result: Result) -> None:
        """A local activity has ended."""
        work = self.held.get(execution_id)
        if work is not None and work.run is not None and result.seq in work.run.locals:
            work.inbox.append(result)
            self.ready(work)

    def knows(self, execution_id: UUID, seq: int) -> bool:
        """Whether an eager activity runs here, has ended here, or may be about to start."""
        work = self.held.get(execution_id)
        if work is None:
            return False
        ended = [*work.inbox, *(result for result, _ in work.consumed)]
        return work.busy or seq in work.inflight or any(result.seq == seq for result in ended)

    def settle(self, execution_id: UUID, seq: int) -> None:
        """An eager activity will be tried again by whoever claims it: it no longer keeps its run held."""
        work = self.held.get(execution_id)
        if work is not None and work.inflight.pop(seq, None) is not None and not work.inflight:
            self.ready(work)

    def let_go_idle(self) -> None:
        """Let go of the parked code of held runs that nothing has come for."""
        for work in self.held.values():
            if work.run is not None and not work.busy and not work.queued and not work.run.locals:
                work.decided_through_hint = work.run.decided_through
                self.residents.let_go(work)

    def let_go(self, work: Work) -> list[Result]:
        """Let go of a run; returns the results that no decision has brought along."""
        if self.held.get(work.execution_id, work) is work:
            self.held.pop(work.execution_id, None)
            self.locals.forget(work.execution_id)
        work.retake()
        work.busy = work.queued = False
        work.hold_until = None
        results_left = [result for result, _ in work.consumed] + list(work.inbox)
        work.consumed.clear()
        work.inbox.clear()
        work.inflight.clear()
        self.residents.let_go(work)
        return results_left
