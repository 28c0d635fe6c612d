"""Filters as SQL (reference 1.14). Every key and every value is a bound parameter; nothing of a text becomes SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
from msgspec import Struct
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    DateTime,
    FromClause,
    Numeric,
    Select,
    SmallInteger,
    Text,
    Uuid,
    and_,
    any_,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB

from harvest.history.states import State
from harvest.store.filters import (
    ATTRIBUTE,
    EXECUTION_ID,
    OWNER,
    SEVERITY,
    STARTED_AT,
    STATE,
    And,
    Compare,
    Exists,
    Expression,
    Leaf,
    OneOf,
    Operator,
    Or,
    Value,
    field_of,
    kinds_of,
)
from harvest.store.schema import DETAILS, EXECUTIONS, TRIAGE

_TRIAGE_COLUMNS: Final = frozenset({OWNER, SEVERITY})
_OPERATIONS: Final[dict[Operator, Callable[[Any, Any], ColumnElement[bool]]]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
}


class Sources(Struct, frozen=True):
    """Where a condition finds what it looks at: the attributes of a row, and its columns by name."""

    attributes: ColumnElement[Any]
    columns: Mapping[str, ColumnElement[Any]]
    # Asked of an index, IN is one look for each value; asked of a row, one comparison with all of them.
    by_index: bool = False


def beside(rows: FromClause, expression: Expression) -> tuple[FromClause, ColumnElement[bool]]:
    """`rows` joined with what the expression looks at beside them, and the expression as a condition on that.

    `rows` has `execution_id`, and the columns of executions that the expression names. What is beside them is read by
    its primary key, a row at a time: the limits keep the planner from reading those tables in any other way.
    """
    kinds = kinds_of(expression)
    joined = rows
    attributes: ColumnElement[Any] = literal(None, JSONB)
    columns = {name: rows.c[name] for name in kinds - {ATTRIBUTE} - _TRIAGE_COLUMNS}
    if ATTRIBUTE in kinds:
        details = (
            select(DETAILS.c.search_attributes).where(DETAILS.c.execution_id == rows.c.execution_id).limit(1)
        ).lateral("details")
        joined = joined.outerjoin(details, true())
        attributes = details.c.search_attributes
    if kinds & _TRIAGE_COLUMNS:
        triage = (
            select(TRIAGE.c.owner, TRIAGE.c.severity).where(TRIAGE.c.execution_id == rows.c.execution_id).limit(1)
        ).lateral("triage")
        joined = joined.outerjoin(triage, true())
        columns |= {name: triage.c[name] for name in _TRIAGE_COLUMNS}
    return joined, condition(expression, Sources(attributes, columns))


def seek(expression: Expression) -> Select[Any]:
    """The ids of all rows that an expression over attributes, over ids or over triage alone finds by an index."""
    kinds = kinds_of(expression)
    if kinds == {EXECUTION_ID}:
        ids = EXECUTIONS.c.execution_id
        return select(ids).where(condition(expression, Sources(literal(None, JSONB), {EXECUTION_ID: ids})))
    if kinds == {ATTRIBUTE}:
        found = condition(expression, Sources(DETAILS.c.search_attributes, {}, by_index=True))
        return select(DETAILS.c.execution_id).where(DETAILS.c.search_attributes.is_not(None), found)
    found = condition(expression, Sources(literal(None, JSONB), dict(TRIAGE.c.items())))
    return select(TRIAGE.c.execution_id).where(found)


def condition(expression: Expression, sources: Sources) -> ColumnElement[bool]:
    """An expression as SQL. It is never true of what is not there."""
    if isinstance(expression, And):
        return and_(*(condition(part, sources) for part in expression.parts))
    if isinstance(expression, Or):
        return or_(*(condition(part, sources) for part in expression.parts))
    if isinstance(expression, Exists) or field_of(expression).kind == ATTRIBUTE:
        return _attribute(expression, sources)
    return _column(expression, sources)


def _attribute(leaf: Leaf, sources: Sources) -> ColumnElement[bool]:
    stored, key = sources.attributes, field_of(leaf).name
    there: ColumnElement[bool] = stored.op("?", is_comparison=True)(literal(key, Text))
    if isinstance(leaf, Exists):
        return there
    if isinstance(leaf, OneOf):
        if sources.by_index:
            return or_(*(_contains(stored, key, value) for value in leaf.values))
        return and_(there, _value(stored, key) == any_(literal([_json(v) for v in leaf.values], ARRAY(JSONB))))
    if leaf.op == "=":
        return _contains(stored, key, leaf.value)
    if leaf.op == "!=":
        return and_(there, ~_contains(stored, key, leaf.value))
    held = _value(stored, key)
    # The order of evaluation is certain in a CASE alone: nothing that is no number is ever cast.
    ordered = _OPERATIONS[leaf.op](cast(held, Numeric), cast(literal(str(leaf.value), Text), Numeric))
    return and_(there, case((func.jsonb_typeof(held) == "number", ordered)))


def _value(stored: ColumnElement[Any], key: str) -> ColumnElement[Any]:
    return stored.op("->", return_type=JSONB())(literal(key, Text))


def _contains(stored: ColumnElement[Any], key: str, value: Value) -> ColumnElement[bool]:
    pair = f"{{{_json(key)}:{_json(value)}}}"
    contains: ColumnElement[bool] = stored.op("@>", is_comparison=True)(cast(literal(pair, Text), JSONB))
    return contains


def _json(value: Value) -> str:
    """A value as JSON; the digits of a number stay as they were written."""
    return str(value) if isinstance(value, Decimal) else msgspec.json.encode(value).decode()


def _column(leaf: Compare | OneOf, sources: Sources) -> ColumnElement[bool]:
    name = leaf.field.name
    column = sources.columns[name]
    if isinstance(leaf, OneOf):
        return column == any_(literal([_bound(name, value) for value in leaf.values], ARRAY(_TYPES.get(name, Text))))
    return _OPERATIONS[leaf.op](column, literal(_bound(name, leaf.value), _TYPES.get(name, Text)))


_TYPES: Final[dict[str, Any]] = {STATE: SmallInteger, STARTED_AT: DateTime(timezone=True), EXECUTION_ID: Uuid}


def _bound(name: str, value: Value) -> Any:
    return int(State[str(value)]) if name == STATE else value
