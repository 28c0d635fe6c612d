"""A process tells every shard that it is there, and how it routes: so that people see whether all of them agree."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import msgspec

from harvest.shards.rounds import LAST_SECONDS, Rounds, failure_of_visit, why
from harvest.shards.shards import Shards
from harvest.store import processes
from harvest.store.pool import Connections
from harvest.store.processes import Kind, ProcessRow
from harvest.store.store import Store

TELL_SECONDS: Final = 10.0
_log = logging.getLogger("harvest.shards")


class Presence:
    """One for each worker and each console: writes its row at the start, every ten seconds, and takes it away.

    `through` are the connections that it borrows. `assigned` are the shards that a worker works on. A shard that does
    not answer is told again with the next tick, and holds up no other.
    """

    def __init__(
        self,
        shards: Shards,
        process: UUID,
        kind: Kind,
        *,
        through: Callable[[Store], Connections],
        name: str = "",
        build: str = "",
        assigned: tuple[int, ...] | None = None,
    ) -> None:
        self._through = through
        self._row = ProcessRow(
            process=process,
            kind=kind,
            name=name or f"{socket.gethostname()}-{os.getpid()}",
            host=socket.gethostname(),
            pid=os.getpid(),
            build=build,
            digest=shards.router.digest,
            topology=msgspec.json.encode(told(shards, assigned)),
        )
        self._rounds = Rounds("presence", shards, self._tell, _untold)

    @property
    def process(self) -> UUID:
        """The id of this process in what it tells."""
        return self._row.process

    def start(self) -> None:
        """Tell at once and from then on, without waiting for the first answers."""
        self._rounds.start(lambda: TELL_SECONDS, at_once=True)

    async def tick(self) -> None:
        """Tell every shard once; takes five seconds at most."""
        await self._rounds.tick()

    async def stop(self) -> None:
        """Tell no more, and take the rows away where that can be done within a second."""
        if await self._rounds.stop():
            await self._rounds.each(self._forget)

    async def _tell(self, store: Store) -> None:
        await processes.tell(self._through(store), self._row)

    async def _forget(self, store: Store) -> None:
        error = await failure_of_visit(processes.forget(self._through(store), self._row.process), LAST_SECONDS)
        if error is not None:
            _log.warning("shard %s was not told that this process ends: %s", store.shard_id, why(error))


def _untold(shard_id: int, reason: str, error: Exception | None) -> None:
    _log.warning("shard %s does not know of this process yet: %s", shard_id, reason, exc_info=error)


def told(shards: Shards, assigned: tuple[int, ...] | None) -> dict[str, Any]:
    """What a process says of itself: its router, the shards with a database here, and those that it works on."""
    return {
        **shards.router.topology(),
        "pool_shards": sorted(shards.stores),
        "shard_assignments": None if assigned is None else sorted(assigned),
    }
