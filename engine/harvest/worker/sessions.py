"""Worker sessions on one shard: opens those that wait while there is room, breaks those that have lost their worker.

A session is a promise of this process: its activities run here and nowhere else, so that they find what earlier ones
have left (files, a loaded model, a connection). It takes a place of `max_concurrent_sessions` while it is open.
"""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.store import worker_sessions
from harvest.store.store import Store
from harvest.store.worker_sessions import Told
from harvest.worker.options import WorkerOptions
from harvest.worker.watch import Lease

_log = logging.getLogger("harvest.worker")
LOOK_SECONDS, SHORTLY_SECONDS = 1.0, 0.02
SWEEP_SECONDS = 5.0
DRAIN_LOOK_SECONDS = 0.1


class Places:
    """The places for sessions of one worker process, over all its shards."""

    def __init__(self, most: int) -> None:
        self.lock = asyncio.Lock()
        self.open: dict[int, int] = {}
        self._most = most

    @property
    def free(self) -> int:
        """How many more sessions may be opened."""
        return max(0, self._most - sum(self.open.values()))


class Sessions:
    """One for each shard of a worker. `kick` when a session may wait, or has ended."""

    def __init__(self, store: Store, worker: UUID, lease: Lease, places: Places, options: WorkerOptions) -> None:
        self._store = store
        self._worker = worker
        self._lease = lease
        self._places = places
        self._queues = options.queues
        self._name = options.display_name
        self._wake = asyncio.Event()
        self._draining = False
        self._pause = LOOK_SECONDS
        self._sweep_at = 0.0

    @property
    def open(self) -> int:
        """Sessions that are open here, as of the last look."""
        return self._places.open.get(self._store.shard_id, 0)

    @property
    def has_room(self) -> bool:
        """Whether another session may be opened here."""
        return not self._draining and self._places.free > 0

    def kick(self) -> None:
        """A session may wait for a worker."""
        self._wake.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._wake.clear()
            try:
                if self._lease.alive:
                    await self.tick()
            except (ShardUnavailableError, asyncpg.PostgresError) as error:
                _log.warning("shard %s: sessions were not looked after: %s", self._store.shard_id, error)
            except Exception:
                _log.exception("shard %s: sessions were not looked after", self._store.shard_id)
            await clock.wait_event(self._wake, clock.jittered(self._pause))

    async def tick(self) -> None:
        """One look: break, open, sweep. Nothing is written where there is no session at all."""
        hurried, self._pause = self._pause, LOOK_SECONDS
        look = await self._look()
        if look.known:
            self._tell(await worker_sessions.break_lost(self._store))
            if clock.monotonic() > self._sweep_at:
                self._sweep_at = clock.monotonic() + SWEEP_SECONDS
                await worker_sessions.sweep(self._store)
        if look.pending and self.has_room and await self._open() < look.pending and self.has_room:
            # A run was locked, most likely by its next commit.
            self._pause = min(LOOK_SECONDS, SHORTLY_SECONDS if hurried >= LOOK_SECONDS else 2 * hurried)

    async def _look(self) -> worker_sessions.Look:
        look = await worker_sessions.look(self._store, self._worker, self._queues)
        self._places.open[self._store.shard_id] = look.mine
        return look

    async def _open(self) -> int:
        async with self._places.lock:
            if not self._places.free:
                return 0
            opened = await worker_sessions.take(self._store, self._worker, self._name, self._queues, self._places.free)
            self._places.open[self._store.shard_id] = self.open + len(opened)
        self._tell(opened)
        return len(opened)

    def _tell(self, told: list[Told]) -> None:
        for each in told:
            self._store.hints.touch(each.partition)
        for holder in {each.holder for each in told}:
            self._store.waker.wake(holder)

    async def drained(self, seconds: float) -> None:
        """Open none any more, and wait until those that are open here have ended, for so long at most."""
        self._draining = True
        until = clock.monotonic() + seconds
        while self.open and not self._lease.lost:
            left = until - clock.monotonic()
            if left <= 0:
                _log.warning("shard %s: this worker ends with %d sessions open", self._store.shard_id, self.open)
                return
            await clock.sleep(min(DRAIN_LOOK_SECONDS, left))
            try:
                await self._look()
            except (ShardUnavailableError, asyncpg.PostgresError) as error:
                _log.warning("shard %s: open sessions are not known: %s", self._store.shard_id, error)

    async def leave(self) -> None:
        """This worker has stopped: what was left open here is broken at once, not when another looks."""
        if self.open:
            self._tell(await worker_sessions.break_lost(self._store))
