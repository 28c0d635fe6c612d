"""A recorded command in the words in which commands describe themselves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from harvest.history.data import Target
from harvest.history.events import Event, kind_word
from harvest.history.kinds import EventKind


def recorded_as(event: Event) -> str:
    """`activity 'charge' (number 3)`; a kind that has no words of its own by its name."""
    words = _WORDS.get(event.kind)
    return words(event.data(), event.seq) if words else f"{kind_word(event.kind)} (number {event.seq})"


def timer_text(duration: float, until: datetime | None, seq: int) -> str:
    """`timer of 3 s (number 2)`."""
    return f"timer {f'until {until.isoformat()}' if until else f'of {duration:g} s'} (number {seq})"


def child_text(workflow_name: str, seq: int, *, detached: bool) -> str:
    """`child workflow 'ship' (number 4)`."""
    return f"{'detached ' if detached else ''}child workflow {workflow_name!r} (number {seq})"


def target_text(target: Target) -> str:
    """The other run, as an author named it."""
    return target.execution_id or f"{target.workflow_name} {target.workflow_id!r}"


_WORDS: Final[dict[int, Callable[[Any, int], str]]] = {
    EventKind.ACTIVITY_SCHEDULED: lambda data, seq: f"activity {data.name!r} (number {seq})",
    EventKind.ACTIVITY_CANCEL_REQUESTED: lambda _, seq: f"cancellation of activity {seq}",
    EventKind.LOCAL_ACTIVITY_SCHEDULED: lambda data, seq: f"local activity {data.name!r} (number {seq})",
    EventKind.TIMER_STARTED: lambda data, seq: timer_text(data.duration, data.until, seq),
    EventKind.TIMER_CANCELLED: lambda _, seq: f"cancellation of timer {seq}",
    EventKind.CHILD_WORKFLOW_STARTED: lambda data, seq: child_text(data.workflow_name, seq, detached=False),
    EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED: lambda data, seq: child_text(data.workflow_name, seq, detached=True),
    EventKind.CHILD_CANCEL_REQUESTED: lambda _, seq: f"cancellation of child workflow {seq}",
    EventKind.MARKER_RECORDED: lambda data, _: f"marker {data.name!r}",
    EventKind.SIDE_EFFECT_RECORDED: lambda data, seq: f"side effect {data.name!r} (number {seq})",
    EventKind.UPDATE_COMPLETED: lambda _, seq: f"completion of the update of event {seq}",
    EventKind.UPDATE_FAILED: lambda _, seq: f"failure of the update of event {seq}",
    EventKind.EXTERNAL_SIGNAL_REQUESTED: lambda data, seq: (
        f"signal {data.name!r} to {target_text(data.target)} (number {seq})"
    ),
    EventKind.EXTERNAL_CANCEL_REQUESTED: lambda data, seq: f"cancellation of {target_text(data.target)} (number {seq})",
    EventKind.EXTERNAL_AWAIT_REQUESTED: lambda data, seq: f"wait for {target_text(data.target)} (number {seq})",
    EventKind.SESSION_REQUESTED: lambda _, seq: f"session (number {seq})",
    EventKind.SESSION_CLOSED: lambda _, seq: f"end of session {seq}",
}
