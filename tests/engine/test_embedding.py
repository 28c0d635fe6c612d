"""`harvest.running`: client and workers inside one asyncio program."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

import pytest

from examples import embedded_asyncio
from harvest import Harvest, WorkerOptions, WorkflowContext, running
from harvest.errors import ConfigurationError, SchemaLevelError, ShardUnavailableError
from harvest.operations.overview import overview
from harvest.shards import Shards
from harvest.store import migrate
from harvest.worker.worker import Worker
from harvest_console.embedded import EmbeddedPostgres
from tests.support import FAST, eventually

SOON = timedelta(seconds=60)
AWAY = "postgresql://postgres@/x?host=/nonexistent"


def make_app() -> Harvest:
    """An application with one activity and one workflow."""
    app = Harvest()

    @app.activity
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow
    async def four_times(ctx: WorkflowContext, number: int) -> int:
        return await ctx.execute_activity(double, await ctx.execute_activity(double, number))

    return app


async def run_once(app: Harvest) -> int:
    workflow = app.registry.workflows["four_times", 1]
    result: int = await (await app.start(workflow, 5)).result(SOON)
    return result


async def living_workers(urls: dict[int, str]) -> dict[str, bool]:
    shards = await Shards.open(urls)
    try:
        found = await overview(shards)
        return {worker.name: worker.alive for shard in found.shards for worker in shard.workers}
    finally:
        await shards.close()


async def test_workflows_run_in_this_process_and_the_workers_leave_at_the_end(
    new_database: Callable[[str], str],
) -> None:
    urls = {0: new_database("embedding_a"), 1: new_database("embedding_b")}
    async with running(make_app(), urls, workers=2, options=WorkerOptions(name="shop", drain_timeout=0.5)) as app:
        assert await run_once(app) == 20
        assert await living_workers(urls) == {"shop-1": True, "shop-2": True}
        assert app.databases == urls
    assert not any((await living_workers(urls)).values())
    assert app.databases == {}


async def test_an_app_that_is_connected_keeps_its_connection(new_database: Callable[[str], str]) -> None:
    app = make_app()
    async with await app.connect(new_database("embedding_connected")):
        async with running(app, options=FAST):
            assert await run_once(app) == 20
        assert app.databases


async def test_without_workers_it_is_a_client(new_database: Callable[[str], str]) -> None:
    url = new_database("embedding_client")
    async with running(make_app(), url, workers=0):
        assert await living_workers({0: url}) == {}


async def test_an_error_in_the_block_stops_the_workers(new_database: Callable[[str], str]) -> None:
    url = new_database("embedding_error")
    with pytest.raises(KeyError):
        async with running(make_app(), url, options=FAST):
            raise KeyError
    assert list((await living_workers({0: url})).values()) == [False]


async def test_the_schema_is_brought_up_only_when_asked(postgres_server: EmbeddedPostgres) -> None:
    url = postgres_server.create_database("embedding_empty", template="template0")
    app = make_app()
    with pytest.raises(SchemaLevelError, match="harvest migrate run"):
        async with running(app, url, options=FAST):
            pytest.fail("the block was entered")
    assert app.databases == {}, "what was refused is closed again"
    for _ in range(2):
        async with running(app, url, options=FAST, migrate=True):
            assert await run_once(app) == 20
    assert await migrate.schema_level(url) == migrate.SCHEMA_LEVEL


async def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="workers is -1"):
        async with running(make_app(), AWAY, workers=-1):
            pytest.fail("the block was entered")
    with pytest.raises(ShardUnavailableError, match="shard 0 cannot be migrated"):
        async with running(make_app(), AWAY, migrate=True):
            pytest.fail("the block was entered")


async def test_a_database_that_is_away_is_awaited_behind_the_block(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "harvest.embedding"):
        async with running(make_app(), AWAY, options=FAST, start_timeout=0.05) as app:
            assert app.databases == {0: AWAY}
    assert "no worker could start within 0.05 s; they go on trying" in caplog.messages


async def test_a_worker_that_fails_begins_again(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The program lives on, whatever the worker meets; here a second start that fails."""
    url = new_database("embedding_again")
    workers: list[Worker] = []
    start = Worker.start

    async def starting(self: Worker) -> None:
        workers.append(self)
        if len(workers) == 2:
            raise SchemaLevelError("the database is newer")
        await start(self)

    monkeypatch.setattr(Worker, "start", starting)
    async with running(make_app(), url, options=FAST) as app:
        workers[0].lost.set()

        async def third() -> bool:
            return len(workers) >= 3

        await eventually(third)
        assert await run_once(app) == 20
    assert "begins again in 1 s" in caplog.text


async def test_the_build_is_that_of_the_code_unless_it_is_given(new_database: Callable[[str], str]) -> None:
    url = new_database("embedding_build")

    async def builds(options: WorkerOptions) -> set[str]:
        async with running(make_app(), url, options=options):
            shards = await Shards.open({0: url})
            try:
                found = await shards.store(0).read.fetch("select distinct build from harvest_workers", limit=10)
                return {row["build"] for row in found}
            finally:
                await shards.close()

    (mine,) = await builds(FAST)
    assert len(mine) == 12
    assert await builds(WorkerOptions(build="2026-05", drain_timeout=0.5)) == {mine, "2026-05"}


async def test_the_example_orders_something(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARVEST_DATABASE_URL", new_database("embedding_example"))
    monkeypatch.delenv("HARVEST_DATABASE_URLS", raising=False)
    await asyncio.wait_for(embedded_asyncio.main(), 60)
    assert "was shipped as parcel-2-" in capsys.readouterr().out
