"""The timestamps and the outcome of each attempt to decide, taken beside the hot path (issue build 3).

Every attempt is counted once, when its commit has passed or it is put aside: one that was refused and tried again goes
on as the same. Its row for the ring of its run is kept while there is budget, and written by `worker/rollups.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from msgspec import Struct

from harvest import clock
from harvest.history.built_in import CANARY
from harvest.history.events import Event
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.store.claims import Claimed
from harvest.store.decisions import (
    DECLINED,
    ColdReason,
    DecisionAnswer,
    DecisionOutcome,
    DecisionRow,
    DecisionSource,
)
from harvest.store.measures import BOUNDS, Share, bucket_of
from harvest.store.store import Store
from harvest.worker.metrics import Measures, span_tracer
from harvest.worker.options import WorkerOptions

if TYPE_CHECKING:
    from harvest.worker.deciding import Decision
    from harvest.worker.work import Work

ROWS_A_SECOND: Final = 20
ROWS_AT_ONCE: Final = 300
MOST_WAITING: Final = 500
SLOW_NANOSECONDS: Final = 100_000_000
MOST_REMEMBERED: Final = 10_000

_OUTCOMES: Final = {"": DecisionOutcome.HIT} | {
    reason: DecisionOutcome.DECLINED if reason in DECLINED else DecisionOutcome.COLD for reason in ColdReason
}
_SIGNAL: Final = int(EventKind.SIGNAL_RECEIVED)
_UPDATE: Final = int(EventKind.UPDATE_ADMITTED)
_ORDINARY: Final = frozenset({"", ColdReason.FIRST})


class Trace(Struct, gc=False):
    """One attempt under way. Times in nanoseconds of this process's clock, 0 while they are not known.

    `took` is the time from `taken` until the code had run for the first time. `reason` is a ColdReason, or empty.
    """

    taken: int
    woken: int = 0
    notified: int = 0
    loaded: int = 0
    driven: int = 0
    took: int = 0
    events: int = 0
    bytes: int = 0
    signals: int = 0
    updates: int = 0
    reason: str = ""
    source: str = DecisionSource.RESIDENT


class Ended(Struct, frozen=True, gc=False):
    """An attempt that is over and waits to be written."""

    execution_id: UUID
    epoch: int | None
    trace: Trace
    outcome: str
    answer: str
    sent: int
    answered: int


class Tracer:
    """One for each shard of a worker. `measures` has what it counts."""

    def __init__(self, store: Store, worker: UUID, options: WorkerOptions) -> None:
        self.measures = Measures(store.shard_id)
        self.ended: list[Ended] = []
        self.dropped = 0
        self._store = store
        self._worker = worker
        self._keeps_residents = options.resident_workflows and options.lease_ttl > 0 and options.workflow_cache_size > 0
        self._budget = ROWS_AT_ONCE
        self._left: OrderedDict[UUID, ColdReason] = OrderedDict()
        self._heard = 0
        self._ahead = 0.0
        self._spans = span_tracer()
        self.strangers: set[UUID] = set()

    def heard(self) -> None:
        """A wake has come."""
        self._heard = clock.nanoseconds()

    def taken(self, work: Work, claimed: Claimed) -> None:
        """A run was claimed, resident or to be replayed."""
        now = clock.nanoseconds()
        due = self._local(claimed.due)
        trace = work.trace = Trace(taken=now, woken=min(due, now))
        if due <= self._heard:
            trace.notified = self._heard
        if work.run is None:
            trace.reason = self._why(claimed)
        self.measures.dispatched(claimed.queue, (now - trace.woken) / 1e9)

    def _why(self, claimed: Claimed) -> ColdReason:
        """Why the code of a run is not here."""
        left = self._left.pop(claimed.execution_id, None)
        before = claimed.last_worker
        if before != self._worker:
            self.strangers.add(claimed.execution_id)
        if not claimed.decided_through:
            return ColdReason.FIRST
        if before is not None and before != self._worker:
            return ColdReason.OTHER_WORKER
        if left is not None:
            return left
        if claimed.blocked_count:
            return ColdReason.BLOCKED
        if before is None:
            return ColdReason.TAKEN_OVER
        return ColdReason.EVICTED if self._keeps_residents else ColdReason.RESIDENTS_OFF

    def begin(self, work: Work) -> None:
        """The run is about to be brought up to what has come for it."""
        now = clock.nanoseconds()
        trace = work.trace
        if trace is None:
            woken = work.woken
            trace = work.trace = Trace(taken=now, woken=woken, notified=woken)
        work.woken = 0
        trace.loaded = now
        delta = work.delta
        if delta:
            loaded = delta[work.cached :] if work.cached else delta
            trace.events += len(loaded)
            trace.bytes += sum(len(event.payload) for event in loaded)
            _note_messages(trace, delta, work.decided_through_hint)
        if work.run is None:
            if trace.source == DecisionSource.RESIDENT:
                trace.source = DecisionSource.MEMORY if work.cached else DecisionSource.POSTGRES
            if not trace.reason:
                trace.reason = ColdReason.EVICTED if self._keeps_residents else ColdReason.RESIDENTS_OFF

    def driven(self, work: Work) -> None:
        """Its code has run as far as it goes."""
        trace = work.trace
        if trace is not None:
            trace.driven = now = clock.nanoseconds()
            trace.took = trace.took or now - trace.taken

    def passed(self, work: Work, sent: int, answered: int) -> None:
        """Its decision is in history; `sent` and `answered` are when its commit was."""
        trace = work.trace
        if trace is None:
            return
        work.trace = None
        reason = trace.reason
        outcome = _OUTCOMES[reason]
        self._count(work, trace, outcome, reason)
        if trace.signals:
            self.measures.count(("signal.received", work.workflow_name), trace.signals)
        if trace.updates:
            self.measures.count(("update.admitted", work.workflow_name), trace.updates)
        if self._budget > 0 or reason not in _ORDINARY or answered - (trace.woken or trace.taken) > SLOW_NANOSECONDS:
            self._keep(work, trace, outcome, DecisionAnswer.PASSED, sent, answered)
        if self._spans is not None:
            self._tell(work, trace, outcome, answered)

    def wrote(self, decision: Decision) -> None:
        """A decision that has passed has set timers or answered updates."""
        name = decision.work.workflow_name
        if decision.timers:
            self.measures.count(("timer.started", name), decision.timers)
        if decision.answers is not None:
            now = self._store.clock.now()
            for answer in decision.answers:
                status = "completed" if answer.failure is None else "rejected" if answer.rejected else "failed"
                self.measures.update_answered(name, status, max(0.0, (now - answer.admitted_at).total_seconds()))

    def blocked(self, work: Work) -> None:
        """The run was put aside."""
        trace = work.trace
        if trace is None:
            return
        work.trace = None
        now = clock.nanoseconds()
        self._count(work, trace, DecisionOutcome.BLOCKED, trace.reason)
        self._keep(work, trace, DecisionOutcome.BLOCKED, DecisionAnswer.BLOCKED, now, now)
        if self._spans is not None:
            self._tell(work, trace, DecisionOutcome.BLOCKED, now)

    def refused(self, work: Work, answer: DecisionAnswer, reason: ColdReason | None = None) -> None:
        """The run was let go with nothing committed; whoever takes it begins anew. `reason` is why it will be cold.

        It is not counted: the attempt that follows is.
        """
        trace = work.trace
        work.trace = None
        self.let_go(work, reason)
        if trace is not None and trace.loaded:
            now = clock.nanoseconds()
            self._keep(work, trace, _OUTCOMES[trace.reason], answer, now, now)

    def fenced(self, work: Work) -> None:
        """Its commit was refused because another holds the run by now."""
        self.measures.fenced()
        self.refused(work, DecisionAnswer.FENCED)

    def closed(self, work: Work, state: State, *, goes_on: bool) -> None:
        """A decision that has passed has closed the run; one that goes on as another hands on what nobody took."""
        run = work.run
        assert run is not None
        if not goes_on and (unhandled := run.unhandled_signals()):
            self.measures.count(("signal.unhandled", work.workflow_name), unhandled)
        self.measures.closed(
            work.workflow_name,
            state,
            (run.now_at - run.started_at).total_seconds(),
            work.next_event_id - 1,
        )

    def let_go(self, work: Work, reason: ColdReason | None) -> None:
        """Parked code was given up for a reason that its next attempt has to name."""
        if reason is not None:
            self._left[work.execution_id] = reason
            if len(self._left) > MOST_REMEMBERED:
                self._left.popitem(last=False)

    def _count(self, work: Work, trace: Trace, outcome: str, reason: str) -> None:
        shares = self.measures.fresh.shares
        key = (work.workflow_name, work.queue, outcome, reason, trace.source)
        share = shares.get(key)
        if share is None:
            share = shares[key] = Share(buckets=[0] * (len(BOUNDS) + 1))
        took = trace.took
        share.count += 1
        share.sum += took / 1e9
        share.buckets[bucket_of(took)] += 1
        if trace.events:
            share.events += trace.events
            share.bytes += trace.bytes
        if self.measures.records:
            self.measures.record(("workflow.resident.duration", work.workflow_name, outcome), took / 1e9)

    def _keep(self, work: Work, trace: Trace, outcome: str, answer: str, sent: int, answered: int) -> None:
        if work.workflow_name == CANARY:
            return  # its rows go as soon as it has ended
        if len(self.ended) >= MOST_WAITING:
            self.dropped += 1
            return
        self._budget -= 1
        self.ended.append(Ended(work.execution_id, work.owner_epoch, trace, outcome, answer, sent, answered))

    def refill(self, seconds: float) -> None:
        """Seconds have gone by: so many rows more may be written, and the database's clock is compared anew."""
        self._ahead = (self._store.clock.now() - clock.now()).total_seconds()
        self._budget = int(min(ROWS_AT_ONCE, max(self._budget, 0) + max(1.0, ROWS_A_SECOND * seconds)))

    def rows(self, ended: list[Ended], numbers: dict[UUID, int]) -> list[DecisionRow]:
        """The rows of attempts; `numbers` has each run's last number, and is counted on."""
        offset = self._store.clock.now() - clock.now()
        rows = []
        for each in ended:
            trace = each.trace
            number = numbers[each.execution_id] = numbers.get(each.execution_id, 0) + 1
            loaded = max(trace.loaded, trace.taken)
            driven = max(trace.driven, loaded)
            sent = max(each.sent, driven)
            rows.append(
                DecisionRow(
                    execution_id=each.execution_id,
                    number=number,
                    epoch=each.epoch,
                    outcome=each.outcome,
                    reason=trace.reason,
                    source=trace.source,
                    answer=each.answer,
                    events_loaded=trace.events,
                    bytes_loaded=trace.bytes,
                    woken_at=_instant(trace.woken, offset) if trace.woken else None,
                    notified_at=_instant(trace.notified, offset) if trace.notified else None,
                    taken_at=_instant(trace.taken, offset),
                    loaded_at=_instant(loaded, offset),
                    driven_at=_instant(driven, offset),
                    fence_checked_at=_instant(sent, offset),
                    committed_at=_instant(max(each.answered, sent), offset),
                )
            )
        return rows

    def _local(self, at: datetime) -> int:
        """An instant of the database in this process's nanoseconds."""
        return int((at.timestamp() - self._ahead) * 1e9)

    def _tell(self, work: Work, trace: Trace, outcome: str, answered: int) -> None:
        assert self._spans is not None
        attributes: dict[str, Any] = {
            "harvest.replay": trace.source != DecisionSource.RESIDENT,
            "harvest.outcome": outcome,
            "harvest.reason": trace.reason,
            "harvest.workflow": work.workflow_name,
            "harvest.execution_id": str(work.execution_id),
            "harvest.events_loaded": trace.events,
        }
        span = self._spans.start_span("workflow.execute", start_time=trace.taken, attributes=attributes)
        span.end(end_time=answered)


def _note_messages(trace: Trace, delta: list[Event], decided_through: int) -> None:
    """What has come of signals and updates since the last decision."""
    for event in reversed(delta):
        if event.event_id <= decided_through:
            return
        if event.kind == _SIGNAL:
            trace.signals += 1
        elif event.kind == _UPDATE:
            trace.updates += 1


def _instant(nanoseconds: int, offset: timedelta) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC) + offset
