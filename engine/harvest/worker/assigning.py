"""Which shards a worker works on: those it is given, or all that have a database here (seed `sharding.md`)."""

from __future__ import annotations

from collections.abc import Collection

from harvest.errors import ConfigurationError
from harvest.shards import ShardRouter


def assigned(given: Collection[int], router: ShardRouter, pools: Collection[int]) -> tuple[int, ...]:
    """The shards in order: those `given` and no others; without any, all `pools`, the shards with a database here.

    Raises ConfigurationError for one that has no database here, and where a worker that was given none would reach into
    a reserved shard.
    """
    if given:
        absent = sorted(set(given) - set(pools))
        if absent:
            raise ConfigurationError(
                f"shard_assignments names shard {absent[0]}, which has no database here; there are "
                f"{', '.join(map(str, sorted(pools)))}"
            )
        return tuple(sorted(set(given)))
    if router.reserved:
        raise ConfigurationError(
            f"shard {min(router.reserved)} is reserved, so every worker must be told its shards: give --shard, or set "
            "HARVEST_WORKER_SHARD_ASSIGNMENTS"
        )
    return tuple(sorted(pools))


def uncovered(found: Collection[int], router: ShardRouter) -> list[int]:
    """The shards that take new runs, and that a worker of these shards leaves to others."""
    return sorted(set(router.writable) - set(found))
