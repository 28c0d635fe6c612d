"""What follows from the answer to a commit, or its absence: a run goes on, is tried again, or is let go (design 4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Protocol
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import HarvestError, ShardUnavailableError
from harvest.history.events import Event
from harvest.history.states import CLOSES_AS
from harvest.store import claims
from harvest.store.commit import Answer
from harvest.store.decisions import ColdReason, DecisionAnswer
from harvest.store.store import Store
from harvest.worker.deciding import Decider, Decision
from harvest.worker.held import HeldRuns
from harvest.worker.locals import LocalRunner
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.recovery import Recovery
from harvest.worker.tracing import Tracer
from harvest.worker.work import Residents, Result, Work

_log = logging.getLogger("harvest.worker")
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.5


class Runner(Protocol):
    """What the committer asks of the part that runs activities."""

    def start_activities(self, work: Work, decision: Decision) -> None:
        """Start the eager activities of a confirmed decision."""

    def pending(self) -> None:
        """Activities were put into a queue for whoever claims them."""

    def cancel(self, execution_id: UUID, seqs: list[int] | None) -> None:
        """Stop activities of a run here: those, or all of them."""


class Answered(HeldRuns):
    """The held runs of one shard, and what becomes of them when their decisions are answered."""

    def __init__(
        self,
        store: Store,
        worker: UUID,
        decider: Decider,
        runner: Runner,
        residents: Residents,
        recovery: Recovery,
        local_runner: Callable[[Callable[[UUID, Result], None]], LocalRunner],
        options: WorkerOptions,
        counters: Counters,
    ) -> None:
        super().__init__(residents, local_runner)
        self.on_timer: Callable[[datetime], None] = lambda _: None
        self.on_stale: Callable[[Work], None] = lambda _: None
        self.on_deliveries: Callable[[UUID], None] = lambda _: None
        self.on_successor: Callable[[], None] = lambda: None
        self.on_progress: Callable[[UUID, list[bytes]], None] = lambda _, __: None
        self.on_fenced: Callable[[Work], None] = lambda _: None
        self.on_sessions: Callable[[list[str]], None] = lambda _: None
        self.tracer = Tracer(store, worker, options)
        self._store = store
        self._worker = worker
        self._decider = decider
        self._runner = runner
        self._recovery = recovery
        self._counters = counters

    async def _settle(self, decisions: list[Decision], answers: dict[UUID, Answer], sent: int) -> None:
        """Act on the answers; what passed comes first, and waits for nothing."""
        behind: list[Work] = []
        answered = clock.nanoseconds()
        for decision in decisions:
            work, answer = decision.work, answers[decision.work.execution_id]
            if answer is Answer.PASSED:
                self.tracer.passed(work, sent, answered)
                if decision.timers or decision.answers is not None:
                    self.tracer.wrote(decision)
            if self.held.get(work.execution_id) is not work:
                self._superseded(decision, answer)
            elif answer is Answer.PASSED:
                self._passed(decision)
            elif answer is Answer.BUSY:
                self._counters.busy += 1
                self._again([decision])
            else:
                self._give_back(decision)
                work.refusals += 1
                if answer is Answer.FENCED:
                    self._counters.fenced += 1
                    self.tracer.fenced(work)
                    self.on_fenced(work)
                    self._drop(work, is_anothers=work.owner_epoch is not None)
                elif work.consumed:
                    # It bet on places in history that others took.
                    self._counters.moved += 1
                    self._counters.declined_overtaken += 1
                    self.tracer.refused(work, DecisionAnswer.OVERTAKEN, ColdReason.OVERTAKEN)
                    self._drop(work)
                else:
                    self._counters.moved += 1
                    behind.append(work)
        if behind:
            await self._catch_up(behind)

    def _superseded(self, decision: Decision, answer: Answer) -> None:
        """The run was claimed anew, or went to another worker, before this answer was read: this work is let go."""
        if answer is not Answer.PASSED:
            self._give_back(decision)
            self._drop(decision.work)
            return
        if decision.eager:
            self._runner.start_activities(decision.work, decision)
        self._announce(decision)
        self.let_go(decision.work)

    def _again(self, decisions: list[Decision]) -> None:
        """Nothing was written: decide again, at once the first time, then after a pause."""
        for decision in decisions:
            self._give_back(decision)
            work = decision.work
            work.refusals += 1
            work.busy = False
            if work.refusals == 1:
                self.ready(work)
            else:
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(work.refusals, 10))
                asyncio.get_running_loop().call_later(clock.jittered(pause), self.ready, work)

    def _passed(self, decision: Decision) -> None:
        work = decision.work
        run = work.run
        assert run is not None
        self._counters.passed += 1
        work.busy = False
        work.refusals = 0
        work.blocked_count = 0
        work.consumed.clear()
        work.hold_until = None
        work.next_event_id = decision.next_event_id
        work.history_bytes += decision.size
        self._announce(decision)
        if decision.outcome is not None:
            self._counters.closed += 1
            goes_on = decision.outcome.onward is not None
            self.tracer.closed(work, CLOSES_AS[decision.outcome.kind], goes_on=goes_on)
            self.held.pop(work.execution_id, None)
            self.locals.forget(work.execution_id)
            if work.inflight:
                self._runner.cancel(work.execution_id, None)
            self.residents.let_go(work)
            return
        run.recorded(decision.next_event_id - 1)
        for command in decision.eager:
            work.inflight[command.seq] = 1
        if decision.eager:
            self._runner.start_activities(work, decision)
        again = work.retake()
        if work.stale or again:
            work.stale = False
            self.on_stale(work)
        if work.inbox or (decision.holds and not work.is_busy_elsewhere):
            self.ready(work)
        elif again:
            return
        elif not work.is_busy_elsewhere and not work.queued:
            self.held.pop(work.execution_id, None)
            self.residents.put(work)
        elif not work.queued:
            self.residents.rest(work)

    def _announce(self, decision: Decision) -> None:
        """Tell everybody whom a committed decision concerns."""
        work = decision.work
        self._store.hints.touch(work.partition)
        if decision.cancelled:
            self._runner.cancel(work.execution_id, decision.cancelled)
        if decision.delivers:
            self.on_deliveries(work.execution_id)
        if decision.sessions is not None:
            self.on_sessions(decision.sessions)
        if decision.progress:
            self.on_progress(work.execution_id, decision.progress)
        if decision.outcome is not None and decision.outcome.onward is not None:
            self.on_successor()
        if decision.queued:
            self._runner.pending()
        if decision.fires_at is not None:
            self.on_timer(decision.fires_at)

    async def _catch_up(self, works: list[Work]) -> None:
        """Others have written first: deliver what they wrote and go on."""
        try:
            found = await claims.load_events(self._store, {work.execution_id: work.next_event_id for work in works})
        except (ShardUnavailableError, asyncpg.PostgresError):
            for work in works:
                self._drop(work)
            return
        for work in works:
            events = found[work.execution_id]
            self._count_loaded(events)
            work.busy = False
            self.bring(work, events)
            self.ready(work)

    def _block(self, work: Work, error: HarvestError) -> None:
        """Put a run aside with its reason."""
        self._counters.blocked += 1
        work.blocked_count += 1
        self.tracer.blocked(work)
        _log.error("execution %s is blocked: %s", work.execution_id, error.message.partition("\n")[0].rstrip(":"))
        self._recovery.block(work, self.let_go(work), error)

    def _drop(self, work: Work, *, is_anothers: bool = False) -> None:
        """Let go of a run: its results are appended by themselves, its task goes back, whoever takes it replays."""
        self._recovery.drop(work, self.let_go(work), is_anothers=is_anothers)

    def hand_back(self, work: Work) -> None:
        """Let go of a run whose partition is another's now; what it still has goes into history by itself."""
        if self.held.get(work.execution_id) is work:
            self._drop(work, is_anothers=True)
        elif self.residents.find(work.execution_id) is work:
            self.residents.take(work.execution_id)
            self.residents.let_go(work)

    def forget(self, work: Work) -> None:
        """Let go of a run whose events could not be loaded or do not fit; its task goes back."""
        self._drop(work)

    def _unknown(self, decisions: list[Decision], error: BaseException) -> None:
        """The answer was lost: whether it passed or not, go on from what the database says (design 4)."""
        self._counters.unknown += len(decisions)
        _log.warning("the answer to a commit of %d decisions was lost: %s", len(decisions), error)
        for decision in decisions:
            self._give_back(decision)
            self.tracer.refused(decision.work, DecisionAnswer.UNKNOWN, ColdReason.UNKNOWN_COMMIT)
        self._recovery.doubt([(decision.work, self.let_go(decision.work)) for decision in decisions])

    def _give_back(self, decision: Decision) -> None:
        for command in decision.eager:
            self._decider.give_back(command)

    def _count_loaded(self, events: list[Event]) -> None:
        self._counters.note_loaded(events)
        self._counters.statements += 1
