"""Loops that go over all shards again and again, beside the work: one that does not answer holds up no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from harvest import clock
from harvest.errors import HarvestError
from harvest.shards.shards import Shards
from harvest.store.store import Store

VISIT_SECONDS: Final = 5.0
LAST_SECONDS: Final = 1.0
Visit = Callable[[Store], Awaitable[None]]
Trouble = Callable[[int, str, Exception | None], None]


class Rounds:
    """Visits every shard at once, pauses, and begins anew, until stopped.

    A visit takes `VISIT_SECONDS` at most. `trouble` hears of the first that fails on a shard in a row: the shard, why,
    and the error where nothing of the kind was to be expected.
    """

    def __init__(self, name: str, shards: Shards, visit: Visit, trouble: Trouble) -> None:
        self._name = name
        self._shards = shards
        self._visit = visit
        self._trouble = trouble
        self._failing: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self, pause: Callable[[], float], *, at_once: bool = False) -> None:
        """Begin; `pause` tells the seconds before each next round."""
        self._task = asyncio.get_running_loop().create_task(self._run(pause, at_once), name=self._name)

    async def tick(self) -> None:
        """One round."""
        await self.each(self._visited)

    async def stop(self) -> bool:
        """End; tells whether it had begun."""
        if self._task is None:
            return False
        task, self._task = self._task, None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return True

    async def each(self, visit: Visit) -> None:
        """Do something on every shard, which must not fail."""
        await asyncio.gather(*(visit(store) for store in self._shards.stores.values()))

    async def _run(self, pause: Callable[[], float], at_once: bool) -> None:
        if at_once:
            await self.tick()
        while True:
            await clock.sleep(clock.jittered(pause()))
            await self.tick()

    async def _visited(self, store: Store) -> None:
        error = await failure_of_visit(self._visit(store), VISIT_SECONDS)
        if error is None:
            self._failing.discard(store.shard_id)
        elif store.shard_id not in self._failing:
            self._failing.add(store.shard_id)
            expected = isinstance(error, HarvestError | asyncpg.PostgresError | TimeoutError)
            self._trouble(store.shard_id, why(error), None if expected else error)


async def failure_of_visit(visit: Awaitable[object], seconds: float) -> Exception | None:
    """Why it has failed, if it has; it is late after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await visit
    except Exception as error:
        return error
    return None


def why(error: Exception) -> str:
    """What went wrong, in one line."""
    return str(error) or "no answer in time"
