"""Takes activities from their queues, as far as this worker has slots and code for them (design 5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.store import activity_claims, results
from harvest.store.activity_claims import ClaimedActivity
from harvest.store.marks import Marks
from harvest.store.store import Store
from harvest.worker import trial
from harvest.worker.activities import ActivityRunner, Attempt
from harvest.worker.claimed import UNREADABLE, attempt_of, unreadable
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.settling import Settler
from harvest.worker.supervisor import Backoff
from harvest.worker.trial import Trial
from harvest.worker.watch import Lease

_log = logging.getLogger("harvest.worker")


class ActivityClaimer:
    """One for each shard of a worker: claims while there are free slots, and starts what it has claimed."""

    def __init__(
        self,
        store: Store,
        worker: UUID,
        lease: Lease,
        runner: ActivityRunner,
        settler: Settler,
        trial: Trial,
        options: WorkerOptions,
        counters: Counters,
    ) -> None:
        self.on_doubt: Callable[[], None] = lambda: None
        self.on_cycles: Callable[[], None] = lambda: None
        self.on_taken: Callable[[ClaimedActivity], None] = lambda _: None
        self._store = store
        self._worker = worker
        self._lease = lease
        self._runner = runner
        self._settler = settler
        self._trial = trial
        self._options = options
        self._counters = counters
        self._wake = asyncio.Event()
        self._backoff = Backoff(counters, options.poll_interval)
        self._marks = Marks()
        self._suspects_at = 0.0
        self._only_sessions = False
        self._stopping = False

    def wake(self) -> None:
        """There may be activities."""
        self._wake.set()

    def only_sessions(self) -> None:
        """Claim nothing more but what belongs to sessions that are open here."""
        self._only_sessions = True
        self._wake.set()

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Claim until stopped; a database that is away is asked again, ever more slowly."""
        while not self._stopping:
            self._wake.clear()
            try:
                found = await self.tick()
            except (ShardUnavailableError, asyncpg.PostgresError) as error:
                _log.warning("shard %s: claiming activities failed: %s", self._store.shard_id, error)
                # What was claimed before the statement that failed has not begun.
                self.on_doubt()
                self._runner.content(self._store.shard_id)
                await self._backoff.failed(self._wake)
                continue
            if found:
                self._backoff.worked()
            else:
                await self._backoff.idle(self._wake, self._marks.pause(self._options.poll_interval))

    async def tick(self) -> int:
        """One claim; returns how many activities it has started."""
        if not self._lease.alive:
            return 0
        names, room = self._runner.takeable(self._store.shard_id, self.wake)
        most = min(room, self._options.claim_batch)
        if not names or most <= 0:
            return 0
        claimed = await activity_claims.claim_activities(
            self._store,
            self._worker,
            self._options.display_name,
            self._options.queues,
            names,
            most,
            self._marks,
            of_sessions=self._only_sessions,
        )
        if len(claimed) < most:
            self._runner.content(self._store.shard_id, names)
        if clock.monotonic() > self._suspects_at and most > len(claimed) and not self._only_sessions:
            self._suspects_at = clock.monotonic() + trial.SUSPECTS_SECONDS
            claimed += await self._claim_suspect(names)
        begun = await self._start(claimed)
        self.on_cycles()
        return begun

    async def _start(self, claimed: list[ClaimedActivity]) -> int:
        """Start what fits; the others go back."""
        begun, returned = 0, []
        for one in claimed:
            attempt = self._readable(one)
            if attempt is None:
                continue
            if self._runner.take_claimed(attempt.shard_id, attempt.name):
                self._counters.activities_claimed += 1
                self.on_taken(one)
                self._begin(attempt, one)
                begun += 1
            else:
                returned.append(results.ActivityRetry(one.execution_id, one.seq, one.attempt, self._worker, 0.1, None))
        if returned:
            await results.retry_activities(self._store, returned)
        return begun

    async def _claim_suspect(self, names: list[str]) -> list[ClaimedActivity]:
        """One activity that was on a lost worker twice, unless something is on trial here."""
        if not self._trial.begin():
            return []
        try:
            for queue in self._options.queues:
                if found := await activity_claims.claim_activities(
                    self._store, self._worker, self._options.display_name, [queue], names, 1, suspects=True
                ):
                    return found
            return []
        finally:
            self._trial.end()

    def adopt(self, claimed: ClaimedActivity) -> None:
        """Start an activity that the database says is claimed, after an answer was lost."""
        attempt = self._readable(claimed)
        if attempt is None:
            return
        if not self._stopping and not self._only_sessions and self._runner.take_claimed(attempt.shard_id, attempt.name):
            self._begin(attempt, claimed)
        else:
            self.on_doubt()

    def _readable(self, claimed: ClaimedActivity) -> Attempt | None:
        """The attempt that was claimed. One that cannot be read fails by itself, and holds up no other."""
        try:
            return attempt_of(self._store.shard_id, claimed)
        except UNREADABLE as error:
            _log.error("activity %s/%d cannot be read: %s", claimed.execution_id, claimed.seq, error)
            self._settler.settle(*unreadable(self._store.shard_id, claimed, error))
            return None

    def _begin(self, attempt: Attempt, claimed: ClaimedActivity) -> None:
        self._runner.start(attempt)
        self._store.hints.touch(claimed.partition)
