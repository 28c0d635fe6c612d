"""One run as a worker has it: the parked code, where its history ends, and what has come for it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from harvest.history.events import Event
from harvest.history.kinds import EventKind
from harvest.replay import unwinding
from harvest.replay.run import Run
from harvest.worker.options import Counters
from harvest.worker.snapshots import Snapshots
from harvest.worker.tracing import Trace
from harvest.worker.watch import StepInterrupted, StepWatch

_LOCAL = frozenset((EventKind.LOCAL_ACTIVITY_COMPLETED, EventKind.LOCAL_ACTIVITY_FAILED))


class Result(Struct, frozen=True):
    """How an eager or local activity ended: the event to merge into the next decision."""

    seq: int
    attempt: int
    kind: int
    payload: bytes

    @property
    def is_local(self) -> bool:
        """Whether it is of a local activity, which has no task in the database."""
        return self.kind in _LOCAL


class Work:
    """A run that this worker holds, or has resident. `next_event_id` is the id that its next event will have.

    `history` is its beginning, dense, where that is kept in place of parked code; `cached` of the events in `delta`
    came from there.
    """

    __slots__ = (
        "again", "attempt", "blocked_count", "busy", "cached", "consumed", "deadline_at", "decided_through_hint",
        "delta", "execution_id", "history", "history_bytes", "hold_until", "inbox", "inflight", "next_event_id",
        "owner_epoch", "partition", "queue", "queued", "refusals", "run", "stale", "trace", "version",
        "woken", "workflow_id", "workflow_name",
    )  # fmt: skip

    def __init__(
        self,
        execution_id: UUID,
        *,
        partition: int,
        workflow_name: str,
        workflow_id: str,
        version: int,
        queue: str,
        deadline_at: datetime | None,
    ) -> None:
        self.execution_id = execution_id
        self.partition = partition
        self.workflow_name = workflow_name
        self.workflow_id = workflow_id
        self.version = version
        self.queue = queue
        self.deadline_at = deadline_at
        self.attempt = 0
        self.again: tuple[int, int | None] | None = None
        self.next_event_id = 1
        self.history_bytes = 0
        self.blocked_count = 0
        self.owner_epoch: int | None = None
        self.refusals = 0
        self.hold_until: float | None = None
        self.run: Run | None = None
        self.history: list[Event] | None = None
        self.cached = 0
        self.delta: list[Event] = []
        self.inbox: deque[Result] = deque()
        self.consumed: list[tuple[Result, datetime]] = []
        self.inflight: dict[int, int] = {}
        self.busy = False
        self.queued = False
        self.stale = False
        self.decided_through_hint = 0
        self.trace: Trace | None = None
        self.woken = 0

    def retake(self) -> bool:
        """Go on under the claim that came while the last answer was under way, if there was one."""
        if self.again is None:
            return False
        (self.attempt, self.owner_epoch), self.again = self.again, None
        return True

    @property
    def is_busy_elsewhere(self) -> bool:
        """Whether activities of the run are under way in this process, so that it stays held."""
        return bool(self.inflight) or (self.run is not None and bool(self.run.locals))

    @property
    def rests(self) -> bool:
        """Whether what it was told is decided and written, so that only what comes from elsewhere can wake it."""
        is_waiting = self.busy or self.queued or self.stale or bool(self.refusals)
        return not (is_waiting or self.inbox or self.consumed or (self.run is not None and self.run.locals))

    @property
    def wants(self) -> int:
        """The id of the first event that it has not seen: all of them where neither code nor history is here."""
        if self.run is not None:
            return self.next_event_id
        return self.history[-1].event_id + 1 if self.history else 1

    def has_result(self, seq: int) -> bool:
        """Whether the end of an activity waits to be committed."""
        return any(result.seq == seq for result in self.inbox) or any(result.seq == seq for result, _ in self.consumed)


class Residents:
    """Parked runs in memory, least recently used first, bounded by entries and bytes (design 6).

    Without `keeps_code` no code stays parked, and with `snapshots` the histories of the runs do.
    """

    def __init__(
        self,
        entries: int,
        most_bytes: int,
        counters: Counters,
        steps: StepWatch,
        *,
        keeps_code: bool = True,
        keeps_history: bool = False,
    ) -> None:
        self.keeps_code = keeps_code
        self.snapshots = Snapshots(entries, most_bytes) if keeps_history else None
        self._works: OrderedDict[UUID, tuple[Work, int]] = OrderedDict()
        self._entries = entries
        self._most_bytes = most_bytes
        self._bytes = 0
        self._counters = counters
        self._steps = steps

    def __len__(self) -> int:
        return len(self._works)

    @property
    def bytes(self) -> int:
        """Rough bytes of memory in use."""
        return self._bytes + (0 if self.snapshots is None else self.snapshots.bytes)

    def put(self, work: Work) -> None:
        """Keep a parked run, and let go of the oldest while a bound is passed."""
        assert work.run is not None
        if not self.keeps_code:
            self.rest(work)
            return
        self.take(work.execution_id)
        weight = work.run.weight()
        self._works[work.execution_id] = (work, weight)
        self._bytes += weight
        while len(self._works) > self._entries or self._bytes > self._most_bytes:
            _, (oldest, its_weight) = self._works.popitem(last=False)
            self._bytes -= its_weight
            self._counters.evicted += 1
            self.let_go(oldest)

    def rest(self, work: Work) -> None:
        """Its decision is committed and nothing has come for it: let go of code that is not to stay parked."""
        run = work.run
        if self.keeps_code or run is None or run.locals:
            return
        work.decided_through_hint = run.decided_through
        history, work.history = work.history, None
        if self.snapshots is not None and history:
            evicted = self.snapshots.evicted
            self.snapshots.put(work.execution_id, history)
            self._counters.evicted += self.snapshots.evicted - evicted
        self.let_go(work)

    def recall(self, work: Work) -> int:
        """The first event that a load must bring for a run; what is kept of its history is with it from now on."""
        if self.snapshots is not None and work.run is None and work.history is None:
            work.history = self.snapshots.take(work.execution_id)
        return work.wants

    def note(self, work: Work) -> None:
        """Keep what a run is about to be told, if it follows what is kept."""
        if self.snapshots is None or not work.delta:
            return
        if work.run is None:
            work.history = work.delta
        elif work.history and work.delta[0].event_id == work.history[-1].event_id + 1:
            work.history = work.history + work.delta

    def take(self, execution_id: UUID) -> Work | None:
        """Take a run out, if it is here."""
        entry = self._works.pop(execution_id, None)
        if entry is None:
            return None
        self._bytes -= entry[1]
        return entry[0]

    def find(self, execution_id: UUID) -> Work | None:
        """Look at a run that stays here, if it is."""
        entry = self._works.get(execution_id)
        return None if entry is None else entry[0]

    def works(self) -> list[Work]:
        """All that are here, least recently used first."""
        return [work for work, _ in self._works.values()]

    def let_go(self, work: Work) -> None:
        """Unwind a run that nobody goes on with. Its code may hold this thread: a step like any other."""
        run, work.run = work.run, None
        if run is None:
            return
        self._steps.begin(work.workflow_name)
        try:
            ended = run.release(self._steps.hurry)
        except StepInterrupted:
            # Whatever of it still lives must not be collected in somebody else's step.
            unwinding.keep([run])
            ended = False
        finally:
            interrupted = self._steps.end() is not None
        if interrupted or not ended:
            self._counters.refused_release += 1

    def clear(self, keep: Callable[[Work], bool] = lambda _: False) -> None:
        """Let go of all but those that `keep` wants, and of every history."""
        if self.snapshots is not None:
            self.snapshots.clear()
        for execution_id in [i for i, (work, _) in self._works.items() if not keep(work)]:
            work = self.take(execution_id)
            if work is not None:
                self.let_go(work)
