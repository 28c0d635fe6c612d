"""Two PostgreSQL servers, one of them gone or silent: everything answers in its time and says what it does without.

A stalled server is one whose processes are stopped: its socket accepts, and nothing ever answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import httpx
import pytest
from litestar.testing import AsyncTestClient

from harvest import clock
from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.shards import Shards
from harvest.store import migrate
from harvest_console.app import create_app
from harvest_console.embedded import EmbeddedPostgres
from tests.console.conftest import ADDRESS, Client, settings
from tests.operations.population import Run, add, register
from tests.scale import scale
from tests.servers import several, stalled

pytestmark = [pytest.mark.slow, pytest.mark.prove_main_job]
# Each read has 2.5 s; a page makes at most two that follow each other.
SLACK = scale(2, 1)  # of a machine that is slow for reasons of its own
ONE_READ = 3.5 * SLACK
PAGE = 6.0 * SLACK
HTML = {"accept": "text/html"}


@pytest.fixture(scope="module")
def servers() -> Iterator[list[EmbeddedPostgres]]:
    """Two servers of this module alone."""
    with several(2) as pair:
        yield pair


class Pair:
    """A console over both servers, with one run on each."""

    def __init__(self, client: Client, servers: list[EmbeddedPostgres], runs: list[UUID], csrf: str) -> None:
        self.client = client
        self.servers = servers
        self.here, self.there = runs
        self.csrf = csrf


@pytest.fixture
async def pair(servers: list[EmbeddedPostgres]) -> AsyncIterator[Pair]:
    """Both servers up, migrated and with a run each; the console has its connections open."""
    urls = {}
    for shard_id, server in enumerate(servers):
        server.drop_database("harvest")
        urls[shard_id] = server.ensure_database("harvest")
        await migrate.upgrade(urls[shard_id], shard_id=shard_id)
    shards = await Shards.open(urls)
    for shard_id in urls:
        await register(shards, shard_id, "order_flow")
    runs = [
        await add(shards, 0, Run(workflow_id="here", age=1)),
        await add(shards, 1, Run(workflow_id="there", state=State.FAILED)),
    ]
    async with AsyncTestClient(create_app(settings(urls)), base_url=ADDRESS) as inner:
        client = Client(inner)
        csrf = await client.sign_in(shards)
        await shards.close()
        page = (await client.api("GET", "/workflows")).json()
        assert page["status"] == "complete"
        yield Pair(client, servers, runs, csrf)


async def timed(what: Awaitable[httpx.Response], limit: float, took: list[float]) -> httpx.Response:
    """An answer that must come within `limit` seconds."""
    began = clock.monotonic()
    async with asyncio.timeout(limit):
        response = await what
    took.append(clock.monotonic() - began)
    return response


async def check_everything(pair: Pair) -> list[float]:
    """Every read with shard 1 missing; answers how long each took."""
    client, took = pair.client, list[float]()

    async def api(path: str) -> httpx.Response:
        return await timed(client.api("GET", path), ONE_READ, took)

    async def page(path: str) -> httpx.Response:
        return await timed(client("GET", path, headers=HTML), PAGE, took)

    listed = (await api("/workflows")).json()
    assert [row["execution_id"] for row in listed["workflows"]] == [str(pair.here)]
    assert listed["status"] == "partial"
    assert [shard["shard_id"] for shard in listed["unavailable_shards"]] == [1]
    counted = (await api("/workflows/count")).json()
    assert (counted["count"], counted["status"]) == (1, "partial")
    assert (await api("/workflows/registered")).json()["status"] == "partial"
    assert (await api("/admin/audit")).json()["status"] == "partial"
    used = (await api("/admin/usage?from=30d&to=now")).json()
    assert (used["status"], [shard["shard_id"] for shard in used["unavailable_shards"]]) == ("partial", [1])
    assert (await api(f"/workflows/{pair.here}")).status_code == 200
    assert (await api(f"/workflows/{mint_execution_id(0)}")).status_code == 404
    for path in (f"/workflows/{pair.there}", f"/workflows/{pair.there}/history", f"/workflows/{mint_execution_id(1)}"):
        unknown = await api(path)
        assert (unknown.status_code, unknown.json()["shard_id"]) == (503, 1)
    by_id = await api("/workflows/by-id/order_flow/there")
    assert (by_id.status_code, by_id.json()["code"]) == (503, "HVT-401")
    for path in ("/", "/workflows", "/usage", "/audit"):
        shown = await page(path)
        assert shown.status_code == 200, path
        assert "shard 1" in shown.text.lower(), path
    assert (await page(f"/w/{pair.here}")).status_code == 200
    unknown = await page(f"/w/{pair.there}")
    assert unknown.status_code == 503
    assert "there is no such" not in unknown.text.lower()
    return took


async def whole_again(pair: Pair) -> None:
    """The console sees both shards without being told."""

    async def complete() -> bool:
        return bool((await pair.client.api("GET", "/workflows")).json()["status"] == "complete")

    assert await clock.until(complete, within=60, every=0.2)
    assert (await pair.client.api("GET", f"/workflows/{pair.there}")).status_code == 200


async def test_a_stopped_server_is_named_and_found_again(pair: Pair, proof: Callable[..., Any]) -> None:
    pair.servers[1].kill()
    try:
        took = await check_everything(pair)
    finally:
        pair.servers[1].start()
    proof("a server stopped", answers=len(took), slowest_s=round(max(took), 2))
    await whole_again(pair)


async def test_a_stalled_server_is_named_in_time_and_found_again(pair: Pair, proof: Callable[..., Any]) -> None:
    with stalled(pair.servers[1].pid):
        took = await check_everything(pair)
    proof("a server stalled", answers=len(took), slowest_s=round(max(took), 2))
    await whole_again(pair)


async def test_a_change_on_a_stalled_shard_ends_in_time_and_never_as_done(pair: Pair) -> None:
    took: list[float] = []
    with stalled(pair.servers[1].pid):
        for path, body in ((f"/workflows/{pair.there}/cancel", {}), (f"/workflows/{pair.there}/signal/go", 1)):
            response = await timed(pair.client.api("POST", path, json=body), 8.0 * SLACK, took)
            assert response.status_code == 503
            assert response.json()["code"] in ("HVT-400", "HVT-402")
    await whole_again(pair)
