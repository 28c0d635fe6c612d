"""How the fleet routes, over HTTP: the configuration of one console, and all processes beside each other."""

from __future__ import annotations

import msgspec
from litestar.testing import AsyncTestClient

from harvest import Harvest
from harvest.shards import ShardRouter, Shards
from harvest.worker.effective import resolve
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, Client, settings
from tests.support import at_work, eventually

ROUTER = ShardRouter(readable=(0, 1), writable=(0, 1), default=0, residency={"us": 1, "eu": 0}, reserved=(1,))


async def test_the_configuration_has_the_whole_topology_so_that_two_consoles_are_compared_by_diff(
    urls: dict[int, str],
) -> None:
    async with AsyncTestClient(create_app(settings(urls, router=ROUTER)), base_url=ADDRESS) as inner:
        answer = await Client(inner).api("GET", "/admin/config")
    assert answer.json()["shard_topology"] == ROUTER.topology()
    assert b'"shard_topology":' + msgspec.json.encode(ROUTER.topology()) in answer.content


async def test_the_shards_of_a_worker_are_the_resolved_ones_with_their_origin(
    urls: dict[int, str], console: Client
) -> None:
    for options, value, origin in (
        (resolve({}, name="auto"), [0, 1], "default"),
        (resolve({"HARVEST_WORKER_SHARD_ASSIGNMENTS": "1"}, name="told"), [1], "environment"),
        (resolve({"HARVEST_WORKER_SHARD_ASSIGNMENTS": "0,1"}, name="given", shard_assignments=(1,)), [1], "argument"),
    ):
        async with at_work(Harvest(), urls, options) as (worker, _):
            config = (await console.api("GET", "/admin/config")).json()
            (mine,) = [each for each in config["workers"] if each["worker_id"] == str(worker.id)]
            assert {"name": "shard_assignments", "value": value, "origin": origin} in mine["options"]
            assert config["worker"]["shard_assignments"] == value


async def test_every_process_is_listed_with_what_differs(urls: dict[int, str], console: Client, shards: Shards) -> None:
    async def told() -> int:
        return len((await console.api("GET", "/admin/topology")).json()["processes"])

    async def both() -> bool:
        return await told() == 2

    async with AsyncTestClient(create_app(settings(urls, router=ROUTER)), base_url=ADDRESS):
        await eventually(both)
        answer = (await console.api("GET", "/admin/topology")).json()
    assert answer["status"] == "complete"
    assert answer["differing_fields"] == ["reserved_shards", "residency_map"]
    assert answer["stale_after_seconds"] == 30
    assert {one["kind"] for one in answer["processes"]} == {"console"}
    assert {one["digest"] for one in answer["processes"]} == {ROUTER.digest, shards.router.digest}
    for one in answer["processes"]:
        assert one["differing_fields"] == ["reserved_shards", "residency_map"], "of two, neither is most"
        assert (one["stale"], one["shard_ids"], one["pool_shards"]) == (False, [0, 1], [0, 1])
    assert await told() == 1, "a console that ends well is gone at once"


async def test_the_topology_names_a_shard_that_is_away(half_console: Client) -> None:
    answer = (await half_console.api("GET", "/admin/topology")).json()
    assert (answer["status"], [each["shard_id"] for each in answer["unavailable_shards"]]) == ("partial", [1])
    assert (await half_console.api("GET", "/admin/topology?colour=red")).status_code == 400
    assert (await half_console("GET", "/api/harvest/admin/topology")).status_code == 401
