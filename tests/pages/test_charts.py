"""Charts over time: round axes, marks on the reader's clock, lines that break where nothing was, honest percentages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from harvest_console.pages.charts import HEIGHT, Span, lines, stacked
from harvest_console.rendering.figures import rate_text, share_text, short_span_text

START = datetime(2026, 11, 29, 12, 7, tzinfo=UTC)
HOUR = Span(start=START, end=START + timedelta(hours=1), seconds=600, mark_seconds=600, zone=UTC)


def at(n: int) -> datetime:
    """The beginning of a column."""
    return START + timedelta(seconds=600 * n)


@pytest.mark.parametrize(
    ("share", "text"),
    [(1, "100 %"), (0.99999, "99.99 %"), (0.9962, "99.62 %"), (0.813, "81.3 %"), (0.0031, "0.31 %"), (0, "0 %")],
)
def test_only_all_is_a_hundred_percent_and_only_none_is_zero(share: float, text: str) -> None:
    assert share_text(share) == text
    assert share_text(1e-9) == "< 0.01 %"


def test_small_rates_and_spans_are_not_rounded_away() -> None:
    assert [rate_text(rate) for rate in (2_914.2, 51, 4.23, 0.03, 0.0001, 0)] == [
        "2,914",
        "51",
        "4.2",
        "0.03",
        "0.01",
        "0",
    ]
    assert [short_span_text(seconds) for seconds in (0.00031, 0.0094, 0.012, 0)] == [
        "0.31 ms",
        "9.40 ms",
        "12 ms",
        "0 ms",
    ]


def test_an_axis_ends_at_a_round_value_above_all_columns() -> None:
    chart = stacked(HOUR, [(at(0), {"a": 3.0, "b": 4.5}, "x")], ("a", "b"), lambda value: f"{value:g}")
    assert [rule.text for rule in chart.axes.rules] == ["8", "6", "4", "2", "0"]
    (column,) = chart.columns
    assert [piece.key for piece in column.pieces] == ["a", "b"]
    assert column.pieces[0].y + column.pieces[0].height == pytest.approx(HEIGHT, abs=0.15)
    assert column.pieces[1].y + column.pieces[1].height == pytest.approx(column.pieces[0].y, abs=0.15)


def test_nothing_at_all_still_has_an_axis() -> None:
    chart = stacked(HOUR, [(at(0), {}, "x")], ("a",), lambda value: f"{value:g}")
    assert [rule.text for rule in chart.axes.rules] == ["1", "0"]
    assert chart.columns[0].pieces == []


def test_a_line_breaks_where_there_is_no_value() -> None:
    values = [1.0, 2.0, None, 4.0, None, 2.0]
    chart = lines(HOUR, [(at(n), value) for n, value in enumerate(values)], str)
    assert [part.count(",") for part in chart.lines] == [2]
    assert [round(y) for _, y in chart.dots] == [0, HEIGHT // 2]


def test_marks_stand_at_full_minutes_of_the_readers_clock() -> None:
    assert [mark.text for mark in HOUR.marks()] == ["12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]
    kathmandu = Span(start=START, end=HOUR.end, seconds=60, mark_seconds=3600, zone=ZoneInfo("Asia/Kathmandu"))
    assert [(mark.text, round(mark.x)) for mark in kathmandu.marks()] == [("18:00", 13)]
