"""The stores of all shards, and reads that fan out over them with a deadline for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

import asyncpg

from harvest.errors import ShardUnavailableError
from harvest.history.ids import ExecutionId
from harvest.shards.partial import MissingShard, Partial
from harvest.shards.router import ShardRouter
from harvest.store.address import require_distinct
from harvest.store.pool import is_passing
from harvest.store.store import Store

T = TypeVar("T")
READ_DEADLINE = 2.5
# A shard that is being added may be readable before it is migrated.
_BEHIND = (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError)


class Shards:
    """Every shard's store and the router over them. One a process.

    A shard that the router knows and that has no database here is read as one that does not answer: a roll-out may be
    under way. Raises ConfigurationError where two shards are one database and schema.
    """

    def __init__(self, urls: Mapping[int, str], router: ShardRouter | None = None) -> None:
        require_distinct(urls)
        self.router = router or ShardRouter.of(tuple(urls))
        self.stores = {shard_id: Store(shard_id, url) for shard_id, url in sorted(urls.items())}

    @classmethod
    async def open(cls, urls: Mapping[int, str], router: ShardRouter | None = None) -> Shards:
        """Make the stores; connections are opened on first use."""
        return cls(urls, router)

    def store(self, shard_id: int) -> Store:
        """One shard's store; raises ShardUnavailableError when no database is configured for it."""
        try:
            return self.stores[shard_id]
        except KeyError:
            raise ShardUnavailableError(
                f"shard {shard_id} has no database configured here", shard_id=shard_id, reason="not configured"
            ) from None

    def store_of(self, execution_id: ExecutionId) -> Store:
        """The store where an execution lives."""
        return self.store(self.router.locate(execution_id))

    async def fan_out(
        self,
        read: Callable[[Store], Awaitable[list[T]]],
        *,
        over: Iterable[int] | None = None,
        deadline: float = READ_DEADLINE,
    ) -> Partial[T]:
        """Run `read` on every readable shard at once; a shard that fails or is late is named, never awaited longer."""
        expected = tuple(self.router.readable if over is None else over)
        answers = await asyncio.gather(*(self._ask(shard, read, deadline) for shard in expected))
        rows: list[T] = []
        missing = []
        for answer in answers:
            if isinstance(answer, MissingShard):
                missing.append(answer)
            else:
                rows.extend(answer)
        lost = {shard.shard_id for shard in missing}
        return Partial(
            rows=rows,
            expected=expected,
            read=tuple(shard for shard in expected if shard not in lost),
            missing=tuple(missing),
        )

    async def _ask(
        self, shard_id: int, read: Callable[[Store], Awaitable[list[T]]], deadline: float
    ) -> list[T] | MissingShard:
        try:
            async with asyncio.timeout(deadline):
                return await read(self.store(shard_id))
        except ShardUnavailableError as error:
            return MissingShard(shard_id, str(error.fields.get("reason", error)), error.fields.get("since"))
        except TimeoutError:
            return MissingShard(shard_id, "no answer in time")
        except asyncpg.QueryCanceledError:
            return MissingShard(shard_id, "the query took too long")
        except _BEHIND:
            return MissingShard(shard_id, "its schema is not that of this release: run `harvest migrate run`")
        except asyncpg.PostgresError as error:
            if not is_passing(error):
                raise
            return MissingShard(shard_id, f"{type(error).__name__}: {error}"[:200])

    async def close(self) -> None:
        """Close every store."""
        await asyncio.gather(*(store.close() for store in self.stores.values()))
