"""Owner mode and partitions over the API and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harvest.shards import Shards
from harvest.store import partitions
from harvest_console.cli.root import root
from tests.console.conftest import API, DEAD, TOKEN, Client, settings
from tests.console.serving import served
from tests.console.test_openapi import validator
from tests.operations.owning import an_owner, end_lease, owning, switch_on

MODE = "/admin/shards/1/owner-mode"
MAP = "/admin/shards/1/partitions"


@pytest.fixture
async def shards(urls: dict[int, str]) -> AsyncIterator[Shards]:
    """The shards without a worker."""
    opened = await Shards.open(urls)
    yield opened
    await opened.close()


async def test_it_is_turned_on_and_off(console: Client, shards: Shards) -> None:
    await an_owner(shards.store(1), "a")
    on = await console.api("POST", MODE, json={"enabled": True, "reason": "warmth"})
    assert (on.status_code, on.json()["changed"], on.json()["enabled"]) == (200, True, True)
    told = (await console.api("GET", "/admin/owner-mode")).json()
    assert [(each["shard_id"], each["enabled"], each["live_owners"]) for each in told["shards"]] == [
        (0, False, 0),
        (1, True, 1),
    ]
    assert told["shards"][1]["since"] == on.json()["since"]
    off = await console.api("POST", MODE, json={"enabled": False, "reason": "deploy"})
    assert off.json() == {"shard_id": 1, "enabled": False, "since": None, "changed": True}
    acts = (await console.api("GET", "/admin/audit")).json()["entries"]
    assert [(act["operation"], act["target_id"], act["reason"]) for act in acts] == [
        ("owner_mode.disable", "1", "deploy"),
        ("owner_mode.enable", "1", "warmth"),
    ]


async def test_a_refusal_names_each_blocker_with_its_workers(console: Client, shards: Shards) -> None:
    await an_owner(shards.store(1), "a", build="b1")
    old = await an_owner(shards.store(1), "b", build="b2", scanned=None)
    refused = await console.api("POST", MODE, json={"enabled": True, "reason": "warmth"})
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["slug"]) == (409, "HVT-320", "owner_mode_refused")
    assert [(each["code"], [worker["name"] for worker in each["workers"]]) for each in problem["blockers"]] == [
        ("worker_cannot_own", ["b"]),
        ("builds_differ", ["a", "b"]),
    ]
    assert problem["blockers"][0]["workers"][0]["worker"] == str(old)
    status = (await console.api("GET", "/admin/owner-mode")).json()["shards"][1]
    assert {each["code"]: each["ok"] for each in status["preconditions"]} == {
        "worker_cannot_own": False,
        "queues_differ": True,
        "builds_differ": False,
        "types_differ": True,
        "no_live_owner": True,
    }


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", MODE, {"enabled": True}),
        ("POST", MODE, {"enabled": True, "reason": ""}),
        ("POST", MODE, {"enabled": True, "reason": " "}),
        ("POST", MODE, {"enabled": "yes", "reason": "r"}),
        ("POST", MODE, {"enabled": True, "reason": "r", "force": True}),
        ("POST", "/admin/shards/one/owner-mode", {"enabled": True, "reason": "r"}),
        ("GET", f"{MAP}/512/journal", None),
        ("GET", f"{MAP}/-1/journal", None),
        ("GET", f"{MAP}/1/journal?limit=0", None),
        ("GET", f"{MAP}?sort=epoch", None),
    ],
)
async def test_what_is_malformed_is_refused(refusing_console: Client, method: str, path: str, body: Any) -> None:
    response = await refusing_console.api(method, path, **({"json": body} if body is not None else {}))
    assert (response.status_code, response.json()["code"]) == (400, "HVT-200")


@pytest.mark.parametrize(("method", "path"), [("GET", "/admin/shards/7/partitions"), ("POST", MODE.replace("1", "7"))])
async def test_a_shard_that_is_not_configured_is_said_not_to_answer(
    refusing_console: Client, method: str, path: str
) -> None:
    more = {"json": {"enabled": True, "reason": "r"}} if method == "POST" else {}
    response = await refusing_console.api(method, path, **more)
    assert (response.status_code, response.json()["slug"]) == (503, "shard_unavailable")


async def test_the_map_says_who_owns_what_until_when(console: Client, shards: Shards) -> None:
    store = shards.store(1)
    await switch_on(store)
    lasting, ended = await owning(store, "a", 500), await owning(store, "b", 5)
    await end_lease(store, ended)
    found = (await console.api("GET", MAP)).json()
    assert (found["live_owners"], found["target"], found["owned"], found["status"]) == (1, 512, 500, "complete")
    by_number = found["partitions"]
    assert [each["partition"] for each in by_number] == list(range(512))
    assert {each["owner"] for each in by_number} == {str(lasting), str(ended), None}
    free = [each for each in by_number if each["owner"] is None]
    assert len(free) == 7
    assert {(each["epoch"], each["acquired_at"], each["lease_expires_at"]) for each in free} == {(0, None, None)}
    assert all(
        (each["lease_expires_at"] > found["as_of"]) == (each["owner"] == str(lasting))
        for each in by_number
        if each["owner"]
    )
    assert [(each["name"], each["held"], each["is_live"]) for each in found["owners"]] == [
        ("a", 500, True),
        ("b", 0, False),
    ]


async def test_the_journal_is_read_backwards_window_by_window(console: Client, shards: Shards) -> None:
    store = shards.store(1)
    await switch_on(store)
    for before, name in enumerate(("a", "b")):
        worker = await owning(store, name, 512)
        await partitions.note_fenced(store, worker, {(7, before): 3, (7, before + 1): 5})
        await end_lease(store, worker)
    seen: list[tuple[str, str, int]] = []
    cursor = ""
    for _ in range(5):
        window = (await console.api("GET", f"{MAP}/7/journal?limit=1{cursor}")).json()
        seen += [(each["event"], each["worker_name"], each["epoch"]) for each in window["entries"]]
        cursor = f"&before={window['next_cursor']}"
    assert window["next_cursor"] is None
    assert seen == [
        ("fenced", "b", 1),
        ("acquired", "b", 2),
        ("expired", "a", 1),
        ("fenced", "a", 0),
        ("acquired", "a", 1),
    ]
    assert (await console.api("GET", MAP)).json()["fenced_last_hour"] == 6


async def test_a_missing_shard_is_named(half_console: Client, shards: Shards) -> None:
    found = (await half_console.api("GET", "/admin/owner-mode")).json()
    assert ([each["shard_id"] for each in found["shards"]], found["status"]) == ([0], "partial")
    assert [each["shard_id"] for each in found["unavailable_shards"]] == [1]
    assert (await half_console.api("GET", MAP)).status_code == 503


async def test_the_answers_fit_what_is_said_of_them(console: Client, shards: Shards) -> None:
    document = (await console("GET", f"{API}/openapi.json")).json()
    await an_owner(shards.store(1), "a")
    for method, path, template in [
        ("POST", MODE, "/admin/shards/{shard_id}/owner-mode"),
        ("GET", "/admin/owner-mode", "/admin/owner-mode"),
        ("GET", MAP, "/admin/shards/{shard_id}/partitions"),
        ("GET", f"{MAP}/1/journal", "/admin/shards/{shard_id}/partitions/{partition}/journal"),
    ]:
        more = {"json": {"enabled": True, "reason": "r"}} if method == "POST" else {}
        response = await console.api(method, path, **more)
        described = document["paths"][API + template][method.lower()]["responses"]["200"]
        validator(document, described["content"]["application/json"]["schema"]).validate(response.json())


@pytest.fixture
async def harvest(urls: dict[int, str]) -> AsyncIterator[Callable[..., Any]]:
    """`harvest owner-mode …` against a console that is served."""
    async with served(settings(urls)) as address:

        async def run(*arguments: str) -> Result:
            options = ["--base-url", address, "--token", TOKEN, "--output", "json"]
            return await asyncio.to_thread(CliRunner().invoke, root, ["owner-mode", *arguments, *options])

        yield run


async def test_the_command_line_turns_it_on_and_off(harvest: Callable[..., Any], shards: Shards) -> None:
    await an_owner(shards.store(1), "a")
    on = await harvest("enable", "--shard", "1", "--reason", "warmth")
    assert (on.exit_code, json.loads(on.stdout)["enabled"]) == (0, True)
    one = json.loads((await harvest("status", "--shard", "1")).stdout)
    assert [each["enabled"] for each in one["shards"]] == [True]
    both = json.loads((await harvest("status")).stdout)
    assert [each["enabled"] for each in both["shards"]] == [False, True]
    off = await harvest("disable", "--shard", "1", "--reason", "deploy")
    assert (off.exit_code, json.loads(off.stdout)["enabled"]) == (0, False)


async def test_the_command_line_names_offenders_and_needs_a_reason(harvest: Callable[..., Any], shards: Shards) -> None:
    await an_owner(shards.store(0), "old", scanned=None)
    refused = await harvest("enable", "--shard", "0", "--reason", "warmth")
    assert refused.exit_code == 1
    assert "worker_cannot_own: old (has run no owner loop)" in refused.stderr
    assert "[HVT-320]" in refused.stderr
    assert (await harvest("enable", "--shard", "0")).exit_code == 2
    assert (await harvest("status", "--shard", "9")).exit_code == 2


async def test_the_command_line_warns_of_a_missing_shard(urls: dict[int, str], shards: Shards) -> None:
    async with served(settings({0: urls[0], 1: DEAD})) as address:
        options = ["owner-mode", "status", "--base-url", address, "--token", TOKEN]
        shown = await asyncio.to_thread(CliRunner().invoke, root, options)
    assert (shown.exit_code, "shard 1 is not in this answer" in shown.stderr) == (0, True)
