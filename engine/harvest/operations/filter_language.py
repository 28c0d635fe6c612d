"""The language of filters (reference 2.14, answers 14): text to an expression and back.

`attrs.tenant = 'acme' AND (attrs.amount > 100 OR workflow_name IN ('refund', 'void'))`. What a value is follows from
its text alone: 5 is a number, true a boolean, and what stands in quotes is text. Single conditions are also told as
`key:op:value`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from harvest.operations.filter_tokens import AGO_UNITS, Token, is_bare_key, quoted, refusal, tokens_of
from harvest.operations.filter_values import (
    attribute_value,
    check_comparable,
    checked_key,
    column_text,
    instant_of,
    typed,
)
from harvest.store.filters import (
    ATTRIBUTE,
    COLUMN,
    OWNER,
    SEVERITY,
    STARTED_AT,
    STATE,
    WORKFLOW_NAME,
    Ago,
    And,
    Compare,
    Exists,
    Expression,
    Field,
    OneOf,
    Operator,
    Or,
    Value,
    field_of,
    is_anchored,
    leaves,
)

MOST_DEPTH: Final = 8
MOST_BYTES: Final = 2_048
MOST_PREDICATES: Final = 32
MOST_VALUES: Final = 100
_COLUMNS: Final = {name: name for name in (STATE, WORKFLOW_NAME, OWNER, SEVERITY, STARTED_AT)} | {
    "type": WORKFLOW_NAME,
    "started": STARTED_AT,
}
_FIELDS: Final = "attrs.<key>, state, workflow_name, owner, severity, started_at"
_OPERATORS: Final[dict[str, Operator]] = {
    "=": "=", "!=": "!=", "<>": "!=", ">": ">", ">=": ">=", "<": "<", "<=": "<=",
}  # fmt: skip
# The operators of `key:op:value`, beside `in` and `exists`.
_WORDS: Final[dict[str, Operator]] = {"eq": "=", "ne": "!=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_PREDICATE: Final = "search_attr_filter"
_QUOTE: Final = '"'  # of keys


def parse(text: str) -> Expression:
    """The expression that a text is. Raises FilterError with `column` (from 1) and `remedy`."""
    check_text(text)
    tokens = tokens_of(text)
    if tokens[0].kind == "end":
        raise refusal("there is no condition", column=1, remedy="write one, like attrs.tenant = 'acme'")
    expression = _Parser(tokens).whole()
    count = sum(1 for _ in leaves(expression))
    if count > MOST_PREDICATES:
        raise refusal(
            f"there are {count} conditions", column=1, remedy=f"use {MOST_PREDICATES} at most; IN takes many values"
        )
    return expression


def check_text(text: str, field: str = "filter") -> None:
    """Raise FilterError for a text that is too long, or that no database can hold."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise refusal(
            "a lone surrogate", column=error.start + 1, remedy="write valid Unicode text", field=field
        ) from None
    if size > MOST_BYTES:
        raise refusal(
            f"the text has {size:,} bytes",
            column=1,
            remedy=f"make it {MOST_BYTES:,} bytes of UTF-8 at most",
            field=field,
        )
    if "\x00" in text:
        raise refusal(
            "a NUL character", column=text.index("\x00") + 1, remedy="leave it out: nothing holds one", field=field
        )


class _Parser:
    """Recursive descent over the tokens; each method reads what its rule of the grammar says."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._alternatives: list[tuple[int, Expression]] = []

    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._next()
        self._at += 1
        return token

    def whole(self) -> Expression:
        """A filter, from its first word to its end."""
        expression = self._either()
        token = self._next()
        if token.kind == "closing":
            raise refusal("this ) closes nothing", column=token.column, remedy="take it away, or open it with (")
        if token.kind != "end":
            raise refusal(
                f"{token.shown} follows a condition", column=token.column, remedy="put AND or OR between conditions"
            )
        if self._alternatives and not is_anchored(expression):
            # Of one inside of another, the inner one says where.
            column = min(at for at, part in self._alternatives if not is_anchored(part) and not isinstance(part, Or))
            raise refusal(
                "no index leads to the rows of this side of the OR",
                column=column,
                remedy="add AND with an attribute, or with workflow_name and = or IN; of one field, use IN (…)",
            )
        return expression

    def field_alone(self) -> Field:
        """`field`, and nothing after it."""
        field = self._field()
        if self._next().kind != "end":
            raise refusal(
                f"{self._next().shown} follows the field", column=self._next().column, remedy="name one field"
            )
        return field

    def _either(self) -> Expression:
        """`both {OR both}`."""
        places, parts = self._joined("OR", self._both)
        if len(parts) == 1:
            return parts[0]
        self._alternatives += zip(places, parts, strict=True)
        return Or(tuple(each for part in parts for each in (part.parts if isinstance(part, Or) else (part,))))

    def _both(self) -> Expression:
        """`unit {AND unit}`."""
        _, parts = self._joined("AND", self._unit)
        flat = tuple(each for part in parts for each in (part.parts if isinstance(part, And) else (part,)))
        return flat[0] if len(flat) == 1 else And(flat)

    def _joined(self, word: str, read: Callable[[], Expression]) -> tuple[list[int], list[Expression]]:
        """What stands between the words, and the columns where each begins."""
        places, parts = [self._next().column], [read()]
        while self._next().is_word(word):
            self._take()
            places.append(self._next().column)
            parts.append(read())
        return places, parts

    def _unit(self) -> Expression:
        """`( either )`, or a condition."""
        if self._next().kind != "opening":
            return self._condition()
        opening = self._take()
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise refusal(
                f"this is the {self._depth}th ( inside of another",
                column=opening.column,
                remedy=f"nest {MOST_DEPTH} deep at most",
            )
        inside = self._either()
        if self._next().kind != "closing":
            raise refusal(
                f"{self._next().shown} stands where a ) is missing",
                column=self._next().column,
                remedy=f"close the ( of column {opening.column}, or put AND or OR between conditions",
            )
        self._take()
        self._depth -= 1
        return inside

    def _condition(self) -> Expression:
        """`field op value`, `field IN (value, …)`, `attrs.key EXISTS`."""
        field = self._field()
        token = self._take()
        if token.is_word("IN"):
            return OneOf(field, self._values(field))
        if token.is_word("EXISTS"):
            if field.kind != ATTRIBUTE:
                raise refusal("EXISTS is for attributes", column=token.column, remedy="use = or IN for a column")
            return Exists(field.name)
        if token.kind != "operator":
            raise refusal(
                f"{token.shown} follows a field",
                column=token.column,
                remedy="put one of = != > >= < <= there, IN (…), or EXISTS",
            )
        operator = _OPERATORS[token.text]
        place = self._next().column
        if token.text == "=" and self._next() == Token("operator", "=", token.column + 1):
            raise refusal("'==' is no operator", column=token.column, remedy="write one =")
        value = self._value(field)
        check_comparable(field, operator, value, token.column, place)
        return Compare(field, operator, value)

    def _field(self) -> Field:
        token = self._take()
        if token.kind == "attribute":
            return Field(ATTRIBUTE, checked_key(token.text, column=token.column))
        if token.is_word("NOT"):
            raise refusal("there is no NOT", column=token.column, remedy="use != or the opposite operator")
        if token.kind != "word":
            raise refusal(
                f"{token.shown} stands where a condition begins",
                column=token.column,
                remedy=f"begin with a field: {_FIELDS}",
            )
        if token.text not in _COLUMNS:
            raise refusal(f"there is no field {token.shown}", column=token.column, remedy=f"fields are {_FIELDS}")
        return Field(COLUMN, _COLUMNS[token.text])

    def _values(self, field: Field) -> tuple[Value, ...]:
        """`( value {, value} )`."""
        opening = self._take()
        if opening.kind != "opening":
            raise refusal(f"{opening.shown} follows IN", column=opening.column, remedy="write IN ('a', 'b')")
        values = [self._value(field)]
        while self._next().kind == "comma":
            comma = self._take()
            if len(values) == MOST_VALUES:
                raise refusal("too many values", column=comma.column, remedy=f"give {MOST_VALUES} at most")
            values.append(self._value(field))
        closing = self._take()
        if closing.kind != "closing":
            raise refusal(
                f"{closing.shown} follows a value of IN",
                column=closing.column,
                remedy="put a comma between values and ) after the last",
            )
        return tuple(values)

    def _value(self, field: Field) -> Value:
        token = self._take()
        if field.kind == ATTRIBUTE:
            return attribute_value(token)
        if field.name != STARTED_AT:
            return column_text(field.name, token)
        if token.is_word("NOW") and self._next().kind == "ago":
            token = self._take()
        return instant_of(token)


def render(expression: Expression) -> str:
    """The text of an expression in its long form; `parse` reads it back as the same."""
    if isinstance(expression, Or):
        return " OR ".join(map(render, expression.parts))
    if isinstance(expression, And):
        return " AND ".join(f"({render(part)})" if isinstance(part, Or) else render(part) for part in expression.parts)
    name = field_text(field_of(expression))
    if isinstance(expression, Exists):
        return f"{name} EXISTS"
    if isinstance(expression, OneOf):
        return f"{name} IN ({', '.join(map(value_text, expression.values))})"
    return f"{name} {expression.op} {value_text(expression.value)}"


def value_text(value: Value) -> str:
    """A value as the language writes it: texts, times and ids in quotes, `now - 24h` for an instant before now."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime):
        return _in_quotes(value.astimezone(UTC).isoformat().replace("+00:00", "Z"), "'")
    if isinstance(value, Ago):
        unit = next(each for each in ("d", "h", "m", "s") if _fits(value.seconds, each))
        return f"now - {value.seconds // AGO_UNITS[unit]}{unit}"
    return _in_quotes(str(value), "'")


def _fits(seconds: int, unit: str) -> bool:
    """Whether a unit tells so many seconds without a rest; a single day is told in hours."""
    return seconds % AGO_UNITS[unit] == 0 and (unit != "d" or seconds != AGO_UNITS["d"])


def field_text(field: Field) -> str:
    """A field as the language writes it."""
    if field.kind != ATTRIBUTE:
        return field.name
    return "attrs." + (field.name if is_bare_key(field.name) else _in_quotes(field.name, _QUOTE))


def field_named(text: str) -> Field:
    """The field of a text that names nothing else. Raises FilterError."""
    check_text(text)
    return _Parser(tokens_of(text)).field_alone()


def _in_quotes(text: str, quote: str) -> str:
    return quote + text.replace(quote, quote * 2) + quote


def search_attr(text: str) -> Expression:
    """`key:value`: the attribute equals the value. Raises FilterError."""
    field = "search_attr"
    check_text(text, field)
    key, rest = _key_and_rest(text, field)
    if rest is None:
        raise refusal("the value is missing", column=len(text) + 1, remedy="write key:value", field=field)
    column = len(text) - len(rest) + 1
    return Compare(
        Field(ATTRIBUTE, checked_key(key, column=1, field=field)), "=", typed(rest, column=column, field=field)
    )


def search_attr_text(key: str, value: str) -> str:
    """The `key:value` of a key and the text of a value, whatever is in the key."""
    return f"{_in_quotes(key, _QUOTE) if ':' in key or key.startswith(_QUOTE) else key}:{value}"


def search_attr_filter(text: str) -> Expression:
    """`key:op:value` (reference 1.14): eq, ne, gt, gte, lt, lte, `in` with commas between values, or `key:exists`.

    A key with a colon in it may stand in double quotes, as may a value that is to be text though it looks like a
    number. Raises FilterError.
    """
    check_text(text, _PREDICATE)
    key, operator, value, column = _predicate(text)
    key = checked_key(key, column=1, field=_PREDICATE)
    if operator == "exists":
        return Exists(key)
    field = Field(ATTRIBUTE, key)
    if operator == "in":
        return OneOf(field, _listed(value, column))
    compared = typed(value, column=column, field=_PREDICATE)
    if _WORDS[operator] not in ("=", "!=") and (not isinstance(compared, Decimal)):
        raise refusal(
            f"{operator} compares numbers, and {value[:40]!r} is none",
            column=column,
            remedy="write a number, or use eq, ne or in",
            field=_PREDICATE,
        )
    return Compare(field, _WORDS[operator], compared)


def _key_and_rest(text: str, field: str) -> tuple[str, str | None]:
    """The key at the beginning, and what follows its colon; None if there is no colon."""
    if text.startswith('"'):
        key, end = quoted(text, 0, field=field)
        if text[end : end + 1] not in (":", ""):
            raise refusal("something follows the key", column=end + 1, remedy="put a colon after the key", field=field)
        return key, text[end + 1 :] if end < len(text) else None
    key, colon, rest = text.partition(":")
    return key, rest if colon else None


def _predicate(text: str) -> tuple[str, str, str, int]:
    """Key, operator, value and the column of the value. The first word between colons that is an operator is it."""
    names = (*_WORDS, "in", "exists")
    start = len(text)
    key, rest = _key_and_rest(text, _PREDICATE)
    told = rest
    while rest is not None:
        start = len(text) - len(rest)
        word, colon, value = rest.partition(":")
        if word in names and (word == "exists") is not bool(colon):
            key = key if text.startswith('"') else text[: start - 1]
            return key, word, value, len(text) - len(value) + 1
        rest = value if colon and not text.startswith('"') else None
    raise refusal(
        "the operator is missing" if told is None else f"there is no operator {told.partition(':')[0][:40]!r}",
        column=len(text) + 1 if told is None else len(text) - len(told) + 1,
        remedy=f"write key:op:value with one of {', '.join(names)}; key:exists has no value",
        field=_PREDICATE,
    )


def _listed(text: str, column: int) -> tuple[Value, ...]:
    """The values of `in`, between commas; one with a comma in it stands in quotes."""
    values: list[Value] = []
    at = 0
    while True:
        end = text.find(",", at)
        if text[at : at + 1] in ("'", '"'):
            _, closing = quoted(text, at, closed=False)
            end = closing if text[closing : closing + 1] == "," else -1 if closing == len(text) else end
        part = text[at:] if end < 0 else text[at:end]
        if not part:
            raise refusal(
                "a value is missing", column=column + at, remedy='write a,b,c; an empty text is ""', field=_PREDICATE
            )
        if len(values) == MOST_VALUES:
            raise refusal("too many values", column=column + at, remedy=f"give {MOST_VALUES} at most", field=_PREDICATE)
        values.append(typed(part, column=column + at, field=_PREDICATE))
        if end < 0:
            return tuple(values)
        at = end + 1
