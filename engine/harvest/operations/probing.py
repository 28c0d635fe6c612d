"""Whether shards answer: asked of those alone that did not, before everything is read again."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from harvest.shards import Partial, Shards
from harvest.store import families
from harvest.store.store import Store


async def answering(shards: Shards, over: Iterable[int]) -> Partial[None]:
    """Read one row by its key on each of these shards, and on no other; those without an answer are named."""

    async def read(store: Store) -> list[None]:
        await families.node(store, UUID(int=0))
        return []

    return await shards.fan_out(read, over=tuple(over))
