"""A process tells every shard that it is there, and how it routes: so that people see whether all of them agree."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from harvest import clock
from harvest.errors import HarvestError
from harvest.shards.shards import Shards
from harvest.store import processes
from harvest.store.pool import Connections
from harvest.store.processes import Kind, ProcessRow
from harvest.store.store import Store

TELL_SECONDS: Final = 10.0
_DEADLINE: Final = 5.0
_END_DEADLINE: Final = 1.0
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
        self._shards = shards
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
        self._untold: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def process(self) -> UUID:
        """The id of this process in what it tells."""
        return self._row.process

    def start(self) -> None:
        """Tell at once and from then on, without waiting for the first answers."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="presence")

    async def tick(self) -> None:
        """Tell every shard once; takes five seconds at most."""
        await asyncio.gather(*(self._tell(store) for store in self._shards.stores.values()))

    async def stop(self) -> None:
        """Tell no more, and take the rows away where that can be done within a second."""
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*(self._forget(store) for store in self._shards.stores.values()))

    async def _run(self) -> None:
        while True:
            await self.tick()
            await clock.sleep(clock.jittered(TELL_SECONDS))

    async def _tell(self, store: Store) -> None:
        error = await _tried(processes.tell(self._through(store), self._row), _DEADLINE)
        if error is None:
            self._untold.discard(store.shard_id)
        elif store.shard_id not in self._untold:
            self._untold.add(store.shard_id)
            _log.warning("shard %s does not know of this process yet: %s", store.shard_id, _why(error))

    async def _forget(self, store: Store) -> None:
        error = await _tried(processes.forget(self._through(store), self._row.process), _END_DEADLINE)
        if error is not None:
            _log.warning("shard %s was not told that this process ends: %s", store.shard_id, _why(error))


def told(shards: Shards, assigned: tuple[int, ...] | None) -> dict[str, Any]:
    """What a process says of itself: its router, the shards with a database here, and those that it works on."""
    return {
        **shards.router.topology(),
        "pool_shards": sorted(shards.stores),
        "shard_assignments": None if assigned is None else sorted(assigned),
    }


async def _tried(write: Awaitable[None], deadline: float) -> Exception | None:
    """Why a write has failed; the next one comes soon enough, whatever it was."""
    try:
        async with asyncio.timeout(deadline):
            await write
    except (HarvestError, asyncpg.PostgresError, TimeoutError) as error:
        return error
    except Exception as error:
        _log.exception("presence could not be written")
        return error
    return None


def _why(error: Exception) -> str:
    return str(error) or "no answer in time"
