"""The audit log: one row an act, written in the statement of the change where there is one (answers 11)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from msgspec import Struct
from sqlalchemy import Select, select

from harvest.store.pool import Connection, Record
from harvest.store.schema import AUDIT_LOG, beyond, run
from harvest.store.store import Store


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One act. The fields are the columns of `harvest_audit_log`, in its order; the time is the database's."""

    id: UUID
    actor: str
    on_behalf_of: str | None
    operation: str
    target_type: str
    target_id: str
    route_or_command: str
    request_id: str
    idempotency_key: str | None
    status: str
    error_summary: str | None
    reason: str | None
    source: str
    shard_id: int


COLUMNS: Final = AuditEntry.__struct_fields__


def audit_part(first: int, source: str) -> str:
    """The audit row of a statement, from the parameter `first` on, if `source` has a row."""
    types = {"id": "uuid", "shard_id": "int"}
    values = ", ".join(f"${first + i}::{types.get(name, 'text')}" for i, name in enumerate(COLUMNS))
    return f"""audit as (
    insert into harvest_audit_log ({", ".join(COLUMNS)}) select {values} where exists (select from {source})
)"""


def audit_values(entry: AuditEntry) -> list[Any]:
    """The values of `audit_part`, in its order."""
    return [getattr(entry, name) for name in COLUMNS]


_INSERT: Final = f"""
    insert into harvest_audit_log ({", ".join(COLUMNS)})
    values ({", ".join(f"${n}" for n in range(1, len(COLUMNS) + 1))})
"""


async def insert(store: Store, entry: AuditEntry) -> None:
    """Write one row by itself: for acts that changed nothing."""
    await store.write.write(_INSERT, *(getattr(entry, name) for name in COLUMNS))


async def insert_many(connection: Connection, entries: Sequence[AuditEntry]) -> None:
    """Write rows in the caller's transaction, for a change of many rows in one act."""
    await connection.executemany(_INSERT, [audit_values(entry) for entry in entries])


class AuditFilter(Struct, frozen=True, kw_only=True):
    """Which rows of the log; None is any. `since` and `until` bound the time, the latter exclusive."""

    actor: str | None = None
    operation: str | None = None
    target_id: str | None = None
    status: str | None = None
    source: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def page_statement(
    wanted: AuditFilter, anchor: tuple[datetime, UUID] | None, *, descending: bool, limit: int
) -> Select[Any]:
    """The first `limit` rows beyond `anchor` by (occurred_at, id)."""
    columns = AUDIT_LOG.c
    statement = select(AUDIT_LOG).limit(limit)
    for name in ("actor", "operation", "target_id", "status", "source"):
        value = getattr(wanted, name)
        if value is not None:
            statement = statement.where(columns[name] == value)
    if wanted.since is not None:
        statement = statement.where(columns.occurred_at >= wanted.since)
    if wanted.until is not None:
        statement = statement.where(columns.occurred_at < wanted.until)
    if anchor is not None:
        statement = statement.where(beyond(columns.occurred_at, columns.id, anchor, descending=descending))
    order = (columns.occurred_at, columns.id)
    return statement.order_by(*(column.desc() if descending else column.asc() for column in order))


async def page(
    store: Store, wanted: AuditFilter, anchor: tuple[datetime, UUID] | None, *, descending: bool, limit: int
) -> list[Record]:
    """Run `page_statement` on a shard."""
    return await run(store, page_statement(wanted, anchor, descending=descending, limit=limit))
