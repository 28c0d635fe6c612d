"""Facets of the list: the frequent values of a field on demand, each a link that asks for it; and what is completed."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from litestar import get
from msgspec import Struct

from harvest.errors import InvalidRequestError
from harvest.operations import facets
from harvest.operations.facets import Facets, FacetValue
from harvest.operations.filter_language import field_named, field_text, parse, render
from harvest.operations.listing import ListFilter
from harvest.shards import Shards
from harvest.store.filters import ATTRIBUTE, COLUMN, OWNER, SEVERITY, STATE, WORKFLOW_NAME, Field, conjunction, parts_of
from harvest_console.pages.completing import (
    FIELD,
    ITEM,
    NEXT_ITEM,
    OPENING,
    OPERATOR,
    VALUE,
    Expected,
    Suggestion,
    expected,
    fields_like,
    fixed_values,
    following,
    operators_like,
    values_like,
)
from harvest_console.pages.conditions import attribute_text
from harvest_console.pages.list_query import LIST, MOST_COLUMNS, Query, read_query
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.rendering import render as render_page
from harvest_console.rendering import render_region

MOST_FIELDS: Final = 40
VALUES: Final = 20
# What is completed need not be of as many runs as what is counted.
SAMPLED: Final = 1_000
COLUMNS: Final = {WORKFLOW_NAME: "type", STATE: "state", OWNER: "owner", SEVERITY: "severity"}


class FieldLink(Struct, frozen=True, kw_only=True):
    """A field whose values can be shown."""

    text: str
    url: str
    region_url: str
    is_shown: bool


class ValueRow(Struct, frozen=True, kw_only=True):
    """A value with its count among the runs that were looked at; `url` lists them."""

    text: str
    count: int
    url: str
    is_asked: bool


@get(FRAGMENTS + "/workflows/facets")
async def facets_region(request: AnyRequest, shards: Shards, facet: str = "") -> Page:
    """The frequent values of a field, for a tab that shows the list."""
    query, _ = read_query(request.query_params.dict())
    found = await facet_context(shards, query, base_path(request), facet or WORKFLOW_NAME)
    return render_region(request, "regions/facets_update.html", query=query, **found)


async def facet_context(shards: Shards, query: Query, base: str, facet: str) -> dict[str, Any]:
    """What the region of facets needs. Of a field that cannot be counted it says why."""
    keys, (counted, problem) = await asyncio.gather(facets.attribute_keys(shards), _counted(shards, query, facet))
    field = None if counted is None else field_named(facet)
    shown = facet if counted is None else counted.field
    known = [field_text(Field(ATTRIBUTE, one.key)) for one in keys.keys[:MOST_FIELDS]]
    if field is not None and field.kind == ATTRIBUTE and shown not in known:
        known.insert(0, shown)
    return {
        "facet": shown,
        "counted": counted,
        "facet_problem": problem,
        "fields": [_field_link(query, base, text, text == shown) for text in (*COLUMNS, *known)],
        "values": [_value_row(query, base, field, one) for one in counted.values] if counted and field else [],
        "column": _column(query, base, field) if field else None,
    }


async def _counted(shards: Shards, query: Query, facet: str) -> tuple[Facets | None, str]:
    """The values, or why they cannot be counted."""
    try:
        return await facets.count_values(shards, query.filter(), facet, limit=VALUES), ""
    except InvalidRequestError as error:
        return None, error.message


def _field_link(query: Query, base: str, text: str, is_shown: bool) -> FieldLink:
    return FieldLink(
        text=text,
        url=query.url(base, facet=text),
        region_url=query.url(base, FRAGMENTS + LIST + "/facets", facet=text),
        is_shown=is_shown,
    )


def _value_row(query: Query, base: str, field: Field, one: FacetValue) -> ValueRow:
    """A value, and the list of what has it: what is asked of the same field now is replaced."""
    url = query.url(base, facet=field_text(field), **_asking(query, field, one))
    text = attribute_text(one.value)
    is_asked = url == query.url(base, facet=field_text(field))
    return ValueRow(text=text if text.strip() else "''", count=one.count, url=url, is_asked=is_asked)


def _asking(query: Query, field: Field, one: FacetValue) -> dict[str, Any]:
    others = facets.without(query.filter(), field)
    if field.kind == COLUMN:
        value = attribute_text(one.value)
        return {COLUMNS[field.name]: [value] if field.name == STATE else value, "filter": others.filter}
    added = parse(one.condition)
    known = parts_of(parse(others.filter)) if others.filter else ()
    whole = conjunction((*known, added))
    return {"filter": "" if whole is None else render(whole)}


def _column(query: Query, base: str, field: Field) -> dict[str, str] | None:
    """A link that shows the field as a column of the list, or hides it; None where it is one always, or none fits."""
    if field.kind == COLUMN and field.name not in (OWNER, SEVERITY):
        return None
    text = field_text(field)
    if text in query.columns:
        rest = [one for one in query.columns if one != text]
        return {"word": "Hide the column", "url": query.url(base, columns=rest, facet=text)}
    if len(query.columns) >= MOST_COLUMNS:
        return None
    return {"word": "Show as a column", "url": query.url(base, columns=[*query.columns, text], facet=text)}


@get(FRAGMENTS + "/workflows/completions")
async def completions_region(request: AnyRequest, shards: Shards, head: str = "") -> Page:
    """What can follow `head`, the text of the filter before the caret, as options of a listbox."""
    wanted = expected(head)
    found = await _suggestions(shards, wanted) if wanted else []
    # Scripts count a text in units of UTF-16.
    start = len(head[: wanted.start].encode("utf-16-le", "surrogatepass")) // 2 if wanted else 0
    return render_page(request, "regions/completions.html", found=found, start=start)


async def _suggestions(shards: Shards, wanted: Expected) -> list[Suggestion]:
    if wanted.what == FIELD:
        known = await facets.attribute_keys(shards, rows=SAMPLED)
        return fields_like(wanted.typed, [one.key for one in known.keys])
    if wanted.what == OPERATOR and wanted.field:
        return operators_like(wanted.typed, wanted.field)
    if wanted.what in (VALUE, ITEM) and wanted.field:
        values = fixed_values(wanted.field)
        if values is None:
            values = await _values(shards, wanted.field)
        return values_like(wanted.typed, values, last=" " if wanted.what == VALUE else "")
    if wanted.what == OPENING:
        return [Suggestion("(", "the values, with commas between them")]
    if wanted.what == NEXT_ITEM:
        return [Suggestion(", ", "another value"), Suggestion(") ", "that is all")]
    return following(wanted.typed)


async def _values(shards: Shards, field: Field) -> list[Suggestion]:
    """The frequent values of a field among the newest runs, as they are written."""
    text = field_text(field)
    counted = await facets.count_values(shards, ListFilter(), text, limit=facets.MOST_VALUES, rows=SAMPLED)
    return [
        Suggestion(one.condition.removeprefix(f"{text} = "), f"{one.count:,} of the newest") for one in counted.values
    ]


handlers = [facets_region, completions_region]
