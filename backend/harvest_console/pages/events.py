"""Events of a history as rows: what happened in a few words, which run it leads to, whether there is more to unfold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from harvest.operations.histories import begins_step, step_of
from harvest.operations.views import EventView, Payload, Truncated
from harvest_console.pages.payloads import plain_text
from harvest_console.rendering.names import short_id
from harvest_console.rendering.times import span_text

_LONGEST: Final = 120
# Fields that are told in the row itself; an event with others can be unfolded.
_TOLD: Final = frozenset(
    {"name", "attempt", "worker", "timeout_type", "digest", "queue", "actor", "duration", "fires_at", "reason"}
    | {"carried", "build", "seed", "version", "workflow_name", "workflow_id", "deadline", "new_execution_id"}
    | {"child_id", "close_policy", "execution_id", "update_id", "reason_code", "state", "target", "reports"}
    | {"parent_id", "root_id", "first_execution_id", "previous_execution_id", "retry_at", "retry_execution_id"}
)
_TO_RUN: Final = ("child_id", "new_execution_id", "retry_execution_id", "execution_id")
_TEXT: Final = re.compile(r'\s*"(?P<name>\w+)"\s*:\s*(?P<text>"(?:[^"\\]|\\.)*")\s*,?')
Names = Mapping[tuple[str, int], EventView]


class EventRow(Struct, frozen=True, kw_only=True):
    """One row of the history table. `instant` is told behind the text; `leads_to` is the run that it speaks of."""

    event_id: int
    type: str
    at: datetime
    text: str
    instant: datetime | None
    leads_to: UUID | None
    unfolds: bool
    bytes: int


def event_rows(events: Iterable[EventView], beside: Iterable[EventView] = ()) -> list[EventRow]:
    """Rows in the order of `events`. A later half of a pair is called by the name that the first one gave it."""
    events = list(events)
    known = beginnings([*events, *beside])
    return [_row(event, known) for event in events]


def beginnings(events: Iterable[EventView]) -> dict[tuple[str, int], EventView]:
    """The events that begin a step, by what their pair has in common."""
    return {step: event for event in events if begins_step(event) and (step := step_of(event))}


def _row(event: EventView, known: Names) -> EventRow:
    text = event_text(event, known)
    return EventRow(
        event_id=event.event_id,
        type=event.type,
        at=event.at,
        text=clipped(text),
        instant=instant(event.data.get("fires_at") or event.data.get("deadline") or event.data.get("retry_at")),
        leads_to=leads_to(event, known),
        unfolds=any(name not in _TOLD for name in event.data),
        bytes=event.bytes,
    )


def clipped(text: str) -> str:
    """At most 120 characters."""
    return text[:_LONGEST] + "…" if len(text) > _LONGEST else text


def event_text(event: EventView, known: Names) -> str:
    """What happened in a few words."""

    def field(name: str) -> str:
        return plain_text(event.data.get(name))

    subject = _subject(event, known)
    attempt = field("attempt")
    match event.type:
        case "WorkflowStarted":
            return _joined(f"{field('workflow_name')} version {field('version')}", _attempt_word(attempt))
        case "WorkflowCompleted":
            return "result"
        case "WorkflowFailed":
            failed = failure_line(event.data.get("failure"))
            return f"{failed}; tried again as another run, at" if field("retry_execution_id") else failed
        case "WorkflowCancelled":
            return field("reason")
        case "WorkflowCancelRequested" | "WorkflowTerminated" | "WorkflowExecutionPaused" | "WorkflowExecutionResumed":
            return _joined(field("reason"), f"by {field('actor')}" if field("actor") else "")
        case "WorkflowContinuedAsNew":
            return f"as {field('new_execution_id')}"
        case "ActivityStarted":
            worker = field("worker")
            return _joined(f"{subject}, attempt {attempt}", f"on {worker}" if worker else "", comma=False)
        case "ActivityFailed" | "LocalActivityFailed":
            return f"{_attempted(subject, attempt)}: {failure_line(event.data.get('failure'))}"
        case "ActivityCompleted" | "LocalActivityCompleted":
            return _attempted(subject, attempt)
        case "ActivityTimedOut":
            return f"{_attempted(subject, attempt)}: {field('timeout_type').replace('_', ' ')}"
        case "ChildWorkflowFailed" | "ExternalAwaitFailed":
            state = field("state").lower().replace("_", " ") or "failed"
            return f"{subject}: {state}, {failure_line(event.data.get('failure'))}"
        case "ExternalSignalFailed" | "ExternalCancelFailed":
            why = field("message") or field("reason_code").replace("_", " ")
            return f"{subject}: {why}"
        case "UpdateFailed":
            word = "refused, " if field("rejected") == "true" else ""
            return f"{subject}: {word}{failure_line(event.data.get('failure'))}"
        case "TimerStarted":
            return f"{subject}, until"
        case "SessionOpened":
            return _joined(subject, f"on {field('worker_name')}", comma=False)
        case "SessionBroken":
            return f"{subject}: {field('reason').replace('_', ' ')}"
        case "ChildWorkflowSpawnedDetached":
            return step_name(event)
        case "SignalReceived" | "UpdateAdmitted":
            return _joined(field("name"), f"from {field('actor')}" if field("actor") else "", comma=False)
        case _:
            return subject or field("name")


def _subject(event: EventView, known: Names) -> str:
    """What a step is about, told by the event that begins it."""
    step = step_of(event)
    if step is None:
        return ""
    begun = event if begins_step(event) else known.get(step)
    return step_name(begun) if begun is not None else f"{_word(event)} {step[1]}"


def step_name(begun: EventView) -> str:
    """The name of an activity, timer, child, update or other run that an event begins something with."""

    def field(name: str) -> str:
        return plain_text(begun.data.get(name))

    match begun.type:
        case "TimerStarted":
            return timer_name(begun.data.get("duration"))
        case "ChildWorkflowStarted" | "ChildWorkflowSpawnedDetached":
            return _joined(field("workflow_name"), short_id(field("workflow_id")), comma=False)
        case "ExternalSignalRequested":
            return f"{field('name')} to {target_text(begun)}"
        case "SessionRequested":
            return f"session of {field('queue')}"
        case "ExternalCancelRequested" | "ExternalAwaitRequested":
            return target_text(begun)
        case _:
            return field("name")


def _word(event: EventView) -> str:
    """What to call something whose beginning is not known."""
    for start, word in (
        ("Timer", "timer"),
        ("Child", "child"),
        ("Update", "update"),
        ("External", "message"),
        ("Session", "session"),
    ):
        if event.type.startswith(start):
            return word
    return "activity"


def target_text(event: EventView) -> str:
    """The run that something is sent to, by its business key or its id."""
    target = _object(event.data.get("target"))
    key = _joined(plain_text(target.get("workflow_name")), plain_text(target.get("workflow_id")), comma=False)
    return key or plain_text(target.get("execution_id")) or "another run"


def leads_to(event: EventView, known: Names) -> UUID | None:
    """The other run that an event, or the one that begins its step, speaks of."""
    step = step_of(event)
    for told in (event, known.get(step) if step else None):
        if told is None or told.type == "WorkflowStarted":
            continue
        for name in _TO_RUN:
            if found := _id(told.data.get(name)):
                return found
        if found := _id(_object(told.data.get("target")).get("execution_id")):
            return found
    return None


def _id(payload: Payload | None) -> UUID | None:
    try:
        return UUID(plain_text(payload))
    except ValueError:
        return None


def _object(payload: Payload | None) -> dict[str, Raw]:
    if not isinstance(payload, Raw):
        return {}
    try:
        return msgspec.json.decode(payload, type=dict[str, Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _leading_texts(head: str) -> dict[str, Raw]:
    """Texts of an object whose end is missing, as far as they are whole: of a failure, those before its traceback."""
    found: dict[str, Raw] = {}
    at = 1
    while match := _TEXT.match(head, at):
        found[match["name"]] = Raw(match["text"].encode())
        at = match.end()
    return found


def _attempted(activity: str, attempt: str) -> str:
    return _joined(activity, _attempt_word(attempt))


def _attempt_word(attempt: str) -> str:
    return f"attempt {attempt}" if attempt not in ("", "1") else ""


def _joined(first: str, second: str, *, comma: bool = True) -> str:
    return (", " if comma else " ").join(part for part in (first, second) if part)


def failure_line(payload: Payload | None) -> str:
    """Type and message of a recorded failure on one line."""
    failure = _leading_texts(payload.head) if isinstance(payload, Truncated) else _object(payload)
    return f"{plain_text(failure.get('type'))}: {plain_text(failure.get('message'))}" if failure else ""


def timer_name(duration: Payload | None) -> str:
    """`timer of 48 h`."""
    if not isinstance(duration, Raw):
        return "timer"
    try:
        return f"timer of {span_text(msgspec.json.decode(duration, type=float))}"
    except msgspec.MsgspecError:
        return "timer"


def instant(payload: Payload | None) -> datetime | None:
    """A recorded instant."""
    if not isinstance(payload, Raw):
        return None
    try:
        return msgspec.json.decode(payload, type=datetime)
    except (msgspec.MsgspecError, RecursionError):
        return None
