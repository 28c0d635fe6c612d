"""The conditions of a list as they are written in the filter language, each with the address that is without it."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Raw, Struct

from harvest.errors import FilterError
from harvest.operations.filter_language import parse, render, value_text
from harvest.operations.filter_tokens import number_of
from harvest.store.filters import (
    ATTRIBUTE,
    COLUMN,
    OWNER,
    SEVERITY,
    STARTED_AT,
    STATE,
    WORKFLOW_NAME,
    Compare,
    Expression,
    Field,
    OneOf,
    Or,
    conjunction,
    parts_of,
)
from harvest_console.pages.list_query import Query
from harvest_console.pages.payloads import plain_text


class Condition(Struct, frozen=True, kw_only=True):
    """One condition that all rows meet: its field, operator and value in one text."""

    text: str
    without_url: str


def conditions(query: Query, base: str) -> list[Condition]:
    """What a list is filtered by, in the order of its fields. An expression that cannot be read is one condition."""
    return [Condition(text=text, without_url=query.url(base, **without)) for text, without in _conditions(query)]


def _conditions(query: Query) -> Iterator[tuple[str, dict[str, Any]]]:
    if query.states:
        states = Field(COLUMN, STATE)
        one = Compare(states, "=", query.states[0]) if len(query.states) == 1 else OneOf(states, query.states)
        yield render(one), {"state": None}
    if query.blocked:
        yield "blocked", {"blocked": None}
    if query.id:
        yield f"workflow_id = {value_text(query.id)}", {"id": None}
    for parameter, name, value in (
        ("type", WORKFLOW_NAME, query.type),
        ("owner", OWNER, query.owner),
        ("severity", SEVERITY, query.severity),
    ):
        if value:
            yield render(Compare(Field(COLUMN, name), "=", value)), {parameter: None}
    if query.after:
        yield render(Compare(Field(COLUMN, STARTED_AT), ">=", query.after)), {"after": None}
    if query.before:
        yield render(Compare(Field(COLUMN, STARTED_AT), "<", query.before)), {"before": None}
    yield from _of_expression(query)


def _of_expression(query: Query) -> Iterator[tuple[str, dict[str, Any]]]:
    """The parts of the expression that AND joins; without one of them it is printed in its long form."""
    if not query.expression:
        return
    try:
        parts = parts_of(parse(query.expression))
    except FilterError:
        yield query.expression, {"filter": None}
        return
    for at, part in enumerate(parts):
        rest = conjunction(parts[:at] + parts[at + 1 :])
        text = f"({render(part)})" if isinstance(part, Or) and rest is not None else render(part)
        yield text, {"filter": None if rest is None else render(rest)}


def expression_with(expression: str, key: str, stored: Raw) -> str | None:
    """The expression and the condition that an attribute has this stored value.

    None where the language has no such condition: the value is a list or an object, or there would be too many.
    """
    value = _value(stored)
    if value is None:
        return None
    added = Compare(Field(ATTRIBUTE, key), "=", value)
    try:
        known: tuple[Expression, ...] = parts_of(parse(expression)) if expression else ()
        joined = conjunction(known if added in known else (*known, added))
        text = "" if joined is None else render(joined)
        parse(text)
    except FilterError:
        return None
    return text


def attribute_text(stored: Raw) -> str:
    """A search attribute's value as people read it: text as it is, the items of a list with commas between them."""
    try:
        items = msgspec.json.decode(stored, type=list[str])
    except msgspec.MsgspecError:
        return plain_text(stored)
    return ", ".join(items)


def _value(stored: Raw) -> str | bool | Decimal | None:
    """A stored value as the language compares it: numbers are exact."""
    text = bytes(stored).decode().strip()
    if text.startswith('"'):
        return msgspec.json.decode(text, type=str)
    return text == "true" if text in ("true", "false") else number_of(text)
