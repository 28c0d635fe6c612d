"""The fleet over HTTP: what is shown of workers, draining and evicting them, the configuration in force."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from harvest import Harvest, WorkflowContext, clock
from harvest.shards import ShardRouter, Shards
from harvest.worker.effective import resolve
from harvest.worker.main import keep_working
from harvest.worker.worker import Worker
from tests.console.conftest import Client
from tests.support import at_work

URL = "postgresql://somebody:sesame@db.example/harvest"
OPTIONS = resolve({"HARVEST_WORKER_POLL_INTERVAL": "0.2", "HARVEST_DATABASE_URL": URL}, name="w-1", drain_timeout=0.5)


def application() -> Harvest:
    """One type whose runs wait."""
    app = Harvest()

    @app.workflow
    async def patient(ctx: WorkflowContext) -> str:
        return await ctx.wait_for_signal("go", str)

    return app


@pytest.fixture
async def worker(urls: dict[int, str], shards: Shards) -> AsyncIterator[Worker]:
    """A worker at work on both shards."""
    async with at_work(application(), urls, OPTIONS) as (found, _):
        yield found


async def test_workers_are_listed_once_with_their_shards(console: Client, worker: Worker) -> None:
    answer = (await console.api("GET", "/workers?queue=default&health=healthy")).json()
    assert answer["status"] == "complete"
    (mine,) = [each for each in answer["workers"] if each["worker_id"] == str(worker.id)]
    assert (mine["name"], mine["status"], mine["health"], mine["shard_ids"]) == ("w-1", "active", "healthy", [0, 1])
    assert len(answer["workers"]) == 3, "and those of one shard that the fixture has written"
    only = (await console.api("GET", "/workers?shard_id=1")).json()["workers"]
    assert len(only) == 2
    assert (await console.api("GET", "/workers?limit=1")).json()["workers"][0]["name"] == "w"
    for wrong in ("limit=0", "limit=501", "status=gone", "health=fine", "shard_id=-1", "colour=red"):
        assert (await console.api("GET", f"/workers?{wrong}")).status_code == 400


async def test_one_worker_is_shown_with_its_options_and_no_secret(console: Client, worker: Worker) -> None:
    response = await console.api("GET", f"/workers/{worker.id}")
    shown = response.json()
    assert [each["shard_id"] for each in shown["shards"]] == [0, 1]
    assert shown["workflow_types"] == ["patient/1"]
    config = {each["name"]: (each["value"], each["origin"]) for each in shown["config"]}
    assert config["poll_interval_ms"] == (200, "environment")
    assert config["drain_timeout_ms"] == (500, "argument")
    assert config["lease_ttl_ms"] == (5000, "default")
    assert "sesame" not in response.text
    pinned = (await console.api("GET", f"/workers/{worker.id}/pinned")).json()
    assert (pinned["worker_id"], pinned["pinned"], pinned["status"]) == (str(worker.id), [], "complete")
    (preview,) = (await console.api("GET", f"/workers/drain-preview?worker_id={worker.id}")).json()["workers"]
    assert (preview["status"], preview["types_left"]) == ("active", ["patient/1"])
    health = (await console.api("GET", "/workers/health")).json()
    assert (health["healthy"], health["stale"], health["draining"]) == (3, 0, 0)


async def test_the_configuration_in_force_tells_of_workers_limits_shards_and_pools(
    console: Client, worker: Worker
) -> None:
    response = await console.api("GET", "/admin/config")
    config = response.json()
    (mine,) = [each for each in config["workers"] if each["worker_id"] == str(worker.id)]
    assert {"name": "owner_lease_ttl_ms", "value": 10_000, "origin": "default"} in mine["options"]
    assert config["payload_caps"]["payload_bytes"] == 8 * 1024 * 1024
    assert config["shard_topology"] == ShardRouter.of((0, 1)).topology()
    assert config["worker"]["shard_assignments"] == [0, 1]
    assert config["features"] == {"admin_token": True, "token_signin": False, "base_path": False}
    assert {"name": "read", "size": 4, "limit_ms": 2000} in config["pool"]
    assert "token-of-thirty-two" not in response.text


async def test_a_worker_is_drained_and_then_refuses(urls: dict[int, str], console: Client, shards: Shards) -> None:
    begun, stop = asyncio.Event(), asyncio.Event()
    app = application()
    working = asyncio.create_task(keep_working(app.registry, urls, options=OPTIONS, stop=stop, on_start=begun.set))
    try:
        await begun.wait()
        (mine,) = [w for w in (await console.api("GET", "/workers")).json()["workers"] if w["name"] == "w-1"]
        path = f"/workers/{mine['worker_id']}"
        evicted = await console.api("POST", f"{path}/evict", json={"reason": "memory"})
        assert (evicted.status_code, evicted.json()["outcome"], evicted.json()["shard_ids"]) == (
            200,
            "requested",
            [0, 1],
        )
        assert (
            await console.api("POST", f"{path}/drain", json={"deadline_at": "2026-01-01T00:00:00"})
        ).status_code == 400
        deadline = clock.now().isoformat()
        drained = (
            await console.api("POST", f"{path}/drain", json={"deadline_at": deadline, "reason": "deploy"})
        ).json()
        assert (drained["outcome"], drained["shard_ids"], drained["in_flight_count"]) == ("draining", [0, 1], 0)
        assert await asyncio.wait_for(working, 30) == "drained"
        shown = (await console.api("GET", path)).json()
        assert (shown["status"], shown["health"], shown["report"]["ended"]) == ("stopped", None, "drained")
        again = await console.api("POST", f"{path}/drain", json={})
        assert (again.status_code, again.json()["slug"]) == (409, "worker_stopped")
        entries = (await console.api("GET", f"/admin/audit?target_id={mine['worker_id']}")).json()["entries"]
        assert sorted((each["operation"], each["status"], each["reason"]) for each in entries if each["reason"]) == [
            ("worker.drain", "succeeded", "deploy"),
            ("worker.drain", "succeeded", "deploy"),
            ("worker.evict", "succeeded", "memory"),
            ("worker.evict", "succeeded", "memory"),
        ], "one row on each shard, in the statement of the change"
    finally:
        stop.set()
        await asyncio.gather(working, return_exceptions=True)


async def test_unknown_and_malformed_ids_are_told_apart(console: Client) -> None:
    for method, path in (
        ("GET", ""),
        ("GET", "/pinned"),
        ("POST", "/drain"),
        ("POST", "/evict"),
    ):
        missing = await console.api(method, f"/workers/{uuid4()}{path}")
        assert (missing.status_code, missing.json()["slug"]) == (404, "worker_not_found")
        wrong = await console.api(method, f"/workers/somebody{path}")
        assert (wrong.status_code, wrong.json()["field"]) == (400, "worker_id")


async def test_a_missing_shard_is_named(half_console: Client, shards: Shards) -> None:
    answer = (await half_console.api("GET", "/workers")).json()
    assert answer["status"] == "partial"
    assert [each["shard_id"] for each in answer["unavailable_shards"]] == [1]
    (mine,) = answer["workers"]
    shown = (await half_console.api("GET", f"/workers/{mine['worker_id']}")).json()
    assert shown["missing_shards"] == [1]


async def test_a_definition_that_nobody_has_is_told_with_its_runs(
    new_database: Callable[[str], str], console: Client, shards: Shards
) -> None:
    store = shards.store(0)
    run = UUID(int=5)
    await store.write.write("update harvest_workers set workflow_slots = 1")
    await store.write.write(
        "insert into harvest_workflow_tasks (execution_id, partition, queue, workflow_name, version) "
        "values ($1, 0, 'default', 'order_flow', 1)",
        run,
    )
    health: dict[str, Any] = (await console.api("GET", "/workers/health")).json()
    (uncovered,) = health["uncovered_definitions"]
    assert uncovered == {
        "kind": "workflow",
        "name": "order_flow",
        "version": 1,
        "shard_id": 0,
        "open": 1,
        "waiting": 1,
        "execution_ids": [str(run)],
    }
    await store.write.write("update harvest_workers set workflow_types = '{order_flow/1}'")
    assert msgspec.json.decode((await console.api("GET", "/workers/health")).content)["uncovered_definitions"] == []
