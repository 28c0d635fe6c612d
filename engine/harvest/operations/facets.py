"""What a list can be narrowed to: the frequent values of a field, and the keys of attributes, told on demand."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from harvest import clock
from harvest.errors import InvalidRequestError
from harvest.operations.filter_language import field_named, field_text, parse, render
from harvest.operations.listing import ListFilter, row_filter
from harvest.operations.views import state_word
from harvest.shards import MissingShard, Shards
from harvest.store import facets
from harvest.store.filters import (
    ATTRIBUTE,
    COLUMN,
    STATE,
    Compare,
    Expression,
    Field,
    Value,
    conjunction,
    field_of,
    leaves,
    parts_of,
)
from harvest.store.store import Store

# How many of the newest executions a shard looks at, for values and for keys.
ROWS: Final = 5_000
KEY_ROWS: Final = 2_000
MOST_VALUES: Final = 100
MOST_KEYS: Final = 200
# Each shard tells more than are shown, so that what is frequent on all of them together is not lost.
_TOLD: Final = 1_000


class FacetValue(Struct, frozen=True, kw_only=True):
    """A value with how many executions have it, and the condition of the filter language that asks for them."""

    value: Raw
    count: int
    condition: str


class Facets(Struct, frozen=True, kw_only=True):
    """The frequent values of a field, the most frequent first.

    They are counted among `rows` executions: the newest of each shard; `capped` when there are more than that.
    `truncated` tells that there are more values.
    """

    field: str
    values: list[FacetValue]
    rows: int
    capped: bool
    truncated: bool
    as_of: datetime
    status: str
    missing: tuple[MissingShard, ...]


class AttributeKey(Struct, frozen=True, kw_only=True):
    """An attribute with how many of the executions that were looked at have it."""

    key: str
    count: int


class AttributeKeys(Struct, frozen=True, kw_only=True):
    """The attributes of the newest `rows` executions, the most frequent first."""

    keys: list[AttributeKey]
    rows: int
    status: str
    missing: tuple[MissingShard, ...]


class _Told(Struct, frozen=True):
    rows: int
    counted: list[tuple[str, int]]


async def count_values(shards: Shards, wanted: ListFilter, field: str, *, limit: int = 20, rows: int = ROWS) -> Facets:
    """The most frequent values of `attrs.<key>`, state, workflow_name, owner or severity.

    What the filter itself asks of that field is left aside, so that its other values can be chosen. No shard looks at
    more than `rows` executions. Raises FilterError, InvalidRequestError.
    """
    asked = field_named(field)
    if asked.kind != ATTRIBUTE and asked.name not in facets.FACET_COLUMNS:
        raise InvalidRequestError(
            f"field is {field[:80]!r}; it must be attrs.<key> or one of {', '.join(facets.FACET_COLUMNS)}",
            field="field",
        )
    if not 1 <= limit <= MOST_VALUES:
        raise InvalidRequestError(f"limit is {limit}; it must be 1 to {MOST_VALUES}", field="limit")
    by_row = row_filter(without(wanted, asked))

    async def read(store: Store) -> list[_Told]:
        found = await facets.newest(store, by_row, rows + 1)
        counted = await facets.values(store, asked, found[:rows], _TOLD)
        return [_Told(len(found), [(row["value"], row["count"]) for row in counted])]

    answer = await shards.fan_out(read)
    # True and 1 are equal and no one value.
    counts: Counter[tuple[bool, Value]] = Counter()
    for told in answer.rows:
        for text, count in told.counted:
            value = _value(asked, text)
            counts[isinstance(value, bool), value] += count
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0])))
    return Facets(
        field=field_text(asked),
        values=[
            FacetValue(value=_json(value), count=count, condition=render(Compare(asked, "=", value)))
            for (_, value), count in ranked[:limit]
        ],
        rows=sum(min(told.rows, rows) for told in answer.rows),
        capped=any(told.rows > rows for told in answer.rows),
        truncated=len(ranked) > limit or any(len(told.counted) >= _TOLD for told in answer.rows),
        as_of=clock.now(),
        status=answer.status,
        missing=answer.missing,
    )


async def attribute_keys(shards: Shards, *, rows: int = KEY_ROWS) -> AttributeKeys:
    """The keys that the newest executions have, at most 200, sampled from the newest `rows` of each shard."""
    by_row = row_filter(ListFilter())

    async def read(store: Store) -> list[_Told]:
        found = await facets.newest(store, by_row, rows)
        counted = await facets.attribute_keys(store, found, MOST_KEYS)
        return [_Told(len(found), [(row["key"], row["count"]) for row in counted])]

    answer = await shards.fan_out(read)
    counts: Counter[str] = Counter()
    for told in answer.rows:
        for key, count in told.counted:
            counts[key] += count
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return AttributeKeys(
        keys=[AttributeKey(key=key, count=count) for key, count in ranked[:MOST_KEYS]],
        rows=sum(told.rows for told in answer.rows),
        status=answer.status,
        missing=answer.missing,
    )


def without(wanted: ListFilter, field: Field) -> ListFilter:
    """The filter without what it asks of one field alone. Raises FilterError."""
    cleared: dict[str, Any] = {}
    if field == Field(COLUMN, STATE):
        cleared["states"] = ()
    elif field.kind == COLUMN:
        cleared[field.name] = None
    others = conjunction(_others(parse(wanted.filter), field)) if wanted.filter else None
    return msgspec.structs.replace(
        wanted,
        attrs=tuple(part for each in wanted.attrs for part in _others(each, field)),
        filter="" if others is None else render(others),
        **cleared,
    )


def _others(expression: Expression, field: Field) -> list[Expression]:
    return [part for part in parts_of(expression) if any(field_of(leaf) != field for leaf in leaves(part))]


def _value(field: Field, text: str) -> Value:
    if field.kind != ATTRIBUTE:
        return state_word(int(text)) if field.name == STATE else text
    if text.startswith('"'):
        return msgspec.json.decode(text, type=str)
    return text == "true" if text in ("true", "false") else Decimal(text)


def _json(value: Value) -> Raw:
    return Raw(str(value).encode() if isinstance(value, Decimal) else msgspec.json.encode(value))
