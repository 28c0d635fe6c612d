"""The connections of one shard by role, and its clock."""

from __future__ import annotations

import asyncio

from harvest.clock import DatabaseClock
from harvest.store.pool import CLAIM, COMMIT, DELIVER, READ, SCAN, WRITE, Connections, Role
from harvest.store.wakes import Hints, Waker


class Store:
    """One shard's database: pools opened on first use, and an estimate of its clock."""

    def __init__(self, shard_id: int, url: str) -> None:
        self.shard_id = shard_id
        self.url = url
        self.clock = DatabaseClock()
        self.commit = self._connections(COMMIT)
        self.claim = self._connections(CLAIM)
        self.scan = self._connections(SCAN)
        self.deliver = self._connections(DELIVER)
        self.write = self._connections(WRITE)
        self.read = self._connections(READ)
        self.waker = Waker(self)
        self.hints = Hints(self)

    def _connections(self, role: Role) -> Connections:
        return Connections(self.shard_id, self.url, role)

    async def close(self) -> None:
        """Close all pools."""
        await self.waker.close()
        await self.hints.close()
        pools = (self.commit, self.claim, self.scan, self.deliver, self.write, self.read)
        await asyncio.gather(*(pool.close() for pool in pools))
