"""Saved views of the list: a name, and the filter that it stands for. They are on the default shard.

Whoever adds or renames one locks the table against other writers first, so that names stay unique and the number of
views bounded without a look at what fails.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from harvest.store.audit import AuditEntry, audit_part, audit_values
from harvest.store.pool import Record
from harvest.store.store import Store

COLUMNS: Final = "view_id, name, query, actor, created_at"
_LOCK: Final = "lock table harvest_saved_views in share row exclusive mode"
_OF_NAME: Final = f"select {COLUMNS} from harvest_saved_views where name = $1"

_INSERT: Final = f"""
with saved as (
    insert into harvest_saved_views (view_id, name, query, actor)
    values ($1, $2, $3, $4)
 returning {COLUMNS}
),
{audit_part(5, "saved")}
select {COLUMNS} from saved"""

_RENAME: Final = f"""
with renamed as (
    update harvest_saved_views set name = $2 where view_id = $1
 returning {COLUMNS}
),
{audit_part(3, "renamed")}
select {COLUMNS} from renamed"""

_DELETE: Final = f"""
with deleted as (
    delete from harvest_saved_views where view_id = $1
 returning {COLUMNS}
),
{audit_part(2, "deleted")}
select {COLUMNS} from deleted"""


async def every(store: Store) -> list[Record]:
    """All views there are; operations bound their number."""
    return await store.read.fetch(f"select {COLUMNS} from harvest_saved_views")


async def insert(
    store: Store, view_id: UUID, name: str, query: str, *, most: int, audit: AuditEntry
) -> tuple[Record | None, bool]:
    """Add a view, and say that it was added; one that has the name already is answered instead.

    None where there are `most` of them.
    """
    async with store.write.connection(writes=True) as connection, connection.transaction():
        await connection.execute(_LOCK)
        known = await connection.fetchrow(_OF_NAME, name)
        if known is not None:
            return known, False
        if await connection.fetchval("select count(*) from harvest_saved_views") >= most:
            return None, False
        added = await connection.fetchrow(_INSERT, view_id, name, query, audit.actor, *audit_values(audit))
        return added, True


async def rename(store: Store, view_id: UUID, name: str, *, audit: AuditEntry) -> Record | None:
    """Rename a view; answers the view that has the name then, which is another one where that was taken."""
    async with store.write.connection(writes=True) as connection, connection.transaction():
        await connection.execute(_LOCK)
        known: Record | None = await connection.fetchrow(_OF_NAME, name)
        if known is not None:
            return known
        renamed: Record | None = await connection.fetchrow(_RENAME, view_id, name, *audit_values(audit))
        return renamed


async def delete(store: Store, view_id: UUID, *, audit: AuditEntry) -> Record | None:
    """Delete a view; answers what it was, or None where there is no such view."""
    rows = await store.write.write(_DELETE, view_id, *audit_values(audit))
    return rows[0] if rows else None
