"""Whether shards answer: asked of those alone that did not, before everything is read again."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from harvest.shards import Partial, Shards
from harvest.store import families
from harvest.store.store import Store


def end_quiet(shards: Shards, over: Iterable[int]) -> None:
    """Let the next read really ask these shards, however lately one of them has failed."""
    for shard_id in over:
        if shard_id in shards.stores:
            shards.stores[shard_id].read.end_quiet()


async def answering(shards: Shards, over: Iterable[int]) -> Partial[None]:
    """Read one row by its key on each of these shards, and on no other; those without an answer are named."""
    asked = tuple(over)
    end_quiet(shards, asked)

    async def read(store: Store) -> list[None]:
        await families.node(store, UUID(int=0))
        return []

    return await shards.fan_out(read, over=asked)
