"""The described tables are the migrated ones."""

from __future__ import annotations

import pytest
from sqlalchemy import BigInteger, Boolean, DateTime, Integer, LargeBinary, SmallInteger, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB

from harvest.shards import Shards
from harvest.store.schema import METADATA

TYPES = {
    "uuid": Uuid,
    "timestamp with time zone": DateTime,
    "integer": Integer,
    "bigint": BigInteger,
    "smallint": SmallInteger,
    "text": Text,
    "boolean": Boolean,
    "bytea": LargeBinary,
    "jsonb": JSONB,
}


@pytest.mark.parametrize("table", METADATA.tables.values(), ids=lambda table: table.name)
async def test_a_described_table_equals_the_migrated_one(shards: Shards, table: object) -> None:
    from sqlalchemy import Table

    assert isinstance(table, Table)
    rows = await shards.store(0).read.fetch(
        "select column_name, data_type, is_nullable = 'YES' as nullable from information_schema.columns "
        "where table_name = $1 order by ordinal_position",
        table.name,
    )
    migrated = [(row["column_name"], TYPES[row["data_type"]], row["nullable"]) for row in rows]
    described = [(column.name, type(column.type), bool(column.nullable)) for column in table.columns]
    assert described == migrated
