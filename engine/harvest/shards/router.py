"""Which shard a run lives on (seed `sharding.md`, answers 2). Rules only: no I/O."""

from __future__ import annotations

from msgspec import Struct

from harvest.errors import ConfigurationError, ShardUnavailableError
from harvest.history.ids import RESERVED_SHARD, ExecutionId, pick_shard, shard_of


class ShardRouter(Struct, frozen=True):
    """Readable and writable shards, and the default one. Checked when built."""

    readable: tuple[int, ...]
    writable: tuple[int, ...]
    default: int

    def __post_init__(self) -> None:
        if not self.readable:
            raise ConfigurationError("no shard is configured; name at least one database")
        if not set(self.writable) <= set(self.readable):
            raise ConfigurationError("every writable shard must be readable too")
        if not self.writable:
            raise ConfigurationError("no shard is writable; at least one must take new workflows")
        if self.default not in self.readable:
            raise ConfigurationError(f"the default shard {self.default} is not among the readable shards")
        if any(not 0 <= shard < RESERVED_SHARD for shard in self.readable):
            raise ConfigurationError(f"shards are numbered 0 to {RESERVED_SHARD - 1}")

    @classmethod
    def of(cls, shards: tuple[int, ...]) -> ShardRouter:
        """A router over shards that are all readable and writable; the lowest is the default."""
        ordered = tuple(sorted(shards))
        return cls(readable=ordered, writable=ordered, default=ordered[0] if ordered else 0)

    def place(self, workflow_name: str, key: str) -> int:
        """The shard of a new workflow: rendezvous over the readable, again over the writable if that one drains."""
        picked = pick_shard(self.readable, workflow_name, key)
        return picked if picked in self.writable else pick_shard(self.writable, workflow_name, key)

    def locate(self, execution_id: ExecutionId) -> int:
        """The shard of an existing execution: where it started. Raises ShardUnavailableError for an unknown one."""
        shard = shard_of(execution_id)
        if shard == RESERVED_SHARD:
            return self.default
        if shard not in self.readable:
            raise ShardUnavailableError(
                f"execution {execution_id} started on shard {shard}, which this deployment does not read",
                shard_id=shard,
                reason="not configured",
            )
        return shard
