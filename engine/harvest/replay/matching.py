"""The commands that a run has asked for and history has not recorded yet, matched by number and kind (design 3)."""

from __future__ import annotations

from harvest.errors import NonDeterminismError
from harvest.history.events import Event
from harvest.history.kinds import EventKind
from harvest.replay.commands import CancelActivity, CancelTimer, Command, Key, ScheduleActivity, StartTimer, recorded_as

_CANCELS = {CancelActivity: EventKind.ACTIVITY_SCHEDULED, CancelTimer: EventKind.TIMER_STARTED}


class Asked(dict[Key, Command]):
    """Commands by kind and number, in the order of asking; `fresh` are those since the loop last rested."""

    __slots__ = ("fresh",)

    def __init__(self) -> None:
        super().__init__()
        self.fresh: set[Key] = set()

    def ask(self, command: ScheduleActivity | StartTimer) -> None:
        """The code asks for something."""
        key = (int(command.kind), command.seq)
        self[key] = command
        self.fresh.add(key)

    def take_back(self, cancel: CancelTimer | CancelActivity) -> None:
        """What was asked for since the loop last rested vanishes; what history may hold is cancelled by a command."""
        key = (int(_CANCELS[type(cancel)]), cancel.seq)
        if key in self.fresh:
            del self[key]
            self.fresh.discard(key)
        else:
            self[(int(cancel.kind), cancel.seq)] = cancel

    def match(self, event: Event) -> None:
        """A recorded command: the code must have asked for it. Raises NonDeterminismError naming both sides."""
        command = self.pop((event.kind, event.seq), None)
        if command is None:
            other = next((c for (_, seq), c in self.items() if seq == event.seq), None)
            raise _mismatch(event, recorded_as(event), other.describe() if other else "nothing with that number")
        difference = command.difference(event)
        if difference is not None:
            raise _mismatch(event, *difference)

    def require_none(self, decided_through: int) -> None:
        """At the end of what is decided, the code must not have asked for more. Raises NonDeterminismError."""
        if self:
            asked = next(iter(self.values())).describe()
            raise NonDeterminismError(
                f"the code asks for {asked}, which history up to event {decided_through} does not have",
                event_id=decided_through,
                recorded="nothing",
                asked=asked,
            )


def _mismatch(event: Event, recorded: str, asked: str) -> NonDeterminismError:
    return NonDeterminismError(
        f"event {event.event_id} records {recorded}, but the code now asks for {asked}",
        event_id=event.event_id,
        recorded=recorded,
        asked=asked,
    )
