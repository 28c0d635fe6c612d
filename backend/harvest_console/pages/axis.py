"""The time axis of a timeline: to one scale where something happens, with breaks where for long nothing does."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from math import floor
from typing import Final

from msgspec import Struct

from harvest_console.rendering.times import instant_text, span_text

WIDE: Final = 100.0
# A break is this wide, and all of them together at most that.
_GAP: Final = 5.0
_ALL_GAPS: Final = 40.0
_GAP_NAMED: Final = 4.0
_LEAST_GAP: Final = 1.0
# Stretches that take this many times as much of the width as all others leave too little for those.
_BY_FAR: Final = 3.0
_DAY: Final = 86_400.0
# Lengths of time between marks that people count in.
_UNITS: Final = (
    *(base * factor for base in (0.001, 0.01, 0.1) for factor in (1.0, 2.0, 5.0)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0 * hours for hours in (1, 2, 3, 6, 12)),
    *(_DAY * days for days in (1, 2, 7, 14, 30, 90, 365)),
)
_MARKS: Final = 7
_MOST_MARKS: Final = 40
# Half of what the text of a break takes up, and what a letter does with the space about it.
_ROOM: Final = 3.0
_LETTER: Final = 1.0

Interval = tuple[datetime, datetime]


class Gap(Struct, frozen=True):
    """A break: where it is, in percent, and for how long it stands; `text` says so where there is room."""

    x: float
    width: float
    seconds: float
    text: str

    @property
    def middle(self) -> float:
        """Where its middle is."""
        return round(self.x + self.width / 2, 2)

    @property
    def text_x(self) -> float:
        """Where the middle of its text is, within the drawing."""
        return min(max(self.middle, _ROOM), WIDE - _ROOM)


class Mark(Struct, frozen=True):
    """A mark with its time; `text` is empty where there is no room."""

    x: float
    text: str


class Axis(Struct, frozen=True):
    """Places in percent of the width. `unit` is the length between two marks, empty where there are none."""

    start: datetime
    end: datetime
    gaps: list[Gap]
    marks: list[Mark]
    unit: str
    instants: list[float]
    places: list[float]

    def x(self, at: datetime) -> float:
        """Where an instant is."""
        seconds = (at - self.start).total_seconds()
        last = len(self.instants) - 1
        right = min(max(1, bisect_right(self.instants, seconds)), last)
        low, high = self.instants[right - 1], self.instants[right]
        from_x, to_x = self.places[right - 1], self.places[right]
        share = (seconds - low) / (high - low)
        return round(from_x + (to_x - from_x) * min(1.0, max(0.0, share)), 2)


def build_axis(instants: Iterable[datetime], busy: Sequence[Interval], *, zone: tzinfo, now: datetime) -> Axis:
    """The axis over all `instants`; what lies within a `busy` interval is never left out."""
    ordered = sorted(set(instants)) or [now]
    if len(ordered) == 1:
        ordered.append(ordered[0] + timedelta(seconds=1))
    start = ordered[0]
    seconds = [(at - start).total_seconds() for at in ordered]
    taken = sorted(((begun - start).total_seconds(), (end - start).total_seconds()) for begun, end in busy)
    lengths = [high - low for low, high in pairwise(seconds)]
    idle = _idle(seconds, taken)
    left_out = _left_out(lengths, idle)
    gap = min(_GAP, _ALL_GAPS / len(left_out)) if left_out else 0.0
    shown = sum(length for n, length in enumerate(lengths) if n not in left_out)
    scale = (WIDE - gap * len(left_out)) / shown
    places = [0.0]
    for n, length in enumerate(lengths):
        places.append(places[-1] + (gap if n in left_out else length * scale))
    places[-1] = WIDE
    text = _about if gap >= _GAP_NAMED else (lambda length: "")
    gaps = [Gap(round(places[n], 2), round(gap, 2), lengths[n], text(lengths[n])) for n in sorted(left_out)]
    unit = next((unit for unit in _UNITS if shown / unit <= _MARKS), _UNITS[-1])
    axis = Axis(start, ordered[-1], gaps, [], span_text(unit), seconds, places)
    marks = _marks(axis, lengths, left_out, unit, zone, now)
    return Axis(start, ordered[-1], gaps, marks, axis.unit if marks else "", seconds, places)


def _about(seconds: float) -> str:
    """A length in its largest unit: a break has no room for more."""
    for length, word in ((_DAY, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {word}"
    return f"{seconds:.0f} s"


def _idle(seconds: Sequence[float], taken: Sequence[tuple[float, float]]) -> list[bool]:
    """Whether nothing is busy, for each stretch between two instants."""
    found, reach, n = [], float("-inf"), 0
    for low, high in pairwise(seconds):
        while n < len(taken) and taken[n][0] < high:
            reach = max(reach, taken[n][1])
            n += 1
        found.append(reach <= low)
    return found


def _left_out(lengths: Sequence[float], idle: Sequence[bool]) -> set[int]:
    """The idle stretches that would squeeze the rest."""
    candidates = [n for n, length in enumerate(lengths) if idle[n] and length >= _LEAST_GAP]
    candidates.sort(key=lambda n: -lengths[n])
    kept = sum(length for n, length in enumerate(lengths) if not idle[n] or length < _LEAST_GAP)
    taken = 0
    while more := _squeezing([lengths[n] for n in candidates[taken:]], kept):
        taken += more
    return set(candidates[:taken])


def _squeezing(longest: Sequence[float], kept: float) -> int:
    """How many of the longest stretches are together more than all else by far; none stays that is about as long."""
    summed = 0.0
    for count, length in enumerate(longest, 1):
        summed += length
        if summed > _BY_FAR * (kept + sum(longest[count:])):
            count += sum(other >= length / 2 for other in longest[count:])
            return count if kept + sum(longest[count:]) > 0 else 0
    return 0


def _marks(
    axis: Axis, lengths: Sequence[float], left_out: set[int], unit: float, zone: tzinfo, now: datetime
) -> list[Mark]:
    """A mark at each whole unit of the reader's clock, with its time where that keeps clear of all others."""
    offset = (axis.start.astimezone(zone).utcoffset() or timedelta()).total_seconds()
    begin = axis.start.timestamp() + offset
    taken = [(gap.text_x, len(gap.text) * _LETTER) for gap in axis.gaps if gap.text]
    marks: list[Mark] = []
    # The date is told where it is not that of the time before.
    told = now
    for n, length in enumerate(lengths):
        if n in left_out:
            continue
        low = axis.instants[n]
        number = floor((begin + low) / unit) + 1
        while (seconds := number * unit - begin) <= low + length and len(marks) < _MOST_MARKS:
            at = axis.start + timedelta(seconds=seconds)
            text, x = instant_text(at, zone, told, millis=unit < 1), axis.x(at)
            room = len(text) * _LETTER
            if room / 2 <= x <= WIDE - room / 2 and all(abs(x - middle) >= (room + size) / 2 for middle, size in taken):
                taken.append((x, room))
                told = at
            else:
                text = ""
            marks.append(Mark(x, text))
            number += 1
    return marks
