"""What can come next in an expression: fields, operators, values and the words between conditions."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from harvest.errors import FilterError
from harvest.history.states import State
from harvest.operations.filter_language import field_text, value_text
from harvest.operations.filter_tokens import Token, tokens_of
from harvest.store.filters import (
    ATTRIBUTE,
    COLUMN,
    OWNER,
    SEVERITIES,
    SEVERITY,
    STARTED_AT,
    STATE,
    WORKFLOW_NAME,
    Field,
)

MOST: Final = 20
FIELD: Final = "field"
OPERATOR: Final = "operator"
VALUE: Final = "value"
OPENING: Final = "opening"
ITEM: Final = "item"
NEXT_ITEM: Final = "next item"
NEXT: Final = "next"
COLUMNS: Final = {
    STATE: "how it stands",
    WORKFLOW_NAME: "its type",
    OWNER: "who looks after it",
    SEVERITY: "how bad it is",
    STARTED_AT: "when it began",
}
_ALIASES: Final = {"type": WORKFLOW_NAME, "started": STARTED_AT}
_TIMES: Final = {"-1h": "an hour before now", "-24h": "a day before now", "-7d": "a week before now"}


class Suggestion(Struct, frozen=True):
    """What would be inserted, and a word about it."""

    insert: str
    detail: str = ""


class Expected(Struct, frozen=True):
    """What the text before the caret asks for, of which field, and what is typed of it from `start` on."""

    what: str
    start: int
    typed: str
    field: Field | None = None


# What cannot go on when the next character is typed.
_ENDED: Final = frozenset({"opening", "closing", "comma", "operator", "text"})


def expected(head: str) -> Expected | None:
    """What comes next after `head`, the text before the caret; None where it is no beginning of an expression."""
    tokens, start = _whole(head)
    if start == len(head) and tokens and not head[-1].isspace() and tokens[-1].kind not in _ENDED:
        start = tokens[-1].column - 1
        tokens = tokens[:-1]
    what, field = FIELD, None
    for token in tokens:
        what, field = _after(what, field, token)
        if not what:
            return None
    return Expected(what, start, head[start:], field)


def _whole(head: str) -> tuple[list[Token], int]:
    """The words before the last one that is not whole, and where that begins: half a text, key or number."""
    start = len(head)
    while True:
        try:
            return tokens_of(head[:start])[:-1], start
        except FilterError as error:
            start = min(int(error.fields["column"]), start) - 1


def _after(what: str, field: Field | None, token: Token) -> tuple[str, Field | None]:
    """What is expected after a word that stands where `what` was; nothing where the word cannot stand there."""
    if what == FIELD:
        if token.kind == "opening":
            return FIELD, None
        named = _field(token)
        return (OPERATOR, named) if named else ("", None)
    if what == OPERATOR:
        if token.is_word("IN"):
            return OPENING, field
        return (NEXT, None) if token.is_word("EXISTS") else (VALUE, field) if token.kind == "operator" else ("", None)
    if what == OPENING:
        return (ITEM, field) if token.kind == "opening" else ("", None)
    if what in (VALUE, ITEM):
        return (NEXT, None) if what == VALUE else (NEXT_ITEM, field)
    if what == NEXT_ITEM:
        return (ITEM, field) if token.kind == "comma" else (NEXT, None) if token.kind == "closing" else ("", None)
    if token.kind in ("closing", "ago"):
        return NEXT, None
    return (FIELD, None) if token.is_word("AND") or token.is_word("OR") else ("", None)


def _field(token: Token) -> Field | None:
    if token.kind == "attribute":
        return Field(ATTRIBUTE, token.text)
    name = _ALIASES.get(token.text, token.text)
    return Field(COLUMN, name) if token.kind == "word" and name in COLUMNS else None


def fields_like(typed: str, keys: list[str]) -> list[Suggestion]:
    """Columns, and attributes of these keys. An attribute is found by its key alone, too."""
    word = typed.lower()
    found = [Suggestion(name + " ", detail) for name, detail in COLUMNS.items() if name.startswith(word)]
    for key in keys:
        text = field_text(Field(ATTRIBUTE, key))
        if text.lower().startswith(word) or key.lower().startswith(word):
            found.append(Suggestion(text + " ", "search attribute"))
    return found[:MOST]


def operators_like(typed: str, field: Field) -> list[Suggestion]:
    """The operators that a field takes."""
    words = {"=": "is", "!=": "is there and is not", "IN (": "is one of"}
    if field.kind == ATTRIBUTE:
        words |= {"EXISTS": "is there", ">": "number", ">=": "number", "<": "number", "<=": "number"}
    elif field.name == STARTED_AT:
        words = {">=": "at or after", ">": "after", "<": "before", "<=": "at or before"}
    return [
        Suggestion(word if word.endswith("(") else word + " ", detail)
        for word, detail in words.items()
        if word.lower().startswith(typed.lower())
    ]


def values_like(typed: str, values: list[Suggestion], *, last: str) -> list[Suggestion]:
    """Of these values those that begin like what is typed, with or without its quote; `last` follows each."""
    word = typed.lower().lstrip("'\"")
    return [
        Suggestion(one.insert + last, one.detail) for one in values if one.insert.lower().lstrip("'\"").startswith(word)
    ][:MOST]


def fixed_values(field: Field) -> list[Suggestion] | None:
    """The values that a column can have at all; None where rows tell them."""
    if field.kind == ATTRIBUTE:
        return None
    if field.name == STATE:
        return [Suggestion(value_text(state.name)) for state in State if state is not State.MIGRATED]
    if field.name == SEVERITY:
        return [Suggestion(value_text(word)) for word in SEVERITIES]
    return [Suggestion(text, detail) for text, detail in _TIMES.items()] if field.name == STARTED_AT else None


def following(typed: str) -> list[Suggestion]:
    """What joins conditions."""
    words = {"AND": "and this as well", "OR": "or this instead"}
    return [Suggestion(word + " ", detail) for word, detail in words.items() if word.lower().startswith(typed.lower())]
