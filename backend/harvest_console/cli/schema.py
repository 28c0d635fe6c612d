"""The schema of every shard, for the verbs that look at it or bring it up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from harvest.errors import HarvestError, ShardUnavailableError


async def levels(urls: Mapping[int, str]) -> dict[int, int | Exception]:
    """Each shard's schema level (0: an empty database), or why it did not answer or is refused."""
    from harvest.store.migrate import check_shard, schema_level

    async def level(shard_id: int, url: str) -> int:
        await check_shard(url, shard_id)
        return await schema_level(url)

    answers = await asyncio.gather(*(level(*item) for item in urls.items()), return_exceptions=True)
    found: dict[int, int | Exception] = {}
    for shard_id, answer in zip(urls, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, Exception):
            raise answer
        found[shard_id] = answer
    return found


async def bring_up(urls: Mapping[int, str]) -> None:
    """Migrate the shards whose level differs from this release's, and write into each which shard it is.

    Raises ShardUnavailableError when a database does not answer, SchemaLevelError when one is newer, WrongShardError
    when one is another shard.
    """
    from harvest.store.migrate import SCHEMA_LEVEL, name_shard, upgrade

    for shard_id, level in (await levels(urls)).items():
        if isinstance(level, HarvestError):
            raise level
        if isinstance(level, Exception):
            raise ShardUnavailableError(
                f"the database of shard {shard_id} does not answer: {reason(level)}", shard_id=shard_id
            ) from level
        if level != SCHEMA_LEVEL:
            await upgrade(urls[shard_id], shard_id=shard_id)
        else:
            await name_shard(urls[shard_id], shard_id)


def reason(error: Exception) -> str:
    """What an error of a connection says, or its kind where it says nothing."""
    return str(error) or type(error).__name__
