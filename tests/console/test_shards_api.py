"""Shard health and canaries over the API, the command line and in metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner, Result
from litestar.testing import AsyncTestClient

from harvest.operations.canary import Canary
from harvest.shards import ShardRouter, Shards
from harvest.store import rollups
from harvest.store.measures import Totals
from harvest_console import settings as configuration
from harvest_console.app import create_app
from harvest_console.cli.root import root
from tests.console.conftest import ADDRESS, BEARER, DEAD, TOKEN, Client, settings
from tests.console.serving import served
from tests.operations.test_shard_health import task, worker
from tests.operations.test_warmth import WORKER
from tests.support import eventually

CONTRACT = ("overall_readiness", "freshness_window_secs", "observed_at", "shards", "candidate_shard")


async def harvest(address: str, *arguments: str) -> Result:
    """Run `harvest …` against a console, in a thread of its own."""
    environment = {"HARVEST_URL": f"{address}/api/harvest", "HARVEST_TOKEN": TOKEN}
    return await asyncio.to_thread(CliRunner().invoke, root, list(arguments), env=environment)


async def test_health_has_the_fields_of_its_contract(console: Client) -> None:
    body = (await console.api("GET", "/admin/shards/health")).json()
    assert set(CONTRACT) <= body.keys()
    assert (body["overall_readiness"], body["status"], body["candidate_shard"]) == ("ready", "complete", None)
    assert [each["shard_id"] for each in body["shards"]] == [0, 1]
    assert body["shards"][0]["live_workers"] == 1
    assert body["shards"][0]["table_bytes"] > 0


async def test_a_candidate_is_told_by_itself_and_among_the_shards(console: Client) -> None:
    body = (await console.api("GET", "/admin/shards/health?candidate_shard=5")).json()
    assert body["candidate_shard"]["reason_codes"] == ["no_pool"]
    assert [each["shard_id"] for each in body["shards"]] == [0, 1, 5]
    assert body["overall_readiness"] == "ready"


@pytest.mark.parametrize("query", ["candidate_shard=x", "candidate_shard=-1", "candidate_shard=65535", "shard=1"])
async def test_a_wrong_query_is_refused(console: Client, query: str) -> None:
    assert (await console.api("GET", f"/admin/shards/health?{query}")).status_code == 400


async def test_a_missing_shard_is_unavailable_and_named(half_console: Client) -> None:
    body = (await half_console.api("GET", "/admin/shards/health")).json()
    assert (body["overall_readiness"], body["status"]) == ("unavailable", "partial")
    assert [each["readiness"] for each in body["shards"]] == ["ready", "unavailable"]
    assert body["unavailable_shards"][0]["shard_id"] == 1
    canaries = (await half_console.api("GET", "/admin/canary")).json()
    assert (canaries["status"], canaries["unavailable_shards"][0]["shard_id"]) == ("partial", 1)


async def test_both_are_for_those_who_are_known(console: Client) -> None:
    for path in ("/api/harvest/admin/shards/health", "/api/harvest/admin/canary"):
        assert (await console("GET", path)).status_code == 401


async def test_canaries_are_told_by_shard_and_queue(console: Client, shards: Shards) -> None:
    await Canary(shards).tick()
    body = (await console.api("GET", "/admin/canary")).json()
    assert (body["interval_secs"], body["stale_after_secs"], body["probing"]) == (30.0, 90.0, False)
    assert [(each["shard_id"], each["queue"]) for each in body["probes"]] == [(0, "default"), (1, "default")]
    told = {"last_success_at", "age_of_last_success_secs", "last_roundtrip_ms", "success_count", "failure_count"}
    assert told <= body["probes"][0].keys()


async def test_a_console_probes_where_it_is_set_to(urls: dict[int, str], shards: Shards) -> None:
    async with AsyncTestClient(create_app(settings(urls, canary=True)), base_url=ADDRESS) as inner:
        console = Client(inner)

        async def probed() -> bool:
            body = (await console.api("GET", "/admin/canary")).json()
            return body["probing"] and len(body["probes"]) == 2

        await eventually(probed)


@pytest.mark.parametrize(("word", "wanted"), [(None, True), ("", True), ("on", True), ("OFF", False)])
def test_the_canary_is_on_unless_it_is_switched_off(word: str | None, wanted: bool) -> None:
    assert configuration.canary({} if word is None else {"HARVEST_CANARY": word}) is wanted


def test_another_word_is_refused_by_its_variable() -> None:
    with pytest.raises(configuration.ConfigurationError, match="HARVEST_CANARY is 'maybe'; it must be on or off"):
        configuration.canary({"HARVEST_CANARY": "maybe"})


async def test_the_exit_status_of_shard_health_tells_how_ready_the_shards_are(
    urls: dict[int, str], shards: Shards
) -> None:
    async with served(settings(urls)) as address:
        ready = await harvest(address, "shard", "health")
        assert (ready.exit_code, msgspec.json.decode(ready.stdout)["overall_readiness"]) == (0, "ready")
        await task(shards, 0, "mail")
        degraded = await harvest(address, "shard", "health")
        assert (degraded.exit_code, msgspec.json.decode(degraded.stdout)["overall_readiness"]) == (1, "degraded")
        nobody = await harvest(address, "shard", "health", "--candidate-shard", "7")
        assert nobody.exit_code == 3
        other = await harvest(address, "shard", "health", "--candidate-shard", "1")
        assert other.exit_code == 0


async def test_shard_health_names_a_shard_that_does_not_answer(urls: dict[int, str], shards: Shards) -> None:
    async with served(settings({0: urls[0], 1: DEAD})) as address:
        found = await harvest(address, "shard", "health")
        assert found.exit_code == 3
        assert "shard 1 is not in this answer" in found.stderr


async def test_shard_canary_shows_the_probes(urls: dict[int, str], shards: Shards) -> None:
    async with served(settings(urls)) as address:
        await Canary(shards).tick()
        found = await harvest(address, "shard", "canary")
        assert found.exit_code == 0
        assert len(msgspec.json.decode(found.stdout)["probes"]) == 2


def figures(answer: httpx.Response) -> dict[str, float]:
    """The samples of a scrape."""
    lines = [line for line in answer.text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


async def test_metrics_tell_of_shards_and_queues_as_they_are_now(
    new_database: Callable[[str], str],
) -> None:
    urls = {0: new_database("metrics_a"), 1: new_database("metrics_b"), 2: new_database("metrics_new")}
    router = ShardRouter(readable=(0, 1), writable=(0, 1), default=0)
    shards = await Shards.open(urls, router)
    await worker(shards, 0)
    await worker(shards, 2)
    await task(shards, 1)
    await task(shards, 2)
    async with AsyncTestClient(create_app(settings(urls, router=router)), base_url=ADDRESS) as inner:
        found = figures(await Client(inner)("GET", "/metrics", headers=BEARER))
    assert [found[f'harvest_shard_ready{{shard="{number}"}}'] for number in (0, 1)] == [1.0, 0.0]
    assert 'harvest_shard_ready{shard="2"}' not in found
    assert [found[f'harvest_shard_stranded_pending{{shard="{number}"}}'] for number in (0, 1, 2)] == [0.0, 1.0, 0.0]
    assert [found[f'harvest_shard_live_workers{{shard="{number}"}}'] for number in (0, 1)] == [1.0, 0.0]
    assert found['harvest_queue_depth{queue="default"}'] == 2.0
    assert found['harvest_worker_pollers{queue="default"}'] == 2.0
    assert found['harvest_queue_oldest_pending_age_seconds{queue="default"}'] >= 5
    await shards.close()


async def test_what_a_worker_saw_of_a_shard_that_the_console_cannot_reach_is_told_once(
    half_console: Client, shards: Shards
) -> None:
    for worker_id in (WORKER, type(WORKER)(int=WORKER.int + 1)):
        seen: dict[tuple[str, ...], Any] = {("shard.stranded_pending", "1"): 4.0}
        await rollups.write(shards.store(0), worker_id, 5.0, Totals(gauges=seen))
    found = figures(await half_console("GET", "/metrics", headers=BEARER))
    assert found['harvest_shard_stranded_pending{shard="1"}'] == 4.0
    assert found['harvest_shard_ready{shard="1"}'] == 0.0
