"""Many stores: router, placement, fan-out. Everything goes through here, with one shard as with many (design 7)."""

from harvest.shards.partial import MissingShard, Partial
from harvest.shards.router import ShardRouter
from harvest.shards.shards import Shards

__all__ = ["MissingShard", "Partial", "ShardRouter", "Shards"]
