"""How a workflow is started as a child: what differs from call to call."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar, Literal

from msgspec import Struct

from harvest.definitions.options import Retry
from harvest.errors import DefinitionError
from harvest.history.data import RetryPolicy
from harvest.history.deliveries import CLOSE_POLICIES
from harvest.history.ids import RESERVED_SHARD
from harvest.history.limits import WORKFLOW_ID_BYTES, check_text

ClosePolicy = Literal["abandon", "request_cancel", "terminate"]
PlacementKind = Literal["parent_shard", "distributed", "shard", "residency_key"]


class ChildPlacement(Struct, frozen=True):
    """The shard that a child lives on. It is found once, when the child is asked for.

    `ChildPlacement.ParentShard`, where nothing is said: its parent's. `ChildPlacement.Distributed`: one of those that
    take new runs, as a hash decides. `ChildPlacement.Shard(1)` and `ChildPlacement.ResidencyKey("eu")`: that one,
    refused where a start with it would be.
    """

    kind: PlacementKind = "parent_shard"
    shard_id: int | None = None
    residency_key: str | None = None

    ParentShard: ClassVar[ChildPlacement]
    Distributed: ClassVar[ChildPlacement]

    @classmethod
    def Shard(cls, shard_id: int) -> ChildPlacement:
        """The shard of that number; raises DefinitionError for one that cannot be."""
        if not 0 <= shard_id < RESERVED_SHARD:
            raise DefinitionError(f"shard_id is {shard_id}; shards are 0 to {RESERVED_SHARD - 1}")
        return cls("shard", shard_id=shard_id)

    @classmethod
    def ResidencyKey(cls, key: str) -> ChildPlacement:
        """The shard that the deployment's residency map declares for this key."""
        return cls("residency_key", residency_key=key)


ChildPlacement.ParentShard = ChildPlacement()
ChildPlacement.Distributed = ChildPlacement("distributed")


class ChildOptions(Struct, frozen=True, kw_only=True):
    """Options of one child. Times in seconds; `queue` None is the child type's own."""

    workflow_id: str | None = None
    queue: str | None = None
    priority: int = 0
    detached: bool = False
    close_policy: ClosePolicy = "request_cancel"
    deadline: float | None = None
    execution_timeout: float | None = None
    retry: RetryPolicy | None = None
    placement: ChildPlacement = ChildPlacement.ParentShard


def child_options(
    *,
    workflow_id: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    detached: bool = False,
    close_policy: ClosePolicy | None = None,
    deadline: timedelta | None = None,
    execution_timeout: timedelta | None = None,
    retry: Retry | None = None,
    placement: ChildPlacement = ChildPlacement.ParentShard,
) -> ChildOptions:
    """Check the options of a child; raises DefinitionError or LimitError naming the one that is wrong.

    When the parent ends, an awaited child is asked to cancel and a detached one is left alone, unless `close_policy`
    says otherwise.
    """
    if close_policy is not None and close_policy not in CLOSE_POLICIES:
        raise DefinitionError(f"close_policy is {close_policy!r}; it must be one of {', '.join(CLOSE_POLICIES)}")
    if not -32768 <= priority <= 32767:
        raise DefinitionError(f"priority is {priority}; it must be within -32768 and 32767")
    if not isinstance(placement, ChildPlacement):
        raise DefinitionError(
            f"placement is {placement!r}; it must be a ChildPlacement, such as ChildPlacement.Distributed"
        )
    for name, limit in (("deadline", deadline), ("execution_timeout", execution_timeout)):
        if limit is not None and limit <= timedelta(0):
            raise DefinitionError(f"{name} is {limit}; it must be positive")
    return ChildOptions(
        workflow_id=workflow_id and check_text(workflow_id, what="workflow_id", most=WORKFLOW_ID_BYTES),
        queue=queue and check_text(queue, what="queue"),
        priority=priority,
        detached=detached,
        close_policy=close_policy or ("abandon" if detached else "request_cancel"),
        deadline=None if deadline is None else deadline.total_seconds(),
        execution_timeout=None if execution_timeout is None else execution_timeout.total_seconds(),
        retry=None if retry is None else retry.policy(),
        placement=placement,
    )
