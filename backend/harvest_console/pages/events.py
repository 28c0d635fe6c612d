"""Events of a history as rows: what happened in a few words, and whether there is more to unfold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Raw, Struct

from harvest.operations.views import EventView, Payload
from harvest_console.pages.payloads import plain_text
from harvest_console.rendering.times import span_text

_LONGEST: Final = 120
# Fields that are told in the row itself; an event with others can be unfolded.
_TOLD: Final = frozenset(
    {"name", "attempt", "worker", "timeout_type", "digest", "queue", "actor", "duration", "fires_at", "reason"}
    | {"carried", "build", "seed", "version", "workflow_name", "workflow_id", "deadline", "new_execution_id"}
)


class EventRow(Struct, frozen=True, kw_only=True):
    """One row of the history table. `at_text` instants are told by the page in its own zone."""

    event_id: int
    type: str
    at: datetime
    text: str
    instant: datetime | None
    unfolds: bool
    bytes: int


def event_rows(events: Iterable[EventView], names: Mapping[int, str] | None = None) -> list[EventRow]:
    """Rows in the order of `events`. Activities are called by the name their scheduling gave them, if that is known."""
    events = list(events)
    known = dict(names or {})
    for event in events:
        if event.type == "ActivityScheduled":
            known[event.seq] = plain_text(event.data.get("name"))
        elif event.type == "TimerStarted":
            known[event.seq] = timer_name(event.data.get("duration"))
    return [_row(event, known) for event in events]


def _row(event: EventView, names: Mapping[int, str]) -> EventRow:
    text = _text(event, names)
    return EventRow(
        event_id=event.event_id,
        type=event.type,
        at=event.at,
        text=text[:_LONGEST] + "…" if len(text) > _LONGEST else text,
        instant=_instant(event.data.get("fires_at") or event.data.get("deadline")),
        unfolds=any(name not in _TOLD for name in event.data),
        bytes=event.bytes,
    )


def _text(event: EventView, names: Mapping[int, str]) -> str:
    def field(name: str) -> str:
        return plain_text(event.data.get(name))

    activity = names.get(event.seq) or (f"activity {event.seq}" if event.seq else "")
    attempt = field("attempt")
    match event.type:
        case "WorkflowStarted":
            return f"{field('workflow_name')} version {field('version')}"
        case "WorkflowCompleted":
            return "result"
        case "WorkflowFailed":
            return failure_line(event.data.get("failure"))
        case "WorkflowCancelled":
            return field("reason")
        case "WorkflowCancelRequested" | "WorkflowTerminated":
            return _joined(field("reason"), f"by {field('actor')}" if field("actor") else "")
        case "WorkflowContinuedAsNew":
            return f"as {field('new_execution_id')}"
        case "ActivityScheduled":
            return activity
        case "ActivityStarted":
            worker = field("worker")
            return _joined(f"{activity}, attempt {attempt}", f"on {worker}" if worker else "", comma=False)
        case "ActivityCompleted":
            return _attempted(activity, attempt)
        case "ActivityFailed":
            return f"{_attempted(activity, attempt)}: {failure_line(event.data.get('failure'))}"
        case "ActivityTimedOut":
            return f"{_attempted(activity, attempt)}: {field('timeout_type').replace('_', ' ')}"
        case "ActivityCancelRequested":
            return activity
        case "TimerStarted":
            return f"{names[event.seq]}, until"
        case "TimerFired" | "TimerCancelled":
            return names.get(event.seq) or f"timer {event.seq}"
        case "SignalReceived":
            return _joined(field("name"), f"from {field('actor')}" if field("actor") else "", comma=False)
        case _:
            return field("name")


def _attempted(activity: str, attempt: str) -> str:
    return f"{activity}, attempt {attempt}" if attempt not in ("", "1") else activity


def _joined(first: str, second: str, *, comma: bool = True) -> str:
    return (", " if comma else " ").join(part for part in (first, second) if part)


def failure_line(payload: Payload | None) -> str:
    """Type and message of a recorded failure on one line."""
    if not isinstance(payload, Raw):
        return ""
    try:
        failure = msgspec.json.decode(payload, type=dict[str, Raw])
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return f"{plain_text(failure.get('type'))}: {plain_text(failure.get('message'))}"


def timer_name(duration: Payload | None) -> str:
    """`timer of 48 h`."""
    if not isinstance(duration, Raw):
        return "timer"
    try:
        return f"timer of {span_text(msgspec.json.decode(duration, type=float))}"
    except msgspec.MsgspecError:
        return "timer"


def _instant(payload: Payload | None) -> datetime | None:
    if not isinstance(payload, Raw):
        return None
    try:
        return msgspec.json.decode(payload, type=datetime)
    except (msgspec.MsgspecError, RecursionError):
        return None
