"""Shards in schemas of one database, whose usual schema has a shard's tables, too: nothing may get in there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import asyncpg

from harvest.store import migrate

SCHEMAS = {0: "north", 1: "south"}


async def colocated(new_database: Callable[[str], str], name: str) -> dict[int, str]:
    """The URLs of two migrated shards in one database."""
    url = new_database(name)
    urls = {shard_id: f"{url}&schema={schema}" for shard_id, schema in SCHEMAS.items()}
    for shard_id, each in urls.items():
        # Alembic's proxies take a context of their own.
        await asyncio.create_task(migrate.upgrade(each, shard_id=shard_id))
    return urls


async def rows_elsewhere(url: str) -> dict[str, int]:
    """How many rows the tables in the usual schema have, where they have any; the URL's own schema is left out."""
    connection: Any = await asyncpg.connect(url.partition("&schema=")[0])
    try:
        tables = [
            row[0] for row in await connection.fetch("select tablename from pg_tables where schemaname = 'public'")
        ]
        assert "harvest_executions" in tables
        counts = {table: await connection.fetchval(f'select count(*) from public."{table}"') for table in tables}
    finally:
        await connection.close()
    usual = {"harvest_meta", "harvest_alembic_version", "harvest_partitions"}
    return {table: count for table, count in counts.items() if count and table not in usual}


def plain(urls: Mapping[int, str]) -> str:
    """The database that they are in."""
    return next(iter(urls.values())).partition("&schema=")[0]
