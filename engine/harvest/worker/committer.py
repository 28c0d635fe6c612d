"""The heart of a worker: decides what is ready and commits it in one statement (design 4).

A batch is whatever became ready while the last one was committed: nothing waits for company.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import (
    CommitRefusedError,
    DecisionFailedError,
    OutcomeUnknownError,
    ShardUnavailableError,
)
from harvest.history.kinds import EventKind
from harvest.store import claims
from harvest.store.commit import Answer, Batch, commit
from harvest.store.decisions import ColdReason, DecisionAnswer
from harvest.store.pool import COMMIT, is_passing
from harvest.store.store import Store
from harvest.worker.answered import Answered, Runner
from harvest.worker.deciding import Decider, Decision
from harvest.worker.locals import LocalRunner
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.recovery import Recovery
from harvest.worker.work import Residents, Result, Work

_log = logging.getLogger("harvest.worker")
BATCH_ROWS = 2_000
BATCH_BYTES = 4 * 1024 * 1024
LOCK_AFTER_REFUSALS = 2
HOLD_SECONDS = 1.0
_CAN_WAIT = frozenset((EventKind.LOCAL_ACTIVITY_SCHEDULED, EventKind.SIDE_EFFECT_RECORDED, EventKind.MARKER_RECORDED))


class Committer(Answered):
    """Decides and commits for one shard. `ready` takes a run that something has come for."""

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
        super().__init__(store, worker, decider, runner, residents, recovery, local_runner, options, counters)
        self._options = options
        self._stopping = False
        self._ticking = 0
        self._locking: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Decide and commit until stopped: one batch is decided while another is at the database."""
        await asyncio.gather(*(self._loop() for _ in range(COMMIT.size)))

    async def _loop(self) -> None:
        while not self._stopping:
            if not self._queue:
                if not self._ticking and not self._locking:
                    self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            self._ticking += 1
            try:
                await self.tick()
            finally:
                self._ticking -= 1

    def stop(self) -> None:
        """Take no further batch."""
        self._stopping = True
        self._wake.set()

    async def drained(self, seconds: float) -> None:
        """Wait until nothing is left to decide, then cut off what waits for a lock."""
        await clock.wait_event(self._idle, seconds)
        for task in self._locking:
            task.cancel()
        await asyncio.gather(*self._locking, return_exceptions=True)

    async def tick(self) -> None:
        """One batch: step what is ready, commit it, act on the answers."""
        batch = Batch()
        decisions: list[Decision] = []
        now = self._store.clock.now()
        while self._queue and len(decisions) < self._options.batch:
            work = self._queue.popleft()
            if not work.queued or self.held.get(work.execution_id) is not work:
                continue
            work.queued = False
            decision = await self._decide(batch, work, now)
            if decision is not None:
                decisions.append(decision)
            if batch.rows > BATCH_ROWS or batch.bytes > BATCH_BYTES:
                break
        if decisions:
            await self._commit(batch, decisions)

    async def _decide(self, batch: Batch, work: Work, now: datetime) -> Decision | None:
        work.busy = True
        work.retake()
        if work.delta and work.consumed:
            # Others have written first, where the results of local activities were bet on.
            self._counters.declined_overtaken += 1
            self.tracer.refused(work, DecisionAnswer.OVERTAKEN, ColdReason.OVERTAKEN)
            self._drop(work)
            return None
        if work.refusals >= LOCK_AFTER_REFUSALS:
            self._lock(work)
            return None
        if work.run is None and not work.delta and not await self._load_whole(work):
            return None
        self.tracer.begin(work)
        self.residents.note(work)
        error = self._decider.step(work, now)
        self.tracer.driven(work)
        if error is not None:
            self._block(work, error)
            return None
        self.locals.sync(work)
        return None if self._waits_for_locals(work) else self._filled(batch, work, now)

    def _waits_for_locals(self, work: Work) -> bool:
        """A run that only goes from one short local activity to the next is committed once, or once a second."""
        run = work.run
        if run is None or not run.locals or run.is_done or run.details is not None or run.upserts or run.progress:
            return False
        if any(command.kind not in _CAN_WAIT for command in run.asked.values()):
            return False
        if not all(result.is_local for result, _ in work.consumed):
            # Until it is written, the task of an activity that has ended runs towards its timeout.
            return False
        now = clock.monotonic()
        if work.hold_until is None:
            work.hold_until = now + HOLD_SECONDS
            asyncio.get_running_loop().call_later(HOLD_SECONDS + 0.01, self.ready, work)
        if now >= work.hold_until:
            return False
        work.busy = False
        return True

    def _filled(self, batch: Batch, work: Work, now: datetime) -> Decision | None:
        try:
            return self._decider.fill(batch, work, now)
        except Exception as error:
            _log.exception("the decision of execution %s cannot be written", work.execution_id)
            self._block(work, DecisionFailedError(f"writing this decision failed: {error!r}"))
            return None

    async def _load_whole(self, work: Work) -> bool:
        """A held run whose parked code was let go is replayed, from what is kept of its history, or all of it."""
        try:
            first = self.residents.recall(work)
            events = (await claims.load_events(self._store, {work.execution_id: first}))[work.execution_id]
            if first > 1 and first + len(events) < work.next_event_id:
                work.history = None
                events = (await claims.load_events(self._store, {work.execution_id: 1}))[work.execution_id]
        except (ShardUnavailableError, asyncpg.PostgresError):
            self._drop(work)
            return False
        self._count_loaded(events)
        self.bring(work, events)
        return True

    async def _commit(self, batch: Batch, decisions: list[Decision]) -> None:
        sent = clock.nanoseconds()
        try:
            async with self._store.commit.connection(writes=True) as connection:
                answers = await commit(self._store, connection, self._worker, batch)
        except OutcomeUnknownError as error:
            self._unknown(decisions, error)
            return
        except ShardUnavailableError:
            self._again(decisions)
            return
        except asyncpg.PostgresError as error:
            if is_passing(error):
                _log.warning("shard %s: a commit was refused for now: %s", self._store.shard_id, error)
                self._again(decisions)
            else:
                await self._split(decisions, error)
            return
        self._counters.commits += 1
        self._counters.statements += 1
        await self._settle(decisions, answers, sent)

    def _lock(self, work: Work) -> None:
        """Commit this run by itself, under a lock: a stream of signals, or one foreign lock, holds up no batch."""
        task = asyncio.get_running_loop().create_task(self._commit_locked(work))
        self._locking.add(task)
        task.add_done_callback(self._unlocked)

    def _unlocked(self, task: asyncio.Task[None]) -> None:
        self._locking.discard(task)
        self._wake.set()

    async def _commit_locked(self, work: Work) -> None:
        """The row is locked before the last look at its history, so that nothing can come between."""
        decision = Decision(work, work.next_event_id, None, [], [], None)
        answer, error, sent = Answer.MOVED, None, 0
        try:
            async with self._store.write.connection(writes=True) as connection, connection.transaction():
                await claims.lock_execution(connection, work.execution_id)
                first = work.next_event_id if work.run is not None else 1
                rows = await claims.load_events_on(connection, work.execution_id, first)
                if not rows or not work.consumed:
                    self.bring(work, rows)
                    now = self._store.clock.now()
                    self.tracer.begin(work)
                    self.residents.note(work)
                    error = self._decider.step(work, now)
                    self.tracer.driven(work)
                    if error is None:
                        self.locals.sync(work)
                        batch = Batch()
                        decision = self._decider.fill(batch, work, now)
                        sent = clock.nanoseconds()
                        answer = (await commit(self._store, connection, self._worker, batch))[work.execution_id]
        except OutcomeUnknownError as lost:
            self._unknown([decision], lost)
            return
        except ShardUnavailableError:
            self._again([decision])
            return
        except asyncpg.PostgresError as refused:
            if is_passing(refused):
                self._again([decision])
                return
            self._give_back(decision)
            error = CommitRefusedError(f"the database refuses this decision: {refused}")
        except Exception as failed:
            _log.exception("the decision of execution %s cannot be written", work.execution_id)
            error = DecisionFailedError(f"writing this decision failed: {failed!r}")
        if error is not None:
            self._block(work, error)
            return
        self._counters.commits += 1
        await self._settle([decision], {work.execution_id: answer}, sent)

    async def _split(self, decisions: list[Decision], error: asyncpg.PostgresError) -> None:
        """A statement that fails as a whole is cut in halves; what fails alone is blocked with the database's error."""
        for decision in decisions:
            self._give_back(decision)
        if len(decisions) == 1:
            self._block(decisions[0].work, CommitRefusedError(f"the database refuses this decision: {error}"))
            return
        middle = len(decisions) // 2
        for half in (decisions[:middle], decisions[middle:]):
            batch = Batch()
            now = self._store.clock.now()
            filled = [self._filled(batch, decision.work, now) for decision in half]
            await self._commit(batch, [decision for decision in filled if decision is not None])
