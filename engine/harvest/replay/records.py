"""Commands whose only effect is their event: what was chosen, seen or answered when the code was live."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Raw, Struct

from harvest.definitions.activity import ActivityDefinition
from harvest.history.data import (
    Failure,
    LocalActivityScheduled,
    MarkerRecorded,
    RetryPolicy,
    SideEffectRecorded,
    UpdateCompleted,
    UpdateFailed,
)
from harvest.history.events import Event, encode_data
from harvest.history.kinds import EventKind
from harvest.replay.commands import Difference, Key, difference_of_input
from harvest.replay.describing import recorded_as


class RunLocal(Struct):
    """Run an activity inside this worker; its result goes into the next decision."""

    seq: int
    name: str
    input: bytes
    digest: str
    definition: ActivityDefinition[..., Any]
    start_to_close: float
    retry: RetryPolicy
    kind: EventKind = EventKind.LOCAL_ACTIVITY_SCHEDULED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return f"local activity {self.name!r} (number {self.seq})"

    def payload(self) -> bytes:
        """The data of its event."""
        return encode_data(
            LocalActivityScheduled(
                name=self.name,
                digest=self.digest,
                input=Raw(self.input),
                start_to_close=self.start_to_close,
                retry=self.retry,
            )
        )

    def difference(self, event: Event) -> Difference | None:
        """What differs from the recorded event, or None."""
        recorded: LocalActivityScheduled = event.data()
        if recorded.name != self.name:
            return recorded_as(event), self.describe()
        return difference_of_input(
            event, self.definition.signature, bytes(recorded.input), self.input, (recorded.digest, self.digest)
        )


class RecordSideEffect(Struct):
    """Keep a value that cannot be computed again."""

    seq: int
    name: str
    recorded: SideEffectRecorded
    kind: EventKind = EventKind.SIDE_EFFECT_RECORDED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return f"side effect {self.name!r} (number {self.seq})"

    def payload(self) -> bytes:
        """The data of its event."""
        return encode_data(self.recorded)

    def difference(self, event: Event) -> Difference | None:
        """What differs from the recorded event, or None."""
        return None if event.data().name == self.name else (recorded_as(event), self.describe())


class RecordMarker(Struct):
    """Keep a choice under its name: the version of a change. It takes no number."""

    name: str
    details: bytes
    kind: EventKind = EventKind.MARKER_RECORDED
    seq: int = 0

    @property
    def key(self) -> Key:
        return int(self.kind), self.name

    def describe(self) -> str:
        return f"marker {self.name!r}"

    def payload(self) -> bytes:
        """The data of its event."""
        return encode_data(MarkerRecorded(name=self.name, details=Raw(self.details)))

    def difference(self, event: Event) -> Difference | None:
        """The choice was read from the event itself."""
        return None


class AnswerUpdate(Struct):
    """Answer an update; `seq` is the id of the event that admitted it, `admitted_at` its time."""

    seq: int
    admitted_at: datetime
    update_id: str
    output: bytes | None
    failure: Failure | None = None
    rejected: bool = False

    @property
    def kind(self) -> EventKind:
        return EventKind.UPDATE_COMPLETED if self.failure is None else EventKind.UPDATE_FAILED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        how = "completion" if self.failure is None else "failure"
        return f"{how} of the update of event {self.seq}"

    def payload(self) -> bytes:
        """The data of its event."""
        if self.failure is not None:
            return encode_data(UpdateFailed(update_id=self.update_id, failure=self.failure, rejected=self.rejected))
        return encode_data(UpdateCompleted(update_id=self.update_id, output=Raw(self.output or b"null")))

    def difference(self, event: Event) -> Difference | None:
        """An answer that was given stands, whatever today's code would say."""
        return None
