"""Every process tells every shard that it is there and how it routes, until it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from uuid import UUID, uuid4

import msgspec
import pytest
from litestar.testing import AsyncTestClient

from harvest import Harvest, clock
from harvest.shards import ShardRouter, Shards
from harvest.shards.presence import Presence
from harvest.store import processes, upkeep
from harvest.store.processes import ProcessTold
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, DEAD, settings
from tests.support import FAST, at_work, eventually

ROUTER = ShardRouter(readable=(0, 1), writable=(0, 1), default=0, residency={"eu": 0}, reserved=(1,))


@pytest.fixture
def urls(new_database: Callable[[str], str]) -> dict[int, str]:
    """The databases of two empty shards."""
    return {0: new_database("presence_a"), 1: new_database("presence_b")}


@pytest.fixture
async def shards(urls: dict[int, str]) -> AsyncIterator[Shards]:
    """Both, with a router that says something in each of its fields."""
    opened = await Shards.open(urls, ROUTER)
    yield opened
    await opened.close()


def presence_of(shards: Shards, process: UUID) -> Presence:
    """The presence of a worker of shard 1."""
    return Presence(shards, process, "worker", through=lambda store: store.scan, name="w", build="b", assigned=(1,))


async def told(shards: Shards, shard_id: int) -> list[ProcessTold]:
    """What a shard knows."""
    return await processes.page(shards.store(shard_id), 100)


async def test_it_tells_who_it_is_and_how_it_routes_on_every_shard(shards: Shards) -> None:
    process = uuid4()
    await presence_of(shards, process).tick()
    for shard_id in (0, 1):
        (row,) = await told(shards, shard_id)
        assert (row.process, row.kind, row.name, row.build) == (process, "worker", "w", "b")
        assert row.digest == ROUTER.digest
        assert 0 <= row.age < 30
        said = msgspec.json.decode(row.topology)
        assert said == {**ROUTER.topology(), "pool_shards": [0, 1], "shard_assignments": [1]}


async def test_it_tells_again_in_the_same_row(shards: Shards) -> None:
    presence = presence_of(shards, uuid4())
    await presence.tick()
    (first,) = await told(shards, 0)
    await presence.tick()
    (second,) = await told(shards, 0)
    assert second.seen_at > first.seen_at
    assert second.started_at == first.started_at


async def test_a_shard_that_does_not_answer_holds_up_no_other_and_is_named_once(
    urls: dict[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    shards = await Shards.open({0: urls[0], 1: DEAD, 2: urls[1]})
    presence = presence_of(shards, uuid4())
    try:
        began = clock.monotonic()
        await presence.tick()
        await presence.tick()
        assert clock.monotonic() - began < 15
        assert len(await told(shards, 0)) == len(await told(shards, 2)) == 1
        said = [record.message for record in caplog.records if "does not know of this process" in record.message]
        assert len(said) == 1
        assert said[0].startswith("shard 1 ")
    finally:
        await shards.close()


async def test_its_rows_are_gone_at_its_end(shards: Shards) -> None:
    presence = presence_of(shards, uuid4())
    presence.start()
    await eventually(lambda: told(shards, 0))
    await eventually(lambda: told(shards, 1))
    await presence.stop()
    assert await told(shards, 0) == await told(shards, 1) == []


async def test_one_that_has_not_ended_well_is_forgotten_after_a_day(shards: Shards) -> None:
    process, store = uuid4(), shards.store(0)
    await presence_of(shards, process).tick()
    await presence_of(shards, uuid4()).tick()
    await store.write.write(
        "update harvest_processes set seen_at = clock_timestamp() - interval '25 hours' where process = $1", process
    )
    assert [row.process == process for row in await told(shards, 0)] == [False]
    await upkeep.sweep(store)
    assert len(await store.read.fetch("select from harvest_processes")) == 1


async def test_a_worker_and_a_console_are_there_while_they_run(urls: dict[int, str], shards: Shards) -> None:
    async with AsyncTestClient(create_app(settings(urls)), base_url=ADDRESS):
        async with at_work(Harvest(), urls, msgspec.structs.replace(FAST, name="w-1", shard_assignments=(0,))) as (
            worker,
            _,
        ):
            for shard_id in (0, 1):

                async def both(shard_id: int = shard_id) -> bool:
                    return len(await told(shards, shard_id)) == 2

                await eventually(both)
            by_kind = {row.kind: row for row in await told(shards, 1)}
            assert (by_kind["worker"].process, by_kind["worker"].name) == (worker.id, "w-1")
            assert msgspec.json.decode(by_kind["worker"].topology)["shard_assignments"] == [0]
            assert msgspec.json.decode(by_kind["console"].topology)["shard_assignments"] is None
        assert [row.kind for row in await told(shards, 1)] == ["console"]
    assert await told(shards, 0) == []
