"""Charts of figures over time: places across in percent of the width, so that a chart fits wherever it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from math import ceil, floor, log10
from typing import Final

from msgspec import Struct

HEIGHT: Final = 140
WIDE: Final = 100.0
# A line is drawn in a box of this width that is stretched to the chart's.
BOX: Final = 1000
_MOST_RULES: Final = 4
_GAP: Final = 0.12


class Rule(Struct, frozen=True):
    """A horizontal line at `y` pixels from the top, and what it stands for."""

    y: float
    text: str


class Mark(Struct, frozen=True):
    """An instant below the chart, at `x` percent."""

    x: float
    text: str


class Piece(Struct, frozen=True):
    """A part of a column: what it is of, and where it stands in pixels."""

    key: str
    y: float
    height: float


class Column(Struct, frozen=True, kw_only=True):
    """What is drawn for one stretch of time; `title` says it in words."""

    x: float
    width: float
    title: str
    pieces: list[Piece]


class Axes(Struct, frozen=True):
    """The rules, the top one first, and the marks of a chart."""

    rules: list[Rule]
    marks: list[Mark]


class Stacked(Struct, frozen=True):
    """Columns of parts one upon the other."""

    axes: Axes
    columns: list[Column]


class Lines(Struct, frozen=True):
    """A line with breaks: each part the points of a polyline in a box of `BOX` by `HEIGHT`; `dots` stand alone."""

    axes: Axes
    lines: list[str]
    dots: list[tuple[float, float]]


class Span(Struct, frozen=True, kw_only=True):
    """The time that a chart is of, in columns of `seconds`; a mark stands at each full `mark_seconds` of the zone."""

    start: datetime
    end: datetime
    seconds: float
    mark_seconds: int
    zone: tzinfo

    def x(self, at: datetime) -> float:
        """Where an instant is, in percent, within the chart."""
        whole = (self.end - self.start).total_seconds()
        return round(min(max(0.0, (at - self.start).total_seconds() / whole), 1.0) * WIDE, 3)

    def marks(self) -> list[Mark]:
        """Marks at full hours or minutes of the reader's clock."""
        local = self.start.astimezone(self.zone)
        offset = (local.utcoffset() or timedelta()).total_seconds()
        first = ceil((self.start.timestamp() + offset) / self.mark_seconds) * self.mark_seconds - offset
        found = []
        at = datetime.fromtimestamp(first, self.zone)
        while at <= self.end:
            x = self.x(at)
            if 3 <= x <= WIDE - 3:
                found.append(Mark(x, f"{at:%H:%M}"))
            at += timedelta(seconds=self.mark_seconds)
        return found


def stacked(
    span: Span,
    columns: Sequence[tuple[datetime, Mapping[str, float], str]],
    keys: Sequence[str],
    text: Callable[[float], str],
    *,
    least_top: float = 0.0,
) -> Stacked:
    """Columns at their instants, their parts in the order of `keys` from below; `text` tells a value of the axis."""
    most = max((sum(parts.get(key, 0.0) for key in keys) for _, parts, _ in columns), default=0.0)
    top, rules = _scale(max(most, least_top), text)
    return Stacked(Axes(rules, span.marks()), [_column(span, top, keys, *one) for one in columns])


def _column(
    span: Span, top: float, keys: Sequence[str], at: datetime, parts: Mapping[str, float], title: str
) -> Column:
    x, end_x = span.x(at), span.x(at + timedelta(seconds=span.seconds))
    gap = (end_x - x) * _GAP
    pieces, below = [], 0.0
    for key in keys:
        height = parts.get(key, 0.0) / top * HEIGHT
        below += height
        if height > 0:
            pieces.append(Piece(key, round(HEIGHT - below, 1), round(max(height, 0.5), 1)))
    return Column(x=round(x + gap / 2, 3), width=round(max(end_x - x - gap, 0.05), 3), title=title, pieces=pieces)


def lines(span: Span, points: Sequence[tuple[datetime, float | None]], text: Callable[[float], str]) -> Lines:
    """A line through the values, broken where there is none; a value between two breaks is a dot."""
    top, rules = _scale(max((value for _, value in points if value is not None), default=0.0), text)
    half = timedelta(seconds=span.seconds / 2)
    parts: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is None:
            parts.append([])
            continue
        parts[-1].append((span.x(at + half), round(HEIGHT - value / top * HEIGHT, 1)))
    drawn = [" ".join(f"{x / WIDE * BOX:g},{y:g}" for x, y in part) for part in parts if len(part) > 1]
    return Lines(Axes(rules, span.marks()), drawn, [part[0] for part in parts if len(part) == 1])


def _scale(most: float, text: Callable[[float], str]) -> tuple[float, list[Rule]]:
    """The value at the top of an axis that reaches `most`, and its rules."""
    step = _round_step(most / _MOST_RULES) if most > 0 else 1.0
    count = max(1, ceil(most / step - 1e-9))
    top = step * count
    return top, [Rule(round(HEIGHT - n / count * HEIGHT, 1), text(step * n)) for n in range(count, -1, -1)]


def _round_step(least: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power: float = 10.0 ** floor(log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
