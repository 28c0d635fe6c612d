"""Waiting for executions to end without holding connections: one poll a shard for all waiters of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID
from weakref import WeakKeyDictionary

from harvest import clock
from harvest.errors import HarvestError
from harvest.operations.asking import ask
from harvest.shards import Shards
from harvest.store import reads

POLL_SECONDS: Final = 0.1


class Waiters:
    """Who waits for which execution; a shard is polled only while somebody waits on it."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[UUID, list[asyncio.Future[None]]]] = {}
        self._polls: dict[int, asyncio.Task[None]] = {}

    def until_closed(self, shards: Shards, seconds: float) -> Callable[[int, UUID], Awaitable[bool]]:
        """A function that waits until an execution on a shard is closed, with `seconds` for all of its calls.

        It tells whether that came, and raises ShardUnavailableError when the shard stops answering.
        """
        end = clock.monotonic() + seconds

        async def wait(shard_id: int, execution_id: UUID) -> bool:
            left = end - clock.monotonic()
            return left > 0 and await self._wait(shards, shard_id, execution_id, left)

        return wait

    async def _wait(self, shards: Shards, shard_id: int, execution_id: UUID, seconds: float) -> bool:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(shard_id, {})
        waiting.setdefault(execution_id, []).append(future)
        if shard_id not in self._polls:
            self._polls[shard_id] = asyncio.create_task(self._poll(shards, shard_id))
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            mine = waiting.get(execution_id, [])
            if future in mine:
                mine.remove(future)
            if not mine:
                waiting.pop(execution_id, None)
        return True

    async def _poll(self, shards: Shards, shard_id: int) -> None:
        waiting = self._waiting[shard_id]
        try:
            while waiting:
                try:
                    closed = await ask(shards, shard_id, lambda store: reads.closed_among(store, list(waiting)))
                except HarvestError as error:
                    _release(waiting, list(waiting), error)
                    return
                _release(waiting, closed, None)
                if waiting:
                    await clock.sleep(POLL_SECONDS)
        finally:
            del self._polls[shard_id]


def _release(waiting: dict[UUID, list[asyncio.Future[None]]], closed: list[UUID], error: HarvestError | None) -> None:
    for execution_id in closed:
        for future in waiting.pop(execution_id, []):
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


_of_shards: WeakKeyDictionary[Shards, Waiters] = WeakKeyDictionary()


def waiters(shards: Shards) -> Waiters:
    """The waiters of this process on `shards`."""
    return _of_shards.setdefault(shards, Waiters())
