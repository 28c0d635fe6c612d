"""Where new children live: what their parent's code asks for, by this deployment's router (reference 1.6)."""

from __future__ import annotations

import logging

from harvest.definitions.children import ChildPlacement
from harvest.errors import NoWritableShardError, PlacementError
from harvest.history.ids import ExecutionId, shard_of
from harvest.replay.placing import Placed
from harvest.shards.placement import Placement
from harvest.shards.router import ShardRouter

_log = logging.getLogger("harvest.worker")


class ChildPlacer:
    """Asks the router. What it refuses is no error here: the child comes to nothing, and its parent hears why."""

    def __init__(self, router: ShardRouter) -> None:
        self._router = router

    def __call__(self, placement: ChildPlacement, parent: ExecutionId, workflow_name: str, seq: int) -> Placed:
        """The shard of a child. A retried decision finds the same one: the key is the parent's id and the number."""
        home = shard_of(parent)
        try:
            if placement.kind == "distributed":
                return Placed(self._router.pick(workflow_name, f"{parent}#{seq}"))
            wish = Placement(placement.shard_id, placement.residency_key)
            return Placed(self._router.resolve(workflow_name, "", wish))
        except NoWritableShardError:
            # Whoever drains waits for the parent, and the parent for its children.
            _log.warning(
                "no shard takes new workflows: child workflow %r (number %d of execution %s) stays on its parent's "
                "shard %d",
                workflow_name, seq, parent, home,
            )  # fmt: skip
            return Placed(home)
        except PlacementError as error:
            _log.warning(
                "child workflow %r (number %d of execution %s) cannot be placed: %s; configured: %s",
                workflow_name, seq, parent, error.message, self._router.topology(),
            )  # fmt: skip
            return Placed(home, error.message)
