"""What workflow code asks for. A command is matched with its recorded event by number, kind, name and digest."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw, Struct

from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.options import ActivityOptions
from harvest.definitions.signature import Signature
from harvest.history.data import ActivityScheduled, TimerStarted
from harvest.history.events import Event, encode_data
from harvest.history.kinds import EventKind
from harvest.replay.describing import recorded_as, timer_text

if TYPE_CHECKING:
    from harvest.replay.sessions import OpenSession

Key = tuple[int, int | str]
Difference = tuple[str, str]  # what is recorded, and what the code asks for instead


class ScheduleActivity(Struct):
    """Run an activity."""

    seq: int
    name: str
    input: bytes
    digest: str
    queue: str
    options: ActivityOptions
    definition: ActivityDefinition[..., Any] | None
    session: OpenSession | None = None
    kind: EventKind = EventKind.ACTIVITY_SCHEDULED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return f"activity {self.name!r} (number {self.seq})"

    def payload(self) -> bytes:
        """The data of its event."""
        options = self.options
        return encode_data(
            ActivityScheduled(
                name=self.name,
                digest=self.digest,
                input=Raw(self.input),
                queue=self.queue,
                priority=options.priority,
                schedule_to_start=options.schedule_to_start,
                start_to_close=options.start_to_close,
                schedule_to_close=options.schedule_to_close,
                heartbeat=options.heartbeat,
                retry=options.retry,
                session=0 if self.session is None else self.session.seq,
            )
        )

    def difference(self, event: Event) -> Difference | None:
        """What differs from the recorded event, or None."""
        recorded: ActivityScheduled = event.data()
        if recorded.name != self.name:
            return recorded_as(event), self.describe()
        signature = self.definition.signature if self.definition else None
        return difference_of_input(event, signature, bytes(recorded.input), self.input, (recorded.digest, self.digest))


class StartTimer(Struct):
    """Wake me after `duration` seconds, or at `until`."""

    seq: int
    duration: float
    until: datetime | None = None
    kind: EventKind = EventKind.TIMER_STARTED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return timer_text(self.duration, self.until, self.seq)

    def payload_at(self, fires_at: datetime) -> bytes:
        """The data of its event."""
        return encode_data(TimerStarted(duration=self.duration, fires_at=fires_at, until=self.until))

    def difference(self, event: Event) -> Difference | None:
        """What differs from the recorded event, or None."""
        recorded: TimerStarted = event.data()
        same_duration = self.until is not None or abs(recorded.duration - self.duration) <= 1e-6
        if recorded.until == self.until and same_duration:
            return None
        return recorded_as(event), self.describe()


class CancelTimer(Struct):
    """Drop a timer."""

    seq: int
    kind: EventKind = EventKind.TIMER_CANCELLED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return f"cancellation of timer {self.seq}"

    def difference(self, event: Event) -> Difference | None:
        """Nothing beside number and kind can differ."""
        return None


class CancelActivity(Struct):
    """No longer wait for an activity."""

    seq: int
    kind: EventKind = EventKind.ACTIVITY_CANCEL_REQUESTED

    @property
    def key(self) -> Key:
        return int(self.kind), self.seq

    def describe(self) -> str:
        return f"cancellation of activity {self.seq}"

    def difference(self, event: Event) -> Difference | None:
        """Nothing beside number and kind can differ."""
        return None


class Command(Protocol):
    """What every command can say of itself."""

    @property
    def kind(self) -> EventKind:
        """The kind of event that records it."""

    @property
    def seq(self) -> int:
        """Its number; 0 where it has none."""

    @property
    def key(self) -> Key:
        """What it is matched by: its kind and its number, or a marker's name."""

    def describe(self) -> str:
        """In the words of an author."""

    def difference(self, event: Event) -> Difference | None:
        """What differs from the recorded event, or None."""


def difference_of_input(
    event: Event, signature: Signature | None, recorded: bytes, now: bytes, digests: tuple[str, str]
) -> Difference | None:
    """Whether arguments differ by more than harmless evolution: read by today's types, they must be the same."""
    if digests[0] == digests[1] or (signature is not None and _evolved(signature, recorded, now)):
        return None
    return f"{recorded_as(event)} with the arguments {_shown(recorded)}", f"it with {_shown(now)}"


def _evolved(signature: Signature, recorded: bytes, now: bytes) -> bool:
    try:
        return signature.canonical(recorded) == signature.canonical(now)
    except Exception:
        return False


def _shown(data: bytes) -> str:
    text = data[:200].decode(errors="replace")
    return text if len(data) <= 200 else f"{text}… ({len(data):,} bytes)"
