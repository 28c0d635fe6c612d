"""Where a start may be placed, and where one would be: told before anything is begun (reference 1.3 and 1.4)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from msgspec import Struct

from harvest.errors import HarvestError, NoWritableShardError, PlacementError, ShardUnavailableError
from harvest.history.ids import partition_of
from harvest.shards import Placement, Shards


class PlaceableShard(Struct, frozen=True, kw_only=True):
    """A readable shard: a start may name it while it is `writable` and `has_database` here; else it would be refused.

    On a `reserved` one lands only what is placed there. `residency_keys` lead to it.
    """

    shard_id: int
    writable: bool
    reserved: bool
    has_database: bool
    residency_keys: tuple[str, ...]


class Target(Struct, frozen=True, kw_only=True):
    """Where a start would begin a run, and as which workflow id; or the `refusal` that it would get.

    `led_to` is the shard that an unpinned start of the same id leads to, where that is another one: None, too, where no
    id leads to this shard.
    """

    workflow_id: str
    shard: PlaceableShard | None = None
    led_to: int | None = None
    refusal: HarvestError | None = None

    @property
    def partition(self) -> int:
        """The partition of the workflow id, 0 to 511: the same on each shard."""
        return partition_of(self.workflow_id)


def placeable(shards: Shards) -> list[PlaceableShard]:
    """Every readable shard in order, with what a start that names it would meet."""
    return [_placeable(shards, shard_id) for shard_id in sorted(shards.router.readable)]


def by_residency_key(found: Iterable[PlaceableShard]) -> list[tuple[str, PlaceableShard]]:
    """The declared residency keys in order, each with its shard."""
    return sorted(((key, shard) for shard in found for key in shard.residency_keys), key=lambda pair: pair[0])


def preview(shards: Shards, workflow_name: str, placement: Placement, ids: Iterable[str]) -> Target:
    """What a start with the first of `ids` that leads to its shard would do now. Nothing is asked, begun or noted.

    `ids` is the one that somebody chose, or those that may be made.
    """
    candidates = iter(ids)
    first = next(candidates)
    try:
        shard_id = shards.router.resolve(workflow_name, first, placement)
        shards.store(shard_id)
    except (PlacementError, NoWritableShardError, ShardUnavailableError) as error:
        return Target(workflow_id=first, refusal=error)
    if placement.is_automatic:
        return Target(workflow_id=first, shard=_placeable(shards, shard_id))
    chosen = shards.router.id_for(workflow_name, shard_id, chain([first], candidates))
    return Target(
        workflow_id=chosen, shard=_placeable(shards, shard_id), led_to=_led_to(shards, workflow_name, chosen, shard_id)
    )


def _led_to(shards: Shards, workflow_name: str, workflow_id: str, shard_id: int) -> int | None:
    try:
        found = shards.router.pick(workflow_name, workflow_id)
    except NoWritableShardError:
        return None
    return None if found == shard_id else found


def _placeable(shards: Shards, shard_id: int) -> PlaceableShard:
    router = shards.router
    return PlaceableShard(
        shard_id=shard_id,
        writable=shard_id in router.writable,
        reserved=shard_id in router.reserved,
        has_database=shard_id in shards.stores,
        residency_keys=tuple(key for key, shard in sorted(router.residency.items()) if shard == shard_id),
    )
