"""The charts of the warmth page and the table that says the same: shares that were not warm, and bytes a decision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from math import ceil
from typing import Final

from msgspec import Struct

from harvest.operations.warmth import Warmth, WarmthBucket, WarmthFigures
from harvest.operations.worker_views import WorkerSummary
from harvest_console.pages.charts import Lines, Span, Stacked, lines, stacked
from harvest_console.rendering.figures import share_text
from harvest_console.rendering.json_text import size_text

# What the columns are made of, from below; `other` is an outcome that this console does not know.
KEYS: Final = ("cold", "declined", "blocked", "other")
WORDS: Final = {"cold": "cold", "declined": "declined", "blocked": "blocked", "other": "other"}
_MARKS: Final = {"5m": 60, "1h": 600, "24h": 14_400}
MOST_ROWS: Final = 30
MOST_COMINGS: Final = 6
# A chart of shares reaches at least to this.
_LEAST_SHARE: Final = 0.01


class Comings(Struct, frozen=True, kw_only=True):
    """A worker that came or went within the window: where that is, in percent, and what is said of it."""

    x: float
    at: datetime
    at_text: str
    text: str
    went: bool


class ChartRow(Struct, frozen=True, kw_only=True):
    """A stretch of the window as the table twin has it; shares are None where nothing was decided."""

    at: datetime
    decisions: int
    warm: float | None
    parts: dict[str, float]
    read: float | None


def span_of(found: Warmth, zone: tzinfo) -> Span:
    """The time that the charts are of."""
    return Span(
        start=found.since,
        end=found.until,
        seconds=found.bucket_seconds,
        mark_seconds=_MARKS.get(found.window, 14_400),
        zone=zone,
    )


def parts_of(figures: WarmthFigures) -> dict[str, float]:
    """Shares of what was not warm among the decisions after each run's first, by `KEYS`; empty for none at all."""
    first = figures.reasons.get("first", 0)
    rest = figures.decisions - first
    if rest <= 0:
        return {}
    counts = dict.fromkeys(KEYS, 0)
    for outcome, count in figures.resident.items():
        if outcome != "hit":
            counts[outcome if outcome in KEYS else "other"] += count
    counts["cold"] = max(0, counts["cold"] - first)
    return {key: count / rest for key, count in counts.items()}


def outcomes_chart(found: Warmth, span: Span) -> Stacked:
    """What was not warm, over time."""
    columns = [(one.at, parts_of(one), _title(one, span.zone)) for one in found.buckets]
    return stacked(span, columns, KEYS, share_text, least_top=_LEAST_SHARE)


def _title(one: WarmthBucket, zone: tzinfo) -> str:
    at = f"{one.at.astimezone(zone):%H:%M:%S}"
    parts = parts_of(one)
    if not parts:
        return f"{at}: no decision"
    told = [f"{WORDS[key]} {share_text(share)}" for key, share in parts.items() if share]
    return f"{at}: {', '.join(told) or 'all warm'}"


def bytes_chart(found: Warmth, span: Span) -> Lines:
    """Bytes of history read for each decision, over time."""
    points = [(one.at, one.bytes_loaded / one.decisions if one.decisions else None) for one in found.buckets]
    return lines(span, points, lambda count: size_text(round(count)))


def chart_rows(found: Warmth) -> list[ChartRow]:
    """The same as rows, newest first, slices put together so that there are at most `MOST_ROWS`."""
    buckets, together = found.buckets, max(1, ceil(len(found.buckets) / MOST_ROWS))
    return [_row(buckets[at : at + together]) for at in range(0, len(buckets), together)][::-1]


def _row(group: Sequence[WarmthBucket]) -> ChartRow:
    whole = _sum(group)
    parts = parts_of(whole)
    return ChartRow(
        at=group[0].at,
        decisions=whole.decisions,
        warm=1 - sum(parts.values()) if parts else None,
        parts=parts,
        read=whole.bytes_loaded / whole.decisions if whole.decisions else None,
    )


def _sum(group: Iterable[WarmthBucket]) -> WarmthFigures:
    resident: dict[str, int] = {}
    decisions = first = read = 0
    for one in group:
        decisions += one.decisions
        first += one.reasons.get("first", 0)
        read += one.bytes_loaded
        for outcome, count in one.resident.items():
            resident[outcome] = resident.get(outcome, 0) + count
    return WarmthFigures(decisions=decisions, resident=resident, reasons={"first": first}, bytes_loaded=read)


def comings(fleet: Sequence[WorkerSummary], since: datetime, until: datetime, span: Span) -> list[Comings]:
    """Workers that came or went within the window, the last few of them, oldest first."""
    found = []
    for one in fleet:
        if since < one.started_at <= until:
            found.append((one.started_at, f"{one.name} came", False))
        if one.health != "healthy" and since < one.seen_at <= until:
            found.append((one.seen_at, f"{one.name} {'left' if one.status == 'stopped' else 'fell silent'}", True))
    found.sort(key=lambda each: each[0])
    return [
        Comings(x=span.x(at), at=at, at_text=f"{at.astimezone(span.zone):%H:%M:%S}", text=text, went=went)
        for at, text, went in found[-MOST_COMINGS:]
    ]
