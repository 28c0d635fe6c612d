"""The shards of children: found once, when they are asked for. A replay has their ids from history."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from harvest.definitions.children import ChildPlacement
from harvest.history.ids import ExecutionId, shard_of
from harvest.replay import guard


class Placed(Struct, frozen=True):
    """Where a child will live. `refused` says why it cannot begin; it counts as one of its parent's shard then."""

    shard_id: int
    refused: str = ""


class Placer(Protocol):
    """Who knows the shards of the deployment. It is asked for what is new alone, so its answer may change."""

    def __call__(self, placement: ChildPlacement, parent: ExecutionId, workflow_name: str, seq: int) -> Placed:
        """The shard of the child that command `seq` of `parent` asks for."""


def place(
    placer: Placer | None, placement: ChildPlacement, parent: ExecutionId, workflow_name: str, seq: int
) -> Placed:
    """Where a new child will live. With no placer there is one world, and a number is taken as it is."""
    if placement.kind == "parent_shard":
        return Placed(shard_of(parent))
    if placer is None:
        return Placed(shard_of(parent) if placement.shard_id is None else placement.shard_id)
    # It writes to the log, which may lead anywhere.
    step = guard.pause()
    try:
        return placer(placement, parent, workflow_name, seq)
    finally:
        guard.leave(step)
