"""Decisions as they are drawn and listed: for each the stages between its seven instants, made from the same facts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from harvest.operations.decisions import DecisionAttempt
from harvest_console.rendering.figures import short_span_text

WIDE: Final = 100.0
# The widest bar leaves room for its length beside it.
_BAR_WIDE: Final = 86.0


class Stage(Struct, frozen=True):
    """What ends at one instant of a decision: the field of the instant, a word for a column, and what it took."""

    field: str
    word: str
    text: str


STAGES: Final = (
    Stage("notified_at", "Told", "until its worker was told"),
    Stage("taken_at", "Taken", "until it was taken"),
    Stage("loaded_at", "Loaded", "reading its events"),
    Stage("driven_at", "Driven", "running its code"),
    Stage("fence_checked_at", "Sent", "until the commit was sent"),
    Stage("committed_at", "Committed", "until the commit was answered"),
)


class Piece(Struct, frozen=True):
    """One stage of a bar, in percent of the width; `key` is the field of the instant that ends it."""

    key: str
    x: float
    width: float


class DecisionBar(Struct, frozen=True, kw_only=True):
    """One decision: its bar, how long it took, and when it came to each stage, counted from its first instant.

    A stage that nobody knows the instant of has an empty text, and its time counts to the next one.
    """

    attempt: DecisionAttempt
    begun_at: datetime
    pieces: list[Piece]
    end_x: float
    took: str
    offsets: list[str]
    title: str


class DecisionDrawing(Struct, frozen=True):
    """The bars of a window. `most` is the length that the widest bar stands for, empty where each has its own scale."""

    bars: list[DecisionBar]
    most: str


def draw(attempts: Sequence[DecisionAttempt], *, each: bool) -> DecisionDrawing:
    """Draw a window to one scale, or with `each` every decision to its own."""
    most = max((_seconds(one) for one in attempts), default=0.0)
    bars = [_bar(one, _seconds(one) if each else most) for one in attempts]
    return DecisionDrawing(bars, "" if each or not bars else short_span_text(most))


def _begun(attempt: DecisionAttempt) -> datetime:
    return attempt.woken_at or attempt.notified_at or attempt.taken_at


def _seconds(attempt: DecisionAttempt) -> float:
    return max(0.0, (attempt.committed_at - _begun(attempt)).total_seconds())


def _bar(attempt: DecisionAttempt, most: float) -> DecisionBar:
    begun = _begun(attempt)
    pieces, offsets, told = [], [], []
    before = 0.0
    for stage in STAGES:
        at: datetime | None = getattr(attempt, stage.field)
        if at is None or (at == begun and stage.field in ("notified_at", "taken_at") and before == 0.0):
            offsets.append("" if at is None else "0 ms")
            continue
        offset = (at - begun).total_seconds()
        offsets.append(f"{'+' if offset >= 0 else ''}{short_span_text(offset)}")
        # Clocks may differ: a bar never goes back.
        end = max(before, offset)
        if most > 0 and end > before:
            x = before / most * _BAR_WIDE
            pieces.append(Piece(stage.field, round(x, 2), round((end - before) / most * _BAR_WIDE, 2)))
        told.append(f"{stage.text} {short_span_text(end - before)}")
        before = end
    took = short_span_text(before)
    return DecisionBar(
        attempt=attempt,
        begun_at=begun,
        pieces=pieces,
        end_x=round(before / most * _BAR_WIDE, 2) if most > 0 else 0.0,
        took=took,
        offsets=offsets,
        title=f"Decision {attempt.number}, {took}: {', '.join(told)}",
    )
