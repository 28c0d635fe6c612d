"""Several shards in one database, each in its own schema: all of it works, and nothing of one is seen by another."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from examples import shop
from harvest import ChildPlacement, Harvest, WorkflowContext, clock
from harvest.history.states import State
from harvest.operations import listing, overview, owner_mode, reading, resolving, trees
from harvest.operations.actor import in_process
from harvest.operations.listing import ListFilter
from harvest.shards import Shards
from harvest.store import migrate
from harvest.store.listening import listen
from harvest.store.wakes import CHANNEL, LIVE_CHANNEL
from harvest.worker.worker import Worker
from harvest_console.cli import schema
from harvest_console.embedded import EmbeddedPostgres
from tests.shards.colocating import SCHEMAS, colocated, plain, rows_elsewhere
from tests.support import at_work, check_invariants, eventually

SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]
app = Harvest()
for workflow in shop.app.registry.workflows.values():
    app.registry.add_workflow(workflow)
for activity in shop.app.registry.activities.values():
    app.registry.add_activity(activity)


@app.workflow
async def sends_abroad(ctx: WorkflowContext, shard_id: int) -> list[str]:
    abroad = shop.parcel_flow.with_options(placement=ChildPlacement.Shard(shard_id))
    return [await ctx.execute_child_workflow(abroad, number) for number in range(3)]


@app.workflow
async def approves(ctx: WorkflowContext, order_id: str) -> str:
    await ctx.signal_external_workflow_by_id("order_flow", order_id, "approved", shop.Approval(by="a workflow"))
    return "approved"


@pytest.fixture
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    urls = await colocated(new_database, "colocated")
    async with at_work(app, urls) as working:
        yield working
        await check_invariants(working[1])
    assert await rows_elsewhere(urls[0]) == {}


async def ids_on(shards: Shards, shard_id: int) -> set[UUID]:
    rows = await shards.store(shard_id).read.fetch("select execution_id from harvest_executions")
    return {row["execution_id"] for row in rows}


async def test_orders_on_both_shards_are_shipped_and_each_is_where_it_was_placed(work: Work) -> None:
    _, shards = work
    for shard_id in SCHEMAS:
        handle = await app.start(
            shop.order_flow, shop.Order(items=["book"]), workflow_id=f"o-{shard_id}", shard_id=shard_id
        )
        await handle.signal("approved", shop.Approval(by="Ada"))
        assert (await handle.result(SOON)).approved_by == "Ada"
        assert handle.execution_id in await ids_on(shards, shard_id)
        assert handle.execution_id not in await ids_on(shards, 1 - shard_id)
    listed = await listing.list_executions(shards, ListFilter())
    assert {row.shard_id for row in listed.executions.rows} == {0, 1}
    assert (await listing.count(shards, ListFilter())).count == 2


async def test_children_cross_from_one_to_the_other_and_the_tree_has_both(work: Work) -> None:
    _, shards = work
    for shard_id in SCHEMAS:
        handle = await app.start(sends_abroad, 1 - shard_id, shard_id=shard_id)
        assert len(await handle.result(SOON)) == 3
        tree = await trees.tree(shards, handle.execution_id)
        assert tree.root.shard_id == shard_id
        assert {child.shard_id for child in tree.root.children} == {1 - shard_id}


async def test_a_key_is_found_on_whichever_shard_it_is(work: Work) -> None:
    _, shards = work
    for shard_id in SCHEMAS:
        order = await app.start(shop.order_flow, shop.Order(), workflow_id=f"key-{shard_id}", shard_id=shard_id)
        assert await resolving.resolve(shards, "order_flow", f"key-{shard_id}") == order.execution_id
        run = await app.start(approves, f"key-{shard_id}", shard_id=1 - shard_id)
        assert await run.result(SOON) == "approved"
        assert (await order.result(SOON)).approved_by == "a workflow"


async def test_owner_mode_is_a_switch_of_each_of_them(work: Work) -> None:
    _, shards = work
    actor = in_process("test")

    async def scanned() -> bool:
        rows = await shards.store(0).read.fetch("select 1 from harvest_workers where scanned_at is not null")
        return bool(rows)

    await eventually(scanned)
    await owner_mode.enable(shards, actor, 0, reason="a test")
    status = {row.shard_id: row for row in (await owner_mode.status(shards)).rows}
    assert (status[0].enabled, status[1].enabled) == (True, False)

    async def owned() -> bool:
        rows = await shards.store(0).read.fetch("select count(*) from harvest_partitions where owner is not null")
        return bool(rows[0][0] == 512)

    await eventually(owned)
    assert not await shards.store(1).read.fetch("select 1 from harvest_partitions where owner is not null")
    for shard_id in SCHEMAS:
        handle = await app.start(shop.import_orders, 5, shard_id=shard_id)
        assert await handle.result(SOON) == sum(100 + n for n in range(5))
    await owner_mode.disable(shards, actor, 0, reason="a test")


async def heard_by(shards: Shards, shard_id: int, channel: str, act: Callable[[], Any]) -> list[str]:
    """What a listener of a shard hears until it hears the last word, which is `end`."""
    heard: list[str] = []
    ready, ended = asyncio.Event(), asyncio.Event()

    def on_payload(text: str) -> None:
        heard.append(text)
        if text == "end":
            ended.set()

    store = shards.store(shard_id)
    listening = asyncio.create_task(listen(store, channel, on_payload, ready.set))
    try:
        assert await clock.wait_event(ready, 10)
        await act()
        await store.scan.write("select pg_notify($1, 'end')", store.address.channel(channel))
        assert await clock.wait_event(ended, 10)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    return heard[:-1]


@pytest.mark.parametrize("channel", [CHANNEL, LIVE_CHANNEL])
async def test_wakes_and_hints_of_one_shard_are_not_heard_on_another(
    new_database: Callable[[str], str], channel: str
) -> None:
    shards = await Shards.open(await colocated(new_database, f"channels_{channel}"))

    async def act() -> None:
        for shard_id in SCHEMAS:
            store = shards.store(shard_id)
            await store.scan.write("select pg_notify($1, $2)", store.address.channel(channel), f"for {shard_id}")

    try:
        for shard_id in SCHEMAS:
            assert await heard_by(shards, shard_id, channel, act) == [f"for {shard_id}"]
    finally:
        await shards.close()


async def test_the_waker_sends_on_its_shards_own_channel(new_database: Callable[[str], str]) -> None:
    shards = await Shards.open(await colocated(new_database, "waker"))

    async def wake() -> None:
        for store in shards.stores.values():
            store.waker.wake(UUID(int=store.shard_id))
            await store.waker.close()

    try:
        for shard_id in SCHEMAS:
            assert await heard_by(shards, shard_id, CHANNEL, wake) == [UUID(int=shard_id).hex]
    finally:
        await shards.close()


async def test_every_session_of_a_worker_is_in_its_shards_schema(work: Work) -> None:
    _, shards = work
    await (await app.start(sends_abroad, 1, shard_id=0)).result(SOON)
    connection: Any = await asyncpg.connect(plain({0: shards.store(0).address.dsn}))
    try:
        # What each session can see by its bare name: the tables of one schema only.
        for store in shards.stores.values():
            for pool in (store.commit, store.claim, store.scan, store.deliver, store.write, store.read):
                row = await pool.fetch_row("select current_schemas(false)::text[] as names, current_schema as mine")
                assert row is not None
                assert (row["names"], row["mine"]) == ([SCHEMAS[store.shard_id]], SCHEMAS[store.shard_id])
        names = await connection.fetch("select distinct application_name from pg_stat_activity")
    finally:
        await connection.close()
    told = {row["application_name"] for row in names}
    assert {"harvest-listen-harvest_wake.north", "harvest-listen-harvest_wake.south", "harvest-lease"} <= told


async def test_the_lease_of_each_is_renewed_where_it_is(work: Work) -> None:
    worker, shards = work
    for store in shards.stores.values():
        rows = await store.read.fetch("select worker from harvest_workers")
        assert [row["worker"] for row in rows] == [worker.id]
    ends = {
        store: (await store.read.fetch("select lease_until from harvest_workers"))[0][0]
        for store in shards.stores.values()
    }

    async def renewed() -> bool:
        now = [(await s.read.fetch("select lease_until from harvest_workers"))[0][0] for s in shards.stores.values()]
        return all(new > old for new, old in zip(now, ends.values(), strict=True))

    await eventually(renewed)


async def test_migrating_makes_the_schema_and_leaves_all_others_alone(postgres_server: EmbeddedPostgres) -> None:
    url = postgres_server.ensure_database("colocated_empty")
    urls = {4: f"{url}&schema=four", 5: f"{url}&schema=five"}
    assert set((await schema.levels(urls)).values()) == {0}
    await asyncio.create_task(schema.bring_up({4: urls[4]}))
    assert await schema.levels(urls) == {4: migrate.SCHEMA_LEVEL, 5: 0}
    await asyncio.create_task(schema.bring_up(urls))
    assert set((await schema.levels(urls)).values()) == {migrate.SCHEMA_LEVEL}
    await migrate.check(urls[5], 5)
    assert await migrate.schema_level(url) == 0, "nothing is in the usual schema"
    connection: Any = await asyncpg.connect(url)
    try:
        versions = await connection.fetch(
            "select schemaname from pg_tables where tablename = 'harvest_alembic_version'"
        )
    finally:
        await connection.close()
    assert {row[0] for row in versions} == {"four", "five"}


async def test_two_schemas_of_one_database_are_migrated_side_by_side(postgres_server: EmbeddedPostgres) -> None:
    url = postgres_server.ensure_database("colocated_together")
    urls = [f"{url}&schema=s{n}" for n in range(3)]
    await asyncio.create_task(_upgrade_all(urls))
    assert [await migrate.schema_level(each) for each in urls] == [migrate.SCHEMA_LEVEL] * 3


async def _upgrade_all(urls: list[str]) -> None:
    await asyncio.gather(*(migrate.upgrade(each, shard_id=n) for n, each in enumerate(urls)))


async def test_what_reads_over_all_shards_counts_each_once(work: Work) -> None:
    _, shards = work
    await (await app.start(shop.import_orders, 2, shard_id=1)).result(SOON)
    seen = await overview.overview(shards)
    assert [len(shard.workers) for shard in seen.shards] == [1, 1]
    (run,) = (await listing.list_executions(shards, ListFilter())).executions.rows
    assert run.shard_id == 1
    assert (await reading.get(shards, run.execution_id)).state == State.COMPLETED.name


def said(verb: str, urls: dict[int, str]) -> subprocess.CompletedProcess[str]:
    """`harvest migrate VERB` over these shards, as a process."""
    environment = {**os.environ, "HARVEST_DATABASE_URLS": ",".join(f"{n}={url}" for n, url in urls.items())}
    command = [sys.executable, "-m", "harvest_console.cli", "migrate", verb]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_the_commands_take_colocated_shards_as_any_others(postgres_server: EmbeddedPostgres) -> None:
    url = postgres_server.ensure_database("colocated_commands")
    urls = {0: f"{url}&schema=one", 1: f"{url}&schema=two"}
    assert said("status", urls).returncode == 1
    run = said("run", urls)
    assert run.returncode == 0, run.stderr
    assert f"shard 1: level {migrate.SCHEMA_LEVEL}" in run.stdout
    assert said("status", urls).returncode == 0
    swapped = said("status", {0: urls[1], 1: urls[0]})
    assert "this database is shard 1, but it is configured as shard 0" in swapped.stdout


@pytest.mark.parametrize("schema_of_second", ["one", "Two"])
def test_a_schema_that_cannot_be_ends_the_command_with_what_to_write(schema_of_second: str) -> None:
    url = "postgresql://postgres:secret@/x?host=/nonexistent"
    refused = said("run", {0: f"{url}&schema=one", 1: f"{url}&schema={schema_of_second}"})
    assert refused.returncode == 2
    assert "?schema=shard_1" in refused.stderr if schema_of_second == "one" else "lower-case" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "secret" not in refused.stderr
