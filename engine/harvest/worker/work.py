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
    """A run that this worker holds, or has resident. `next_event_id` is the id that its next event will have."""

    __slots__ = (
        "attempt", "blocked_count", "busy", "consumed", "deadline_at", "decided_through_hint", "delta",
        "execution_id", "history_bytes", "hold_until", "inbox", "inflight", "next_event_id", "partition", "queue",
        "queued", "refusals", "run", "stale", "version", "workflow_id", "workflow_name",
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
        self.next_event_id = 1
        self.history_bytes = 0
        self.blocked_count = 0
        self.refusals = 0
        self.hold_until: float | None = None
        self.run: Run | None = None
        self.delta: list[Event] = []
        self.inbox: deque[Result] = deque()
        self.consumed: list[tuple[Result, datetime]] = []
        self.inflight: dict[int, int] = {}
        self.busy = False
        self.queued = False
        self.stale = False
        self.decided_through_hint = 0

    @property
    def is_busy_elsewhere(self) -> bool:
        """Whether activities of the run are under way in this process, so that it stays held."""
        return bool(self.inflight) or (self.run is not None and bool(self.run.locals))

    def has_result(self, seq: int) -> bool:
        """Whether the end of an activity waits to be committed."""
        return any(result.seq == seq for result in self.inbox) or any(result.seq == seq for result, _ in self.consumed)


class Residents:
    """Parked runs in memory, least recently used first, bounded by entries and bytes (design 6)."""

    def __init__(self, entries: int, most_bytes: int, counters: Counters, steps: StepWatch) -> None:
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
        return self._bytes

    def put(self, work: Work) -> None:
        """Keep a parked run, and let go of the oldest while a bound is passed."""
        assert work.run is not None
        self.take(work.execution_id)
        weight = work.run.weight()
        self._works[work.execution_id] = (work, weight)
        self._bytes += weight
        while len(self._works) > self._entries or self._bytes > self._most_bytes:
            _, (oldest, its_weight) = self._works.popitem(last=False)
            self._bytes -= its_weight
            self._counters.evicted += 1
            self.let_go(oldest)

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

    def let_go(self, work: Work) -> None:
        """Unwind a run that nobody goes on with. Its code may hold this thread: a step like any other."""
        run, work.run = work.run, None
        if run is None:
            return
        self._steps.begin(work.workflow_name)
        try:
            ended = run.release()
        except StepInterrupted:
            # Whatever of it still lives must not be collected in somebody else's step.
            unwinding.keep([run])
            ended = False
        finally:
            interrupted = self._steps.end() is not None
        if interrupted or not ended:
            self._counters.refused_release += 1

    def clear(self, keep: Callable[[Work], bool] = lambda _: False) -> None:
        """Let go of all but those that `keep` wants."""
        for execution_id in [i for i, (work, _) in self._works.items() if not keep(work)]:
            work = self.take(execution_id)
            if work is not None:
                self.let_go(work)
