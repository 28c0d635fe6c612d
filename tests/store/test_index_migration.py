"""Indexes over large tables are built beside open transactions, and what is built already stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncpg
import pytest

from harvest import clock
from harvest.store import migrate

GIN = "harvest_execution_details_search"
# What the migrations after it have added goes, too: they are all applied again.
_BACK = (
    "drop table harvest_erasures, harvest_legal_holds",
    "drop trigger harvest_partition_taken on harvest_partitions",
    "drop function harvest_raise_generation()",
    "alter table harvest_workers drop column generation",
    "alter table harvest_workflow_tasks drop column owner_generation",
    "update harvest_alembic_version set version_num = '0004'",
    "update harvest_meta set schema_level = 4",
)
_VALID = f"select indisvalid from pg_index where indexrelid = to_regclass('{GIN}')"
_FILE = f"select pg_relation_filenode('{GIN}')"
_BUILDS = "select count(*) from pg_stat_activity where query like 'create index concurrently%' and state = 'active'"


async def before(connection: asyncpg.Connection) -> None:
    """The database as it was before the migration that makes the indexes."""
    for statement in _BACK:
        await connection.execute(statement)


@pytest.fixture
def url(new_database: Callable[[str], str]) -> str:
    """A database at this release's level."""
    return new_database("indexes")


async def test_an_open_transaction_is_waited_for(url: str) -> None:
    connection, other = await asyncpg.connect(url), await asyncpg.connect(url)
    try:
        await before(connection)
        await connection.execute(f"drop index {GIN}")
        transaction = other.transaction(isolation="repeatable_read")
        await transaction.start()
        await other.execute("select 1 from harvest_meta")
        migrating = asyncio.create_task(migrate.upgrade(url))

        async def builds() -> bool:
            return bool(await connection.fetchval(_BUILDS))

        assert await clock.until(builds, within=20, every=0.05)
        # Longer than a lock is waited for otherwise: nothing but time could show that this wait has no end.
        assert not await clock.until(lambda: _is_done(migrating), within=6, every=0.5)
        await transaction.rollback()
        await asyncio.wait_for(migrating, 30)
        assert await connection.fetchval(_VALID)
        assert await migrate.schema_level(url) == migrate.SCHEMA_LEVEL
    finally:
        await connection.close()
        await other.close()


async def _is_done(task: asyncio.Task[None]) -> bool:
    return task.done()


async def test_what_is_valid_stays_and_what_is_broken_is_built_anew(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        kept = await connection.fetchval(_FILE)
        await before(connection)
        await migrate.upgrade(url)
        assert await connection.fetchval(_FILE) == kept
        await before(connection)
        await connection.execute(f"update pg_index set indisvalid = false where indexrelid = to_regclass('{GIN}')")
        await migrate.upgrade(url)
        assert await connection.fetchval(_VALID)
        assert await connection.fetchval(_FILE) != kept
    finally:
        await connection.close()
