"""A worker's loops on one shard, wired together."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.definitions.registry import Registry
from harvest.errors import ShardUnavailableError
from harvest.history.ids import ExecutionId
from harvest.store import claims, results
from harvest.store.listening import listen
from harvest.store.store import Store
from harvest.store.wakes import ANYBODY, CHANNEL
from harvest.worker.activities import ActivityRunner, Attempt, Ended, scheduled_data
from harvest.worker.claimer import Claimer
from harvest.worker.committer import Committer, Runner
from harvest.worker.deciding import Decider, Decision
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.recovery import append_ends
from harvest.worker.scanner import Scanner, TimerLoop
from harvest.worker.watch import Lease, StepWatch
from harvest.worker.work import Residents, Result, Work

_log = logging.getLogger("harvest.worker")


class ShardWorker(Runner):
    """Claims, decides, commits, runs activities and scans on one shard."""

    def __init__(
        self,
        store: Store,
        worker: UUID,
        registry: Registry,
        runner: ActivityRunner,
        steps: StepWatch,
        residents: Residents,
        options: WorkerOptions,
        counters: Counters,
    ) -> None:
        self.store = store
        self.lease = Lease(store)
        self._worker = worker
        self._runner = runner
        self._options = options
        self._counters = counters
        decider = Decider(registry, runner, steps, counters, options.display_name)
        self.committer = Committer(store, worker, decider, self, residents, options, counters)
        self.claimer = Claimer(store, worker, self.lease, self.committer, options, counters)
        self.timers = TimerLoop(store)
        self._scanner = Scanner(store, worker, self.lease, runner, options, counters)
        self._activity_wake = asyncio.Event()
        self._outcomes: list[tuple[Attempt, Ended]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self.committer.on_timer = self.timers.expect

    def start(self) -> None:
        """Start every loop."""
        self.store.waker.local = self._woken
        loops = (
            self.claimer.run(),
            self.committer.run(),
            self._claim_activities(),
            self.timers.run(),
            self._scanner.run(),
            listen(self.store, CHANNEL, self._woken, self._look_at_everything),
        )
        self._tasks = [asyncio.get_running_loop().create_task(loop) for loop in loops]

    def stop_claiming(self) -> None:
        """Take nothing new."""
        self._stopping = True
        self.claimer.stop()
        self._activity_wake.set()

    async def stop(self) -> None:
        """Send what is still to be sent, then end every loop."""
        await self.committer.drained(2.0)
        if self._flushing is not None:
            await asyncio.wait([self._flushing], timeout=2.0)
        self.committer.stop()
        self.store.waker.local = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _woken(self, target: str) -> bool:
        """A wake, from this process or another; tells whether it was for this worker alone."""
        mine = target == self._worker.hex
        if mine or target == ANYBODY:
            self.claimer.wake()
            self._activity_wake.set()
        return mine

    def _look_at_everything(self) -> None:
        self._woken(ANYBODY)

    # What the committer asks for

    def start_activities(self, work: Work, decision: Decision) -> None:
        """Run the activities that a confirmed decision has claimed for this worker."""
        for command in decision.eager:
            self._counters.activities_eager += 1
            self._runner.start(
                Attempt(
                    shard_id=self.store.shard_id,
                    execution_id=work.execution_id,
                    seq=command.seq,
                    attempt=1,
                    workflow_name=work.workflow_name,
                    workflow_id=work.workflow_id,
                    name=command.name,
                    input=command.input,
                    start_to_close=command.options.start_to_close,
                    heartbeat=command.options.heartbeat,
                    retry=command.options.retry,
                    eager=True,
                )
            )

    def pending(self) -> None:
        """Activities were put into a queue: look for them here, and tell the others."""
        self._activity_wake.set()
        self.store.waker.wake(None)

    def cancel(self, execution_id: UUID, seqs: list[int] | None) -> None:
        """Stop activities of a run here: those, or all of them."""
        self._runner.cancel(execution_id, seqs)

    async def adopt(self, ids: list[UUID]) -> None:
        """Run what the database says this worker has claimed and nobody runs: the answer of its commit was lost."""
        while not self._stopping:
            try:
                held = await claims.held_activities(self.store, self._worker, ids)
            except (ShardUnavailableError, asyncpg.PostgresError):
                await clock.sleep(clock.jittered(0.5))
                continue
            for claimed in held:
                key = (claimed.execution_id, claimed.seq)
                if key not in self._runner.running and self._runner.take_claimed(scheduled_data(claimed.scheduled).name):
                    self._begin(claimed)
            return

    # Claimed activities

    async def _claim_activities(self) -> None:
        delay = 0.1
        while not self._stopping:
            self._activity_wake.clear()
            try:
                found = await self._claim_some()
                delay = 0.1
            except (ShardUnavailableError, asyncpg.PostgresError) as error:
                _log.warning("shard %s: claiming activities failed: %s", self.store.shard_id, error)
                await clock.sleep(clock.jittered(delay))
                delay = min(delay * 2, 5.0)
                continue
            if not found:
                await clock.wait_event(self._activity_wake, clock.jittered(self._options.poll_interval))

    async def _claim_some(self) -> int:
        names = self._runner.names()
        most = min(self._runner.free, self._options.claim_batch)
        if not names or most <= 0 or not self.lease.alive:
            return 0
        claimed = await claims.claim_activities(
            self.store, self._worker, self._options.display_name, self._options.queues, names, most
        )
        returned = []
        for one in claimed:
            if self._runner.take_claimed(scheduled_data(one.scheduled).name):
                self._counters.activities_claimed += 1
                self._begin(one)
            else:
                returned.append(results.ActivityRetry(one.execution_id, one.seq, one.attempt, self._worker, 0.1, None))
        if returned:
            await results.retry_activities(self.store, returned)
        return len(claimed) - len(returned)

    def _begin(self, claimed: claims.ClaimedActivity) -> None:
        data = scheduled_data(claimed.scheduled)
        self._runner.start(
            Attempt(
                shard_id=self.store.shard_id,
                execution_id=ExecutionId(int=claimed.execution_id.int),
                seq=claimed.seq,
                attempt=claimed.attempt,
                workflow_name=claimed.workflow_name,
                workflow_id=claimed.workflow_id,
                name=data.name,
                input=bytes(data.input),
                start_to_close=data.start_to_close,
                heartbeat=data.heartbeat,
                retry=data.retry,
                eager=False,
                strikes=claimed.strikes,
                last_details=claimed.last_details,
            )
        )
        self.store.hints.touch(claimed.partition)

    # How attempts end

    def ended(self, attempt: Attempt, ended: Ended) -> None:
        """An attempt is over: into the next decision of its run, or to the database by itself."""
        if ended.delay is None and attempt.eager:
            result = Result(attempt.seq, attempt.attempt, ended.kind, ended.payload)
            if self.committer.deliver(attempt.execution_id, result):
                return
        self._outcomes.append((attempt, ended))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        while self._outcomes:
            outcomes, self._outcomes = self._outcomes, []
            ends = [
                results.ActivityEnd(a.execution_id, a.seq, a.attempt, self._worker, e.kind, e.payload)
                for a, e in outcomes
                if e.delay is None
            ]
            await append_ends(self.store, ends, self._counters)
            await self._put_back([(a, e) for a, e in outcomes if e.delay is not None])

    async def _put_back(self, outcomes: list[tuple[Attempt, Ended]]) -> None:
        retries = [
            results.ActivityRetry(a.execution_id, a.seq, a.attempt, self._worker, e.delay or 0.0, e.failure)
            for a, e in outcomes
        ]
        left = retries
        while left and not self.lease.lost:
            try:
                done = await results.retry_activities(self.store, left)
                left = [r for r in left if (r.execution_id, r.seq) not in done]
                if left:
                    still = await results.still_at_attempt(
                        self.store, [(r.execution_id, r.seq, r.attempt) for r in left]
                    )
                    left = [r for r in left if (r.execution_id, r.seq) in still]
            except (ShardUnavailableError, asyncpg.PostgresError) as error:
                _log.warning("shard %s: a retry could not be written yet: %s", self.store.shard_id, error)
            if left:
                await clock.sleep(clock.jittered(0.2))
        loop = asyncio.get_running_loop()
        for attempt, ended in outcomes:
            loop.call_later((ended.delay or 0.0) + 0.005, self._activity_wake.set)
            if attempt.eager:
                self.committer.settle(attempt.execution_id, attempt.seq)
