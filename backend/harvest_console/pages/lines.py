"""A history in short: one line for what began, with how it went on and ended folded into it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.operations.histories import HistoryWindow, begins_step, step_of
from harvest.operations.views import EventView, is_open
from harvest_console.pages.events import (
    Names,
    beginnings,
    clipped,
    event_rows,
    event_text,
    failure_line,
    instant,
    leads_to,
    step_name,
)
from harvest_console.pages.payloads import plain_text
from harvest_console.rendering.times import span_text

WORDS: Final = {
    "ActivityScheduled": "Activity",
    "LocalActivityScheduled": "Local activity",
    "TimerStarted": "Timer",
    "ChildWorkflowStarted": "Child",
    "ChildWorkflowSpawnedDetached": "Detached child",
    "UpdateAdmitted": "Update",
    "ExternalSignalRequested": "Signal to a run",
    "ExternalCancelRequested": "Cancel of a run",
    "ExternalAwaitRequested": "Wait for a run",
    "SessionRequested": "Session",
}
# What an ending means, by how its event's name ends; the state whose mark it has.
_OUTCOMES: Final = {
    "TimedOut": ("timed out", "TIMED_OUT"),
    "CancelRequested": ("cancelled", "CANCELLED"),
    "Cancelled": ("cancelled", "CANCELLED"),
    "Completed": ("completed", "COMPLETED"),
    "Fired": ("fired", "COMPLETED"),
    "Delivered": ("delivered", "COMPLETED"),
    "Closed": ("ended", "COMPLETED"),
    "Broken": ("broken", "FAILED"),
    "Resolved": ("completed", "COMPLETED"),
    "Failed": ("failed", "FAILED"),
}
_UNDER_WAY: Final = ("under way", "RUNNING")
_LEFT: Final = ("not ended", "LEFT")
_SPAWNED: Final = "ChildWorkflowSpawnedDetached"
_ATTEMPT: Final = "ActivityStarted"


class Part(Struct, frozen=True):
    """One event of a line whose data can be unfolded."""

    event_id: int
    word: str
    bytes: int


class Line(Struct, frozen=True, kw_only=True):
    """One line. `outcome` and the state `mark` are empty for what happens at once; `took` is empty while it is open."""

    event_id: int
    word: str
    text: str
    detail: str
    instant: datetime | None
    leads_to: UUID | None
    at: datetime
    outcome: str
    mark: str
    took: str
    parts: list[Part]


def lines(window: HistoryWindow) -> list[Line]:
    """A line for each event of a folded window."""
    known = beginnings([*window.events, *window.beside])
    followers: dict[tuple[str, int], list[EventView]] = {}
    for event in sorted(window.beside, key=lambda event: event.event_id):
        step = step_of(event)
        if step and not begins_step(event):
            followers.setdefault(step, []).append(event)
    open_word = _UNDER_WAY if is_open(window.state) else _LEFT
    made = []
    for event in window.events:
        step = step_of(event)
        if step and begins_step(event):
            made.append(_folded(event, followers.get(step, []), known, open_word))
        else:
            made.append(_alone(event, known))
    return made


def _folded(begun: EventView, followers: list[EventView], known: Names, open_word: tuple[str, str]) -> Line:
    attempts = [event for event in followers if event.type == _ATTEMPT]
    ends = [event for event in followers if event.type != _ATTEMPT]
    end = ends[0] if ends else None
    outcome, mark = open_word if end is None else _outcome(end)
    return Line(
        event_id=begun.event_id,
        word=WORDS.get(begun.type, begun.type),
        text=_name(begun, end),
        detail=clipped(_detail(begun, end, attempts[-1] if attempts else None)),
        instant=instant(begun.data.get("fires_at")) if end is None else None,
        leads_to=leads_to(begun, known) or (leads_to(end, known) if end else None),
        at=begun.at,
        outcome=outcome,
        mark=mark,
        took=span_text((end.at - begun.at).total_seconds()) if end else "",
        parts=_parts([begun, *ends]),
    )


def _alone(event: EventView, known: Names) -> Line:
    row = event_rows([event], known.values())[0]
    spawned = event.type == _SPAWNED
    return Line(
        event_id=event.event_id,
        word=WORDS.get(event.type, event.type) if spawned else event.type,
        text=row.text,
        detail="",
        instant=row.instant,
        leads_to=row.leads_to,
        at=event.at,
        outcome="spawned" if spawned else "",
        mark="",
        took="",
        parts=[Part(event.event_id, "data", event.bytes)] if row.unfolds else [],
    )


def _name(begun: EventView, end: EventView | None) -> str:
    if begun.type == "TimerStarted":
        return step_name(begun).removeprefix("timer").strip() + (", fires" if end is None else "")
    return clipped(step_name(begun))


def _outcome(end: EventView) -> tuple[str, str]:
    if end.type == "ChildWorkflowFailed":
        state = plain_text(end.data.get("state")) or "FAILED"
        return ("never began", "FAILED") if state == "REJECTED" else (state.lower().replace("_", " "), state)
    if end.type == "UpdateFailed" and plain_text(end.data.get("rejected")) == "true":
        return "refused", "FAILED"
    return next((told for suffix, told in _OUTCOMES.items() if end.type.endswith(suffix)), (end.type, ""))


def _detail(begun: EventView, end: EventView | None, attempt: EventView | None) -> str:
    """Attempts where there were several, who runs it now, and why it failed."""
    told = []
    number = plain_text((end or attempt or begun).data.get("attempt"))
    if number not in ("", "1"):
        told.append(f"{number} attempts" if end else f"attempt {number}")
    if end is None and attempt is not None and (worker := plain_text(attempt.data.get("worker"))):
        told.append(f"on {worker}")
    if end is None:
        return ", ".join(told)
    if end.type == "ActivityTimedOut":
        told.append(plain_text(end.data.get("timeout_type")).replace("_", " "))
    told.append(failure_line(end.data.get("failure")))
    if end.type in ("ExternalSignalFailed", "ExternalCancelFailed"):
        told.append(event_text(end, {}).partition(": ")[2])
    return ", ".join(part for part in told if part)


def _parts(events: Iterable[EventView]) -> list[Part]:
    rows = event_rows(events)
    words = ["asked for", "ended", "then"]
    return [Part(row.event_id, words[min(place, 2)], row.bytes) for place, row in enumerate(rows) if row.unfolds]
