"""The commands of the sharding guide (seed `sharding.md`, limits and rebalancing aside), on one, two and four shards.

Each is run as the guide writes it, by `curl` and `harvest`, against `harvest serve` and `harvest worker` as processes
of their own; what the guide says of its outcome is what is checked.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from harvest import clock
from harvest.history.ids import shard_of
from harvest.shards import Shards, configured
from harvest.store.migrate import SCHEMA_LEVEL, schema_level
from harvest_console.embedded import EmbeddedPostgres
from tests.scale import scale

pytestmark = pytest.mark.slow
ROOT: Final = Path(__file__).parent.parent
TOKEN: Final = "a-token-of-thirty-two-characters!"
HARVEST: Final = (sys.executable, "-m", "harvest_console.cli")
READY_SECONDS: Final = 60.0 * scale(2, 1)
SOON: Final = 30.0 * scale(2, 1)
ORDER: Final = {"card": "4242", "cents": 500, "items": ["a"]}
# The three of the guide's section "Operating it".
IN_FLIGHT: Final = """
SELECT target_shard, status, cancel_requested, count(*)
FROM harvest_cross_shard_children
GROUP BY 1, 2, 3
ORDER BY 1, 2"""
FAILING: Final = """
SELECT child_exec_id, target_shard, attempts, last_attempt_at, last_error
FROM harvest_cross_shard_children
WHERE attempts > 0
ORDER BY attempts DESC
LIMIT 20"""
OLDEST: Final = """
SELECT target_shard, min(created_at) AS oldest, count(*) AS in_flight
FROM harvest_cross_shard_children
GROUP BY 1
ORDER BY 2"""
UNITS: Final = [
    "workflow_starts",
    "completed",
    "failed",
    "cancelled",
    "timed_out",
    "activity_executions",
    "activity_executions_failed",
    "activity_compute_seconds",
    "llm_calls",
    "llm_input_tokens",
    "llm_output_tokens",
    "llm_cost_usd_micros",
    "llm_unpriced_calls",
    "llm_latency_ms",
]


class Deployment:
    """Databases, how they are routed over, and a console whose address is known once it serves."""

    def __init__(self, urls: dict[int, str], folder: Path) -> None:
        self.shards = len(urls)
        self.eu, self.us = 0, min(1, self.shards - 1)
        self.cell = 3 if self.shards == 4 else None
        self.urls = urls
        self.folder = folder
        self.url = ""
        self.environment = {
            **os.environ,
            "HARVEST_DATABASE_URLS": ",".join(f"{shard}={url.replace(',', '%2C')}" for shard, url in urls.items()),
            "HARVEST_RESIDENCY_MAP": f"eu={self.eu},us={self.us}" + (",cell-a=3" if self.cell else ""),
            "HARVEST_RESERVED_SHARDS": "3" if self.cell else "",
            "HARVEST_WORKER_SHARD_ASSIGNMENTS": ",".join(map(str, urls)),
            "HARVEST_ADMIN_TOKEN": TOKEN,
            "HARVEST_TOKEN": TOKEN,
            "HARVEST_CANARY": "off",
        }

    async def curl(self, path: str, *arguments: str) -> tuple[int, Any]:
        """Ask the API by `curl`; the status and the body."""
        told = await output(
            "curl", "-s", "-w", "\n%{http_code}", "-H", f"authorization: Bearer {TOKEN}", *arguments,
            f"{self.url}/api/harvest{path}",
        )  # fmt: skip
        body, _, status = told.rpartition("\n")
        return int(status), json.loads(body)

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """As the guide posts."""
        return await self.curl(path, "-X", "POST", "-H", "Content-Type: application/json", "-d", json.dumps(body))

    async def harvest(self, *arguments: str, fails: bool = False) -> Any:
        """What a command of the CLI prints, as JSON."""
        environment = {**self.environment, "HARVEST_URL": f"{self.url}/api/harvest"}
        told = await output(*HARVEST, *arguments, environment=environment, fails=fails)
        return json.loads(told) if told.startswith(("{", "[")) else told


async def output(*command: str, environment: Mapping[str, str] | None = None, fails: bool = False) -> str:
    """Run a command to its end; what it printed."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert bool(process.returncode) == fails, f"{' '.join(command[:6])}: {process.returncode} {out!r} {err!r}"
    return out.decode()


@asynccontextmanager
async def process(deployment: Deployment, *arguments: str, says: str, **more: str) -> AsyncIterator[str]:
    """A process of the CLI that has said what it says when it is ready; gives the line."""
    started = await asyncio.create_subprocess_exec(
        *HARVEST,
        *arguments,
        cwd=ROOT,
        env={**deployment.environment, "PYTHONHASHSEED": "0", **more},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert started.stdout is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not said or says not in said[-1]:
                line = (await started.stdout.readline()).decode()
                assert line, f"{arguments[0]} has ended: {said}"
                said.append(line)
        reading = asyncio.create_task(started.stdout.read())
        yield said[-1]
    finally:
        if started.returncode is None:
            started.terminate()
        await started.wait()
    reading.cancel()


@asynccontextmanager
async def console(deployment: Deployment, **more: str) -> AsyncIterator[str]:
    """The address of a console."""
    async with process(
        deployment, "serve", "--port", "0", "--data-dir", str(deployment.folder), says="ready http", **more
    ) as line:
        yield re.findall(r"http\S+", line)[0]


@pytest.fixture(params=[1, 2, 4], ids=lambda count: f"{count}-shards")
async def deployment(
    request: pytest.FixtureRequest, new_database: Callable[[str], str], tmp_path: Path
) -> AsyncIterator[Deployment]:
    """A console and a worker of the shop over so many shards."""
    made = Deployment({shard: new_database("guide") for shard in range(request.param)}, tmp_path)
    await output(*HARVEST, "migrate", "run", environment=made.environment)
    async with AsyncExitStack() as stack:
        made.url = await stack.enter_async_context(console(made))
        await stack.enter_async_context(process(made, "worker", "examples.shop:app", says="has started"))
        yield made


async def test_the_guide_does_what_it_says(deployment: Deployment, postgres_server: EmbeddedPostgres) -> None:
    """One deployment for all of it: most of the time of this test is that of processes that start."""
    shards = await Shards.open(deployment.urls)
    try:
        await placed_starts(deployment, shards)
        await refused_starts(deployment)
        await the_topology(deployment)
        await the_cell(deployment, shards)
        await reading_a_tree(deployment)
        await the_relay(shards)
        await lists_over_shards(deployment)
        await the_usage_report(deployment)
        await the_readiness_gate(deployment)
        await the_coverage(deployment)
        await a_shard_is_added(postgres_server.ensure_database(f"guide_new_{deployment.shards}"))
    finally:
        await shards.close()


async def placed_starts(deployment: Deployment, shards: Shards) -> None:
    """A residency key and a shard lead where they say, by curl and by the command line."""
    status, started = await deployment.post(
        "/workflows/order_flow/start", {"workflow_id": "order-1001", "input": ORDER, "residency_key": "eu"}
    )
    assert (status, started["shard_id"]) == (201, deployment.eu)
    assert shard_of(UUID(started["execution_id"])) == deployment.eu
    for shard_id in deployment.urls:
        rows = await shards.store(shard_id).read.fetch(
            "select from harvest_executions where execution_id = $1", UUID(started["execution_id"])
        )
        assert bool(rows) == (shard_id == deployment.eu), "the row is in one database alone"
    by_cli = await deployment.harvest(
        "workflow", "start", "order_flow", "--workflow-id", "order-1002", "--residency-key", "us",
        "--input-json", json.dumps(ORDER),
    )  # fmt: skip
    assert by_cli["shard_id"] == deployment.us
    _, pinned = await deployment.post("/workflows/order_flow/start", {"input": ORDER, "shard_id": deployment.us})
    router = configured(deployment.environment, deployment.urls)
    assert router.place("order_flow", pinned["workflow_id"]) == deployment.us, "a made id leads there by itself"
    _, anywhere = await deployment.post("/workflows/order_flow/start", {"workflow_id": "free", "input": ORDER})
    assert "shard_id" not in anywhere


async def refused_starts(deployment: Deployment) -> None:
    """Never a silent fall back: each refusal is a 400 that names what was asked for, and nothing that is configured."""
    for placement, said in (
        ({"shard_id": 9}, "shard 9 is not a placeable shard for this deployment"),
        ({"residency_key": "mars"}, "residency key 'mars' is not declared for this deployment"),
        ({"residency_key": " "}, "residency key must not be blank"),
        ({"shard_id": 0, "residency_key": "eu"}, "exclude each other"),
        ({"shard_id": 65535}, "65535"),
    ):
        status, told = await deployment.post("/workflows/order_flow/start", {"input": ORDER, **placement})
        assert (status, said in json.dumps(told)) == (400, True), told
        assert '"us"' not in json.dumps(told)


async def the_topology(deployment: Deployment) -> None:
    """`shard_topology` is what the guide shows, byte-stable, and differs where a replica has another map."""
    _, config = await deployment.curl("/admin/config")
    writable = list(deployment.urls)
    assert config["shard_topology"] == {
        "default_shard": 0,
        "readable_shards": writable,
        "reserved_shards": [3] if deployment.cell else [],
        "residency_map": {"eu": 0, "us": deployment.us} | ({"cell-a": 3} if deployment.cell else {}),
        "shard_forwards": {},
        "writable_shards": writable,
    }
    here = await raw_topology(deployment, deployment.url)
    async with console(deployment) as replica:
        assert await raw_topology(deployment, replica) == here
    async with console(deployment, HARVEST_RESIDENCY_MAP="eu=0,apac=0") as replica:
        assert await raw_topology(deployment, replica) != here


async def raw_topology(deployment: Deployment, address: str) -> str:
    """The topology of a replica as text, in its own order."""
    told = await output("curl", "-s", "-H", f"authorization: Bearer {TOKEN}", f"{address}/api/harvest/admin/config")
    return json.dumps(json.loads(told)["shard_topology"])


async def the_cell(deployment: Deployment, shards: Shards) -> None:
    """Work of the cell's key goes to the cell, and nothing else does."""
    if deployment.cell is None:
        return
    status, started = await deployment.post(
        "/workflows/order_flow/start", {"workflow_id": "acme-42", "input": ORDER, "residency_key": "cell-a"}
    )
    assert (status, started["shard_id"]) == (201, deployment.cell)
    for number in range(20):
        await deployment.post("/workflows/order_flow/start", {"workflow_id": f"shared-{number}", "input": ORDER})
    rows = await shards.store(deployment.cell).read.fetch("select workflow_id from harvest_executions")
    assert [row["workflow_id"] for row in rows] == ["acme-42"]


async def reading_a_tree(deployment: Deployment) -> None:
    """Children and tree say whether they are whole."""
    _, found = await deployment.curl("/workflows/by-id/order_flow/order-1001")
    for what in ("children", "tree"):
        status, told = await deployment.curl(f"/workflows/{found['execution_id']}/{what}")
        assert (status, told["status"], told["unavailable_shards"]) == (200, "complete", [])


async def the_relay(shards: Shards) -> None:
    """The three queries run as they stand, on each shard."""
    for store in shards.stores.values():
        for query in (IN_FLIGHT, FAILING, OLDEST):
            assert await store.read.fetch(query) == []


async def lists_over_shards(deployment: Deployment) -> None:
    """A page size, a cursor, a typed predicate and a filter."""
    for number in range(7):
        await deployment.post(
            "/workflows/order_flow/start",
            {"workflow_id": f"listed-{number}", "input": ORDER, "search_attrs": {"tier": number, "tenant_id": "acme"}},
        )
    _, counted = await deployment.curl("/workflows/count")
    seen: list[str] = []
    cursor = ""
    while True:
        _, page = await deployment.curl(f"/workflows?page_size=3{f'&cursor={cursor}' if cursor else ''}")
        seen += [row["execution_id"] for row in page["workflows"]]
        if page["next_cursor"] is None:
            break
        cursor = page["next_cursor"]
    assert len(seen) == len(set(seen)) == counted["count"]
    for query, expected in (
        ("search_attr_filter=tier:gte:5", {"listed-5", "listed-6"}),
        ("search_attr_filter=tier:in:1,3", {"listed-1", "listed-3"}),
        ("filter=attrs.tier%20%3C%202%20AND%20attrs.tenant_id%20%3D%20'acme'", {"listed-0", "listed-1"}),
    ):
        status, page = await deployment.curl(f"/workflows?{query}")
        assert (status, {row["workflow_id"] for row in page["workflows"]}) == (200, expected), query
    status, told = await deployment.curl("/workflows?filter=state%20%3D%20'FAILED'%20OR%20attrs.tier%20%3D%201")
    assert status == 400, told


async def the_usage_report(deployment: Deployment) -> None:
    """Every unit is there, by search attribute, and a window over the ceiling is refused by its name."""
    status, told = await deployment.curl("/admin/usage?from=1h&to=0h&group_by=search_attr:tenant_id")
    groups = {group["group"]: group for group in told["groups"]}
    assert (status, told["status"], told["unavailable_shards"]) == (200, "complete", [])
    assert groups["acme"]["workflow_starts"] == 7
    assert "(unattributed)" in groups
    assert set(UNITS) <= groups["acme"].keys()
    status, told = await deployment.curl("/admin/usage?from=2026-01-01T00:00:00Z&to=2026-07-01T00:00:00Z")
    assert (status, "90" in json.dumps(told)) == (400, True)
    by_cli = await deployment.harvest(
        "usage", "--from", "1h", "--to", "0h", "--group-by", "search_attr:tenant_id", "--json"
    )
    assert {group["group"] for group in by_cli["groups"]} == set(groups)
    table = await deployment.harvest("usage", "--from", "1h", "--to", "0h", "--group-by", "workflow_name")
    assert "order_flow" in table


async def the_readiness_gate(deployment: Deployment) -> None:
    """A covered shard is ready; the cell shows its worker."""
    for shard_id in deployment.urls:
        _, told = await deployment.curl(f"/admin/shards/health?candidate_shard={shard_id}")
        assert (told["candidate_shard"]["readiness"], told["candidate_shard"]["reason_codes"]) == ("ready", []), told
        by_cli = await deployment.harvest("shard", "health", "--candidate-shard", str(shard_id))
        assert by_cli["candidate_shard"]["readiness"] == "ready"


async def the_coverage(deployment: Deployment) -> None:
    """The three checks after the flip: assignments, dispatch, and nothing stranded."""
    _, config = await deployment.curl("/admin/config")
    assert config["worker"]["shard_assignments"] == list(deployment.urls)

    async def metrics() -> str:
        return await output(
            "curl", "-s", "-H", f"authorization: Bearer {TOKEN}", f"{deployment.url}/api/harvest/admin/metrics"
        )

    async def dispatched() -> bool:
        return bool(re.search(r'^harvest_shard_dispatched_total\{[^}]*shard="0"[^}]*\} [1-9]', await metrics(), re.M))

    assert await clock.until(dispatched, within=SOON, every=0.5)
    stranded = re.findall(r"^harvest_shard_stranded_pending\{[^}]*\} (\S+)", await metrics(), re.M)
    assert len(stranded) == deployment.shards
    assert {float(value) for value in stranded} == {0.0}


async def a_shard_is_added(url: str) -> None:
    """`harvest migrate run` with one empty database in the environment, as the runbook begins."""
    environment = {**os.environ, "HARVEST_DATABASE_URL": url}
    environment.pop("HARVEST_DATABASE_URLS", None)
    assert await schema_level(url) == 0
    await output(*HARVEST, "migrate", "run", environment=environment)
    assert await schema_level(url) == SCHEMA_LEVEL
