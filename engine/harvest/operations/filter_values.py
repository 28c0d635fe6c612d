"""The values of the filter language: what each field can be compared with, and how."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from harvest.history.limits import NAME_BYTES
from harvest.history.states import State
from harvest.operations.filter_tokens import Token, is_kept_exactly, number_of, quoted, refusal
from harvest.store.filters import (
    COLUMN,
    OWNER,
    SEVERITIES,
    SEVERITY,
    STARTED_AT,
    STATE,
    WORKFLOW_NAME,
    Ago,
    Field,
    Operator,
    Value,
)

_EXAMPLES: Final = {STATE: "'RUNNING'", WORKFLOW_NAME: "'order_flow'", OWNER: "'payments'", SEVERITY: "'sev1'"}
_DAY_CHARACTERS: Final = len("2026-05-01")


def attribute_value(token: Token) -> Value:
    """What an attribute is compared with: text in quotes, a number, true or false. Raises FilterError."""
    if token.kind == "text":
        return token.text
    if token.kind == "number":
        return checked_number(token.text, column=token.column)
    if token.kind == "word" and token.text.lower() in ("true", "false"):
        return token.text.lower() == "true"
    raise refusal(
        f"{token.shown} stands where a value is missing" if token.kind != "word" else f"{token.shown} is no value",
        column=token.column,
        remedy="put texts in quotes, like 'acme'; numbers, true and false stand without",
    )


def checked_number(text: str, *, column: int, field: str = "filter") -> Decimal:
    """A number that was written as one; raises FilterError for one that no database can hold."""
    number = number_of(text)
    if number is None or not is_kept_exactly(number):
        raise refusal(
            "this number is too large or too fine", column=column, remedy="stay within 16,000 digits", field=field
        )
    return number


def checked_key(key: str, *, column: int, field: str = "filter") -> str:
    """The key of an attribute; raises FilterError for one that is too long."""
    if len(key.encode()) > NAME_BYTES:
        raise refusal(
            "this key is too long", column=column, remedy=f"keys have {NAME_BYTES} bytes of UTF-8 at most", field=field
        )
    return key


def column_text(name: str, token: Token) -> str:
    """What a column is compared with, but for times. Raises FilterError."""
    if token.kind != "text":
        raise refusal(
            f"{token.shown} is not in quotes" if token.kind != "end" else "the value is missing",
            column=token.column,
            remedy=f"compare {name} with a text in quotes, like {_EXAMPLES[name]}",
        )
    if name == STATE:
        return _state(token)
    if name == SEVERITY and token.text not in SEVERITIES:
        raise refusal(
            f"there is no severity {token.shown}", column=token.column, remedy=f"there are {', '.join(SEVERITIES)}"
        )
    return token.text


def _state(token: Token) -> str:
    word = token.text.upper()
    if word == State.MIGRATED.name:
        raise refusal(
            "runs that have moved to another shard are listed where they live now",
            column=token.column,
            remedy="ask for the state that they have there",
        )
    if word not in State.__members__:
        words = ", ".join(each for each in State.__members__ if each != State.MIGRATED.name)
        raise refusal(f"there is no state {token.shown}", column=token.column, remedy=f"states are {words}")
    return word


def instant_of(token: Token) -> datetime | Ago:
    """A time with its zone, a day of UTC, or so long ago. Raises FilterError."""
    remedy = "write a time with its zone, like '2026-05-01T10:00:00Z', or one before now, like -24h"
    if token.kind == "ago":
        return Ago(int(token.text))
    if token.kind != "text":
        raise refusal(
            f"{token.shown} is no time" if token.kind != "end" else "the time is missing",
            column=token.column,
            remedy=remedy,
        )
    try:
        instant = datetime.fromisoformat(token.text)
        # A day by itself begins in UTC.
        if len(token.text) == _DAY_CHARACTERS:
            instant = instant.replace(tzinfo=UTC)
        if instant.tzinfo is None:
            raise refusal(
                f"{token.shown} has no zone", column=token.column, remedy="add Z for UTC, or an offset like +02:00"
            )
        return instant.astimezone(UTC)
    except (ValueError, OverflowError):
        raise refusal(f"{token.shown} is no time", column=token.column, remedy=remedy) from None


def check_comparable(field: Field, operator: Operator, value: Value, column: int, place: int) -> None:
    """Order is of numbers and times: of other values it would depend on a database's collation. Raises FilterError."""
    if operator in ("=", "!=") or isinstance(value, Decimal) or field == Field(COLUMN, STARTED_AT):
        return
    if field.kind == COLUMN:
        raise refusal(f"{field.name} has no order", column=column, remedy="use = or != with it, or IN (…)")
    raise refusal(
        f"{operator} compares numbers",
        column=place,
        remedy="write a number without quotes, or use = or != with this value",
    )


def typed(text: str, *, column: int, field: str) -> Value:
    """The value of a `key:op:value`: a number, true or false, text in quotes without them, else the text itself."""
    if text in ("true", "false"):
        return text == "true"
    if number_of(text) is not None:
        return checked_number(text, column=column, field=field)
    if text[:1] in ("'", '"'):
        inside, end = quoted(text, 0, closed=False)
        if end == len(text):
            return inside
    return text
