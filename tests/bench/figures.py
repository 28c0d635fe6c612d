"""What a bench says: figures (runs and their median) and bounds (a ratio, its limit and whether it holds)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One measured quantity; `detail` holds what else the same runs gave."""

    name: str
    unit: str
    median: float
    runs: list[float]
    detail: dict[str, float] = {}


class Bound(msgspec.Struct, frozen=True):
    """A promise of the issue: `value` is at least (or, with `at_most`, at most) `limit`."""

    name: str
    value: float
    limit: float
    at_most: bool
    holds: bool


class Part(msgspec.Struct, frozen=True):
    """The outcome of one bench."""

    letter: str
    title: str
    figures: list[Figure]
    bounds: list[Bound]


class Report(msgspec.Struct, frozen=True):
    """One whole run, as it is kept in results/latest.json."""

    at: str
    quick: bool
    python: str
    postgres: str
    cpus: int
    load_before: float
    load_after: float
    parts: list[Part]


def figure(name: str, unit: str, runs: Sequence[float], **detail: float) -> Figure:
    """A figure from its runs, in the order in which they were made."""
    kept = {key: round(value, 3) for key, value in detail.items()}
    return Figure(name, unit, round(statistics.median(runs), 3), [round(run, 3) for run in runs], kept)


def at_least(name: str, value: float, limit: float) -> Bound:
    """A bound from below."""
    return Bound(name, round(value, 3), limit, at_most=False, holds=value >= limit)


def at_most(name: str, value: float, limit: float) -> Bound:
    """A bound from above."""
    return Bound(name, round(value, 3), limit, at_most=True, holds=value <= limit)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _short(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def render(part: Part) -> str:
    """A part as the text that is printed."""
    width = max(len(item.name) for item in (*part.figures, *part.bounds))
    lines = [f"({part.letter}) {part.title}"]
    for item in part.figures:
        runs = " ".join(map(_short, item.runs))
        detail = "  ".join(f"{key} {_short(value)}" for key, value in item.detail.items())
        lines.append(f"  {item.name:<{width}}  {_short(item.median):>9} {item.unit:<12} [{runs}]  {detail}".rstrip())
    for bound in part.bounds:
        word, side = ("holds" if bound.holds else "FAILS"), ("at most" if bound.at_most else "at least")
        lines.append(f"  {bound.name:<{width}}  {_short(bound.value):>9} {side} {bound.limit:,g}: {word}")
    return "\n".join(lines)
