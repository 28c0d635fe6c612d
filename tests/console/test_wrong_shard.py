"""A database knows which shard it is, and is refused as another one: by the worker, the console and the migrations."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harvest import Harvest
from harvest.errors import WrongShardError
from harvest.shards import Shards
from harvest.store import migrate
from harvest.worker.worker import Worker
from harvest_console.cli import schema
from harvest_console.embedded import EmbeddedPostgres
from tests.console.conftest import DEAD
from tests.console.test_dev import HARVEST, environment
from tests.support import FAST

Database = Callable[[str], str]


async def test_migrating_writes_the_shard_into_the_database(postgres_server: EmbeddedPostgres) -> None:
    url = postgres_server.ensure_database("named_by_migrating")
    await migrate.upgrade(url, shard_id=3)
    await migrate.check(url, 3)
    await migrate.upgrade(url, shard_id=3)
    with pytest.raises(WrongShardError, match="this database is shard 3, but it is configured as shard 0: ") as told:
        await migrate.check(url, 0)
    assert (told.value.fields["found"], told.value.fields["configured"]) == (3, 0)
    with pytest.raises(WrongShardError):
        await migrate.upgrade(url, shard_id=0)


async def test_a_migrated_database_without_a_shard_gets_its_name_when_it_is_brought_up(new_database: Database) -> None:
    url = new_database("nameless")
    await migrate.check(url, 7)
    await schema.bring_up({7: url})
    with pytest.raises(WrongShardError):
        await migrate.check(url, 0)


async def test_one_database_cannot_be_two_shards(postgres_server: EmbeddedPostgres, new_database: Database) -> None:
    for url in (new_database("twice"), postgres_server.ensure_database("empty_twice")):
        with pytest.raises(WrongShardError, match="shard 0, but it is configured as shard 1"):
            await schema.bring_up({0: url, 1: url})


async def test_a_worker_does_not_start_on_another_shard(new_database: Database) -> None:
    url = new_database("other_worker")
    await migrate.name_shard(url, 1)
    shards = await Shards.open({0: url})
    worker = Worker(Harvest().registry, shards, FAST)
    try:
        with pytest.raises(WrongShardError):
            await worker.start()
    finally:
        await worker.stop()
        await shards.close()


async def test_the_console_does_not_start_on_swapped_shards_and_waits_for_none_that_is_away(
    new_database: Database, tmp_path: Path
) -> None:
    url = new_database("other_console")
    await migrate.name_shard(url, 1)
    variables = environment({"HARVEST_DATABASE_URLS": f"0={url},1={DEAD}"})
    serve = [*HARVEST, "serve", "--port", "0"]
    refused = subprocess.run(
        serve, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=30, check=False
    )
    assert refused.returncode != 0
    assert "this database is shard 1, but it is configured as shard 0" in refused.stderr
    assert "Traceback" not in refused.stderr
    variables["HARVEST_DATABASE_URLS"] = f"1={url},0={DEAD}"
    with subprocess.Popen(serve, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        try:
            assert any(line.startswith("ready ") for line in serving.stdout)
        finally:
            serving.send_signal(signal.SIGTERM)


async def test_the_status_of_migrations_shows_it(new_database: Database, tmp_path: Path) -> None:
    url = new_database("other_status")
    await migrate.name_shard(url, 1)
    variables = environment({"HARVEST_DATABASE_URLS": f"0={url}"})
    status = subprocess.run(
        [*HARVEST, "migrate", "status"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert status.returncode == 1
    assert "shard 0: this database is shard 1" in status.stdout
