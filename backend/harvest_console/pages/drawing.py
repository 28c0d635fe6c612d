"""Steps of a timeline as they are drawn and as they are listed: one row for each, both made from the same facts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.operations.timelines import Step, Timeline
from harvest.operations.views import is_open
from harvest_console.pages.axis import WIDE, Axis, Interval, build_axis
from harvest_console.pages.events import clipped
from harvest_console.rendering.names import short_id
from harvest_console.rendering.times import instant_text, span_text

WORDS: Final = {
    "activity": "Activity",
    "local_activity": "Local activity",
    "child": "Child",
    "detached_child": "Detached child",
    "timer": "Timer",
    "signal": "Signal",
    "update": "Update",
    "external_signal": "Signal to a run",
    "external_cancel": "Cancel of a run",
    "external_await": "Wait for a run",
    "pause": "Pause",
    "session": "Session",
}
# The pattern and the state whose mark an outcome has; others are drawn plain, as what has gone well.
_LOOKS: Final = {
    "failed": ("failed", "FAILED"),
    "broken": ("failed", "FAILED"),
    "timed_out": ("timed_out", "TIMED_OUT"),
    "cancelled": ("cancelled", "CANCELLED"),
}
_WORKS: Final = ("activity", "local_activity")
_WAITS: Final = ("timer", "pause")
_INSTANTS: Final = ("signal", "detached_child")


class Bar(Struct, frozen=True, kw_only=True):
    """One step. Places are in percent; `begun_x` is where an activity's first attempt began, None for other kinds.

    `look` is its pattern; `breaks` are those of the axis that it goes on through; `text` stands at
    `text_x`: `after` the bar, `before` it, or `inside`.
    """

    step: int
    word: str
    name: str
    outcome: str
    mark: str
    look: str
    is_instant: bool
    x: float
    width: float
    begun_x: float | None
    breaks: list[int]
    text: str
    text_x: float
    text_place: str
    title: str
    start: datetime
    took: str
    waited: str
    ran: str
    attempts: int | None
    leads_to: UUID | None
    is_open: bool


class Drawing(Struct, frozen=True):
    """The bars of a window on their axis. `now_x` is where the present is, None where the window ends before it."""

    axis: Axis
    bars: list[Bar]
    now_x: float | None


def draw(found: Timeline, *, zone: tzinfo, now: datetime) -> Drawing:
    """Draw a window; open steps of an open run reach to the moment of the answer, those of a closed one to its end."""
    until = found.closed_at or found.as_of
    opened = is_open(found.state)
    axis = build_axis(_instants(found.steps, until), _busy(found.steps, until), zone=zone, now=now)
    bars = [_Bar(step, axis, until, opened, zone, now).bar() for step in found.steps]
    reaches = opened and any(step.end is None for step in found.steps)
    return Drawing(axis, bars, axis.x(until) if reaches else None)


def _instants(steps: Sequence[Step], until: datetime) -> list[datetime]:
    found = []
    for step in steps:
        found += [step.start, until if step.end is None else max(step.start, step.end)]
        if begun := _begun(step):
            found.append(begun)
    return found


def _busy(steps: Sequence[Step], until: datetime) -> list[Interval]:
    """When an activity ran: time that is told to scale, however long."""
    found = []
    for step in steps:
        begun = _begun(step) if step.kind == "activity" else step.start
        if step.kind in _WORKS and begun is not None:
            found.append((begun, step.end or until))
    return found


def _begun(step: Step) -> datetime | None:
    return None if step.wait_ms is None else step.start + timedelta(milliseconds=step.wait_ms)


class _Bar:
    """One step on its way to the page."""

    def __init__(self, step: Step, axis: Axis, until: datetime, opened: bool, zone: tzinfo, now: datetime) -> None:
        self._step = step
        self._axis = axis
        self._end = until if step.end is None else max(step.start, step.end)
        self._is_open = step.end is None
        self._goes_on = self._is_open and opened
        self._zone = zone
        self._now = now

    def bar(self) -> Bar:
        """The whole of it."""
        step, axis = self._step, self._axis
        begun = _begun(step)
        x, end_x = axis.x(step.start), axis.x(self._end)
        text = self._text()
        text_x, text_place = _beside(x, end_x, len(text))
        look, mark = self._look()
        return Bar(
            step=step.step,
            word=WORDS.get(step.kind, step.kind.replace("_", " ")),
            name=step_name(step),
            outcome=self._outcome(),
            mark=mark,
            look=look,
            is_instant=step.kind in _INSTANTS,
            x=x,
            width=round(end_x - x, 2),
            begun_x=None if begun is None else min(axis.x(begun), end_x),
            breaks=[n for n, gap in enumerate(axis.gaps) if x <= gap.x and gap.x + gap.width <= end_x + 0.01],
            text=text,
            text_x=text_x,
            text_place=text_place,
            title=self._title(text),
            start=step.start,
            took=_length(step.total_ms) if step.kind not in _INSTANTS else "",
            waited=_length(step.wait_ms),
            ran=_length(step.exec_ms),
            attempts=step.attempts,
            leads_to=step.execution_id,
            is_open=self._goes_on,
        )

    def _outcome(self) -> str:
        if self._is_open:
            return "under way" if self._goes_on else "not ended"
        return (self._step.outcome or "ended").replace("_", " ")

    def _look(self) -> tuple[str, str]:
        if self._is_open:
            return ("open", "RUNNING") if self._goes_on else ("cancelled", "LEFT")
        look, mark = _LOOKS.get(self._step.outcome or "", ("", "COMPLETED"))
        return look or ("quiet" if self._step.kind in _WAITS else "good"), mark

    def _text(self) -> str:
        """Beside the bar: how long, and how it went where that is not as it should."""
        step = self._step
        if step.kind in _INSTANTS:
            return instant_text(step.start, self._zone, self._now)
        if self._is_open and step.fires_at is not None and self._goes_on:
            return f"fires {instant_text(step.fires_at, self._zone, self._now)}"
        length = span_text((self._end - step.start).total_seconds())
        told = [f"for {length}" if self._goes_on else length]
        if step.outcome not in (None, "completed", "fired", "delivered", "resumed", "closed") or self._is_open:
            told.append(self._outcome())
        if step.attempts is not None and step.attempts > 1:
            told.append(f"{step.attempts} attempts")
        return ", ".join(told)

    def _title(self, text: str) -> str:
        step = self._step
        at = instant_text(step.start, self._zone, self._now, millis=True)
        named = " ".join(part for part in (WORDS.get(step.kind, step.kind), step_name(step)) if part)
        waited = f", waited {_length(step.wait_ms)} for a worker" if step.wait_ms else ""
        return f"{named}: {self._outcome()}, from {at}, {text}{waited}"


def step_name(step: Step) -> str:
    """What a step is called: an activity by its name, a timer by its length, another run by its type and id."""
    if step.kind == "timer" and step.fires_at is not None:
        # The start is written a moment after the instant from which the database counts.
        seconds = (step.fires_at - step.start).total_seconds()
        return f"of {span_text(round(seconds, 0 if seconds > 5 else 1))}"
    return clipped(" ".join(part for part in (step.name, short_id(step.workflow_id or "")) if part))


def _length(milliseconds: float | None) -> str:
    return "" if milliseconds is None else span_text(milliseconds / 1000)


def _beside(x: float, end_x: float, characters: int) -> tuple[float, str]:
    """Where a text stands: after its bar, else before it, else inside."""
    room = characters * 0.9 + 2
    if end_x + room <= WIDE:
        return end_x, "after"
    return (x, "before") if x >= room else (x, "inside")
