"""What workflow code asks for. A command is matched with its recorded event by number, kind, name and digest."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Raw, Struct

from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.options import ActivityOptions
from harvest.history.data import ActivityScheduled, TimerStarted
from harvest.history.events import Event, encode_data, kind_word
from harvest.history.kinds import EventKind

Key = tuple[int, int]
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
    kind: EventKind = EventKind.ACTIVITY_SCHEDULED

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
            )
        )

    def difference(self, event: Event) -> Difference | None:
        """What differs from the recorded event, or None."""
        recorded: ActivityScheduled = event.data()
        if recorded.name != self.name:
            return recorded_as(event), self.describe()
        if recorded.digest != self.digest and not self._evolved(bytes(recorded.input)):
            return (
                f"{recorded_as(event)} with the arguments {_shown(bytes(recorded.input))}",
                f"it with {_shown(self.input)}",
            )
        return None

    def _evolved(self, recorded: bytes) -> bool:
        """Whether the recorded arguments, read by today's types, are the same as today's."""
        if self.definition is None:
            return False
        signature = self.definition.signature
        try:
            return signature.canonical(recorded) == signature.canonical(self.input)
        except Exception:
            return False


class StartTimer(Struct):
    """Wake me after `duration` seconds, or at `until`."""

    seq: int
    duration: float
    until: datetime | None = None
    kind: EventKind = EventKind.TIMER_STARTED

    def describe(self) -> str:
        return _timer(self.duration, self.until, self.seq)

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

    def describe(self) -> str:
        return f"cancellation of timer {self.seq}"

    def difference(self, event: Event) -> Difference | None:
        """Nothing beside number and kind can differ."""
        return None


class CancelActivity(Struct):
    """No longer wait for an activity."""

    seq: int
    kind: EventKind = EventKind.ACTIVITY_CANCEL_REQUESTED

    def describe(self) -> str:
        return f"cancellation of activity {self.seq}"

    def difference(self, event: Event) -> Difference | None:
        """Nothing beside number and kind can differ."""
        return None


Command = ScheduleActivity | StartTimer | CancelTimer | CancelActivity


def recorded_as(event: Event) -> str:
    """A recorded command in the words of `describe`."""
    if event.kind == EventKind.ACTIVITY_SCHEDULED:
        return f"activity {event.data().name!r} (number {event.seq})"
    if event.kind == EventKind.TIMER_STARTED:
        data: TimerStarted = event.data()
        return _timer(data.duration, data.until, event.seq)
    if event.kind == EventKind.TIMER_CANCELLED:
        return CancelTimer(event.seq).describe()
    if event.kind == EventKind.ACTIVITY_CANCEL_REQUESTED:
        return CancelActivity(event.seq).describe()
    return f"{kind_word(event.kind)} (number {event.seq})"


def _timer(duration: float, until: datetime | None, seq: int) -> str:
    return f"timer {f'until {until.isoformat()}' if until else f'of {duration:g} s'} (number {seq})"


def _shown(data: bytes) -> str:
    text = data[:200].decode(errors="replace")
    return text if len(data) <= 200 else f"{text}… ({len(data):,} bytes)"
