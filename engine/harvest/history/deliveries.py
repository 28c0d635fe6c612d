"""What one run does to another, as rows of `harvest_deliveries` carry it (design 4)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from msgspec import Raw, Struct

from harvest.history.data import RetryPolicy, Target

_NULL: Final = Raw(b"null")
ANYWHERE: Final = -1  # the shard of a target that is known by name and id alone
CLOSE_POLICIES: Final = ("abandon", "request_cancel", "terminate")  # their places are their numbers in the tables


class DeliveryKind(IntEnum):
    """What is delivered. A number is written to disk and never reused."""

    CHILD_START = 1
    CHILD_CLOSED = 2
    CHILD_CANCEL = 3
    CLOSE_POLICY = 4
    EXTERNAL_SIGNAL = 5
    EXTERNAL_CANCEL = 6
    EXTERNAL_AWAIT = 7

    @property
    def word(self) -> str:
        """`child_start`, as pages, metrics and the API say it."""
        return self.name.lower()


class ChildStart(Struct, frozen=True, omit_defaults=True):
    """Start the target as a child. A business key that is taken comes back as ChildWorkflowFailed, REJECTED.

    `reports` says whether the child's end is sent to the parent. `version` 0 is the latest that is registered. With
    `refused`, why no shard takes it, nothing begins.
    """

    workflow_name: str
    workflow_id: str
    parent_id: str
    root_id: str
    version: int = 0
    queue: str = ""
    priority: int = 0
    tenant: str = "default"
    input: Raw = _NULL
    memo: Raw = _NULL
    execution_timeout: float | None = None
    retry: RetryPolicy | None = None
    awaited: bool = True
    reports: bool = True
    close_policy: str = "request_cancel"
    refused: str = ""


class ChildClosed(Struct, frozen=True, omit_defaults=True):
    """A child has ended: the event, kind and data, for the parent that waits. The first run of the child's chain."""

    first_execution_id: str
    kind: int
    data: Raw


class Cancel(Struct, frozen=True, omit_defaults=True):
    """The parent's code no longer waits: request cancellation of the current run of the target's chain."""

    reason: str = ""


class ClosePolicy(Struct, frozen=True):
    """The parent has ended: `request_cancel` or `terminate` the current run of the target's chain."""

    action: str


class ExternalSignal(Struct, frozen=True, omit_defaults=True):
    """Signal another run; answered by ExternalSignalDelivered or ExternalSignalFailed."""

    target: Target
    name: str
    payload: Raw = _NULL


class ExternalCancel(Struct, frozen=True, omit_defaults=True):
    """Request cancellation of another run; answered by ExternalCancelDelivered or ExternalCancelFailed."""

    target: Target
    reason: str = ""


class ExternalAwait(Struct, frozen=True, omit_defaults=True):
    """Wait for the end of another run; answered by ExternalAwaitResolved or ExternalAwaitFailed."""

    target: Target
