"""The tables that people's queries are composed over, as SQLAlchemy Core sees them, and how such a query is run.

The migration decides what a table is; a test holds these descriptions equal to the migrated database.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.asyncpg import dialect as postgres_dialect
from sqlalchemy.sql.expression import CompoundSelect, Select

from harvest.store.pool import Record
from harvest.store.store import Store

METADATA: Final = MetaData()
_DIALECT: Final = postgres_dialect()  # type: ignore[no-untyped-call]
Composed = Select[Any] | CompoundSelect[Any]


def _instant(name: str, *, nullable: bool = False) -> Column[datetime]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def _uuid(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[UUID]:
    return Column(name, Uuid, nullable=nullable, primary_key=primary_key)


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def _bytes(name: str, *, nullable: bool = False) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=nullable)


EXECUTIONS: Final = Table(
    "harvest_executions",
    METADATA,
    _uuid("execution_id", primary_key=True),
    _uuid("business_key"),
    _uuid("parent_id", nullable=True),
    _uuid("root_id", nullable=True),
    _uuid("first_execution_id", nullable=True),
    _uuid("previous_execution_id", nullable=True),
    _instant("started_at"),
    _instant("closed_at", nullable=True),
    _instant("deadline_at", nullable=True),
    Column("next_event_id", Integer, nullable=False),
    Column("decided_through", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("partition", SmallInteger, nullable=False),
    Column("state", SmallInteger, nullable=False),
    _text("tenant"),
    _text("workflow_name"),
    _text("workflow_id"),
    _text("queue"),
    _text("build"),
    _text("waiting", nullable=True),
    _text("blocked", nullable=True),
    Column("awaited", Boolean, nullable=True),
    Column("close_policy", SmallInteger, nullable=True),
)

DETAILS: Final = Table(
    "harvest_execution_details",
    METADATA,
    _uuid("execution_id", primary_key=True),
    _bytes("input"),
    Column("codec", SmallInteger, nullable=False),
    _bytes("memo", nullable=True),
    Column("search_attributes", JSONB, nullable=True),
    _bytes("details", nullable=True),
    _bytes("result", nullable=True),
    _bytes("failure", nullable=True),
    _bytes("blocked", nullable=True),
)

TRIAGE: Final = Table(
    "harvest_triage",
    METADATA,
    _uuid("execution_id", primary_key=True),
    _text("owner", nullable=True),
    _text("severity", nullable=True),
    _text("note", nullable=True),
    _text("actor"),
    _instant("updated_at"),
)

ERASURES: Final = Table(
    "harvest_erasures",
    METADATA,
    _uuid("receipt", primary_key=True),
    _uuid("execution_id"),
    _uuid("parent_receipt", nullable=True),
    _text("actor"),
    _text("reason"),
    _instant("erased_at"),
    Column("events_scrubbed", Integer, nullable=False),
    Column("fields_tombstoned", Integer, nullable=False),
    Column("bytes_removed", BigInteger, nullable=False),
    _text("digest_before"),
    _text("digest_after"),
)

AUDIT_LOG: Final = Table(
    "harvest_audit_log",
    METADATA,
    _uuid("id", primary_key=True),
    _instant("occurred_at"),
    _text("actor"),
    _text("on_behalf_of", nullable=True),
    _text("operation"),
    _text("target_type"),
    _text("target_id"),
    _text("route_or_command"),
    _text("request_id"),
    _text("idempotency_key", nullable=True),
    _text("status"),
    _text("error_summary", nullable=True),
    _text("reason", nullable=True),
    _text("source"),
    Column("shard_id", Integer, nullable=False),
)


def beyond(
    at: ColumnElement[datetime], row_id: ColumnElement[UUID], anchor: tuple[datetime, UUID], *, descending: bool
) -> ColumnElement[bool]:
    """The rows after `anchor` in the order of (at, row_id): one comparison, which one index answers."""
    mine, its = tuple_(at, row_id), tuple_(anchor[0], anchor[1])
    return mine < its if descending else mine > its


def compiled(statement: Composed) -> tuple[str, tuple[Any, ...]]:
    """The SQL text and the values of a composed statement, as asyncpg takes them."""
    text = statement.compile(dialect=_DIALECT)
    return str(text), tuple(text.params[name] for name in text.positiontup or ())


async def run(store: Store, statement: Composed) -> list[Record]:
    """Run a composed read on the connections for people's reads."""
    sql, values = compiled(statement)
    return await store.read.fetch(sql, *values)
