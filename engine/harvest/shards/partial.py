"""What a read over several shards returns: rows that cannot be had without knowing which shards are missing."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

from msgspec import Struct

from harvest.errors import UnknownExecutionError

T = TypeVar("T")


class MissingShard(Struct, frozen=True):
    """A shard that did not answer: why, and since when if that is known."""

    shard_id: int
    reason: str
    since: datetime | None = None


class Partial(Struct, Generic[T], frozen=True):
    """Rows, the shards that were expected and read, and those that are missing with their reasons (design 7)."""

    rows: list[T]
    expected: tuple[int, ...]
    read: tuple[int, ...]
    missing: tuple[MissingShard, ...] = ()

    @property
    def status(self) -> str:
        """`complete`, `partial`, or `unavailable` when no shard answered."""
        if not self.missing:
            return "complete"
        return "partial" if self.read else "unavailable"

    def require_complete(self, what: str) -> None:
        """Raise UnknownExecutionError when a shard is missing: absence then proves nothing."""
        if self.missing:
            names = ", ".join(str(shard.shard_id) for shard in self.missing)
            raise UnknownExecutionError(
                f"{what} was not found, but shard {names} did not answer: it may exist there",
                unavailable_shards=[{"shard_id": s.shard_id, "reason": s.reason} for s in self.missing],
            )
