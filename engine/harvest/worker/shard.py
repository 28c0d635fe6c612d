"""A worker's loops on one shard, wired together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from harvest.definitions.registry import Registry
from harvest.shards import Shards
from harvest.store.listening import listen
from harvest.store.progress import ProgressWriter
from harvest.store.store import Store
from harvest.store.wakes import ANYBODY, ASKED, CHANNEL, ORDERED, OWNERS, SESSIONS
from harvest.worker.activities import ActivityRunner, Attempt, Ended
from harvest.worker.activity_claimer import ActivityClaimer
from harvest.worker.answered import Runner
from harvest.worker.claimer import Claimer
from harvest.worker.committer import Committer
from harvest.worker.costs import CostLedger
from harvest.worker.deciding import Decider, Decision
from harvest.worker.deliverer import Deliverer
from harvest.worker.doubts import Doubts
from harvest.worker.locals import LocalRunner
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.ownership import Ownership
from harvest.worker.placing import ChildPlacer
from harvest.worker.recovery import Recovery
from harvest.worker.requests import Requests
from harvest.worker.rollups import Rollups
from harvest.worker.scanner import Scanner, TimerLoop
from harvest.worker.sessions import Places, Sessions
from harvest.worker.settling import Settler
from harvest.worker.slots import ShardSlots
from harvest.worker.supervisor import Lacking
from harvest.worker.trial import Trial
from harvest.worker.warming import Warmer
from harvest.worker.watch import Lease, StepWatch
from harvest.worker.work import Residents, Result, Work

_log = logging.getLogger("harvest.worker")


class ShardWorker(Runner):
    """Claims, decides, commits, runs activities and scans on one shard. `on_failure` hears of a loop that has died."""

    def __init__(
        self,
        shards: Shards,
        store: Store,
        worker: UUID,
        registry: Registry,
        runner: ActivityRunner,
        steps: StepWatch,
        residents: Residents,
        options: WorkerOptions,
        counters: Counters,
        on_failure: Callable[[], None],
        places: Places,
        trial: Trial,
    ) -> None:
        self.store = store
        self.lease = Lease(store, options.owner_lease_ttl, options.renew_interval)
        self.on_order: Callable[[ShardWorker], None] = lambda _: None
        self._worker = worker
        self._runner = runner
        self._options = options
        self._counters = counters
        placer = ChildPlacer(shards.router)
        slots = ShardSlots(runner, store.shard_id)
        decider = Decider(registry, slots, steps, counters, options.display_name, worker, placer)
        self._recovery = Recovery(store, worker, self._is_lost, counters)
        self.committer = Committer(
            store,
            worker,
            decider,
            self,
            residents,
            self._recovery,
            lambda on_end: LocalRunner(store.shard_id, runner, on_end),
            options,
            counters,
        )
        self.claimer = Claimer(
            store, worker, self.lease, self.committer, options, counters, Lacking(registry, counters), trial
        )
        self.ownership = Ownership(
            store, worker, self.lease, self.committer, Warmer(store, decider, self.committer, counters), counters
        )
        self.rollups = Rollups(store, worker, self.committer.tracer)
        measures = self.committer.tracer.measures
        self.timers = TimerLoop(store, measures)
        self._progress = ProgressWriter(store)
        self._requests = Requests(store, worker, registry, self._find, steps, options, counters, measures)
        self.deliverer = Deliverer(shards, store, counters, measures)
        self._scanner = Scanner(store, worker, self.lease, runner, options, counters, measures)
        self._ledger = runner.ledgers[store.shard_id] = CostLedger(store)
        self.sessions = Sessions(store, worker, self.lease, places, options)
        self._settler = Settler(store, worker, self._is_lost, self._will_retry, counters)
        self.activity_claimer = ActivityClaimer(
            store, worker, self.lease, runner, self._settler, trial, options, counters
        )
        self._doubts = Doubts(
            store,
            worker,
            is_held=lambda execution_id: execution_id in self.committer.held or self._is_recovering(execution_id),
            is_running=self._is_running,
            give_back=self._recovery.give_back,
            adopt=self.activity_claimer.adopt,
        )
        self._on_failure = on_failure
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._wire()

    def _wire(self) -> None:
        """Who hears of what."""
        self.claimer.on_cycles = self.activity_claimer.on_cycles = self._note_cycles
        self.claimer.give_back = self._recovery.give_back
        self.claimer.owner = self.ownership.takeable
        self.claimer.on_doubt = self._recovery.on_doubt = self.activity_claimer.on_doubt = self._doubts.arise
        self.activity_claimer.on_taken = self.rollups.activity_taken
        self.ownership.on_change = self.claimer.look_anew
        self.ownership.on_expired = self._scanner.lost_workers
        self.committer.on_timer = self.timers.expect
        self.committer.on_sessions = self._sessions_asked
        self.committer.on_deliveries = self.deliverer.kick
        self.committer.on_successor = self.claimer.wake
        self.committer.on_progress = self._progress.add
        self._scanner.on_tick = self.rollups.scanned
        self.rollups.of_shard = self.deliverer.seeker.ages

    def start(self) -> None:
        """Start every loop."""
        self.store.waker.local = self._woken
        loops: dict[str, Coroutine[Any, Any, None]] = {
            "owner loop": self.ownership.run(),
            "sessions": self.sessions.run(),
            "claimer": self.claimer.run(),
            "committer": self.committer.run(),
            "activity claimer": self.activity_claimer.run(),
            "timers": self.timers.run(),
            "deliverer": self.deliverer.run(),
            "scanner": self._scanner.run(),
            "listener": listen(self.store, CHANNEL, self._heard, self._look_at_everything),
            "doubts": self._doubts.run(),
            "requests": self._requests.run(),
            "rollups": self.rollups.run(),
        }
        self._tasks = [asyncio.get_running_loop().create_task(loop, name=name) for name, loop in loops.items()]
        for task in self._tasks:
            task.add_done_callback(self._loop_ended)

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        """A loop that dies takes its worker along: a process that looks alive and does half its work is worse."""
        if self._stopping:
            return
        if task.cancelled():
            _log.warning("shard %s: the %s was cancelled", self.store.shard_id, task.get_name())
        else:
            _log.critical("shard %s: the %s has died", self.store.shard_id, task.get_name(), exc_info=task.exception())
        self._on_failure()

    def _note_cycles(self) -> None:
        active = len(self.committer.held) + len(self._runner.running)
        self._counters.peak_active_cycles = max(self._counters.peak_active_cycles, active)

    def _is_lost(self) -> bool:
        return self.lease.lost

    def _is_recovering(self, execution_id: UUID) -> bool:
        return execution_id in self._recovery.recovering

    async def drain_sessions(self, seconds: float) -> None:
        """Take nothing new but what belongs to sessions that are open here, until they end, for so long at most."""
        self._stopping = self._runner.only_sessions = True
        self.claimer.stop()
        self.activity_claimer.only_sessions()
        await self.sessions.drained(seconds)

    def stop_claiming(self) -> None:
        """Take nothing new."""
        self._stopping = True
        self.claimer.stop()
        self._requests.stop()
        self.activity_claimer.stop()

    async def stop(self) -> None:
        """Send what is still to be sent, then end every loop."""
        await self.committer.drained(2.0)
        await self.committer.locals.stop()
        await asyncio.gather(
            self._settler.finish(2.0),
            self._recovery.finish(2.0),
            self._progress.close(),
            self._ledger.finish(2.0),
            self.rollups.finish(),
            self.ownership.finish(),
        )
        self.committer.stop()
        self.store.waker.local = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _woken(self, target: str) -> bool:
        """A wake, from this process or another; tells whether it was for this worker alone."""
        if target.startswith(ORDERED):
            if mine := target == ORDERED + self._worker.hex:
                self.on_order(self)
            return mine
        is_question, is_for_owner = target.startswith(ASKED), target.startswith(OWNERS)
        target = target.removeprefix(ASKED).removeprefix(OWNERS)
        mine = target == self._worker.hex
        if target.startswith(SESSIONS):
            self.sessions.kick()
        elif is_for_owner:
            if mine or target == ANYBODY:
                self.ownership.kick()
        elif is_question and (mine or target == ANYBODY):
            self._requests.kick()
        elif mine or target == ANYBODY:
            self.claimer.wake()
            self.activity_claimer.wake()
            self.deliverer.hint()
        return mine

    def _heard(self, target: str) -> None:
        self._woken(target)

    def _look_at_everything(self) -> None:
        self._woken(ANYBODY)
        self.ownership.kick()
        self._requests.kick()

    def _find(self, execution_id: UUID) -> Work | None:
        """The run as this worker has it now, held or resident."""
        return self.committer.held.get(execution_id) or self.committer.residents.find(execution_id)

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
        self.activity_claimer.wake()
        self.store.waker.wake(None)

    def _sessions_asked(self, queues: list[str]) -> None:
        """Sessions wait for a worker of these queues, or one has ended: this worker comes first."""
        self.sessions.kick()
        if not self.sessions.has_room or not set(queues) <= set(self._options.queues):
            self.store.waker.open_sessions()

    def cancel(self, execution_id: UUID, seqs: list[int] | None) -> None:
        """Stop activities of a run here: those, or all of them."""
        self._runner.cancel(execution_id, seqs)

    # Claimed work whose answer was lost

    def _is_running(self, execution_id: UUID, seq: int) -> bool:
        key = (execution_id, seq)
        return (
            key in self._runner.running
            or key in self._settler.unsettled
            or self.committer.knows(execution_id, seq)
            or self._is_recovering(execution_id)
        )

    # How attempts end

    def ended(self, attempt: Attempt, ended: Ended) -> None:
        """An attempt is over: into the next decision of its run, or to the database by itself."""
        self.rollups.activity_ended(attempt, ended)
        if ended.delay is None and attempt.eager:
            result = Result(attempt.seq, attempt.attempt, ended.kind, ended.payload)
            if self.committer.deliver(attempt.execution_id, result):
                return
        self._settler.settle(attempt, ended)

    def _will_retry(self, attempt: Attempt, delay: float) -> None:
        asyncio.get_running_loop().call_later(delay + 0.005, self.activity_claimer.wake)
        if attempt.eager:
            self.committer.settle(attempt.execution_id, attempt.seq)
