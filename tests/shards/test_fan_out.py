"""A read over all shards names each one that it does without, whatever keeps that from answering."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
import pytest

from harvest.errors import ShardUnavailableError
from harvest.operations import listing
from harvest.operations.listing import ListFilter
from harvest.shards import ShardRouter, Shards
from harvest_console.embedded import EmbeddedPostgres
from tests.operations.population import Run, add


async def test_a_shard_that_is_not_migrated_yet_is_named_and_hides_no_other(
    new_database: Callable[[str], str], postgres_server: EmbeddedPostgres
) -> None:
    empty = postgres_server.ensure_database("fan_out_empty")
    shards = await Shards.open({0: new_database("fan_out"), 1: empty}, ShardRouter.of((0, 1, 2)))
    try:
        run = await add(shards, 0, Run())
        found = (await listing.list_executions(shards, ListFilter())).executions
        assert [row.execution_id for row in found.rows] == [run]
        assert {shard.shard_id: shard.reason for shard in found.missing} == {
            1: "its schema is not that of this release: run `harvest migrate run`",
            2: "not configured",
        }
    finally:
        await shards.close()


async def test_a_statement_that_is_wrong_is_no_missing_shard(new_database: Callable[[str], str]) -> None:
    shards = await Shards.open({0: new_database("fan_out_wrong")})
    try:
        with pytest.raises(asyncpg.PostgresSyntaxError):
            await shards.fan_out(lambda store: store.read.fetch("selekt 1"))
    finally:
        await shards.close()


@pytest.mark.parametrize("how", ["gone", "closed", "stranger"])
async def test_a_database_that_lets_nobody_in_is_named_and_hides_no_other(
    new_database: Callable[[str], str], how: str
) -> None:
    there, here = new_database("fan_out_shut"), new_database("fan_out_open")
    admin = await asyncpg.connect(here)
    name = there.partition("?")[0].rpartition("/")[2]
    url = there
    if how == "gone":
        url = there.replace(name, f"{name}_gone")
    elif how == "closed":
        await admin.execute(f"alter database {name} allow_connections false")
    else:
        url = there.replace("postgres@", "nobody_known@")
    shards = await Shards.open({0: here, 1: url})
    try:
        run = await add(shards, 0, Run())
        found = (await listing.list_executions(shards, ListFilter())).executions
        assert [row.execution_id for row in found.rows] == [run]
        assert [shard.shard_id for shard in found.missing] == [1]
        with pytest.raises(ShardUnavailableError):
            await shards.store(1).write.write("select 1")
    finally:
        await shards.close()
        if how == "closed":
            await admin.execute(f"alter database {name} allow_connections true")
        await admin.close()
