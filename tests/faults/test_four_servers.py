"""Four PostgreSQL servers, one of them stopped, stalled or slow: everything answers in its time and names it.

What is asked is every route that reads, so a page that is added is asked too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

import httpx
import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute

from harvest import Harvest, WorkflowContext, clock
from harvest.history.ids import mint_execution_id
from harvest.shards import Shards
from harvest.store import migrate
from harvest.worker.main import keep_working
from harvest.worker.options import WorkerOptions
from harvest_console.app import create_app
from harvest_console.embedded import EmbeddedPostgres
from tests.console.conftest import Client, settings
from tests.console.serving import served
from tests.faults.proxy import Proxy, proxied
from tests.operations.population import Run, add
from tests.scale import scale
from tests.servers import several, stalled

pytestmark = [pytest.mark.slow, pytest.mark.prove_shards]
GONE: Final = 3
SLACK: Final = scale(2, 1)  # of a machine that is slow for reasons of its own
ONE_READ: Final = 3.5 * SLACK
PAGE: Final = 6.0 * SLACK
# What running code is asked has five seconds; putting the question takes a read and a write first.
QUESTIONS: Final = ("/handlers", "/queries", "/stack")
WRITE: Final = 2.0 * SLACK
HTML: Final = {"accept": "text/html"}
# Streams do not end, and what is downloaded or signed in with has tests of its own.
NOT_ASKED: Final = ("/static/", "/signin", "/live", "/stream", "/preferences")
# Halves of addresses, which are answered by what is missing in them.
HALVES: Final = ("/query", "/by-id/{workflow_name:str}")
# What is on one shard alone, which is there.
ON_ONE: Final = ("/api/harvest/admin/shards/0/", "/api/harvest/admin/views")
QUERY: Final = {
    "/api/harvest/admin/usage": "from=24h&to=0h",
    "/api/harvest/admin/resolve": "workflow_name=waits&workflow_id=far",
    "/api/harvest/workflows/facets": "field=workflow_name",
    "/shards/key": "workflow_name=waits&workflow_id=far",
    "/shards/add": "candidate=3",
    "/_f/shards/answering": "again=/workflows",
    "/_f/workflows/start/placement": "type=waits",
}

app = Harvest()


@app.workflow
async def waits(ctx: WorkflowContext) -> str:
    """Wait for a signal."""
    return str(await ctx.wait_for_signal("go"))


@app.workflow
async def calls(ctx: WorkflowContext, far: str) -> str:
    """Signal another run by its key."""
    await ctx.signal_external_workflow_by_id("waits", far, "go", "heard")
    return "sent"


class Site:
    """A console over four servers, with a run on each; the last one is reached through a proxy."""

    def __init__(
        self, client: Client, server: EmbeddedPostgres, proxy: Proxy, shards: Shards, runs: list[UUID]
    ) -> None:
        self.client = client
        self.server = server
        self.proxy = proxy
        self.shards = shards
        self.runs = runs
        self.took: list[float] = []

    async def get(self, path: str, *, within: float, html: bool = False) -> httpx.Response:
        """An answer that must come in time."""
        asked = self.client("GET", path, headers=HTML) if html else self.client.inner.get(path, headers=BEARER)
        return await self.timed(asked, within, path)

    async def timed(self, what: Awaitable[httpx.Response], limit: float, path: str) -> httpx.Response:
        """An answer that must come within `limit` seconds."""
        began = clock.monotonic()
        try:
            async with asyncio.timeout(limit):
                response = await what
        except TimeoutError:
            raise AssertionError(f"{path} did not answer in {limit} s") from None
        self.took.append(clock.monotonic() - began)
        return response


BEARER: Final = {"authorization": "Bearer a-token-of-thirty-two-characters!"}


@pytest.fixture(scope="module")
def servers() -> Iterator[list[EmbeddedPostgres]]:
    """Four servers of this module alone."""
    with several(4) as four:
        yield four


@pytest.fixture
async def site(servers: list[EmbeddedPostgres]) -> AsyncIterator[Site]:
    """All four up, with a run each and workers that have been there; the console has its connections open."""
    urls = {}
    for shard_id, server in enumerate(servers):
        server.drop_database("harvest")
        urls[shard_id] = server.ensure_database("harvest")
        await migrate.upgrade(urls[shard_id], shard_id=shard_id)
    async with proxied(urls[GONE]) as proxy:
        urls[GONE] = proxy.url
        shards = await Shards.open(urls)
        runs = [
            await add(shards, shard_id, Run(workflow_name="waits", workflow_id=f"w-{shard_id}")) for shard_id in urls
        ]
        async with working(urls):
            pass
        # In this loop, as the proxy is: a client that asks in another would hold up both.
        async with served(settings(urls)) as address, httpx.AsyncClient(base_url=address, timeout=60) as inner:
            client = Client(inner)
            await client.sign_in(shards)
            yield Site(client, servers[GONE], proxy, shards, runs)
        await shards.close()


@asynccontextmanager
async def working(urls: dict[int, str]) -> AsyncIterator[None]:
    """A worker over all shards."""
    begun, stop = asyncio.Event(), asyncio.Event()
    options = WorkerOptions(name="w", owner_lease_ttl=2.0, poll_interval=0.2, drain_timeout=0.1)
    task = asyncio.create_task(keep_working(app.registry, urls, options=options, stop=stop, on_start=begun.set))
    try:
        await begun.wait()
        yield
    finally:
        stop.set()
        await task


# How a server is lost


@asynccontextmanager
async def stopped(site: Site) -> AsyncIterator[None]:
    """Killed: whoever connects is refused."""
    site.server.kill()
    site.proxy.cut()
    try:
        yield
    finally:
        site.server.start()


@asynccontextmanager
async def frozen(site: Site) -> AsyncIterator[None]:
    """Its processes do not run: it accepts, and never answers."""
    with stalled(site.server.pid):
        yield


@asynccontextmanager
async def slow(site: Site) -> AsyncIterator[None]:
    """Each statement waits for two seconds first."""
    site.proxy.delay = 2.0
    try:
        yield
    finally:
        site.proxy.delay = 0.0


LOST: Final[dict[str, Callable[[Site], Any]]] = {"stopped": stopped, "stalled": frozen, "slow": slow}


# What is asked


def routes(inner: Litestar) -> list[str]:
    """The paths of everything that reads."""
    found = {
        route.path
        for route in inner.routes
        if isinstance(route, HTTPRoute) and "GET" in route.methods and not any(part in route.path for part in NOT_ASKED)
    }
    found -= {path for path in found if path.endswith(HALVES)}
    return sorted(found)


def filled(path: str, site: Site, shard_id: int) -> str | None:
    """The path with what it is about on a shard; None where that is something which the site does not have."""
    values = {
        "execution_id": str(site.runs[shard_id]),
        "shard_id": str(shard_id),
        "workflow_name": "waits",
        "name": "waits",
        "workflow_id": f"w-{shard_id}",
        "partition": "0",
        "receipt": str(site.runs[shard_id]),
    }
    parts = []
    for part in path.split("/"):
        if part.startswith("{"):
            name = part[1:-1].partition(":")[0]
            if name not in values:
                return None
            parts.append("input" if parts[-1] == "payload" else values[name])
        else:
            parts.append(part)
    whole = "/".join(parts) or "/"
    return f"{whole}?{QUERY[whole]}" if whole in QUERY else whole


@pytest.mark.parametrize("how", LOST)
async def test_every_read_answers_in_time_and_names_the_missing_shard(
    site: Site, how: str, proof: Callable[..., Any]
) -> None:
    asked: list[str] = []
    told = 0
    wrong: list[str] = []
    async with LOST[how](site):
        for path in routes(create_app(settings({0: site.shards.store(0).url}))):
            for shard_id in (0, GONE) if "{" in path else (0,):
                whole = filled(path, site, shard_id)
                if whole is None or whole in asked:
                    continue
                asked.append(whole)
                try:
                    told += await check_one(site, whole, on_the_missing=shard_id == GONE)
                except AssertionError as problem:
                    wrong.append(str(problem).splitlines()[0])
    assert not wrong, "\n".join(wrong)
    assert len(asked) > 60, asked
    assert told >= 6, "hardly any answer is over several shards"
    proof(f"one of four servers is {how}", reads=len(asked), slowest_s=round(max(site.took), 2))


async def check_one(site: Site, path: str, *, on_the_missing: bool) -> bool:
    """One read; tells whether it said what is missing."""
    is_api = path.startswith("/api/")
    within = PAGE if not is_api or path.endswith(QUESTIONS) else ONE_READ
    response = await site.get(path, within=within, html=not is_api)
    told = f"{path} answered {response.status_code}: {response.text[:300]}"
    if on_the_missing and response.status_code == 503:
        if is_api:
            assert response.json()["code"].startswith("HVT-40") or is_unasked(response), told
        return False
    assert response.status_code in (200, 204, 302, 303, 404, 408, 409) or is_unasked(response), told
    if response.status_code == 404:
        # Nothing is said not to be there that may be on the shard which does not answer.
        assert not on_the_missing, told
    if is_api and response.headers.get("content-type", "").startswith("application/json"):
        body = response.json()
        if isinstance(body, dict) and body.get("status") in ("complete", "partial", "unavailable"):
            if path.startswith(ON_ONE):
                return False
            assert body["status"] == "partial", told
            assert [each["shard_id"] for each in body["unavailable_shards"]] == [GONE], told
            return True
    return False


def is_unasked(response: httpx.Response) -> bool:
    """A question to running code, which no worker is there to answer, on a shard that is there."""
    return (response.status_code == 503 and "HVT-634" in response.text) or "no worker" in response.text.lower()


@pytest.mark.parametrize("how", ["stopped", "stalled"])
async def test_a_change_on_the_missing_shard_is_refused_and_nothing_is_placed_elsewhere(site: Site, how: str) -> None:
    there = site.runs[GONE]
    hashed = next(f"x-{n}" for n in range(100) if site.shards.router.place("waits", f"x-{n}") == GONE)
    before = await counted(site)
    within = WRITE if how == "stopped" else 8.0 * SLACK
    async with LOST[how](site):
        for path, body in (
            (f"/workflows/{there}/cancel", {"reason": "x"}),
            (f"/workflows/{there}/terminate", {"reason": "x"}),
            (f"/workflows/{there}/signal/go", 1),
            ("/workflows/waits/start", {"workflow_id": hashed}),
            ("/workflows/waits/start", {"workflow_id": "pinned", "shard_id": GONE}),
            (f"/workflows/{mint_execution_id(GONE)}/cancel", {"reason": "x"}),
        ):
            response = await site.timed(site.client.api("POST", path, json=body), within, path)
            assert (response.status_code, response.json()["code"] in ("HVT-400", "HVT-402")) == (503, True), (
                response.text
            )
        assert await counted(site, over=(0, 1, 2)) == {shard: before[shard] for shard in (0, 1, 2)}


async def counted(site: Site, over: tuple[int, ...] = (0, 1, 2, GONE)) -> dict[int, int]:
    """How many runs each shard has."""
    found = {}
    for shard_id in over:
        rows = await site.shards.store(shard_id).read.fetch("select count(*) as n from harvest_executions")
        found[shard_id] = rows[0]["n"]
    return found


@pytest.mark.parametrize("how", LOST)
async def test_a_delivery_by_key_waits_for_the_missing_shard_and_ends_when_it_is_back(site: Site, how: str) -> None:
    urls = {shard_id: store.url for shard_id, store in site.shards.stores.items()}
    far = next(f"far-{n}" for n in range(100) if site.shards.router.place("waits", f"far-{n}") == GONE)
    near = next(f"near-{n}" for n in range(100) if site.shards.router.place("calls", f"near-{n}") == 0)
    async with working(urls):
        await started(site, "waits", far, None)
        async with LOST[how](site):
            sender = await started(site, "calls", near, far)

            async def put_off() -> bool:
                rows = await site.shards.store(0).read.fetch("select from harvest_deliveries where attempts > 0")
                return bool(rows)

            assert await clock.until(put_off, within=30 * SLACK, every=0.1)
            assert await state_of(site, sender) == "RUNNING"

        async def arrived() -> bool:
            return await state_of(site, sender) == "COMPLETED"

        assert await clock.until(arrived, within=60 * SLACK, every=0.2)
        found = await site.client.api("GET", f"/workflows/by-id/waits/{far}/result")
        assert found.json()["output"] == "heard"


async def started(site: Site, name: str, workflow_id: str, given: Any) -> str:
    """A run that was started by the API."""
    response = await site.client.api(
        "POST", f"/workflows/{name}/start", json={"workflow_id": workflow_id, "input": given}
    )
    assert response.status_code == 201, response.text
    return str(response.json()["execution_id"])


async def state_of(site: Site, run: str) -> str:
    """Its state by the API."""
    return str((await site.client.api("GET", f"/workflows/{run}")).json()["state"])
