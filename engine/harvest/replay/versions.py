"""Which version of a change a run follows: what history says, else the old one unless the code is live (design 3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from harvest.errors import InvalidRequestError, VersionUnsupportedError
from harvest.history import payload
from harvest.history.data import Failure, SideEffectRecorded
from harvest.history.events import Event
from harvest.history.ids import ExecutionId, parse_execution_id
from harvest.history.kinds import EventKind
from harvest.history.limits import check_text
from harvest.replay.records import RecordMarker
from harvest.replay.unwinding import AbandonStep

if TYPE_CHECKING:
    from harvest.replay.state import RunState

CHOICES: Final = frozenset(
    {
        int(EventKind.MARKER_RECORDED),
        int(EventKind.SIDE_EFFECT_RECORDED),
        int(EventKind.LOCAL_ACTIVITY_SCHEDULED),
        int(EventKind.UPDATE_FAILED),
        int(EventKind.CHILD_WORKFLOW_STARTED),
        int(EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED),
    }
)
_CHILDREN: Final = frozenset({EventKind.CHILD_WORKFLOW_STARTED, EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED})


class _Child(Struct, frozen=True):
    """All that is needed of a child's start before its event is reached."""

    child_id: str


class Versions:
    """The choices of one run. `retired` are markers that the code lets stand although it no longer asks for them."""

    __slots__ = ("_chosen", "_recorded", "_run", "_stands", "children", "effects", "locals", "rejections", "retired")

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._recorded: dict[str, int] = {}
        self._chosen: dict[str, int] = {}
        self._stands: set[str] = set()
        self.retired: set[str] = set()
        self.children: dict[int, ExecutionId] = {}
        self.locals: dict[int, Event] = {}
        self.rejections: dict[int, Failure] = {}
        self.effects: dict[int, SideEffectRecorded] = {}

    def read(self, history: Iterable[Event]) -> None:
        """What history will show further on, and is needed before its events are reached.

        Choices, side effects, what local activities were asked for, updates that were refused, and ids of children.
        """
        for event in history:
            if event.kind == EventKind.MARKER_RECORDED:
                marker = event.data()
                self._recorded[marker.name] = payload.decode(bytes(marker.details), int, what=f"marker {marker.name!r}")
            elif event.kind == EventKind.SIDE_EFFECT_RECORDED:
                self.effects[event.seq] = event.data()
            elif event.kind == EventKind.LOCAL_ACTIVITY_SCHEDULED:
                self.locals[event.seq] = event
            elif event.kind == EventKind.UPDATE_FAILED and event.data().rejected:
                self.rejections[event.seq] = event.data().failure
            elif event.kind in _CHILDREN:
                self.children[event.seq] = parse_execution_id(msgspec.json.decode(event.payload, type=_Child).child_id)

    def lets_stand(self, marker: Event) -> bool:
        """Whether the code has retired this marker, and nothing else of it has asked for it."""
        name = marker.data().name
        if name not in self.retired or (int(marker.kind), name) in self._run.asked:
            return False
        self._stands.add(name)
        return True

    def choose(self, name: str, lowest: int, highest: int) -> int:
        """The version for a marker's name; one outside the range blocks the run."""
        check_text(name, what="change id")
        if lowest > highest:
            raise InvalidRequestError(f"{name!r} has the range {lowest} to {highest}; the lowest comes first")
        chosen = self._chosen.get(name)
        if chosen is None:
            chosen = self._chosen[name] = self._first(name, lowest, highest)
        if not lowest <= chosen <= highest:
            self._run.block(
                VersionUnsupportedError(
                    f"this run follows version {chosen} of {name!r}, but the code covers {lowest} to {highest}: "
                    "keep the old branch until no open run needs it",
                    change_id=name,
                    recorded=chosen,
                    lowest=lowest,
                    highest=highest,
                )
            )
            raise AbandonStep
        return chosen

    def _first(self, name: str, lowest: int, highest: int) -> int:
        recorded = self._recorded.get(name)
        if recorded is None and self._run.replaying:
            return lowest
        version = highest if recorded is None else recorded
        if name in self._stands:
            return version
        self._run.asked.ask(RecordMarker(name, payload.encode(version)))
        return version
