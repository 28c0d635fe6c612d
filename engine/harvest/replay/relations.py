"""Commands that concern other runs: children, and runs that somebody else started."""

from __future__ import annotations

from msgspec import Raw, Struct

from harvest.definitions.children import ChildOptions
from harvest.definitions.signature import Signature
from harvest.history.data import (
    ChildWorkflowSpawnedDetached,
    ChildWorkflowStarted,
    ExternalAwaitRequested,
    ExternalCancelRequested,
    ExternalSignalRequested,
    Target,
)
from harvest.history.events import Event, encode_data
from harvest.history.ids import ExecutionId, parse_execution_id
from harvest.history.kinds import EventKind
from harvest.replay.commands import Difference, Key, difference_of_input
from harvest.replay.describing import child_text, recorded_as, target_text


class StartChild(Struct):
    """Start a workflow whose end this one hears of, or a detached one. `refused` says why its shard takes none."""

    seq: int
    child_id: ExecutionId
    workflow_name: str
    workflow_id: str
    version: int
    input: bytes
    digest: str
    options: ChildOptions
    signature: Signature | None
    refused: str = ""

    @property
    def kind(self) -> EventKind:
        detached = self.options.detached
        return EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED if detached else EventKind.CHILD_WORKFLOW_STARTED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return child_text(self.workflow_name, self.seq, detached=self.options.detached)

    def payload(self) -> bytes:
        """The data of its event."""
        options = self.options
        made = ChildWorkflowSpawnedDetached if options.detached else ChildWorkflowStarted
        return encode_data(
            made(
                child_id=str(self.child_id),
                workflow_name=self.workflow_name,
                workflow_id=self.workflow_id,
                digest=self.digest,
                input=Raw(self.input),
                version=self.version,
                queue=options.queue or "",
                priority=options.priority,
                close_policy=options.close_policy,
                execution_timeout=options.execution_timeout,
                retry=options.retry,
            )
        )

    def difference(self, event: Event) -> Difference | None:
        """What differs from the recorded event, or None. Afterwards the child's id is the recorded one."""
        recorded: ChildWorkflowStarted = event.data()
        if recorded.workflow_name != self.workflow_name:
            return recorded_as(event), self.describe()
        if recorded.workflow_id != self.workflow_id and self.options.workflow_id is not None:
            return f"{recorded_as(event)} with the id {recorded.workflow_id!r}", f"it with {self.workflow_id!r}"
        found = difference_of_input(
            event, self.signature, bytes(recorded.input), self.input, (recorded.digest, self.digest)
        )
        if found is None:
            self.child_id, self.workflow_id = parse_execution_id(recorded.child_id), recorded.workflow_id
        return found


class CancelChild(Struct):
    """No longer wait for a child, and ask it to end."""

    seq: int
    child: StartChild
    kind: EventKind = EventKind.CHILD_CANCEL_REQUESTED

    @property
    def child_id(self) -> ExecutionId:
        """The child's id: the recorded one, once the start was found in history."""
        return self.child.child_id

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return f"cancellation of child workflow {self.seq}"

    def difference(self, event: Event) -> Difference | None:
        """Nothing beside number and kind can differ."""
        return None


class SignalExternal(Struct):
    """Signal another run."""

    seq: int
    target: Target
    name: str
    input: bytes
    digest: str
    kind: EventKind = EventKind.EXTERNAL_SIGNAL_REQUESTED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return f"signal {self.name!r} to {target_text(self.target)} (number {self.seq})"

    def payload(self) -> bytes:
        """The data of its event."""
        return encode_data(
            ExternalSignalRequested(target=self.target, name=self.name, digest=self.digest, payload=Raw(self.input))
        )

    def difference(self, event: Event) -> Difference | None:
        """What differs from the recorded event, or None."""
        recorded: ExternalSignalRequested = event.data()
        if (recorded.target, recorded.name) != (self.target, self.name):
            return recorded_as(event), self.describe()
        return difference_of_input(event, None, bytes(recorded.payload), self.input, (recorded.digest, self.digest))


class CancelExternal(Struct):
    """Ask another run to end."""

    seq: int
    target: Target
    reason: str
    kind: EventKind = EventKind.EXTERNAL_CANCEL_REQUESTED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return f"cancellation of {target_text(self.target)} (number {self.seq})"

    def payload(self) -> bytes:
        """The data of its event."""
        return encode_data(ExternalCancelRequested(target=self.target, reason=self.reason))

    def difference(self, event: Event) -> Difference | None:
        """What differs from the recorded event, or None. The reason is for people and may change."""
        return None if event.data().target == self.target else (recorded_as(event), self.describe())


class AwaitExternal(Struct):
    """Wait for the end of another run."""

    seq: int
    target: Target
    kind: EventKind = EventKind.EXTERNAL_AWAIT_REQUESTED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return f"wait for {target_text(self.target)} (number {self.seq})"

    def payload(self) -> bytes:
        """The data of its event."""
        return encode_data(ExternalAwaitRequested(target=self.target))

    def difference(self, event: Event) -> Difference | None:
        """What differs from the recorded event, or None."""
        return None if event.data().target == self.target else (recorded_as(event), self.describe())
