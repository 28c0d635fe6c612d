"""What values a field has among the newest executions that a filter finds, and which attributes they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from harvest.store.filters import ATTRIBUTE, OWNER, SEVERITY, STATE, WORKFLOW_NAME, Field
from harvest.store.listing import ExecutionFilter
from harvest.store.pool import Record
from harvest.store.searching import keys
from harvest.store.store import Store

# Longer values are not for choosing from a list, nor is what is no text, number or boolean.
VALUE_BYTES: Final = 512
_OF_ATTRIBUTE: Final = f"""
    select value::text as value, count(*) as count
      from (select search_attributes -> $3 as value from harvest_execution_details
             where execution_id = any($1) and search_attributes ? $3) held
     where jsonb_typeof(value) in ('string', 'number', 'boolean') and octet_length(value::text) <= {VALUE_BYTES}
     group by held.value order by count desc, value limit $2
"""
_OF_COLUMN: Final = """
    select {column}::text as value, count(*) as count from {table}
     where execution_id = any($1) and {column} is not null group by {column} order by count desc, value limit $2
"""
_TABLES: Final = {
    STATE: "harvest_executions",
    WORKFLOW_NAME: "harvest_executions",
    OWNER: "harvest_triage",
    SEVERITY: "harvest_triage",
}
FACET_COLUMNS: Final = tuple(_TABLES)
_COLUMNS: Final = {name: _OF_COLUMN.format(column=name, table=table) for name, table in _TABLES.items()}
_KEYS: Final = """
    select key, count(*) as count
      from harvest_execution_details d cross join lateral jsonb_object_keys(d.search_attributes) as key
     where d.execution_id = any($1) and jsonb_typeof(d.search_attributes) = 'object'
     group by key order by count desc, key limit $2
"""


async def newest(store: Store, wanted: ExecutionFilter, rows: int) -> list[UUID]:
    """The ids of the newest `rows` executions that a filter finds."""
    return [row["execution_id"] for row in await keys(store, wanted, limit=rows)]


async def values(store: Store, field: Field, execution_ids: Sequence[UUID], most: int) -> list[Record]:
    """`value` (of an attribute as JSON, else as the column's text) and `count`, the most frequent first."""
    if field.kind == ATTRIBUTE:
        return await store.read.fetch(_OF_ATTRIBUTE, list(execution_ids), most, field.name)
    return await store.read.fetch(_COLUMNS[field.name], list(execution_ids), most)


async def attribute_keys(store: Store, execution_ids: Sequence[UUID], most: int) -> list[Record]:
    """`key` and `count` of the attributes that executions have, the most frequent first."""
    return await store.read.fetch(_KEYS, list(execution_ids), most)
