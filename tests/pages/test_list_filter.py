"""The filter of the list as pages have it: conditions that can be taken away, values to filter by, what comes next."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec import Raw

from harvest.operations.filter_language import parse
from harvest.store.filters import ATTRIBUTE, COLUMN, Field
from harvest_console.pages.completing import (
    Suggestion,
    expected,
    fields_like,
    fixed_values,
    following,
    operators_like,
    values_like,
)
from harvest_console.pages.conditions import conditions, expression_with
from harvest_console.pages.list_query import Query, read_query
from harvest_console.pages.run_rows import cell_text, columns_of
from harvest_console.pages.workflows import wrong_at


def query(**given: list[str] | str) -> Query:
    """The query of an address with these parameters."""
    return read_query({name: [value] if isinstance(value, str) else value for name, value in given.items()})[0]


def parameters(url: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(url).query)


def test_each_condition_is_told_and_can_be_taken_away_alone() -> None:
    shown = query(
        state=["failed", "PAUSED"],
        type="order_flow",
        id="it's",
        owner="payments",
        after="2026-05-01T10:00:00Z",
        filter="attrs.a = 1 and (attrs.b = 'x' or type = 'refund')",
    )
    found = conditions(shown, "")
    assert [one.text for one in found] == [
        "state IN ('FAILED', 'PAUSED')",
        "workflow_id = 'it''s'",
        "workflow_name = 'order_flow'",
        "owner = 'payments'",
        "started_at >= '2026-05-01T10:00:00Z'",
        "attrs.a = 1",
        "(attrs.b = 'x' OR workflow_name = 'refund')",
    ]
    for one in found:
        left = conditions(query(**parameters(one.without_url)), "")
        assert {each.text.strip("()") for each in left} == {each.text.strip("()") for each in found if each != one}


def test_an_expression_that_cannot_be_read_is_one_condition() -> None:
    [only] = conditions(query(filter="attrs.a ~ 1"), "")
    assert (only.text, parameters(only.without_url)) == ("attrs.a ~ 1", {})


def test_taking_the_last_condition_away_leaves_no_filter() -> None:
    [only] = conditions(query(filter="attrs.a exists", columns=["attrs.a"]), "")
    assert parameters(only.without_url) == {"columns": ["attrs.a"]}


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        (b'"acme"', "attrs.k = 'acme'"),
        (b'"5"', "attrs.k = '5'"),
        (b"5", "attrs.k = 5"),
        (b"12345678901234567890123", "attrs.k = 12345678901234567890123"),
        (b"true", "attrs.k = true"),
        (b'"it\'s \\ud83c\\udf81 <b>"', "attrs.k = 'it''s 🎁 <b>'"),
        (b"[1]", None),
        (b'{"a":1}', None),
        (b"null", None),
        (b'"' + b"x" * 3_000 + b'"', None),
        (b'"a\\u0000b"', None),
    ],
)
def test_a_value_becomes_the_condition_that_finds_it(stored: bytes, text: str | None) -> None:
    assert expression_with("", "k", Raw(stored)) == text


def test_a_condition_is_added_once_and_to_what_is_there() -> None:
    both = expression_with("attrs.a = 1 or attrs.b = 2", "k", Raw(b"3"))
    assert both == "(attrs.a = 1 OR attrs.b = 2) AND attrs.k = 3"
    assert expression_with(both, "k", Raw(b"3")) == both
    assert expression_with("attrs.a ~ 1", "k", Raw(b"3")) is None
    assert parse(expression_with("", 'a "b" c', Raw(b"3")) or "")


def test_what_an_address_says_wrong_is_left_out_and_told() -> None:
    found, problem = read_query(
        {"state": ["SLEEPING", "paused"], "after": ["yesterday"], "severity": ["high"], "size": ["7"], "order": ["x"]}
    )
    assert (found.states, found.after, found.severity, found.size, found.order) == (("PAUSED",), None, "", 50, "desc")
    assert all(
        word in problem for word in ("'SLEEPING' is no state", "'yesterday' is no time", "'high' is no severity")
    )


def test_columns_are_attributes_owner_and_severity_and_three_at_most() -> None:
    asked = ["attrs.tenant", 'attrs."a b"', "attr.tenant", "owner", "severity"]
    assert [one.heading for one in columns_of(query(columns=asked), "")] == ["attrs.tenant", 'attrs."a b"']
    assert [one.heading for one in columns_of(query(columns=["owner", "state", "x = 1 or y"]), "")] == ["owner"]
    [first, second] = columns_of(query(columns=["owner", "severity"]), "")
    assert parameters(first.without_url) == {"columns": ["severity"]}
    assert parameters(second.without_url) == {"columns": ["owner"]}


def test_a_value_that_cannot_be_seen_stands_in_quotes() -> None:
    assert [cell_text(Raw(text)) for text in (b'""', b'"  "', b'"x"', b'["a","b"]')] == ["''", "'  '", "x", "a, b"]
    assert len(cell_text(Raw(b'"' + b"y" * 500 + b'"'))) == 80


def test_the_wrong_place_is_marked_under_its_column() -> None:
    near = wrong_at("attrs.a ~ 1", 9, "column 9: no")
    assert (near.before, near.at, near.after, near.indent) == ("attrs.a ", "~", " 1", " " * 8)
    assert wrong_at("attrs.a", 8, "").at == " "
    wide = wrong_at("attrs.a = '🎁漢' ~", 16, "")
    assert (wide.at, len(wide.indent)) == ("~", len("attrs.a = '") + 4 + 2)
    far = wrong_at("x" * 500 + "~" + "y" * 500, 501, "")
    assert (far.before[0], far.at, far.after[-1], len(far.before), len(far.after)) == ("…", "~", "…", 36, 36)


@pytest.mark.parametrize(
    ("head", "what", "typed"),
    [
        ("", "field", ""),
        ("  att", "field", "att"),
        ("attrs.te", "field", "attrs.te"),
        ("attrs.", "field", "attrs."),
        ('attrs."a k', "field", 'attrs."a k'),
        ("(", "field", ""),
        ("attrs.a ", "operator", ""),
        ("attrs.a I", "operator", "I"),
        ("state =", "value", ""),
        ("state = 'RU", "value", "'RU"),
        ("state in ", "opening", ""),
        ("state in (", "item", ""),
        ("state in ('RUNNING', 'PA", "item", "'PA"),
        ("state in ('RUNNING'", "next item", ""),
        ("state in ('RUNNING')", "next", ""),
        ("state = 'RUNNING'", "next", ""),
        ("attrs.a exists a", "next", "a"),
        ("started > now - 24h ", "next", ""),
        ("started > -2", "value", "-2"),
        ("attrs.a = 1 and ", "field", ""),
        ("(attrs.a = 1) or sta", "field", "sta"),
    ],
)
def test_what_comes_next_follows_from_what_is_before_the_caret(head: str, what: str, typed: str) -> None:
    found = expected(head)
    assert found is not None
    assert (found.what, found.typed, found.start) == (what, typed, len(head) - len(typed))


@pytest.mark.parametrize(
    "head", ["nonsense = ", "= 1", "attrs.a attrs.b ", "not attrs.a ", "'a' ", "a ' b ~ c ' d ~ '"]
)
def test_nothing_comes_after_what_is_no_beginning(head: str) -> None:
    found = expected(head)
    assert found is None or found.what == "field"


def test_what_is_offered_begins_like_what_is_typed() -> None:
    tenant, started = Field(ATTRIBUTE, "tenant"), Field(COLUMN, "started_at")
    assert [one.insert for one in fields_like("te", ["tenant", "a b"])] == ["attrs.tenant "]
    assert [one.insert for one in fields_like("s", ["size"])] == ["state ", "severity ", "started_at ", "attrs.size "]
    assert [one.insert for one in fields_like("attrs.", ["a b"])] == ['attrs."a b" ']
    assert [one.insert for one in operators_like("e", tenant)] == ["EXISTS "]
    assert [one.insert for one in operators_like("", started)] == [">= ", "> ", "< ", "<= "]
    values = [Suggestion("'acme'", "3 runs"), Suggestion("'beta'"), Suggestion("5")]
    assert [one.insert for one in values_like("'A", values, last=" ")] == ["'acme' "]
    assert [one.insert for one in values_like("", values, last=", ")] == ["'acme', ", "'beta', ", "5, "]
    assert [one.insert for one in fixed_values(Field(COLUMN, "severity")) or []] == [
        "'sev1'",
        "'sev2'",
        "'sev3'",
        "'sev4'",
    ]
    assert fixed_values(tenant) is None
    assert [one.insert for one in following("")] == ["AND ", "OR "]
