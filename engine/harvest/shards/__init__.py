"""Many stores: router, placement, fan-out. Everything goes through here, with one shard as with many (design 7)."""

from harvest.shards.configured import configured, warn_at_boot
from harvest.shards.partial import MissingShard, Partial
from harvest.shards.placement import AUTOMATIC, Placement
from harvest.shards.router import ShardRouter
from harvest.shards.shards import Shards

__all__ = ["AUTOMATIC", "MissingShard", "Partial", "Placement", "ShardRouter", "Shards", "configured", "warn_at_boot"]
