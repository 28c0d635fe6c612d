"""The page of what is under way between shards, and its answer in the API: empty, busy, failing, partial."""

from __future__ import annotations

import httpx
import pytest

from harvest.history.deliveries import DeliveryKind
from harvest.history.ids import mint_execution_id
from harvest.shards import Shards
from harvest.store import relay as rows
from tests.console.conftest import BEARER, Client
from tests.operations.test_relay import in_vain, two_children_elsewhere
from tests.pages.acting import HTML, words
from tests.store.kin import a_delivery, a_member
from tests.store.sites import a_start


async def page(console: Client, path: str = "/shards/relay") -> httpx.Response:
    answer = await console("GET", path, headers={**HTML, **BEARER})
    assert answer.status_code == 200, answer.text
    return answer


async def test_with_no_child_elsewhere_the_page_says_so(console: Client) -> None:
    said = words(await page(console))
    assert "Nothing is under way" in said
    assert "Nothing has failed" in said


async def test_each_way_has_its_figures_and_what_fails_its_error(console: Client, shards: Shards) -> None:
    await two_children_elsewhere(shards)
    said = words(await page(console))
    assert "Shard 0 Shard 1 1 1 0 0" in said
    assert "no failures" in said
    await in_vain(shards)
    said = words(await page(console))
    assert "1 fails" in said
    assert "start a child Shard 0" in said
    assert "shard 1 has no database configured here" in said
    assert "1 fails" in words(await page(console, "/_f/shards/relay"))


async def test_where_not_all_are_looked_at_the_page_and_the_answer_say_at_least(
    console: Client, shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two_children_elsewhere(shards)
    few = rows.IN_FLIGHT.replace(f"count(*) from oldest) >= {rows.DELIVERIES_LOOKED_AT}", "count(*) from oldest) >= 1")
    monkeypatch.setattr(rows, "IN_FLIGHT", few)
    said = words(await page(console))
    assert "Shard 0 Shard 1 1+ 1+ 0+ 0+" in said
    assert "With + there are at least so many" in said
    answer = (await console.api("GET", "/admin/shards/relay")).json()
    assert answer["in_flight_capped"] is True
    assert {row["capped"] for row in answer["in_flight"]} == {True}


async def test_a_hostile_error_is_text(console: Client, shards: Shards) -> None:
    near = shards.store(0)
    parent = await a_member(near)
    await a_delivery(near, DeliveryKind.CHILD_START, parent, mint_execution_id(1), a_start(parent))
    await near.scan.write("update harvest_deliveries set attempts = 1, last_error = '<script>alert(1)</script>'")
    assert "<script>alert" not in (await page(console)).text


async def test_a_missing_shard_is_named_on_the_page_and_in_the_answer(half_console: Client, shards: Shards) -> None:
    await two_children_elsewhere(shards)
    said = words(await page(half_console))
    assert "Shard 1 did not answer. What comes from there is not known; what goes there, the others tell" in said
    assert "Shard 0 Shard 1" in said
    answer = (await half_console.api("GET", "/admin/shards/relay")).json()
    assert answer["status"] == "partial"
    assert [shard["shard_id"] for shard in answer["unavailable_shards"]] == [1]
    assert {(row["source_shard"], row["target_shard"]) for row in answer["in_flight"]} == {(0, 1)}


async def test_prometheus_is_told_of_children_on_other_shards(console: Client, shards: Shards) -> None:
    await two_children_elsewhere(shards)
    told = (await console.api("GET", "/admin/metrics")).text
    assert 'harvest_cross_shard_child_in_flight{shard="1",status="pending_start"} 1.0' in told
    assert 'harvest_cross_shard_child_in_flight{shard="1",status="started"} 1.0' in told
    assert 'harvest_cross_shard_child_oldest_age_seconds{shard="1"}' in told
