"""The connections of one shard by role, and its clock."""

from __future__ import annotations

import asyncio

from harvest.clock import DatabaseClock
from harvest.store.address import address
from harvest.store.pool import CLAIM, COMMIT, DELIVER, ERASE, LOOK, READ, REPORT, SCAN, WRITE, Connections, Role
from harvest.store.wakes import Hints, Waker


class Store:
    """One shard's database: pools opened on first use, and an estimate of its clock.

    Raises ConfigurationError for a URL that names no place.
    """

    def __init__(self, shard_id: int, url: str) -> None:
        self.shard_id = shard_id
        self.url = url
        self.address = address(url)
        self.clock = DatabaseClock()
        self.commit = self._connections(COMMIT)
        self.claim = self._connections(CLAIM)
        self.scan = self._connections(SCAN)
        self.deliver = self._connections(DELIVER)
        self.write = self._connections(WRITE)
        self.read = self._connections(READ)
        self.look = self._connections(LOOK)
        self.report = self._connections(REPORT)
        self.erase = self._connections(ERASE)
        self.waker = Waker(self)
        self.hints = Hints(self)

    def _connections(self, role: Role) -> Connections:
        return Connections(self.shard_id, self.address, role)

    async def close(self) -> None:
        """Close all pools."""
        await self.waker.close()
        await self.hints.close()
        pools = (
            self.commit,
            self.claim,
            self.scan,
            self.deliver,
            self.write,
            self.read,
            self.look,
            self.report,
            self.erase,
        )
        await asyncio.gather(*(pool.close() for pool in pools))
