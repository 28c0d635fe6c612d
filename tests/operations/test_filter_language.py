"""The filter language: what it accepts and how it prints it, what it refuses, and where it says the fault is."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest.errors import FilterError
from harvest.operations.filter_language import (
    MOST_BYTES,
    field_named,
    parse,
    render,
    search_attr,
    search_attr_filter,
    search_attr_text,
)
from harvest.store.filters import Ago, And, Compare, Exists, Expression, Field, OneOf, Or, Value, is_anchored, leaves
from tests.operations.filtering import expressions

A = Field("attr", "a")
HOSTILE: list[str] = [
    "",
    "'",
    '"',
    "''",
    "%",
    "\\",
    "a'b\"c",
    "$1",
    "--",
    "é",
    "日本",
    "🦆",
    "\n",
    "x" * 200,
    "a:b",
    "and",
]
NUMBERS = [Decimal(text) for text in ("0", "-1", "0.25", "1e400", "-1E-20", "12345678901234567890.5")]
VALUES: list[Value] = [*HOSTILE, *NUMBERS, True, False]
INSTANTS = [datetime(2026, 5, 1, 12, 0, second, 7, tzinfo=UTC) for second in range(3)]


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("attrs.tenant='acme'", "attrs.tenant = 'acme'"),
        ('attrs.tenant = "acme"', "attrs.tenant = 'acme'"),
        ("attr.amount <> -0.5", "attrs.amount != -0.5"),
        ('attrs."a key" exists', 'attrs."a key" EXISTS'),
        ("attrs.tenant-id >= 1e3", "attrs.tenant-id >= 1E+3"),
        ("type = 'order_flow'", "workflow_name = 'order_flow'"),
        ("state in ('running', 'FAILED')", "state IN ('RUNNING', 'FAILED')"),
        ("started > -24h", "started_at > now - 24h"),
        ("started >= -1d", "started_at >= now - 24h"),
        ("started_at < now-2w", "started_at < now - 14d"),
        ("started_at <= now - 90m", "started_at <= now - 90m"),
        ("started_at = '2026-05-01'", "started_at = '2026-05-01T00:00:00Z'"),
        ("started_at > '2026-05-01T12:00:00.5+02:00'", "started_at > '2026-05-01T10:00:00.500000Z'"),
        ("owner = 'o''hara'", "owner = 'o''hara'"),
        ("severity != 'sev1'", "severity != 'sev1'"),
        ("attrs.a = true AND attrs.b = FALSE", "attrs.a = true AND attrs.b = false"),
        ("attrs.a = 1 or attrs.b = 2 and attrs.c = 3", "attrs.a = 1 OR attrs.b = 2 AND attrs.c = 3"),
        ("(attrs.a = 1 or attrs.b = 2) and attrs.c = 3", "(attrs.a = 1 OR attrs.b = 2) AND attrs.c = 3"),
        ("((attrs.a = 1))", "attrs.a = 1"),
        ("attrs.a = 1 and (owner = 'x' or state = 'FAILED')", "attrs.a = 1 AND (owner = 'x' OR state = 'FAILED')"),
        ("workflow_name in ('a') or attrs.a exists", "workflow_name IN ('a') OR attrs.a EXISTS"),
    ],
)
def test_what_is_accepted_is_printed_in_its_long_form(text: str, printed: str) -> None:
    assert render(parse(text)) == printed
    assert parse(printed) == parse(text)


def test_what_a_value_is_follows_from_its_text() -> None:
    expression = parse("attrs.a IN (5, '5', true, 'true', 5.0)")
    assert isinstance(expression, OneOf)
    assert [type(value) for value in expression.values] == [Decimal, str, bool, str, Decimal]


def test_and_binds_closer_than_or_and_both_are_flat() -> None:
    one, two, three = (Compare(A, "=", Decimal(n)) for n in (1, 2, 3))
    assert parse("attrs.a = 1 OR (attrs.a = 2 OR attrs.a = 3)") == Or((one, two, three))
    assert parse("attrs.a = 1 AND (attrs.a = 2 AND attrs.a = 3)") == And((one, two, three))
    assert parse("attrs.a = 1 OR attrs.a = 2 AND attrs.a = 3") == Or((one, And((two, three))))


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("", 1, "no condition"),
        ("  ", 1, "no condition"),
        ("attrs.a", 8, "the end follows a field"),
        ("attrs.a =", 10, "value is missing"),
        ("attrs.a = acme", 11, "put texts in quotes"),
        ("attrs.a = 'acme", 11, "not closed"),
        ("attrs.a == 'acme'", 9, "'==' is no operator; write one ="),
        ("state == 'RUNNING'", 7, "write one ="),
        ("attrs.a = = 'acme'", 11, "'=' stands where a value is missing"),
        ("attrs.a > 'b'", 11, "compares numbers"),
        ("attrs.a > true", 11, "compares numbers"),
        ("attrs.a = 1e99999", 11, "too large"),
        ("attrs.a = 1e99999999999999999999999", 11, "too large"),
        ("attrs.a = 0x10", 11, "no number"),
        ("attrs.a = 007", 11, "no number"),
        ("attrs.a = -24h", 11, "put texts in quotes"),
        ("attrs. = 1", 1, "key of the attribute is missing"),
        (f"attrs.{'k' * 256} = 1", 1, "key is too long"),
        ("color = 'red'", 1, "fields are attrs.<key>, state"),
        ("NOT state = 'FAILED'", 1, "there is no NOT"),
        ("= 1", 1, "begin with a field"),
        ("state = 'SLEEPING'", 9, "states are RUNNING"),
        ("state = 'MIGRATED'", 9, "moved to another shard"),
        ("state IN ('RUNNING', 'MIGRATED')", 22, "moved to another shard"),
        ("state > 'RUNNING'", 7, "has no order"),
        ("workflow_name <= 'a'", 15, "has no order"),
        ("owner = 5", 9, "not in quotes"),
        ("owner EXISTS", 7, "for attributes"),
        ("severity = 'sev9'", 12, "sev1, sev2, sev3, sev4"),
        ("started_at > 'yesterday'", 14, "no time"),
        ("started_at > '2026-05-01T10:00:00'", 14, "no zone"),
        ("started_at > '0001-01-01T00:00:00+23:00'", 14, "no time"),
        ("started_at > -99999999d", 14, "too long ago"),
        ("started_at > 5", 14, "no time"),
        ("attrs.a IN ()", 13, "value is missing"),
        ("attrs.a IN (1, 2", 17, "comma between values"),
        ("attrs.a IN 1", 12, "write IN"),
        ("attrs.a IN (" + ", ".join("1" for _ in range(101)) + ")", 12 + 100 * 3 - 1, "100 at most"),
        ("attrs.a = 1 attrs.b = 2", 13, "put AND or OR"),
        ("(attrs.a = 1", 13, "close the ( of column 1"),
        ("attrs.a = 1)", 12, "closes nothing"),
        ("(" * 9 + "attrs.a = 1" + ")" * 9, 9, "8 deep"),
        (" AND ".join(f"attrs.a = {n}" for n in range(33)), 1, "33 conditions"),
        ("attrs.a = 1 & attrs.b = 2", 13, "means nothing here"),
        ("attrs.a\x00 = 1", 8, "NUL"),
        ("attrs.a = '\udc80'", 12, "surrogate"),
        ("attrs.a = '" + "é" * 1024 + "'", 1, "2,048 bytes"),
        ("owner = 'a' OR attrs.a = 1", 1, "no index leads"),
        ("attrs.a = 1 OR owner = 'a'", 16, "no index leads"),
        ("attrs.a = 1 OR workflow_name != 'a'", 16, "no index leads"),
        ("state = 'FAILED' AND (owner = 'a' OR owner = 'b')", 23, "use IN"),
        ("attrs.a = 1 OR (attrs.b = 1 OR started_at > -1h)", 32, "no index leads"),
    ],
)
def test_what_is_refused_is_told_with_its_column_and_a_remedy(text: str, column: int, said: str) -> None:
    with pytest.raises(FilterError) as refused:
        parse(text)
    assert (refused.value.fields["column"], refused.value.fields["field"]) == (column, "filter")
    assert refused.value.fields["remedy"]
    assert said in refused.value.message
    assert refused.value.fields["remedy"] in refused.value.message


def test_the_largest_filter_is_read() -> None:
    text = " AND ".join(f"attrs.a{n} = {n}" for n in range(32))
    deep = "(" * 8 + text + ")" * 8
    assert len(list(leaves(parse(deep + " " * (MOST_BYTES - len(deep)))))) == 32


@given(expressions(["tenant", "a key", 'q"', "é", "a.b-c", "a:b", "", "%"], VALUES, INSTANTS))
def test_every_expression_is_printed_as_it_is_read(expression: Expression) -> None:
    text = render(expression)
    has_or = " OR " in text
    if has_or and not is_anchored(expression):
        with pytest.raises(FilterError):
            parse(text)
    elif len(text.encode()) <= MOST_BYTES:
        assert parse(text) == expression


@given(st.text(max_size=60))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    columns = []
    try:
        assert parse(render(parse(text))) == parse(text)
    except FilterError as error:
        columns.append(error.fields["column"])
    assert all(1 <= column <= len(text) + 1 for column in columns)


@given(st.text("atrs.xy='\"()<>!= ,-0159eEINORAD", max_size=40))
def test_no_text_of_the_languages_own_characters_does_more_than_be_refused(text: str) -> None:
    test_no_text_does_more_than_be_refused.hypothesis.inner_test(text)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("a:eq:5", Compare(A, "=", Decimal(5))),
        ("a:eq:'5'", Compare(A, "=", "5")),
        ('a:ne:"5"', Compare(A, "!=", "5")),
        ("a:eq:true", Compare(A, "=", True)),
        ("a:eq:True", Compare(A, "=", "True")),
        ("a:eq:", Compare(A, "=", "")),
        ("a:eq:it's", Compare(A, "=", "it's")),
        ('a:eq:"half', Compare(A, "=", '"half')),
        ("a:eq:b:c", Compare(A, "=", "b:c")),
        ("a:gt:5", Compare(A, ">", Decimal(5))),
        ("a:gte:-0.5", Compare(A, ">=", Decimal("-0.5"))),
        ("a:lt:1e400", Compare(A, "<", Decimal("1e400"))),
        ("a:lte:5", Compare(A, "<=", Decimal(5))),
        ("a:exists", Exists("a")),
        ('a:in:x,5,"y,z",true', OneOf(A, ("x", Decimal(5), "y,z", True))),
        ("urn:a:eq:x", Compare(Field("attr", "urn:a"), "=", "x")),
        ('"a:eq:b":eq:x', Compare(Field("attr", "a:eq:b"), "=", "x")),
        ('"":exists', Exists("")),
    ],
)
def test_a_single_condition_is_told_by_key_operator_and_value(text: str, expression: Expression) -> None:
    assert search_attr_filter(text) == expression


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("a", 2, "operator is missing"),
        ("a:is:5", 3, "no operator 'is'"),
        ("a:exists:5", 3, "exists"),
        ("a:gt:b", 6, "compares numbers"),
        ("a:gt:'5'", 6, "compares numbers"),
        ("a:in:", 6, "value is missing"),
        ("a:in:b,,c", 8, "value is missing"),
        ("a:in:" + ",".join(["b"] * 101), 206, "100 at most"),
        ("a:eq:1e99999", 6, "too large"),
        ('"a:eq:5', 1, "not closed"),
        ('"a"b:eq:5', 4, "colon after the key"),
        ("a:eq:\x00", 6, "NUL"),
        ("k" * 256 + ":exists", 1, "key is too long"),
    ],
)
def test_a_single_condition_that_is_refused_names_its_column(text: str, column: int, said: str) -> None:
    with pytest.raises(FilterError) as refused:
        search_attr_filter(text)
    assert (refused.value.fields["column"], refused.value.fields["field"]) == (column, "search_attr_filter")
    assert said in refused.value.message


def test_a_key_and_a_value_are_the_same_as_eq() -> None:
    for key in ("a", "urn:a", '"q', "é"):
        for value in ("x", "5", "true", "a:b"):
            assert search_attr(search_attr_text(key, value)) == Compare(
                Field("attr", key),
                "=",
                search_attr_filter(f"a:eq:{value}").value,  # type: ignore[union-attr]
            )
    with pytest.raises(FilterError, match="write key:value"):
        search_attr("alone")


def test_an_instant_before_now_is_kept_as_that() -> None:
    assert parse("started_at > -24h") == Compare(Field("column", "started_at"), ">", Ago(86_400))


def test_a_field_is_named_alone() -> None:
    assert field_named('attrs."a b"') == Field("attr", "a b")
    assert field_named("type") == Field("column", "workflow_name")
    with pytest.raises(FilterError, match="name one field"):
        field_named("state = 'RUNNING'")
