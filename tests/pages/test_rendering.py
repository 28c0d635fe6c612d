"""Payload text, times and addresses: exact, bounded, and never a surprise."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvest.errors import InvalidRequestError
from harvest_console.pages.queries import input_text, link_text, read_instant
from harvest_console.rendering import build_url
from harvest_console.rendering.environment import ticks
from harvest_console.rendering.json_text import head_of, size_text
from harvest_console.rendering.preferences import read_preferences
from harvest_console.rendering.states import shown_state, state_class, state_text
from harvest_console.rendering.times import instant_text, span_text

NOW = datetime(2026, 11, 29, 14, 22, 7, tzinfo=UTC)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=150, deadline=None)
@given(JSON)
def test_laid_out_json_is_the_same_json(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, separators=(",", ":"))):
        head = head_of(text.encode("utf-8", "surrogatepass"), 100_000)
        assert not head.cut
        assert json.loads(head.text) == value


def test_numbers_are_printed_as_they_were_written() -> None:
    assert head_of(b'{"a":12345678901234567890123,"b":1.10,"c":1e400}').text == (
        '{\n  "a": 12345678901234567890123,\n  "b": 1.10,\n  "c": 1e400\n}'
    )


def test_escapes_are_shown_as_the_characters_they_stand_for() -> None:
    assert head_of(b'"caf\\u00e9 \\u0000 \\n"').text == '"café \\u0000 \\n"'


@pytest.mark.parametrize("data", [b'"' + b"a" * 5_000_000 + b'"', b"[" + b"1," * 2_500_000 + b"1]", b"[" * 100_000])
def test_the_head_of_a_huge_payload_is_small_and_quick(data: bytes) -> None:
    best = math.inf
    for _ in range(3):
        began = time.process_time()
        head = head_of(data)
        best = min(best, time.process_time() - began)
    assert best < 0.5
    assert head.cut
    assert len(head.text) <= 2048
    assert head.size == len(data)


def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    assert head_of(b"\xff\xfe not json").text == "\\xff\\xfenotjson"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.117, "117 ms"),
        (2.1, "2.1 s"),
        (9, "9 s"),
        (127, "2 min 7 s"),
        (24 * 60, "24 min"),
        (5 * 3600 + 600, "5 h 10 min"),
        (3 * 86400 + 4 * 3600, "3 d 4 h"),
        (40 * 86400, "40 d"),
        (-0.4, "−400 ms, clocks differ"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


def test_an_instant_is_told_in_the_readers_zone_with_as_much_date_as_it_needs() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert instant_text(NOW, UTC, NOW) == "14:22:07"
    assert instant_text(NOW, berlin, NOW) == "15:22:07"
    assert instant_text(NOW - timedelta(days=1), UTC, NOW) == "Nov 28, 14:22:07"
    assert instant_text(NOW - timedelta(days=400), UTC, NOW) == "Oct 25, 2025, 14:22:07"
    # 23:30 UTC is tomorrow in Berlin.
    assert instant_text(NOW.replace(hour=23, minute=30), berlin, NOW) == "Nov 30, 00:30:07"


def test_a_filter_time_means_the_zone_that_its_form_named() -> None:
    at = read_instant("2026-07-01T14:00", "Europe/Berlin", "after")
    assert at == datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert link_text(at) == "2026-07-01T12:00:00Z"
    assert input_text(at, ZoneInfo("Asia/Shanghai")) == "2026-07-01T20:00"
    assert read_instant("2026-07-01T14:00:00+02:00", "Asia/Shanghai", "after") == at
    with pytest.raises(InvalidRequestError, match="no time"):
        read_instant("yesterday", "UTC", "after")
    with pytest.raises(InvalidRequestError, match="no time zone"):
        read_instant("2026-07-01T14:00", "Mars/Crater", "after")


def test_addresses_encode_everything_and_repeat_lists() -> None:
    assert build_url("/x", "/w", id="a b/c?d&e#f%2F", state=["A", "B"], none=None, empty="") == (
        "/x/w?id=a%20b%2Fc%3Fd%26e%23f%252F&state=A&state=B"
    )


def test_damaged_preferences_count_as_not_chosen() -> None:
    chosen = read_preferences({"hv_theme": "<b>", "hv_zone": "../etc", "hv_keys": "?"})
    assert (chosen.theme, chosen.zone, chosen.keys) == ("system", "UTC", True)
    assert read_preferences({"hv_zone": "Europe%2FBerlin"}).zone == "Europe/Berlin"


def test_an_unknown_state_is_its_own_word() -> None:
    assert (state_class("SUSPENDED_V2"), state_text("SUSPENDED_V2")) == ("", "SUSPENDED_V2")
    assert shown_state("RUNNING", "non_determinism") == "BLOCKED"
    assert shown_state("RUNNING", "quarantined") == "QUARANTINED"
    assert shown_state("FAILED", "non_determinism") == "FAILED"


def test_what_stands_between_backticks_is_code_and_everything_is_escaped() -> None:
    assert ticks("Start `a<b>` or ``c``, & `no end") == (
        "Start <code>a&lt;b&gt;</code> or <code>c</code>, &amp; `no end"
    )


def test_sizes() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 9_999, 88_000, 999_600, 5_000_000)] == [
        "0 B", "999 B", "1.0 kB", "10 kB", "88 kB", "1.0 MB", "5.0 MB",
    ]  # fmt: skip
