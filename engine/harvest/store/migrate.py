"""Bring a shard's schema to this release's level (design 3). Alembic is imported only when it is needed."""

from __future__ import annotations

import asyncio
import logging
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harvest import clock
from harvest.errors import SchemaLevelError, WrongShardError
from harvest.history.events import FORMAT
from harvest.store.address import Address, address
from harvest.store.pool import Connection, connect

if TYPE_CHECKING:
    from sqlalchemy import Connection as AlembicConnection

SCHEMA_LEVEL: Final = 7
LOCK_KEY: Final = 0x4841_5256  # "HARV"
LIMIT: Final = 5.0
# Deadlock, lock not available.
_COME_BACK: Final = ("40P01", "55P03")
_PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
_log = logging.getLogger("harvest.migrate")
# Alembic's proxies are process-wide globals: one migration at a time in a process.
_one_at_a_time = asyncio.Lock()


def migrations_folder() -> Path:
    """The migrations: inside the wheel, else in the checkout."""
    packaged = Path(str(files("harvest"))) / "migrations"
    return packaged if packaged.is_dir() else Path(str(files("harvest"))).parents[1] / "migrations"


async def schema_level(url: str) -> int:
    """The level that a shard's database has; 0 for an empty one."""
    connection = await connect(address(url), LIMIT)
    try:
        if await connection.fetchval("select to_regclass('harvest_meta')") is None:
            return 0
        level: int = await connection.fetchval("select schema_level from harvest_meta")
        return level
    finally:
        await connection.close(timeout=2)


def _require_shard(named: int | None, shard_id: int) -> None:
    if named is not None and named != shard_id:
        raise WrongShardError(
            f"this database is shard {named}, but it is configured as shard {shard_id}: give shard {shard_id} its own "
            f"database, or this one the number {named}, in HARVEST_DATABASE_URLS",
            found=named,
            configured=shard_id,
        )


async def check_shard(url: str, shard_id: int) -> None:
    """Refuse a database that was named another shard; raises WrongShardError. One without a name passes."""
    connection = await connect(address(url), LIMIT)
    try:
        if await connection.fetchval("select to_regclass('harvest_meta')") is not None:
            _require_shard(await connection.fetchval("select shard_id from harvest_meta"), shard_id)
    finally:
        await connection.close(timeout=2)


async def name_shard(url: str, shard_id: int) -> None:
    """Write into a migrated database which shard it is, for good; raises WrongShardError if it is another."""
    connection = await connect(address(url), LIMIT)
    try:
        await connection.execute("update harvest_meta set shard_id = $1 where shard_id is null", shard_id)
        _require_shard(await connection.fetchval("select shard_id from harvest_meta"), shard_id)
    finally:
        await connection.close(timeout=2)


async def check(url: str, shard_id: int) -> None:
    """Refuse a database that cannot be worked with as this shard.

    Raises SchemaLevelError, or WrongShardError for one that is another shard; both say what to do.
    """
    level = await schema_level(url)
    if level < SCHEMA_LEVEL:
        raise SchemaLevelError(
            f"the database has schema level {level}, this release needs {SCHEMA_LEVEL}: run `harvest migrate run`",
            found=level,
            needed=SCHEMA_LEVEL,
        )
    connection = await connect(address(url), LIMIT)
    try:
        row = await connection.fetchrow("select format_min, format_max, shard_id from harvest_meta")
    finally:
        await connection.close(timeout=2)
    assert row is not None
    _require_shard(row["shard_id"], shard_id)
    if row["format_min"] > FORMAT or row["format_max"] > FORMAT:
        raise SchemaLevelError(
            f"the database holds event format {row['format_max']}, this release reads up to {FORMAT}: "
            "start a newer release",
            found=row["format_max"],
            needed=FORMAT,
        )


async def upgrade(url: str, *, shard_id: int | None = None) -> None:
    """Apply what is missing, and write down which shard it is. Safe to call from several processes at once.

    A newer schema and another shard's database are refused untouched.
    """
    if shard_id is not None:
        await check_shard(url, shard_id)
    if await schema_level(url) > SCHEMA_LEVEL:
        raise SchemaLevelError(
            f"the database is newer (level {await schema_level(url)}) than this release (level {SCHEMA_LEVEL}): "
            "start a newer release; nothing was changed",
            needed=SCHEMA_LEVEL,
        )
    async with _one_at_a_time:
        place = address(url)
        lock = await connect(place, LIMIT)
        try:
            # Polled: a blocking advisory lock beside CREATE INDEX CONCURRENTLY deadlocks for ever.
            while not await lock.fetchval("select pg_try_advisory_lock($1)", place.lock(LOCK_KEY)):
                await clock.sleep(clock.jittered(0.2))
            await _make_schema(lock, place.schema)
            await _run_alembic(place)
            if shard_id is not None:
                await name_shard(url, shard_id)
        finally:
            await lock.close(timeout=2)


async def _make_schema(connection: Connection, schema: str) -> None:
    """Who may not create schemas can still work in one that was made for them."""
    known = "select exists (select from pg_namespace where nspname = $1)"
    if schema and not await connection.fetchval(known, schema):
        await connection.execute(f'create schema "{schema}"')


async def _run_alembic(place: Address) -> None:
    """Workers may hold what a migration has to lock: it gives up soon, so as not to hold them up, and comes back."""
    from sqlalchemy.exc import DBAPIError

    for pause in (*_PAUSES, None):
        try:
            await _run_once(place)
            return
        except DBAPIError as error:
            if pause is None or getattr(error.orig, "sqlstate", None) not in _COME_BACK:
                raise
            _log.warning("the tables are in use; the migration is tried again in %g s", pause)
            await clock.sleep(pause)


async def _run_once(place: Address) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    async def connected() -> Any:
        return await connect(place, LIMIT, statement_timeout="0", lock_timeout="5000")

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connected, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_upgrade_to_head)
            await connection.commit()
    finally:
        await engine.dispose()


def _upgrade_to_head(connection: AlembicConnection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
