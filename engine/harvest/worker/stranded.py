"""Looks for work that nobody takes, on every shard that this process reaches, those that others work on too."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from harvest.shards import Shards
from harvest.shards.rounds import Rounds
from harvest.store import shard_health
from harvest.store.measures import Key
from harvest.store.shard_health import Sample
from harvest.store.store import Store
from harvest.worker.metrics import PROCESS

SAMPLE_SECONDS: Final = 15.0
_log = logging.getLogger("harvest.worker")


class StrandedSampler:
    """One for each worker process. `gauges` are what it saw last, also of a shard that does not answer by now.

    `own` are those of the worker's queues, on the shards that it works on and that answer.
    """

    def __init__(self, shards: Shards, queues: Collection[str] = (), assigned: Collection[int] = ()) -> None:
        self.gauges: dict[Key, float] = {}
        self.own: dict[Key, float] = {}
        self._queues = queues
        self._assigned = assigned
        self._seen: dict[int, dict[Key, float]] = {}
        self._rounds = Rounds("stranded sampler", shards, self._sample, self._unseen)

    def start(self) -> None:
        """Look from now on."""
        PROCESS.show(self)
        self._rounds.start(lambda: SAMPLE_SECONDS)

    async def stop(self) -> None:
        """Look no more."""
        PROCESS.hide(self)
        await self._rounds.stop()

    async def tick(self) -> None:
        """Look at every shard once; takes five seconds at most."""
        await self._rounds.tick()

    async def _sample(self, store: Store) -> None:
        own = self._queues if store.shard_id in self._assigned else ()
        sample = await shard_health.sample(store.scan, own)
        self.gauges[("shard.stranded_pending", str(store.shard_id))] = sample.stranded
        if own:
            self._seen[store.shard_id] = _gauges(store, sample, own)
            self._sum()

    def _unseen(self, shard_id: int, reason: str, error: Exception | None) -> None:
        _log.warning("shard %s: stranded work is not looked for: %s", shard_id, reason, exc_info=error)
        self._seen.pop(shard_id, None)
        self._sum()

    def _sum(self) -> None:
        found: dict[Key, float] = {}
        for of_shard in self._seen.values():
            for key, value in of_shard.items():
                known = found.get(key, 0.0)
                found[key] = max(known, value) if key[0] == "queue.oldest_pending_age" else known + value
        self.own = found


def _gauges(store: Store, sample: Sample, queues: Collection[str]) -> dict[Key, float]:
    """The gauges of queues on one shard; a queue in which nothing waits has them too."""
    found: dict[Key, float] = {}
    waiting = {each.queue: each for each in sample.waiting}
    for queue in queues:
        there = waiting.get(queue)
        oldest = there.oldest if there is not None else None
        found[("queue.depth", queue)] = there.tasks if there is not None else 0
        found[("queue.oldest_pending_age", queue)] = (
            0.0 if oldest is None else max(0.0, (store.clock.now() - oldest).total_seconds())
        )
        found[("worker.pollers", queue)] = sum(queue in worker.queues for worker in sample.workers)
    return found
