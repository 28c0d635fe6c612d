"""What processes take of a server's connections, whether there is room for it, and that no wait for one is a circle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest
from litestar.testing import AsyncTestClient

from harvest import ChildPlacement, Harvest, WorkflowContext
from harvest.shards import Shards, connections
from harvest.shards.connections import BESIDE, ROLES, ServerRoom, need, rooms, warn_of_room, warning_text
from harvest.store.pool import Connections, Role
from harvest.store.store import Store
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, BEARER, settings
from tests.console.serving import served
from tests.shards.colocating import colocated
from tests.support import at_work, check_invariants, eventually

SOON = timedelta(seconds=120)
app = Harvest()


@app.activity
async def ten() -> int:
    return 10


@app.workflow
async def leaf(ctx: WorkflowContext, n: int) -> int:
    return n + await ctx.execute_activity(ten)


@app.workflow
async def listens(ctx: WorkflowContext, words: int) -> list[str]:
    return [await ctx.wait_for_signal("word", str) for _ in range(words)]


@app.workflow
async def crosses(ctx: WorkflowContext, there: int, words: int) -> int:
    """Children on the other shard, and signals by key to runs that any may have."""
    abroad = leaf.with_options(placement=ChildPlacement.Shard(there))
    children = [await ctx.start_child_workflow(abroad, n) for n in range(3)]
    for n in range(words):
        await ctx.signal_external_workflow_by_id("listens", f"l-{there}", "word", f"{n}")
    return sum([await child for child in children])


@pytest.fixture
def smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pool has one connection."""

    def one(self: Store, role: Role) -> Connections:
        return Connections(self.shard_id, self.address, msgspec.structs.replace(role, size=1))

    monkeypatch.setattr(Store, "_connections", one)


_holding: ContextVar[tuple[Connections, asyncio.Task[Any] | None] | None] = ContextVar("holding", default=None)
# What tells others, in a task of its own, for which nobody waits who holds a connection.
_BESIDE = ("Waker._send", "Hints._send")


@pytest.fixture
def nested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every time that somebody who holds a connection, or a task of his, asks for another."""
    found: list[str] = []
    original = Connections.connection

    @asynccontextmanager
    async def watched(self: Connections, limit: float | None = None, *, writes: bool = False) -> AsyncIterator[Any]:
        task = asyncio.current_task()
        name = getattr(task.get_coro(), "__qualname__", "") if task is not None else ""
        held = _holding.get()
        if held is not None and name not in _BESIDE:
            found.append(
                f"{name} wants {self.role.name} of {self.shard_id}, holding {held[0].role.name} of {held[0].shard_id}"
            )
        async with original(self, limit, writes=writes) as connection:
            token = _holding.set((self, task))
            try:
                yield connection
            finally:
                _holding.reset(token)

    monkeypatch.setattr(Connections, "connection", watched)
    return found


@pytest.mark.usefixtures("smallest")
async def test_with_the_smallest_pools_and_both_sides_busy_everything_crosses(
    new_database: Callable[[str], str], nested: list[str]
) -> None:
    urls = {0: new_database("smallest_0"), 1: new_database("smallest_1")}
    each, words = 8, 4
    async with at_work(app, urls) as (_, shards):
        listeners = [
            await app.start(listens, each * words, workflow_id=f"l-{shard_id}", shard_id=shard_id) for shard_id in urls
        ]
        starts = [app.start(crosses, 1 - shard_id, words, shard_id=shard_id) for _ in range(each) for shard_id in urls]
        runs = [await start for start in starts]
        assert [await run.result(SOON) for run in runs] == [33] * len(runs)
        for listener in listeners:
            assert len(await listener.result(SOON)) == each * words
        await check_invariants(shards)
    assert nested == [], "nobody holds a connection while waiting for another: so there is no circle"


async def sessions(shards: Shards) -> dict[str, int]:
    """The open sessions on the server of these shards, by name."""
    rows = await shards.store(0).read.fetch(
        """select application_name, count(*)::int from pg_stat_activity
            where application_name like 'harvest-%' and datname = current_database() group by 1"""
    )
    return {row[0]: row[1] for row in rows}


async def test_a_worker_opens_the_pools_that_are_counted_for_it_and_no_more(new_database: Callable[[str], str]) -> None:
    urls = await colocated(new_database, "counted")
    async with at_work(app, urls) as (_, shards):
        runs = [await app.start(crosses, 1 - n % 2, 0, shard_id=n % 2) for n in range(20)]
        for run in runs:
            await run.result(SOON)
        found = await sessions(shards)
        client = {role.name: role.size for role in ROLES["console"]}
    allowed: dict[str, int] = {f"harvest-{role.name}": role.size * 2 for role in ROLES["worker"]}
    for name, size in client.items():
        # The client of this test has its own, and so has the test.
        allowed[f"harvest-{name}"] = allowed.get(f"harvest-{name}", 0) + size * 4
    beside = {name for name in found if name not in allowed}
    assert beside == {"harvest-lease", "harvest-listen-harvest_wake.north", "harvest-listen-harvest_wake.south"}
    assert found["harvest-lease"] == len(urls)
    assert len(BESIDE["worker"]) == 2
    for name, count in found.items():
        assert count <= allowed.get(name, 2), name


async def test_shards_in_one_database_are_one_server_with_their_sum(new_database: Callable[[str], str]) -> None:
    urls = await colocated(new_database, "one_server")
    async with at_work(app, urls) as (worker, shards):

        async def known() -> bool:
            (row,) = (await rooms(shards)).rows
            return row.workers == 1

        await eventually(known)
        (row,) = (await rooms(shards)).rows
        assert row.shards == [0, 1]
        assert (row.worker_need, row.need) == (2 * need("worker"), 2 * need("worker"))
        (again,) = (await rooms(shards, beside=("worker", worker.id))).rows
        assert (again.workers, again.need) == (1, row.need), "it counts once"
        (other,) = (await rooms(shards, beside=("console", UUID(int=7)))).rows
        assert (other.consoles, other.need) == (1, row.need + 2 * need("console"))
        settings_of = await shards.store(0).read.fetch(
            "select current_setting('max_connections')::int, current_setting('superuser_reserved_connections')::int"
        )
        assert (row.max_connections, row.reserved) == tuple(settings_of[0])
        assert row.usable == row.max_connections - row.reserved
        assert 0 < row.in_use <= row.max_connections


async def test_a_limit_of_the_database_is_the_room_there(new_database: Callable[[str], str]) -> None:
    url = new_database("limited")
    shards = await Shards.open({0: url})
    try:
        name = shards.store(0).address.database
        await shards.store(0).write.write(f'alter database "{name}" connection limit 30')
        (row,) = (await rooms(shards)).rows
        assert row.usable == 30
    finally:
        await shards.close()


async def test_a_process_that_starts_says_where_there_is_no_room_for_all(
    new_database: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    urls = await colocated(new_database, "no_room")
    shards = await Shards.open(urls)
    try:
        with caplog.at_level(logging.WARNING, "harvest.shards"):
            caplog.clear()  # of what was said while the schemas were made
            await warn_of_room(shards, "worker", UUID(int=1), lambda store: store.scan)
            assert not caplog.records
            for n in range(10):
                for store in shards.stores.values():
                    await store.write.write(
                        """insert into harvest_processes (process, kind, name, host, pid, digest, topology)
                           values ($1, 'worker', 'w', 'h', 1, '', '{}')""",
                        UUID(int=n + 2),
                    )
            await warn_of_room(shards, "worker", UUID(int=1), lambda store: store.scan)
        (record,) = caplog.records
        text = record.getMessage()
        assert f"(shards 0, 1): 11 workers and 0 consoles may open {22 * need('worker')} connections" in text
        assert "there is room for " in text
        assert "postgres:" not in text
    finally:
        await shards.close()


async def test_the_warning_names_the_server_the_shards_the_need_and_the_room() -> None:
    row = ServerRoom(
        server="db:5432", shards=[0, 2], max_connections=100, reserved=3, usable=97, in_use=5, workers=3, consoles=1,
        worker_need=36, console_need=34, need=142,
    )  # fmt: skip
    assert not row.fits
    assert warning_text(row).startswith(
        "database server db:5432 (shards 0, 2): 3 workers and 1 consoles may open 142 connections (36 a worker, 34 a "
        "console), and there is room for 97 (max_connections 100, 3 reserved)"
    )


async def test_a_server_that_does_not_answer_is_no_reason_not_to_start(caplog: pytest.LogCaptureFixture) -> None:
    shards = await Shards.open({0: "postgresql://postgres@/x?host=/nonexistent"})
    try:
        with caplog.at_level(logging.WARNING):
            await connections.warn_of_room(shards, "worker", UUID(int=1), lambda store: store.scan)
        assert not [record for record in caplog.records if "there is room" in record.getMessage()]
    finally:
        await shards.close()


async def test_the_configuration_in_force_tells_the_room_of_each_server(new_database: Callable[[str], str]) -> None:
    urls = await colocated(new_database, "config_room")
    async with AsyncTestClient(create_app(settings(urls)), base_url=ADDRESS) as console:
        answer = (await console.get("/api/harvest/admin/config", headers=BEARER)).json()
    (pools,) = answer["pools"]
    assert pools["shards"] == [0, 1]
    assert pools["worker_need"] == 2 * sum(role.size for role in ROLES["worker"]) + 2 * len(BESIDE["worker"])
    assert {"server", "max_connections", "reserved", "usable", "in_use", "need"} <= pools.keys()
    assert {role["name"]: role["size"] for role in answer["pool"]}.items() >= {
        role.name: role.size for role in ROLES["worker"]
    }.items()


def test_the_page_for_operators_has_the_numbers_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations" / "connections.md").read_text()
    assert f"| **at most** | **{need('worker')}** | **{need('console')}** |" in page
    for kind in ("worker", "console"):
        for role in ROLES[kind]:
            assert f"`{role.name}`" in page
    assert f"workers x {need('worker')} x shards + consoles x {need('console')} x shards" in page
    client = sum(role.size for role in ROLES["console"] if role.name in ("scan", "write", "read"))
    assert f"{client} at most" in page


async def test_the_watch_over_nested_connections_has_teeth(
    new_database: Callable[[str], str], nested: list[str]
) -> None:
    shards = await Shards.open({0: new_database("nested")})
    store = shards.store(0)
    try:
        async with store.scan.connection():
            await shards.fan_out(lambda one: one.read.fetch("select 1"))
        assert len(nested) == 1
        assert "wants read of 0, holding scan of 0" in nested[0]
        await store.read.fetch("select 1")
        assert len(nested) == 1
    finally:
        await shards.close()


ASKED: list[tuple[str, str, Any]] = [
    ("POST", "/workflows/listens/start", {"input": 3, "workflow_id": "api", "shard_id": 1}),
    ("POST", "/workflows/listens/start", {"input": 3, "workflow_id": "api", "conflict_policy": "use_existing"}),
    ("POST", "/workflows/leaf/start", {"input": 1, "idempotency_key": "k"}),
    ("POST", "/workflows/leaf/start", {"input": 1, "idempotency_key": "k"}),
    (
        "POST",
        "/workflows/batch_start",
        {"items": [{"workflow_name": "leaf", "input": n} for n in range(4)], "atomic": False},
    ),
    (
        "POST",
        "/workflows/listens/signal-with-start",
        {"workflow_id": "w", "start_input": 1, "signal_name": "word", "signal_payload": "x"},
    ),
    ("POST", "/workflows/by-id/listens/api/signal/word", "one"),
    ("POST", "/workflows/by-id/listens/api/pause", {}),
    ("POST", "/workflows/by-id/listens/api/resume", {}),
    ("GET", "/workflows/by-id/listens/api/history", None),
    ("GET", "/workflows/by-id/listens/api/stack", None),
    ("GET", "/workflows/by-id/listens/api/children", None),
    ("POST", "/workflows/by-id/listens/api/cancel", {}),
    ("POST", "/workflows/listens/start", {"input": 3, "workflow_id": "again", "shard_id": 0}),
    ("POST", "/workflows/by-id/listens/again/terminate", {"reason": "r"}),
    ("GET", "/workflows?page_size=5", None),
    ("GET", "/workflows/count", None),
    ("GET", "/workflows/registered", None),
    ("GET", "/workers", None),
    ("GET", "/admin/audit", None),
    ("GET", "/admin/config", None),
    ("GET", "/admin/topology", None),
    ("GET", "/admin/views", None),
    ("GET", "/admin/erasures", None),
    ("GET", "/admin/usage?from=24h&to=1s&group_by=workflow_name", None),
    ("GET", "/admin/warmth", None),
    ("GET", "/admin/owner-mode", None),
    ("GET", "/admin/shards/relay", None),
    ("GET", "/admin/canary", None),
    ("GET", "/admin/shards/health", None),
    ("GET", "/admin/resolve?workflow_name=listens&workflow_id=api", None),
]
PAGES = ("/", "/workflows", "/workers", "/shards", "/shards/0", "/shards/topology", "/shards/0/partitions", "/audit")


@pytest.mark.usefixtures("smallest")
async def test_nothing_that_people_ask_for_needs_two_connections_at_once(
    new_database: Callable[[str], str], nested: list[str]
) -> None:
    urls = {0: new_database("asked_0"), 1: new_database("asked_1")}
    async with (
        at_work(app, urls),
        served(settings(urls)) as address,
        httpx.AsyncClient(base_url=address, headers=BEARER, timeout=30) as console,
    ):
        for method, path, body in ASKED:
            response = await console.request(method, f"/api/harvest{path}", json=body)
            assert response.status_code < 300, (path, response.text)
        for page in PAGES:
            response = await console.get(page, headers={"accept": "text/html"})
            assert response.status_code == 200, page
    assert nested == []
