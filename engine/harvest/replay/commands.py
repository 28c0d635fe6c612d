"""What workflow code asks for. A command is matched with its recorded event by number, kind, name and digest."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Raw, Struct

from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.options import ActivityOptions
from harvest.history.events import (
    ActivityScheduled,
    Event,
    EventKind,
    TimerStarted,
    encode_data,
)

Key = tuple[int, int]


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

    def difference(self, event: Event) -> str | None:
        """What differs from the recorded event, or None."""
        recorded: ActivityScheduled = event.data()
        if recorded.name != self.name:
            return f"activity {recorded.name!r}"
        if recorded.digest != self.digest and not self._evolved(bytes(recorded.input)):
            return f"activity {recorded.name!r} with other arguments: {bytes(recorded.input)[:200].decode(errors='replace')}"
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
        what = f"until {self.until.isoformat()}" if self.until else f"of {self.duration:g} s"
        return f"timer {what} (number {self.seq})"

    def payload_at(self, fires_at: datetime) -> bytes:
        """The data of its event."""
        return encode_data(TimerStarted(duration=self.duration, fires_at=fires_at, until=self.until))

    def difference(self, event: Event) -> str | None:
        """What differs from the recorded event, or None."""
        recorded: TimerStarted = event.data()
        if recorded.until != self.until:
            return f"timer until {recorded.until}"
        if self.until is None and abs(recorded.duration - self.duration) > 1e-6:
            return f"timer of {recorded.duration:g} s"
        return None


class CancelTimer(Struct):
    """Drop a timer."""

    seq: int
    kind: EventKind = EventKind.TIMER_CANCELLED

    def describe(self) -> str:
        return f"cancellation of timer {self.seq}"

    def difference(self, event: Event) -> str | None:
        """Nothing beside number and kind can differ."""
        return None


class CancelActivity(Struct):
    """No longer wait for an activity."""

    seq: int
    kind: EventKind = EventKind.ACTIVITY_CANCEL_REQUESTED

    def describe(self) -> str:
        return f"cancellation of activity {self.seq}"

    def difference(self, event: Event) -> str | None:
        """Nothing beside number and kind can differ."""
        return None


Command = ScheduleActivity | StartTimer | CancelTimer | CancelActivity
