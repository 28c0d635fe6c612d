"""Reads that one shard alone can answer, with the deadline and the errors of those over several (design 7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from harvest.errors import ShardUnavailableError
from harvest.shards import Partial, Shards
from harvest.store.store import Store

T = TypeVar("T")


async def ask(shards: Shards, shard_id: int, read: Callable[[Store], Awaitable[T]]) -> T:
    """Run `read` on one shard. Raises ShardUnavailableError when it fails or is late."""

    async def as_list(store: Store) -> list[T]:
        return [await read(store)]

    answer = await shards.fan_out(as_list, over=(shard_id,))
    for missing in answer.missing:
        raise ShardUnavailableError(
            f"shard {shard_id} does not answer: {missing.reason}",
            shard_id=shard_id,
            reason=missing.reason,
            since=missing.since,
        )
    return answer.rows[0]


async def everywhere(shards: Shards, act: Callable[[Store], Awaitable[None]]) -> Partial[None]:
    """Do `act` on every shard at once; the answer says where it was done. Raises ShardUnavailableError for nowhere."""

    async def done(store: Store) -> list[None]:
        await act(store)
        return []

    answer = await shards.fan_out(done)
    require_one(answer)
    return answer


def require_one(answer: Partial[Any]) -> None:
    """Raise ShardUnavailableError when no shard at all has answered."""
    if not answer.read:
        raise ShardUnavailableError(
            "no shard answers",
            unavailable_shards=[{"shard_id": shard.shard_id, "reason": shard.reason} for shard in answer.missing],
        )
