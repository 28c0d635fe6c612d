"""What executions are filtered by, as data (reference 2.14): leaves over attributes and columns, AND and OR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

ATTRIBUTE: Final = "attr"
COLUMN: Final = "column"
STATE: Final = "state"
WORKFLOW_NAME: Final = "workflow_name"
OWNER: Final = "owner"
SEVERITY: Final = "severity"
STARTED_AT: Final = "started_at"
EXECUTION_ID: Final = "execution_id"
SEVERITIES: Final = ("sev1", "sev2", "sev3", "sev4")

Operator = Literal["=", "!=", ">", ">=", "<", "<="]


class Ago(Struct, frozen=True):
    """An instant told from now: so many seconds before the moment at which the filter is applied."""

    seconds: int


# Numbers are exact, as jsonb's are. An attribute is compared with text, a number or a boolean, a column with text, a
# time or an id.
Value = str | bool | Decimal | datetime | Ago | UUID


class Field(Struct, frozen=True):
    """What is looked at: a search attribute by its key, or one of the columns by its name.

    The language of filters has no word for EXECUTION_ID; its ranges come from the beginning of an id.
    """

    kind: Literal["attr", "column"]
    name: str


class Compare(Struct, frozen=True, tag=True):
    """One value. `!=` is true of what is there and differs; order is of numbers, `started_at` and ids alone."""

    field: Field
    op: Operator
    value: Value


class OneOf(Struct, frozen=True, tag=True):
    """Any of several values."""

    field: Field
    values: tuple[Value, ...]


class Exists(Struct, frozen=True, tag=True):
    """The search attribute is there, whatever it holds."""

    key: str


class And(Struct, frozen=True, tag=True):
    """All of two parts or more; none of them is an And."""

    parts: tuple[Expression, ...]


class Or(Struct, frozen=True, tag=True):
    """Any of two parts or more; none of them is an Or."""

    parts: tuple[Expression, ...]


Leaf = Compare | OneOf | Exists
Expression = Leaf | And | Or


def leaves(expression: Expression) -> Iterator[Leaf]:
    """The predicates of an expression, from left to right."""
    if isinstance(expression, And | Or):
        for part in expression.parts:
            yield from leaves(part)
    else:
        yield expression


def conjunction(parts: Iterable[Expression]) -> Expression | None:
    """All of the parts as one expression; None for no part."""
    flat = tuple(each for part in parts for each in parts_of(part))
    if len(flat) < 2:
        return flat[0] if flat else None
    return And(flat)


def parts_of(expression: Expression | None) -> tuple[Expression, ...]:
    """What must all hold: the parts of an And, else the expression itself; nothing for None."""
    if isinstance(expression, And):
        return expression.parts
    return () if expression is None else (expression,)


def field_of(leaf: Leaf) -> Field:
    """What a predicate looks at."""
    return Field(ATTRIBUTE, leaf.key) if isinstance(leaf, Exists) else leaf.field


def kinds_of(expression: Expression) -> frozenset[str]:
    """Where an expression looks: ATTRIBUTE, and the names of columns."""
    fields = (field_of(leaf) for leaf in leaves(expression))
    return frozenset(field.kind if field.kind == ATTRIBUTE else field.name for field in fields)


def resolved(expression: Expression, now: datetime) -> Expression:
    """The expression with every Ago as the instant that it means at `now`."""
    if isinstance(expression, And | Or):
        return type(expression)(tuple(resolved(part, now) for part in expression.parts))
    if isinstance(expression, Compare):
        return Compare(expression.field, expression.op, _resolved(expression.value, now))
    if isinstance(expression, OneOf):
        return OneOf(expression.field, tuple(_resolved(value, now) for value in expression.values))
    return expression


def _resolved(value: Value, now: datetime) -> Value:
    return now - timedelta(seconds=value.seconds) if isinstance(value, Ago) else value


def is_anchored(expression: Expression) -> bool:
    """Whether each row that it finds can be found by an attribute, or by `workflow_name` with `=` or IN."""
    if isinstance(expression, And):
        return any(is_anchored(part) for part in expression.parts)
    if isinstance(expression, Or):
        return all(is_anchored(part) for part in expression.parts)
    if isinstance(expression, Exists) or expression.field.kind == ATTRIBUTE:
        return True
    named = expression.field.name == WORKFLOW_NAME
    return named and (isinstance(expression, OneOf) or expression.op == "=")
