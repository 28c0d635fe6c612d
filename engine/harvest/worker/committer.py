"""The heart of a worker: decides what is ready, commits it in one statement, and acts on the answers (design 4).

A batch is whatever became ready while the last one was committed: nothing waits for company.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Protocol
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import CommitRefusedError, HarvestError, ShardUnavailableError
from harvest.history.events import Event
from harvest.store import claims, upkeep
from harvest.store.commit import Answer, Batch, commit
from harvest.store.pool import COMMIT
from harvest.store.store import Store
from harvest.worker.deciding import Decider, Decision, block_code, blocked_delay
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.recovery import append_results
from harvest.worker.work import Residents, Result, Work

_log = logging.getLogger("harvest.worker")
BATCH_ROWS = 2_000
BATCH_BYTES = 4 * 1024 * 1024
LOCK_AFTER_REFUSALS = 3


class Runner(Protocol):
    """What the committer asks of the part that runs activities."""

    def start_activities(self, work: Work, decision: Decision) -> None:
        """Start the eager activities of a confirmed decision."""

    def pending(self) -> None:
        """Activities were put into a queue for whoever claims them."""

    def cancel(self, execution_id: UUID, seqs: list[int] | None) -> None:
        """Stop activities of a run here: those, or all of them."""

    async def adopt(self, ids: list[UUID]) -> None:
        """Run what the database says this worker has claimed and nobody runs."""


class Committer:
    """Decides and commits for one shard. `ready` takes a run that something has come for."""

    def __init__(
        self,
        store: Store,
        worker: UUID,
        decider: Decider,
        runner: Runner,
        residents: Residents,
        options: WorkerOptions,
        counters: Counters,
    ) -> None:
        self.held: dict[UUID, Work] = {}
        self.residents = residents
        self.on_timer: Callable[[datetime], None] = lambda _: None
        self.on_stale: Callable[[Work], None] = lambda _: None
        self._store = store
        self._worker = worker
        self._decider = decider
        self._runner = runner
        self._options = options
        self._counters = counters
        self._queue: deque[Work] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._ticking = 0

    @property
    def backlog(self) -> int:
        """Runs that wait to be decided."""
        return len(self._queue)

    def ready(self, work: Work) -> None:
        """Something has come for this run."""
        if not work.queued and not work.busy:
            work.queued = True
            self._queue.append(work)
            self._idle.clear()
            self._wake.set()

    def deliver(self, execution_id: UUID, result: Result) -> bool:
        """An eager activity has ended; False when its run is not here any more."""
        work = self.held.get(execution_id)
        if work is None or work.inflight.get(result.seq) != result.attempt:
            return False
        work.inbox.append(result)
        self.ready(work)
        return True

    def settle(self, execution_id: UUID, seq: int) -> None:
        """An eager activity will be tried again by whoever claims it: it no longer keeps its run held."""
        work = self.held.get(execution_id)
        if work is not None and work.inflight.pop(seq, None) is not None and not work.inflight:
            self.ready(work)

    async def run(self) -> None:
        """Decide and commit until stopped: one batch is decided while another is at the database."""
        await asyncio.gather(*(self._loop() for _ in range(COMMIT.size)))

    async def _loop(self) -> None:
        while not self._stopping:
            if not self._queue:
                if not self._ticking:
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

    async def drained(self, seconds: float) -> bool:
        """Wait until nothing is left to decide."""
        return await clock.wait_event(self._idle, seconds)

    async def tick(self) -> None:
        """One batch: step what is ready, commit it, act on the answers."""
        batch, decisions = Batch(), []
        now = self._store.clock.now()
        while self._queue and len(decisions) < self._options.batch:
            work = self._queue.popleft()
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
        if work.run is None and not work.delta and not await self._load_whole(work):
            return None
        error = self._decider.step(work, now)
        if error is not None:
            await self._block(work, error)
            return None
        if work.refusals >= LOCK_AFTER_REFUSALS:
            await self._commit_locked(work)
            return None
        return self._decider.fill(batch, work, now)

    async def _load_whole(self, work: Work) -> bool:
        """A held run whose parked code was let go is replayed from its whole history."""
        try:
            events = (await claims.load_events(self._store, {work.execution_id: 1}))[work.execution_id]
        except ShardUnavailableError:
            await self._drop(work)
            return False
        self._count_loaded(events)
        work.delta = events
        return True

    def let_go_idle(self) -> None:
        """Let go of the parked code of held runs that nothing has come for."""
        for work in self.held.values():
            if work.run is not None and not work.busy and not work.queued:
                work.decided_through_hint = work.run.decided_through
                self.residents.let_go(work)

    async def _commit(self, batch: Batch, decisions: list[Decision]) -> None:
        try:
            async with self._store.commit.connection() as connection:
                answers = await commit(self._store, connection, self._worker, batch)
        except ShardUnavailableError as error:
            await self._unknown(decisions, error)
            return
        except asyncpg.PostgresError as error:
            await self._split(decisions, error)
            return
        self._counters.commits += 1
        self._counters.statements += 1
        for decision in decisions:
            await self._settle(decision, answers[decision.work.execution_id])

    async def _commit_locked(self, work: Work) -> None:
        """The row is locked before the last look at its history, so that a stream of signals cannot starve the run."""
        try:
            async with self._store.commit.connection() as connection, connection.transaction():
                await claims.lock_execution(connection, work.execution_id)
                rows = await claims.load_events_on(connection, work.execution_id, work.next_event_id)
                if rows and work.consumed:
                    answer, decision = Answer.MOVED, None
                else:
                    work.delta = rows
                    now = self._store.clock.now()
                    error = self._decider.step(work, now)
                    if error is not None:
                        raise error
                    batch = Batch()
                    decision = self._decider.fill(batch, work, now)
                    answers = await commit(self._store, connection, self._worker, batch)
                    answer = answers[work.execution_id]
        except (ShardUnavailableError, asyncpg.PostgresError) as error:
            await self._unknown([Decision(work, work.next_event_id, None, [], [], None)], error)
            return
        except HarvestError as error:
            await self._block(work, error)
            return
        self._counters.commits += 1
        await self._settle(decision or Decision(work, work.next_event_id, None, [], [], None), answer)

    async def _split(self, decisions: list[Decision], error: asyncpg.PostgresError) -> None:
        """A statement that fails as a whole is cut in halves; what fails alone is blocked with the database's error."""
        for decision in decisions:
            self._give_back(decision)
        if len(decisions) == 1:
            work = decisions[0].work
            await self._block(work, CommitRefusedError(f"the database refuses this decision: {error}"))
            return
        middle = len(decisions) // 2
        for half in (decisions[:middle], decisions[middle:]):
            batch = Batch()
            now = self._store.clock.now()
            await self._commit(batch, [self._decider.fill(batch, decision.work, now) for decision in half])

    async def _settle(self, decision: Decision, answer: Answer) -> None:
        work = decision.work
        if answer is Answer.PASSED:
            self._passed(decision)
            return
        self._give_back(decision)
        work.refusals += 1
        if answer is Answer.BUSY:
            self._counters.busy += 1
            work.busy = False
            self.ready(work)
        elif answer is Answer.FENCED:
            self._counters.fenced += 1
            await self._drop(work)
        else:
            self._counters.moved += 1
            await self._moved(work)

    def _passed(self, decision: Decision) -> None:
        work = decision.work
        run = work.run
        assert run is not None
        self._counters.passed += 1
        work.busy = False
        work.refusals = 0
        work.blocked_count = 0
        work.consumed.clear()
        work.next_event_id = decision.next_event_id
        self._store.hints.touch(work.partition)
        if decision.cancelled:
            self._runner.cancel(work.execution_id, decision.cancelled)
        if decision.outcome is not None:
            self._counters.closed += 1
            self.held.pop(work.execution_id, None)
            if work.inflight:
                self._runner.cancel(work.execution_id, None)
            self.residents.let_go(work)
            return
        run.recorded(decision.next_event_id - 1)
        for command in decision.eager:
            work.inflight[command.seq] = 1
        if decision.eager:
            self._runner.start_activities(work, decision)
        if decision.queued:
            self._runner.pending()
        if decision.fires_at is not None:
            self.on_timer(decision.fires_at)
        if work.stale:
            work.stale = False
            self.on_stale(work)
        if work.inbox or (decision.holds and not work.inflight):
            self.ready(work)
        elif not work.inflight and not work.queued:
            self.held.pop(work.execution_id, None)
            self.residents.put(work)

    async def _moved(self, work: Work) -> None:
        """Others have written first. A decision that bet on places in history is replayed cold; another goes on."""
        if work.consumed:
            self._counters.declined_overtaken += 1
            await self._drop(work)
            return
        try:
            events = (await claims.load_events(self._store, {work.execution_id: work.next_event_id}))[
                work.execution_id
            ]
        except ShardUnavailableError:
            await self._drop(work)
            return
        self._count_loaded(events)
        work.busy = False
        work.delta = events
        self.ready(work)

    async def _block(self, work: Work, error: HarvestError) -> None:
        """Put a run aside with its reason; what is not its fault must not end it (issue, build 5)."""
        self._counters.blocked += 1
        work.blocked_count += 1
        _log.error("execution %s is blocked: %s", work.execution_id, error.message)
        merged = self._let_go(work)
        await append_results(self._store, self._worker, work.execution_id, merged, self._counters)
        try:
            await upkeep.block(
                self._store,
                work.execution_id,
                self._worker,
                work.attempt,
                code=block_code(error),
                message=error.message[:4_000].replace("\x00", "\\0"),
                count=work.blocked_count,
                delay=blocked_delay(work.blocked_count),
            )
        except (ShardUnavailableError, asyncpg.PostgresError) as lost:
            _log.warning("execution %s could not be marked as blocked: %s", work.execution_id, lost)
            await self._give_up([work.execution_id])
        self._store.hints.touch(work.partition)

    async def _drop(self, work: Work) -> None:
        """Let go of a run: its results are appended by themselves, its task goes back, whoever takes it replays."""
        merged = self._let_go(work)
        await append_results(self._store, self._worker, work.execution_id, merged, self._counters)
        await self._give_up([work.execution_id])

    def forget(self, work: Work) -> None:
        """Let go of a run whose events could not be loaded; its task goes back."""
        merged = {work.execution_id: self._let_go(work)}
        asyncio.get_running_loop().create_task(self._recover(merged))

    def _let_go(self, work: Work) -> list[Result]:
        self.held.pop(work.execution_id, None)
        work.busy = work.queued = False
        results_left = [result for result, _ in work.consumed] + list(work.inbox)
        work.consumed.clear()
        work.inbox.clear()
        work.inflight.clear()
        self.residents.let_go(work)
        return results_left

    async def _unknown(self, decisions: list[Decision], error: BaseException) -> None:
        """The answer was lost: whether it passed or not, go on from what the database says (design 4)."""
        self._counters.unknown += len(decisions)
        _log.warning("the answer to a commit of %d decisions was lost: %s", len(decisions), error)
        merged: dict[UUID, list[Result]] = {}
        for decision in decisions:
            self._give_back(decision)
            merged[decision.work.execution_id] = self._let_go(decision.work)
        asyncio.get_running_loop().create_task(self._recover(merged))

    async def _recover(self, merged: dict[UUID, list[Result]]) -> None:
        for execution_id, left in merged.items():
            await append_results(self._store, self._worker, execution_id, left, self._counters)
        await self._runner.adopt(list(merged))
        await self._give_up(list(merged))

    async def _give_up(self, ids: list[UUID]) -> None:
        """Hand workflow tasks back, however long the database takes to answer."""
        delay = 0.1
        while not self._stopping:
            try:
                await upkeep.release(self._store, self._worker, ids)
            except (ShardUnavailableError, asyncpg.PostgresError):
                await clock.sleep(clock.jittered(delay))
                delay = min(delay * 2, 5.0)
                continue
            self._store.waker.wake(self._worker)
            return

    def _give_back(self, decision: Decision) -> None:
        for command in decision.eager:
            self._decider.give_back(command)

    def _count_loaded(self, events: list[Event]) -> None:
        self._counters.loaded_events += len(events)
        self._counters.loaded_bytes += sum(len(event.payload) for event in events)
        self._counters.statements += 1
