"""Filters by plain Python: what an expression is true of, and expressions at random."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct

from harvest.store.filters import (
    ATTRIBUTE,
    COLUMN,
    And,
    Compare,
    Exists,
    Expression,
    Field,
    OneOf,
    Or,
    Value,
)

COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class Row(Struct, frozen=True, kw_only=True):
    """One execution as filters see it; `attributes` is the text of its search attributes."""

    workflow_id: str
    workflow_name: str
    state: str
    started_at: datetime
    attributes: str | None
    owner: str | None
    severity: str | None

    @property
    def held(self) -> dict[str, Any]:
        """The attributes; numbers are exact."""
        return {} if self.attributes is None else json.loads(self.attributes, parse_int=Decimal, parse_float=Decimal)


def holds(expression: Expression, row: Row) -> bool:
    """Whether an expression is true of a row."""
    match expression:
        case And(parts):
            return all(holds(part, row) for part in parts)
        case Or(parts):
            return any(holds(part, row) for part in parts)
        case Exists(key):
            return key in row.held
        case OneOf(field, values):
            return any(holds(Compare(field, "=", value), row) for value in values)
        case Compare(Field("column", name), op, value):
            stored = getattr(row, name)
            return stored is not None and COMPARED[op](stored, value)
    assert isinstance(expression, Compare)
    if expression.field.name not in row.held:
        return False
    stored = row.held[expression.field.name]
    if expression.op in ("=", "!="):
        return same(stored, expression.value) == (expression.op == "=")
    return isinstance(stored, Decimal) and COMPARED[expression.op](stored, expression.value)


def same(stored: object, value: Value) -> bool:
    """Equal, and of one kind: 1, true and '1' are three values."""
    return type(stored) is type(value) and stored == value


def expressions(keys: list[str], values: list[Value], instants: list[datetime]) -> st.SearchStrategy[Expression]:
    """Any expression over these keys, values and instants."""
    numbers = [value for value in values if isinstance(value, Decimal)]
    attribute = st.sampled_from(keys).map(lambda key: Field(ATTRIBUTE, key))
    started = st.just(Field(COLUMN, "started_at"))
    anything = st.sampled_from(values)
    instant = st.sampled_from(instants)
    ordered = st.sampled_from([">", ">=", "<", "<="])
    equal = st.sampled_from(["=", "!="])
    words = {
        "state": ["RUNNING", "COMPLETED", "FAILED", "PAUSED"],
        "workflow_name": ["order_flow", "refund", "o'hara", "nobody"],
        "owner": ["payments", "a'b", "nobody"],
        "severity": ["sev1", "sev2", "sev4"],
    }
    columns = [
        st.one_of(
            st.builds(Compare, st.just(Field(COLUMN, name)), equal, st.sampled_from(known)),
            st.builds(OneOf, st.just(Field(COLUMN, name)), st.lists(st.sampled_from(known), min_size=1).map(tuple)),
        )
        for name, known in words.items()
    ]
    leaf: st.SearchStrategy[Expression] = st.one_of(
        st.builds(Compare, attribute, equal, anything),
        st.builds(Compare, attribute, ordered, st.sampled_from(numbers)),
        st.builds(OneOf, attribute, st.lists(anything, min_size=1, max_size=4).map(tuple)),
        st.builds(Exists, st.sampled_from(keys)),
        st.builds(Compare, started, st.one_of(equal, ordered), instant),
        st.builds(OneOf, started, st.lists(instant, min_size=1, max_size=3).map(tuple)),
        *columns,
    )
    return st.recursive(leaf, joined, max_leaves=8)


def joined(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    """AND and OR of parts, flat as the parser makes them."""
    several = st.lists(parts, min_size=2, max_size=3)
    return st.one_of(several.map(lambda each: flat(And, each)), several.map(lambda each: flat(Or, each)))


def flat(kind: type[And] | type[Or], parts: list[Expression]) -> Expression:
    return kind(tuple(each for part in parts for each in (part.parts if isinstance(part, kind) else (part,))))
