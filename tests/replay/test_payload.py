"""A value is kept exactly, or refused where it is encoded with a typed error (design 3, rows 48 to 51)."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import math
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from harvest.errors import HarvestError, PayloadDecodeError, PayloadError, PayloadTooLargeError
from harvest.history import payload
from harvest.history.data import ActivityCompleted
from harvest.history.events import Event, encode_data
from harvest.history.kinds import EventKind
from harvest.history.limits import NESTING, PAYLOAD_BYTES
from tests.scale import scale

examples = settings(max_examples=scale(300, 20_000), deadline=None, derandomize=True)


class Point(Struct, frozen=True):
    x: float
    label: str | None = None


@dataclasses.dataclass(frozen=True)
class Line:
    start: Point
    length: float
    tags: frozenset[str] = frozenset()


class Pair(NamedTuple):
    left: int
    right: float


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def _unfolded(moment: Any) -> Any:
    return moment.replace(fold=0)


numbers = st.floats()
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
typed: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Point, st.builds(Point, numbers, st.none() | st.text())),
    (Line, st.builds(Line, st.builds(Point, numbers), numbers, st.frozensets(st.text(max_size=3)))),
    (Pair, st.builds(Pair, st.integers(), numbers)),
    (list[Point], st.lists(st.builds(Point, numbers))),
    (dict[str, list[float]], st.dictionaries(st.text(), st.lists(numbers))),
    (dict[int, float | None], st.dictionaries(st.integers(), st.none() | numbers)),
    (dict[float, int], st.dictionaries(numbers, st.integers())),
    (Decimal, st.decimals(allow_nan=False)),
    (datetime, st.datetimes(timezones=st.just(UTC)).map(_unfolded)),
    (date, st.dates()),
    (clock_time, st.times().map(_unfolded)),
    (timedelta, st.timedeltas()),
    (uuid.UUID, st.uuids()),
    (bytes, st.binary()),
    (set[int], st.sets(st.integers())),
    (Colour, st.sampled_from(Colour)),
    (tuple[int, ...], st.lists(st.integers()).map(tuple)),
]


def _non_finite(value: Any) -> bool:
    return any(isinstance(item, float) and not math.isfinite(item) for item in _leaves(value))


def _surrogate(value: Any) -> bool:
    return any(isinstance(item, str) and not _utf8(item) for item in _leaves(value))


def _utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Struct):
        value = [getattr(value, field) for field in value.__struct_fields__]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _exact_or_refused(of_type: Any, value: Any) -> None:
    try:
        data = payload.encode(value)
    except PayloadError:
        assert _non_finite(value) or _surrogate(value), f"{value!r} is refused"
        return
    assert not _non_finite(value), f"{value!r} is kept as {data!r}"
    assert not _surrogate(value), f"{value!r} is kept as {data!r}"
    read = payload.decode(data, of_type)
    assert read == value
    assert repr(read) == repr(value) or isinstance(value, set | Line), "a sign or a type was lost"
    assert payload.encode(read) == data or isinstance(value, set | Line)
    # It stands in an event as it is, and comes out as it was.
    event = Event(1, int(EventKind.ACTIVITY_COMPLETED), 1, datetime.now(UTC), _as_event(data))
    assert bytes(event.data().output) == data


def _as_event(data: bytes) -> bytes:
    return encode_data(ActivityCompleted(output=msgspec.Raw(data)))


@examples
@given(value=plain)
def test_plain_data_is_kept_exactly_or_refused(value: Any) -> None:
    _exact_or_refused(Any, value)


@pytest.mark.parametrize(("of_type", "values"), typed, ids=[str(of_type) for of_type, _ in typed])
def test_typed_data_is_kept_exactly_or_refused(of_type: Any, values: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=scale(40, 2_000), deadline=None, derandomize=True)
    @given(value=values)
    def holds(value: Any) -> None:
        _exact_or_refused(of_type, value)

    holds()


@examples
@given(text=st.text(st.characters(codec=None, exclude_categories=[]), max_size=6))
def test_text_with_surrogates_is_refused_and_no_other(text: str) -> None:
    _exact_or_refused(str, text)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "within",
    [
        lambda bad: bad,
        lambda bad: [[[bad]]],
        lambda bad: {"a": {"b": bad}},
        lambda bad: {bad: 1},
        lambda bad: Point(bad),
        lambda bad: [Line(Point(1.0), bad)],
        lambda bad: Line(Point(bad), 1.0),
        lambda bad: Pair(1, bad),
        lambda bad: ("null", None, bad),
        lambda bad: {1.0, bad},
        lambda bad: {uuid.UUID(int=1): bad},
        lambda bad: (msgspec.Raw(b"null"), bad),
        lambda bad: [None, 2**70, bad],
    ],
)
def test_numbers_that_json_has_no_word_for_are_refused_wherever_they_are(bad: float, within: Any) -> None:
    with pytest.raises(PayloadError) as caught:
        payload.encode(within(bad))
    assert caught.value.fields["problem"] == "non_finite"


@pytest.mark.parametrize(
    "value",
    [
        {"nan": 1, "inf": 2, "-inf": None},
        "NaN",
        "null",
        {"a": None, "b": "null"},
        [None, 1.5, msgspec.Raw(b"null")],
        Point(1.0, None),
        "\x00",
        "a\x00b\x1f",
        "\U0001f600",
        2**53 + 1,
        -(2**63) - 1,
        2**64,
        2**200,
        -0.0,
        1e308,
        5e-324,
    ],
)
def test_these_are_kept(value: Any) -> None:
    data = payload.encode(value)
    assert data.decode() == data.decode()
    if isinstance(value, str | int | float):
        assert repr(payload.decode(data)) == repr(value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("\ud800", "surrogate"),
        ({"a": ["x\udfffy"]}, "surrogate"),
        ({"\ud800": 1}, "surrogate"),
        (object(), "type"),
        ({"a": object()}, "type"),
        ({(1, 2): 3}, "type"),
        ({None: 1}, "type"),
        (1j, "type"),
        (msgspec.Raw(b"garbage"), "syntax"),
        ([msgspec.Raw(b"[1,}")], "syntax"),
        ([msgspec.Raw(b'"\xff"')], "syntax"),
    ],
)
def test_these_are_refused(value: Any, problem: str) -> None:
    with pytest.raises(PayloadError) as caught:
        payload.encode(value)
    assert caught.value.fields["problem"] == problem


def _nested(levels: int, kind: str) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value] if kind == "list" else {"a": value}
    return value


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_nesting_has_a_limit(kind: str) -> None:
    assert payload.decode(payload.encode(_nested(NESTING, kind))) == _nested(NESTING, kind)
    for levels in (NESTING + 1, 900, 5_000, 100_000):
        with pytest.raises(PayloadError) as caught:
            payload.encode(_nested(levels, kind))
        assert caught.value.fields["problem"] == "nesting"


def test_brackets_in_text_are_not_nesting() -> None:
    value = {"text": '["\\' + "[{" * 1_000}
    assert payload.decode(payload.encode(value)) == value


@pytest.mark.parametrize("text", ["\\", '"', '\\"', '"\\', '\\\\"', '["', ']"\\'])
def test_escapes_do_not_hide_nesting(text: str) -> None:
    shallow = [[text, "[" * 300, text + "]"] * 3, {text: text + "{"}]
    assert payload.decode(payload.encode(shallow)) == shallow
    for levels, fits in ((NESTING, True), (NESTING + 1, False)):
        value: Any = [text]
        for _ in range(levels - 1):
            value = {text: value, "]" + text: "["} if levels % 2 else [text, value]
        if fits:
            assert payload.decode(payload.encode(value)) == value
        else:
            with pytest.raises(PayloadError):
                payload.encode(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(PayloadError):
        payload.encode(value)


def test_size_has_a_limit_in_bytes() -> None:
    assert len(payload.encode("x" * (PAYLOAD_BYTES - 2))) == PAYLOAD_BYTES
    for value in ("x" * (PAYLOAD_BYTES - 1), "é" * (PAYLOAD_BYTES // 2)):
        with pytest.raises(PayloadTooLargeError) as caught:
            payload.encode(value)
        assert caught.value.fields["limit"] == PAYLOAD_BYTES


class Strict(Struct):
    name: str

    def __post_init__(self) -> None:
        if self.name == "missing":
            raise KeyError(self.name)


@pytest.mark.parametrize(
    ("data", "as_type"),
    [
        (b"{", Any),
        (b"", Any),
        (b"[1,]", Any),
        (b"NaN", Any),
        (b'"\xff"', Any),
        (b'"\\ud800"', Any),
        (b"1e400", Any),
        (b"[" * 100_000, Any),
        (b'"a"', int),
        (b'{"name": "missing"}', Strict),
    ],
)
def test_text_that_does_not_fit_is_a_typed_error(data: bytes, as_type: Any) -> None:
    with pytest.raises(PayloadDecodeError):
        payload.decode(data, as_type)
    if as_type is Any:
        with pytest.raises(PayloadError):
            payload.check_text(data)


@examples
@given(data=st.binary(max_size=30) | st.text(max_size=30).map(str.encode))
def test_text_from_outside_is_json_or_a_typed_error(data: bytes) -> None:
    try:
        payload.check_text(data)
    except HarvestError:
        return
    assert payload.encode(msgspec.Raw(data)) == data
    payload.decode(data)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 5_000_000,
        "null " * 1_000_000,
        "[{" * 2_500_000,
        [None] * 1_000_000,
        [Point(float(number)) for number in range(120_000)],
        {f"key {number}": [number, None, 0.5] for number in range(180_000)},
        [[number] for number in range(500_000)],
    ],
    ids=["text", "text with nulls", "text with brackets", "nulls", "structs", "dicts", "lists"],
)
def test_five_megabytes_are_encoded_in_a_fifth_of_a_second(value: Any) -> None:
    best = math.inf
    for _ in range(3):
        began = time.process_time()
        data = payload.encode(value)
        best = min(best, time.process_time() - began)
    assert 3_000_000 < len(data) < PAYLOAD_BYTES
    assert best < scale(600, 200) / 1_000, f"{best * 1000:.0f} ms for {len(data):,} bytes"


async def test_an_unawaited_value_is_refused_asking_for_its_await() -> None:
    async def coroutine() -> int:
        return 1

    unawaited: list[Any] = [coroutine(), asyncio.ensure_future(coroutine()), asyncio.gather(coroutine())]
    for value in unawaited:
        with pytest.raises(PayloadError, match=r"\(is an `await` missing\?\)"):
            payload.encode({"a": [value]})
        await value
    with pytest.raises(PayloadError) as told:
        payload.encode(object())
    assert "await" not in told.value.message
