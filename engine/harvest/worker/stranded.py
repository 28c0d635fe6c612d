"""Looks for work that nobody takes, on every shard that this process reaches, those that others work on too."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import asyncpg

from harvest import clock
from harvest.errors import HarvestError
from harvest.shards import Shards
from harvest.store import shard_health
from harvest.store.measures import Key
from harvest.store.store import Store

SAMPLE_SECONDS: Final = 15.0
_DEADLINE: Final = 5.0
_log = logging.getLogger("harvest.worker")


class StrandedSampler:
    """One for each worker process. `gauges` are what it saw last, also of a shard that does not answer by now."""

    def __init__(self, shards: Shards) -> None:
        self.gauges: dict[Key, float] = {}
        self._shards = shards
        self._away: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="stranded sampler")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def tick(self) -> None:
        """Look at every shard once; takes five seconds at most."""
        await asyncio.gather(*(self._sample(store) for store in self._shards.stores.values()))

    async def _run(self) -> None:
        while True:
            await clock.sleep(clock.jittered(SAMPLE_SECONDS))
            await self.tick()

    async def _sample(self, store: Store) -> None:
        try:
            async with asyncio.timeout(_DEADLINE):
                found = await shard_health.stranded(store.scan)
        except (HarvestError, asyncpg.PostgresError, TimeoutError) as error:
            if store.shard_id not in self._away:
                self._away.add(store.shard_id)
                _log.warning("shard %s: stranded work is not looked for: %s", store.shard_id, str(error) or "late")
            return
        except Exception:
            _log.exception("shard %s: stranded work could not be looked for", store.shard_id)
            return
        self._away.discard(store.shard_id)
        self.gauges[("shard.stranded_pending", str(store.shard_id))] = found
