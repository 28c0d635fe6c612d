"""Warmth, decisions and metrics over HTTP."""

from __future__ import annotations

import re
import uuid

from harvest.shards import Shards
from harvest.store import decisions, rollups
from harvest.store.measures import CATALOGUE
from tests.console.conftest import BEARER, Client
from tests.operations.population import Run, add
from tests.operations.test_warmth import WORKER, totals
from tests.store.test_decisions import attempt


async def test_warmth_is_told_for_a_window(console: Client, shards: Shards) -> None:
    await rollups.write(shards.stores[0], WORKER, 5.0, totals(("a", "q", "hit", "", 3), ("a", "q", "cold", "first", 1)))
    answer = await console.api("GET", "/admin/warmth?window=5m")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["resident"] == {"hit": 3, "cold": 1}
    assert (body["events_loaded"], body["bytes_loaded"], body["warm_share"]) == (8, 40, 1.0)
    assert body["by_workflow"][0]["name"] == "a"
    assert body["by_worker"][0]["worker"] == str(WORKER)
    assert (body["status"], body["unavailable_shards"]) == ("complete", [])


async def test_a_window_that_is_none_is_refused(console: Client) -> None:
    answer = await console.api("GET", "/admin/warmth?window=2h")
    assert answer.status_code == 400
    assert answer.json()["field"] == "window"


async def test_a_missing_shard_is_named_beside_the_figures(half_console: Client) -> None:
    body = (await half_console.api("GET", "/admin/warmth")).json()
    assert (body["status"], body["unavailable_shards"][0]["shard_id"]) == ("partial", 1)


async def test_the_decisions_of_an_execution_are_told_in_their_order(console: Client, shards: Shards) -> None:
    execution_id = await add(shards, 0, Run(workflow_name="order_flow", workflow_id="o-1"))
    await decisions.write(shards.stores[0], WORKER, [attempt(execution_id, 2), attempt(execution_id, 1)])
    for path in (f"/workflows/{execution_id}/decisions", "/workflows/by-id/order_flow/o-1/decisions"):
        answer = await console.api("GET", path)
        assert answer.status_code == 200, answer.text
        assert [each["number"] for each in answer.json()["attempts"]] == [1, 2]
        assert answer.json()["most"] == 200


async def test_the_decisions_of_nobody_are_not_found(console: Client, shards: Shards) -> None:
    execution_id = await add(shards, 0, Run(workflow_name="order_flow", workflow_id="o-2"))
    other = uuid.UUID(int=execution_id.int + 1)
    assert (await console.api("GET", f"/workflows/{other}/decisions")).status_code == 404


async def test_metrics_are_in_prometheus_format_and_only_rise(console: Client, shards: Shards) -> None:
    store = shards.stores[0]
    await rollups.write(store, WORKER, 5.0, totals(("a", "q", "hit", "", 3), residents=2))
    first = await console("GET", "/metrics", headers=BEARER)
    assert first.status_code == 200
    assert first.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'harvest_workflow_resident_total{outcome="hit",workflow="a"} 3.0' in first.text.splitlines()
    assert 'harvest_workflow_cache_hit_total{workflow="a"} 3.0' in first.text.splitlines()
    assert "harvest_worker_residents 2.0" in first.text.splitlines()
    buckets = re.findall(
        r'^harvest_workflow_resident_duration_seconds_bucket\{le="([^"]+)",outcome="hit",workflow="a"\} (\S+)$',
        first.text,
        re.MULTILINE,
    )
    assert [float(count) for _, count in buckets] == sorted(float(count) for _, count in buckets)
    assert buckets[-1] == ("+Inf", "3.0")

    await rollups.write(store, WORKER, 5.0, totals(("a", "q", "hit", "", 4), residents=1))
    for _ in range(2):
        again = await console("GET", "/api/harvest/admin/metrics", headers=BEARER)
        assert 'harvest_workflow_resident_total{outcome="hit",workflow="a"} 7.0' in again.text.splitlines()
        assert "harvest_worker_residents 1.0" in again.text.splitlines()


async def test_a_worker_on_two_shards_has_its_residents_once(console: Client, shards: Shards) -> None:
    for store in shards.stores.values():
        await rollups.write(store, WORKER, 5.0, totals(residents=2))
    answer = await console("GET", "/metrics", headers=BEARER)
    assert "harvest_worker_residents 2.0" in answer.text.splitlines()


async def test_metrics_name_every_entry_of_the_catalogue(console: Client) -> None:
    answer = await console("GET", "/metrics", headers=BEARER)
    assert len(re.findall(r"^# HELP ", answer.text, re.MULTILINE)) == len(CATALOGUE)


async def test_metrics_are_for_those_who_are_known(console: Client) -> None:
    assert (await console("GET", "/api/harvest/admin/metrics")).status_code == 401
