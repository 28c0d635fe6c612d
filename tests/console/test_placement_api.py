"""`shard_id` and `residency_key` of a start over HTTP: echoed when asked for, refused in few words, never re-placed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient

from harvest import Harvest
from harvest.history.ids import shard_of
from harvest.shards import ShardRouter, Shards, warn_at_boot
from harvest_console.app import create_app
from harvest_console.plugin import HarvestPlugin
from tests.console.conftest import ADDRESS, API, BEARER, TOKEN, Client, settings
from tests.support import FAST

# Shard 1 drains under `old`; shard 2 takes runs and has no database here.
ROUTER = ShardRouter(
    readable=(0, 1, 2), writable=(0, 2), default=0, residency={"eu": 0, "old": 1, "secret-name": 2}, reserved=()
)
START = "/workflows/any_flow/start"


@pytest.fixture
async def placing(urls: dict[int, str], shards: Shards) -> AsyncIterator[Client]:
    """A console whose router has a shard that drains, and one without a database."""
    async with AsyncTestClient(create_app(settings(urls, router=ROUTER)), base_url=ADDRESS) as inner:
        yield Client(inner)


async def runs(shards: Shards) -> int:
    found = [await store.read.fetch("select from harvest_executions") for store in shards.stores.values()]
    return sum(map(len, found))


async def test_the_shard_is_told_when_a_placement_was_asked_for(placing: Client) -> None:
    for asked in ({"shard_id": 0}, {"residency_key": "eu"}):
        begun = await placing.api("POST", START, json=asked)
        assert (begun.status_code, begun.json()["shard_id"]) == (201, 0)
        assert shard_of(UUID(begun.json()["execution_id"])) == 0


@pytest.mark.parametrize("body", [{}, {"shard_id": None, "residency_key": None}])
async def test_an_unplaced_start_does_not_name_its_shard(placing: Client, body: dict[str, Any]) -> None:
    begun = await placing.api("POST", START, json={"workflow_id": "a", **body})
    assert begun.status_code in (201, 503)
    told = {"execution_id", "workflow_name", "workflow_id", "state", "started_fresh", "deduplicated"}
    if begun.status_code == 201:
        assert set(begun.json()) == told


@pytest.mark.parametrize(
    ("asked", "said", "reason"),
    [
        ({"shard_id": 9}, "shard 9 is not a placeable shard for this deployment", "unknown_shard"),
        (
            {"shard_id": 1},
            "shard 1 is not currently accepting new workflows; it is being drained",
            "draining",
        ),
        (
            {"residency_key": "old"},
            "residency key 'old' is not currently accepting new workflows; its shard is being drained",
            "draining",
        ),
        ({"residency_key": "K"}, "residency key 'K' is not declared for this deployment", "undeclared_key"),
        ({"residency_key": ""}, "residency key must not be blank", "blank_key"),
        ({"residency_key": " \t"}, "residency key must not be blank", "blank_key"),
        (
            {"residency_key": "é" * 129},
            "the residency key has 129 characters; at most 128 are allowed",
            "key_too_long",
        ),
        (
            {"shard_id": 0, "residency_key": "eu"},
            "shard_id and residency_key exclude each other: give one of them",
            "both",
        ),
        ({"shard_id": -1}, "shard_id is -1; shards are numbered 0 to 65534", "out_of_range"),
        ({"shard_id": 65535}, "shard_id is 65535; shards are numbered 0 to 65534", "out_of_range"),
    ],
)
async def test_each_refusal_is_400_in_few_words_and_writes_no_run(
    placing: Client, shards: Shards, asked: dict[str, Any], said: str, reason: str
) -> None:
    for more in ({}, {"workflow_id": "a"}, {"idempotency_key": "k"}):
        refused = await placing.api("POST", START, json={**asked, **more})
        problem = refused.json()
        assert (refused.status_code, problem["code"], problem["slug"]) == (400, "HVT-203", "placement_refused")
        assert (problem["detail"], problem["reason"]) == (said, reason)
        assert refused.headers["content-type"] == "application/problem+json"
        assert "secret-name" not in refused.text
    assert await runs(shards) == 0


@pytest.mark.parametrize("wrong", [{"shard_id": "1"}, {"shard_id": 1.5}, {"shard_id": True}, {"residency_key": 7}])
async def test_what_is_no_number_and_no_text_is_400(placing: Client, wrong: dict[str, Any]) -> None:
    refused = await placing.api("POST", START, json=wrong)
    assert (refused.status_code, refused.json()["code"]) == (400, "HVT-200")


async def test_a_number_of_any_size_is_400(placing: Client) -> None:
    for digits in (30, 5_000):
        refused = await placing.api("POST", START, content=b'{"shard_id": ' + b"9" * digits + b"}")
        assert (refused.status_code, len(refused.content) < 600) == (400, True)


async def test_the_log_has_what_the_answer_does_not(placing: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "harvest.shards"):
        refused = await placing.api("POST", START, json={"residency_key": "K"})
    assert "secret-name" not in refused.text
    (line,) = [record.getMessage() for record in caplog.records if record.name == "harvest.shards"]
    assert "residency key 'K' is not declared" in line
    assert "'secret-name': 2" in line


@pytest.mark.parametrize("asked", [{"shard_id": 2}, {"residency_key": "secret-name"}])
async def test_a_shard_without_a_database_is_503_and_the_run_is_not_begun_elsewhere(
    placing: Client, shards: Shards, asked: dict[str, Any]
) -> None:
    refused = await placing.api("POST", START, json={"workflow_id": "a", **asked})
    assert (refused.status_code, refused.json()["code"], refused.json()["shard_id"]) == (503, "HVT-400", 2)
    assert await runs(shards) == 0


async def test_a_repeated_key_is_answered_200_while_the_shard_drains(
    console: Client, placing: Client, shards: Shards
) -> None:
    first = await console.api("POST", START, json={"shard_id": 1, "idempotency_key": "k"})
    again = await placing.api("POST", START, json={"shard_id": 1, "idempotency_key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    told = again.json()
    assert (told["execution_id"], told["deduplicated"], told["shard_id"]) == (first.json()["execution_id"], True, 1)
    assert await runs(shards) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/workflows/any_flow/signal-with-start", {"workflow_id": "a", "signal_name": "go"}),
        ("/workflows/any_flow/update-with-start", {"workflow_id": "a", "update_name": "go"}),
    ],
)
async def test_what_starts_with_a_message_takes_no_placement_and_names_no_shard(
    console: Client, path: str, body: dict[str, Any]
) -> None:
    for field, value in (("shard_id", 0), ("residency_key", "eu")):
        refused = await console.api("POST", path, json={**body, field: value})
        assert (refused.status_code, field in refused.json()["detail"]) == (400, True)
    if "signal" in path:
        begun = await console.api("POST", path, json=body)
        assert (begun.status_code, "shard_id" in begun.json()) == (201, False)


async def test_items_of_a_batch_take_no_placement(console: Client) -> None:
    item = {"workflow_name": "any_flow", "shard_id": 0}
    refused = await console.api("POST", "/workflows/batch_start", json={"items": [item], "atomic": False})
    assert (refused.status_code, "shard_id" in refused.json()["detail"]) == (400, True)


async def test_the_document_tells_the_fields_and_their_bounds(console: Client) -> None:
    schemas = (await console("GET", f"{API}/openapi.json")).json()["components"]["schemas"]
    (number, _) = schemas["StartBody"]["properties"]["shard_id"]["anyOf"]
    assert (number["minimum"], number["maximum"]) == (0, 65534)
    (text, _) = schemas["StartBody"]["properties"]["residency_key"]["anyOf"]
    assert text["maxLength"] == 128
    assert "shard_id" not in schemas["StartAnswer"]["required"]
    for name in ("SignalWithStartAnswer", "UpdateWithStartAnswer", "SignalWithStartBody"):
        assert "shard_id" not in schemas[name]["properties"]


async def test_the_plugin_and_its_console_use_one_router_and_say_what_is_worth_a_word_once(
    urls: dict[int, str], shards: Shards, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARVEST_ADMIN_TOKEN", raising=False)
    plugin = HarvestPlugin(Harvest(), urls=urls, router=ROUTER, options=FAST, admin_token=TOKEN, secret_key=b"k" * 32)
    with caplog.at_level(logging.WARNING, "harvest.shards"):
        async with AsyncTestClient(Litestar(plugins=[plugin], logging_config=None), base_url=ADDRESS) as inner:
            begun = await Client(inner)("POST", f"/harvest{API}{START}", json={"residency_key": "eu"}, headers=BEARER)
            assert (begun.status_code, begun.json()["shard_id"]) == (201, 0)
            refused = await Client(inner)("POST", f"/harvest{API}{START}", json={"shard_id": 1}, headers=BEARER)
            assert (refused.status_code, refused.json()["slug"]) == (400, "placement_refused")
    said = [record.getMessage() for record in caplog.records if record.funcName == warn_at_boot.__name__]
    assert said == [
        "shard 2 is readable but has no database here; of a worker here, deliveries to it wait",
        "residency key 'old' leads to shard 1, which takes no new workflows: starts are refused",
    ]
