"""Rows of the list: each cell with the address of the list of what has the same value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Raw, Struct

from harvest.errors import FilterError
from harvest.operations.filter_language import field_named, field_text, value_text
from harvest.operations.views import ExecutionView
from harvest.store.filters import ATTRIBUTE, COLUMN, OWNER, SEVERITY, Field
from harvest_console.pages.conditions import attribute_text, expression_with
from harvest_console.pages.list_query import Query
from harvest_console.rendering.states import shown_state

CELL_CHARACTERS: Final = 80
# A longer address is not repeated in every cell of a page: that would make a megabyte of some filters.
LINKED_BYTES: Final = 400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STANDS_STILL: Final = ("BLOCKED", "QUARANTINED")


class Column(Struct, frozen=True, kw_only=True):
    """A column that the address asks for: an attribute, the owner or the severity."""

    field: Field
    heading: str
    without_url: str


class Cell(Struct, frozen=True, kw_only=True):
    """A value in a column that was asked for; `url` lists what has the same, where one can filter by it."""

    heading: str
    text: str
    url: str | None
    is_severity: bool = False


class Row(Struct, frozen=True, kw_only=True):
    """A run with its place in the order of the list as text, and the links of its cells, if they have any."""

    run: ExecutionView
    key: str
    shown: str
    type_url: str | None
    state_url: str | None
    cells: list[Cell]


def column_field(text: str) -> Field | None:
    """The field that a column of an address names; None where it is no column that a list can have."""
    try:
        field = field_named(text)
    except FilterError:
        return None
    return field if field.kind == ATTRIBUTE or field.name in (OWNER, SEVERITY) else None


def columns_of(query: Query, base: str) -> list[Column]:
    """The columns that an address asks for; what names none is left out."""
    found: list[Column] = []
    for text in query.columns:
        field = column_field(text)
        if field is not None and all(field != column.field for column in found):
            rest = [one for one in query.columns if one != text]
            found.append(Column(field=field, heading=field_text(field), without_url=query.url(base, columns=rest)))
    return found


def run_rows(runs: list[ExecutionView], query: Query, columns: list[Column], base: str) -> list[Row]:
    """The rows of a page; links are shared between rows with the same value."""
    urls: dict[tuple[str, bytes], str | None] = {}
    is_linked = len(query.query_string) <= LINKED_BYTES

    def url(**changed: Any) -> str | None:
        return query.url(base, **changed) if is_linked else None

    def only(run: ExecutionView, column: Column) -> Cell:
        if column.field.kind == COLUMN:
            value = getattr(run, column.field.name)
            return Cell(
                heading=column.heading,
                text=value or "",
                url=url(**{column.field.name: value}) if value else None,
                is_severity=column.field.name == SEVERITY,
            )
        stored = (run.search_attributes or {}).get(column.field.name)
        if stored is None:
            return Cell(heading=column.heading, text="", url=None)
        known = (column.heading, bytes(stored))
        if known not in urls:
            text = expression_with(query.expression, column.field.name, stored)
            urls[known] = None if text is None else url(filter=text)
        return Cell(heading=column.heading, text=cell_text(stored), url=urls[known])

    def row(run: ExecutionView) -> Row:
        shown = shown_state(run.state, run.blocked.code if run.blocked else None)
        return Row(
            run=run,
            key=key_text(run),
            shown=shown,
            type_url=url(type=run.workflow_name),
            state_url=url(blocked="1") if shown in _STANDS_STILL else url(state=[run.state]),
            cells=[only(run, column) for column in columns],
        )

    return [row(run) for run in runs]


def key_text(run: ExecutionView) -> str:
    """Where a run stands in the order of the list, as text that compares like it."""
    return f"{(run.started_at - _EPOCH) // timedelta(microseconds=1):020d}:{run.execution_id}"


def cell_text(stored: Raw) -> str:
    """A value in short; a text in which nothing is to be seen stands in quotes."""
    text = attribute_text(stored)
    if not text.strip():
        text = value_text(text)
    return text if len(text) <= CELL_CHARACTERS else text[: CELL_CHARACTERS - 1] + "…"
