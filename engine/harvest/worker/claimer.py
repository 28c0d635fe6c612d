"""Takes workflow tasks and loads the events that each run has not seen (design 5 and 6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.history.events import Event
from harvest.store import claims
from harvest.store.claims import Claimed, Owner
from harvest.store.decisions import ColdReason
from harvest.store.marks import HANDICAP, Marks
from harvest.store.store import Store
from harvest.worker import trial
from harvest.worker.committer import Committer
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.supervisor import Backoff, Lacking
from harvest.worker.trial import Trial
from harvest.worker.watch import Lease
from harvest.worker.work import Work

_log = logging.getLogger("harvest.worker")
MOST_MATCHING = 32
FULL_PAUSE = 0.025


class Claimer:
    """One for each shard: claims while the committer has room, and looks for news of what is held."""

    def __init__(
        self,
        store: Store,
        worker: UUID,
        lease: Lease,
        committer: Committer,
        options: WorkerOptions,
        counters: Counters,
        lacking: Lacking,
        trial: Trial,
    ) -> None:
        self.lacking = lacking
        self._store = store
        self._worker = worker
        self._lease = lease
        self._committer = committer
        self._options = options
        self._counters = counters
        self._wake = asyncio.Event()
        self._backoff = Backoff(counters, options.poll_interval)
        self._stopping = False
        self._marks = Marks(HANDICAP)
        self._suspects_at = 0.0
        self._trial = trial
        self._contended = False
        self._stale: list[Work] = []
        self.owner: Callable[[], Owner | None] = lambda: None
        self.give_back: Callable[[list[tuple[UUID, int]]], None] = lambda _: None
        self.on_doubt: Callable[[], None] = lambda: None
        self.on_cycles: Callable[[], None] = lambda: None
        committer.on_stale = self._note_stale

    def wake(self) -> None:
        """There may be work."""
        self._committer.tracer.heard()
        self._wake.set()

    def look_anew(self) -> None:
        """The partitions are others now: what waits in them may lie before the marks."""
        self._marks.forget()
        self._wake.set()

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopping = True
        self._wake.set()

    def _note_stale(self, work: Work) -> None:
        self._stale.append(work)
        self._wake.set()

    async def run(self) -> None:
        """Claim until stopped; a database that is away is asked again, ever more slowly."""
        while not self._stopping:
            self._wake.clear()
            try:
                found = await self.tick() if self._lease.alive else 0
            except (ShardUnavailableError, asyncpg.PostgresError) as error:
                _log.warning("shard %s: claiming failed: %s", self._store.shard_id, error)
                # Its answer may be lost, or that of another claim which came before it.
                self.on_doubt()
                await self._backoff.failed(self._wake)
                continue
            if not found:
                at_most = self._marks.pause(self._options.poll_interval)
                is_full = self._room <= 0 and self._options.workflow_slots > 0
                await self._backoff.idle(self._wake, FULL_PAUSE if is_full else at_most)
                continue
            self._backoff.worked()
            if self._committer.backlog > self._options.claim_batch:
                await clock.sleep(0.001)

    async def tick(self) -> int:
        """One claim and one look for news; returns how many runs it brought."""
        if self._committer.backlog > self._options.claim_batch:
            return 1
        works: list[Work] = []
        if clock.monotonic() > self._suspects_at:
            self._suspects_at = clock.monotonic() + trial.SUSPECTS_SECONDS
            works = await self._taken_for_trial()
        try:
            works += self._works_of(await self._able(await self._claim()))
            wanted = {w.execution_id: w.wants for w in works if not w.delta}
            works += await self._held_with_news(wanted)
            await self._load(works, wanted)
        except (ShardUnavailableError, asyncpg.PostgresError):
            for work in works:
                self._committer.forget(work)
            raise
        self.on_cycles()
        return len(works)

    @property
    def _room(self) -> int:
        """How many runs more may be held."""
        return self._options.workflow_slots - len(self._committer.held)

    async def _able(self, claimed: list[Claimed]) -> list[Claimed]:
        """Those that this worker has the code for. The others are for whoever has it, at once."""
        able, unable = self.lacking.split(claimed)
        if unable:
            names = sorted({f"{each.workflow_name!r} version {each.version}" for each in unable})
            _log.warning("shard %s: no code here for workflow %s", self._store.shard_id, ", ".join(names))
            tasks = [(each.execution_id, each.attempt) for each in unable]
            if locked := await claims.release(self._store, self._worker, tasks):
                self.give_back(locked)
            self._store.waker.wake(None)
        return able

    async def _taken_for_trial(self) -> list[Work]:
        """One run that was on a lost worker twice, unless something is on trial here."""
        if not self._trial.begin():
            return []
        try:
            works = self._works_of(await self._able(await self._claim_suspect()))
        except BaseException:
            self._trial.end()
            raise
        self._trial.decides(lambda: any(self._committer.is_deciding(work) for work in works))
        return works

    async def _claim_suspect(self) -> list[Claimed]:
        owner = self.owner()
        if (owner is not None and owner.has_none) or self._room <= 0:
            return []
        for queue in self._options.queues:
            found = await claims.claim(
                self._store,
                self._worker,
                [queue],
                1,
                suspects=True,
                lacks=self.lacking.definitions,
                owner=owner,
            )
            if found:
                self._counters.claims += 1
                return found
        return []

    async def _claim(self) -> list[Claimed]:
        owner = self.owner()
        if (owner is not None and owner.has_none) or self._room <= 0:
            return []
        matching = await self._claim_matching() if self._contended and owner is None else []
        most = min(self._options.claim_batch, self._room) - len(matching)
        if most <= 0:
            self._counters.claims += len(matching)
            return matching
        claimed = await claims.claim(
            self._store,
            self._worker,
            self._options.queues,
            most,
            self._marks,
            lacks=self.lacking.definitions,
            owner=owner,
        )
        self._contended = len(claimed) >= most and any(each.last_worker not in (None, self._worker) for each in claimed)
        self._counters.claims += len(claimed) + len(matching)
        return matching + claimed

    async def _claim_matching(self) -> list[Claimed]:
        """More is due than a claim takes, and workers take what others have warm: what is warm here comes first."""
        return await claims.claim(
            self._store,
            self._worker,
            self._options.queues,
            min(MOST_MATCHING, self._room),
            matching=True,
            lacks=self.lacking.definitions,
        )

    def _works_of(self, claimed: list[Claimed]) -> list[Work]:
        return [self._work_of(each) for each in claimed if not self._is_retaken(each)]

    def _is_retaken(self, claimed: Claimed) -> bool:
        """A run that was parked and woken before the answer of its commit was read: it stays, and goes on there."""
        work = self._committer.held.get(claimed.execution_id)
        if work is None or not work.busy or work.run is None:
            return False
        work.again = (claimed.attempt, claimed.owner_epoch)
        return True

    def _work_of(self, claimed: Claimed) -> Work:
        """The resident run if it is here, else a new one that will be replayed."""
        work = self._committer.residents.take(claimed.execution_id)
        if work is None:
            work = Work(
                claimed.execution_id,
                partition=claimed.partition,
                workflow_name=claimed.workflow_name,
                workflow_id=claimed.workflow_id,
                version=claimed.version,
                queue=claimed.queue,
                deadline_at=claimed.deadline_at,
            )
            if claimed.first is not None:
                work.delta = [claimed.first]
            elif self._committer.residents.recall(work) > claimed.next_event_id:
                work.history = None
        work.decided_through_hint = claimed.decided_through
        work.attempt = claimed.attempt
        work.owner_epoch = claimed.owner_epoch
        work.blocked_count = claimed.blocked_count
        work.busy = True
        self._committer.held[work.execution_id] = work
        self._committer.tracer.taken(work, claimed)
        return work

    async def _held_with_news(self, wanted: dict[UUID, int]) -> list[Work]:
        stale, self._stale = self._stale, []
        ids = {work.execution_id for work in stale} | set(await claims.news(self._store, self._worker))
        works = []
        for execution_id in ids:
            work = self._committer.held.get(execution_id)
            if work is None or execution_id in wanted:
                continue
            if work.busy or work.queued:
                work.stale = True
                continue
            work.busy = True
            wanted[execution_id] = self._committer.residents.recall(work)
            works.append(work)
        return works

    async def _load(self, works: list[Work], wanted: dict[UUID, int]) -> None:
        events: dict[UUID, list[Event]] = {}
        if wanted:
            events = await claims.load_events(self._store, wanted)
            self._counters.statements += 1
        for work in works:
            loaded = events.get(work.execution_id)
            if loaded is not None:
                self._counters.note_loaded(loaded)
                if not self._fits(work, loaded):
                    # Falls one level down: the resident is let go and the run is replayed from its whole history.
                    self._committer.tracer.let_go(work, ColdReason.GAP)
                    self._committer.forget(work)
                    continue
                self._committer.bring(work, loaded)
            work.busy = False
            self._committer.ready(work)

    def _fits(self, work: Work, loaded: list[Event]) -> bool:
        """Whether the events continue exactly where the run stands, without a hole (design 6)."""
        return all(event.event_id == work.wants + i for i, event in enumerate(loaded))
