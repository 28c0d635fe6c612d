"""Which run a business key means, by what every shard has of it. Rules only: no I/O.

Uniqueness of a key holds within a shard. Where pinned and unpinned starts of one id are mixed, several shards may have
runs of it, open ones even: so nobody stops at the first that is found, and nobody says "there is none" for a shard that
was not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.history.states import FIRST_CLOSED

NO_POOL: Final = "no_pool"
NO_ANSWER: Final = "no_answer"


class KeyedRun(Struct, frozen=True):
    """A run of a business key, as its shard has it. `asked`: somebody has requested its cancellation."""

    shard_id: int
    execution_id: UUID
    state: int
    started_at: datetime
    asked: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it may still go on."""
        return self.state < FIRST_CLOSED


def meant(runs: Iterable[KeyedRun]) -> KeyedRun | None:
    """The open run, else the newest; of several open ones the newest."""
    return max(runs, key=lambda run: (run.is_open, run.started_at, run.execution_id), default=None)
