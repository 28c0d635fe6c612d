"""A worker that starts while one of its shards is away serves the others, and the absent one when it comes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from harvest import Harvest, WorkflowContext
from harvest.errors import ShardUnavailableError, WorkflowNotRegisteredError
from harvest.shards import Shards
from harvest.worker.worker import Worker
from harvest_console.embedded import EmbeddedPostgres
from tests.support import FAST, eventually

app = Harvest()


@app.workflow
async def answer(ctx: WorkflowContext) -> int:
    return 42


async def test_an_absent_shard_keeps_no_worker_from_the_others(
    new_database: Callable[[str], str], mortal_server: EmbeddedPostgres, mortal_database: str
) -> None:
    urls = {0: new_database("present"), 1: mortal_database}
    mortal_server.kill()
    shards = await Shards.open(urls)
    worker = Worker(app.registry, shards, FAST)
    try:
        await worker.start()
        await app.connect({0: urls[0]})
        assert await (await app.start(answer)).result(timedelta(seconds=30)) == 42
        await app.close()
        mortal_server.start()
        await app.connect({1: urls[1]})
        assert await started_once_registered() == 42
    finally:
        await worker.stop()
        await shards.close()
        await app.close()


async def started_once_registered() -> int:
    """The shard learns of the type when the worker joins it."""

    async def starts() -> bool:
        try:
            await app.start(answer, workflow_id="later")
        except (WorkflowNotRegisteredError, ShardUnavailableError):
            return False
        return True

    await eventually(starts, within=20)
    return await (await app.start(answer, workflow_id="later")).result(timedelta(seconds=30))


async def test_a_worker_with_no_shard_at_all_says_so(mortal_server: EmbeddedPostgres, mortal_database: str) -> None:
    mortal_server.kill()
    shards = await Shards.open({0: mortal_database})
    worker = Worker(app.registry, shards, FAST)
    try:
        with pytest.raises((OSError, ShardUnavailableError)):
            await worker.start()
    finally:
        await worker.stop()
        await shards.close()
