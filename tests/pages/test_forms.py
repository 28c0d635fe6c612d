"""Forms from schemas and back: whatever a form holds, its JSON text says exactly that."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvest_console.pages.forms import Problem, new_form, posted_form, with_schema_problems
from harvest_console.pages.forms.reading import values_of_json
from harvest_console.pages.forms.schema import build_form
from harvest_console.pages.forms.writing import json_of_form


class Item(msgspec.Struct):
    sku: str
    qty: int = 1


class Address(msgspec.Struct):
    city: str


class Order(msgspec.Struct):
    card: str
    cents: int
    weight: float = 0.5
    gift: bool = False
    note: str | None = None
    items: list[Item] = []
    ship_to: Address | None = None
    labels: dict[str, str] = {}


SCHEMA = {**msgspec.json.schema(Order), "x-parameters": ["order"]}
SEVERAL = {
    "type": "array",
    "prefixItems": [{"type": "string"}, {"type": "integer"}, {"type": "integer"}],
    "minItems": 1,
    "maxItems": 3,
    "x-parameters": ["source", "batch", "size"],
}


def _post(**fields: str) -> dict[str, str]:
    return {name.replace("__", "/").replace("v_", "v/", 1): value for name, value in fields.items()}


def test_an_empty_form_asks_for_what_is_required_and_leaves_out_the_rest() -> None:
    text, problems = json_of_form(build_form(SCHEMA, {"v/card": "", "v/cents": ""}))
    assert problems == [Problem("/cents", "Needed.")]
    assert json.loads(text) == {"card": "", "cents": None}


@pytest.mark.parametrize("number", ["12345678901234567890123", "-0", "0", "7"])
def test_whole_numbers_are_stored_digit_by_digit(number: str) -> None:
    text, problems = json_of_form(build_form(SCHEMA, {"v/card": "x", "v/cents": number}))
    assert problems == []
    assert text == f'{{"card":"x","cents":{number}}}'


@pytest.mark.parametrize("number", ["1.10", "1e400", "-0.0", "123456789.123456789123456789"])
def test_other_numbers_are_not_rounded(number: str) -> None:
    text, problems = json_of_form(build_form(SCHEMA, {"v/card": "x", "v/cents": "1", "v/weight": number}))
    assert problems == []
    assert f'"weight":{number}' in text


@pytest.mark.parametrize("word", ["abc", "1.5", "01", "0x10", "NaN", "1 000", "١"])
def test_what_is_no_whole_number_is_refused(word: str) -> None:
    _, problems = json_of_form(build_form(SCHEMA, {"v/card": "x", "v/cents": word}))
    assert [problem.pointer for problem in problems] == ["/cents"]


def test_what_cannot_be_written_and_what_the_schema_refuses_are_told_together() -> None:
    strict = {
        "type": "object",
        "properties": {"card": {"type": "string", "minLength": 3}, "cents": {"type": "integer", "minimum": 1}},
        "required": ["card", "cents"],
    }
    form = with_schema_problems(posted_form(strict, "order", {"v/card": "4", "v/cents": "many"}), strict)
    assert [problem.pointer for problem in form.problems] == ["/cents", "/card"]
    assert "too short" in form.problems[1].message
    right = posted_form(strict, "order", {"v/card": "4", "v/cents": "7"})
    assert with_schema_problems(right, strict).problems == ()


def test_an_optional_object_is_there_when_it_is_ticked() -> None:
    values = {"v/card": "x", "v/cents": "1", "v/ship_to/city": "Köln"}
    assert "ship_to" not in json.loads(json_of_form(build_form(SCHEMA, values))[0])
    ticked = json.loads(json_of_form(build_form(SCHEMA, values | {"v/ship_to?": "on"}))[0])
    assert ticked["ship_to"] == {"city": "Köln"}


def test_arguments_at_the_end_may_be_left_out_and_one_in_the_middle_is_null() -> None:
    assert json_of_form(build_form(SEVERAL, {"v/0": "s3"}))[0] == '["s3"]'
    assert json_of_form(build_form(SEVERAL, {"v/0": "s3", "v/2": "5"}))[0] == '["s3",null,5]'


def test_no_parameters_are_null() -> None:
    assert new_form({"type": "null", "x-parameters": []}, "input").complete == "null"


def test_what_cannot_be_left_out_begins_with_its_default() -> None:
    assert new_form({"type": "integer", "default": 20}, "count").complete == "20"
    assert new_form({"type": "string", "default": "a"}, "name").complete == '"a"'


def test_unions_and_what_has_no_schema_are_json_text() -> None:
    either = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    schema = {"type": "object", "properties": {"any": {}, "either": either}}
    form = build_form(schema, {"v/any": '{"a": 1.10}', "v/either": "7"})
    assert [child.kind for child in form.children] == ["json", "json"]
    assert json_of_form(form)[0] == '{"any":{"a": 1.10},"either":7}'


def test_a_schema_that_contains_itself_ends_in_json_text() -> None:
    schema = {
        "$ref": "#/$defs/Node",
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}},
    }
    field = build_form(schema)
    while field.kind == "object":
        field = field.children[0]
    assert field.kind == "json"


def test_an_item_taken_away_moves_the_ones_behind_it_up() -> None:
    post = {"v/items#": "3", "remove": "v/items/1", "v/card": "x", "v/cents": "1"}
    post |= {f"v/items/{place}/sku": sku for place, sku in enumerate("ABC")}
    state = posted_form(SCHEMA, "order", post)
    assert json.loads(state.complete)["items"] == [{"sku": "A"}, {"sku": "C"}]


def test_the_step_to_the_raw_tab_and_back_keeps_everything() -> None:
    fields = {"v/card": "x", "v/cents": "12345678901234567890", "v/note": "a\r\nb", "v/labels": '{"k": "v"}'}
    raw = posted_form(SCHEMA, "order", {**fields, "tab": "fields", "show": "raw"})
    assert raw.tab == "raw"
    back = posted_form(SCHEMA, "order", {"tab": "raw", "show": "fields", "raw": raw.raw})
    assert back.tab == "fields"
    assert json.loads(back.complete) == json.loads(raw.raw)
    assert '"cents":12345678901234567890' in back.complete


@pytest.mark.parametrize(
    "raw",
    [
        '{"card": "x", "cents": 1, "colour": "red"}',
        '{"card": "x", "cents": "1"}',
        '{"card": "x"}',
        "[]",
        "null",
        '{"card": "x", "cents": 1, "items": [{"sku": "A", "other": 1}]}',
    ],
)
def test_the_fields_refuse_what_they_cannot_hold(raw: str) -> None:
    state = posted_form(SCHEMA, "order", {"tab": "raw", "show": "fields", "raw": raw})
    assert (state.tab, state.raw) == ("raw", raw)
    assert state.note


@pytest.mark.parametrize("raw", ["{", "", "NaN", '{"a": 1,}', '"\ud800"', "[" * 2000])
def test_raw_text_that_is_no_json_is_named_as_such(raw: str) -> None:
    state = posted_form(SCHEMA, "order", {"tab": "raw", "raw": raw})
    assert [problem.pointer for problem in state.problems] == [""]


ORDERS = st.fixed_dictionaries(
    {"card": st.text(), "cents": st.integers()},
    optional={
        "weight": st.floats(allow_nan=False, allow_infinity=False),
        "gift": st.booleans(),
        "items": st.lists(st.fixed_dictionaries({"sku": st.text(), "qty": st.integers()}), min_size=1, max_size=4),
        "ship_to": st.fixed_dictionaries({"city": st.text()}),
        "labels": st.dictionaries(st.text(), st.text(), min_size=1, max_size=3),
    },
)


@settings(max_examples=150, deadline=None)
@given(ORDERS)
def test_every_order_that_the_fields_take_comes_out_the_same(order: dict[str, Any]) -> None:
    text = json.dumps(order)
    values = values_of_json(text, SCHEMA)
    if values is not None:
        assert json.loads(json_of_form(build_form(SCHEMA, values))[0]) == order
