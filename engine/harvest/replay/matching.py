"""The commands that a run has asked for and history has not recorded yet, matched by number and kind (design 3)."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final

from harvest.errors import NonDeterminismError
from harvest.history.events import Event
from harvest.history.kinds import EventKind
from harvest.replay.commands import Command, Key
from harvest.replay.describing import recorded_as
from harvest.replay.guard import is_standard_library

# What a cancelling command takes back.
BEGUN_BY: Final = {
    int(EventKind.ACTIVITY_CANCEL_REQUESTED): int(EventKind.ACTIVITY_SCHEDULED),
    int(EventKind.TIMER_CANCELLED): int(EventKind.TIMER_STARTED),
    int(EventKind.CHILD_CANCEL_REQUESTED): int(EventKind.CHILD_WORKFLOW_STARTED),
    int(EventKind.SESSION_CLOSED): int(EventKind.SESSION_REQUESTED),
}
# Beyond these frames the code is whoever replays the run.
_DRIVES: Final = frozenset({"_spin", "_go_on", "replay", "deliver"})


class Asked(dict[Key, Command]):
    """Commands by kind and number, in the order of asking; `fresh` are those since the loop last rested.

    `lines` says where in the author's code each was asked for, when `locate` is set: it costs too much to be on always.
    """

    __slots__ = ("fresh", "lines", "locate")

    def __init__(self) -> None:
        super().__init__()
        self.fresh: set[Key] = set()
        self.locate = False
        self.lines: dict[Key, str] = {}

    def ask(self, command: Command) -> None:
        """The code asks for something."""
        key = command.key
        self[key] = command
        self.fresh.add(key)
        if self.locate:
            self.lines[key] = line_of_author()

    def stand(self, key: Key) -> None:
        """What was asked for is recorded even if it is taken back at once: the code may have seen what only history
        knows again."""
        self.fresh.discard(key)

    def vanish(self, key: Key) -> bool:
        """What was asked for since the loop last rested was never asked for; tells whether it was so."""
        if key not in self.fresh:
            return False
        del self[key]
        self.fresh.discard(key)
        return True

    def take_back(self, cancel: Command) -> None:
        """What was asked for since the loop last rested vanishes; what history may hold is cancelled by a command."""
        kind, seq = cancel.key
        if not self.vanish((BEGUN_BY[kind], seq)):
            self[cancel.key] = cancel
            if self.locate:
                self.lines[cancel.key] = line_of_author()

    def match(self, event: Event) -> None:
        """A recorded command: the code must have asked for it. Raises NonDeterminismError naming both sides."""
        key: Key = (event.kind, event.seq if event.kind != EventKind.MARKER_RECORDED else event.data().name)
        command = self.pop(key, None)
        if command is None:
            other = next((c for (_, seq), c in self.items() if seq == event.seq), None) if event.seq else None
            described = other.describe() if other else "nothing with that number"
            raise _mismatch(event, recorded_as(event), described, self.lines.get(other.key, "") if other else "")
        difference = command.difference(event)
        if difference is not None:
            raise _mismatch(event, *difference, self.lines.get(key, ""))

    def require_none(self, decided_through: int) -> None:
        """At the end of what is decided, the code must not have asked for more. Raises NonDeterminismError."""
        if self:
            command = next(iter(self.values()))
            asked = command.describe()
            raise NonDeterminismError(
                f"the code asks for {asked}, which history up to event {decided_through} does not have",
                event_id=decided_through,
                recorded="nothing",
                asked=asked,
                line=self.lines.get(command.key, ""),
            )


def line_of_author() -> str:
    """Where in the author's code the caller is: `shop.py:41 in order_flow`; empty where a task began of itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("harvest.replay.") and frame.f_code.co_name in _DRIVES:
            break
        if not name.startswith("harvest.") and not is_standard_library(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def _mismatch(event: Event, recorded: str, asked: str, line: str) -> NonDeterminismError:
    return NonDeterminismError(
        f"event {event.event_id} records {recorded}, but the code now asks for {asked}",
        event_id=event.event_id,
        recorded=recorded,
        asked=asked,
        line=line,
    )
