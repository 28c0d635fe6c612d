"""Where a new run is asked to live: a shard, a residency key, or wherever its id leads (reference 1.3 and 1.4)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from harvest.errors import PlacementError
from harvest.history.ids import RESERVED_SHARD

KEY_CHARACTERS: Final = 128


class Placement(Struct, frozen=True):
    """A wish: the number of a shard, or a key of the residency map. With neither, the router chooses."""

    shard_id: int | None = None
    residency_key: str | None = None

    @property
    def is_automatic(self) -> bool:
        """Whether the router chooses."""
        return self.shard_id is None and self.residency_key is None

    def check(self) -> Placement:
        """Refuse what no deployment could grant; raises PlacementError."""
        if self.shard_id is not None and self.residency_key is not None:
            raise PlacementError(
                "shard_id and residency_key exclude each other: give one of them", field="shard_id", reason="both"
            )
        if self.shard_id is not None and not 0 <= self.shard_id < RESERVED_SHARD:
            raise PlacementError(
                f"shard_id is {self.shard_id}; shards are numbered 0 to {RESERVED_SHARD - 1}",
                field="shard_id",
                reason="out_of_range",
            )
        if self.residency_key is not None:
            check_key(self.residency_key)
        return self


AUTOMATIC: Final = Placement()


def check_key(key: str) -> None:
    """Refuse what cannot be a residency key; raises PlacementError."""
    if not key.strip():
        raise PlacementError("residency key must not be blank", field="residency_key", reason="blank_key")
    if not key.isprintable():
        raise PlacementError(
            "the residency key holds a character that cannot be seen; take letters, digits and signs",
            field="residency_key",
            reason="unprintable_key",
        )
    if len(key) > KEY_CHARACTERS:
        raise PlacementError(
            f"the residency key has {len(key)} characters; at most {KEY_CHARACTERS} are allowed",
            field="residency_key",
            reason="key_too_long",
        )
