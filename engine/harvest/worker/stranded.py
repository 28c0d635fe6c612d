"""Looks for work that nobody takes, on every shard that this process reaches, those that others work on too."""

from __future__ import annotations

import logging
from typing import Final

from harvest.shards import Shards
from harvest.shards.rounds import Rounds
from harvest.store import shard_health
from harvest.store.measures import Key
from harvest.store.store import Store

SAMPLE_SECONDS: Final = 15.0
_log = logging.getLogger("harvest.worker")


class StrandedSampler:
    """One for each worker process. `gauges` are what it saw last, also of a shard that does not answer by now."""

    def __init__(self, shards: Shards) -> None:
        self.gauges: dict[Key, float] = {}
        self._rounds = Rounds("stranded sampler", shards, self._sample, _unseen)

    def start(self) -> None:
        """Look from now on."""
        self._rounds.start(lambda: SAMPLE_SECONDS)

    async def stop(self) -> None:
        """Look no more."""
        await self._rounds.stop()

    async def tick(self) -> None:
        """Look at every shard once; takes five seconds at most."""
        await self._rounds.tick()

    async def _sample(self, store: Store) -> None:
        self.gauges[("shard.stranded_pending", str(store.shard_id))] = await shard_health.stranded(store.scan)


def _unseen(shard_id: int, reason: str, error: Exception | None) -> None:
    _log.warning("shard %s: stranded work is not looked for: %s", shard_id, reason, exc_info=error)
