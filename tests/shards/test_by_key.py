"""Business keys over shards with a real worker and the API: what waits, what is found, and what the figures say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient

from harvest import ExternalWorkflowError, Harvest, WorkflowContext
from harvest.errors import WorkflowFailedError
from harvest.history.states import State
from harvest.operations import reading
from harvest.shards import ShardRouter, Shards
from harvest.store.measures import Totals
from harvest.worker.worker import Worker
from harvest_console.app import create_app
from harvest_console.embedded import EmbeddedPostgres
from tests.console.conftest import ADDRESS, BEARER, DEAD, settings
from tests.faults.conftest import mortal_database, mortal_server
from tests.faults.proxy import proxied
from tests.operations.population import Run, add, register
from tests.support import FAST, at_work, eventually

__all__ = ["mortal_database", "mortal_server"]
SOON = timedelta(seconds=90)
app = Harvest()


@app.workflow
async def listens(ctx: WorkflowContext) -> str:
    return await ctx.wait_for_signal("word", str)


@app.workflow
async def speaks(ctx: WorkflowContext, name: str) -> str:
    try:
        await ctx.signal_external_workflow_by_id("listens", name, "word", "hello")
    except ExternalWorkflowError as error:
        return str(error.fields["reason_code"])
    return "delivered"


@app.workflow
async def stops(ctx: WorkflowContext, name: str) -> str:
    try:
        await ctx.cancel_external_workflow_by_id("listens", name, "enough of it")
    except ExternalWorkflowError as error:
        return str(error.fields["reason_code"])
    return "asked"


@app.workflow
async def follows(ctx: WorkflowContext, name: str) -> str:
    return str(await ctx.await_external_workflow_by_id("listens", name))


@pytest.fixture
def two(new_database: Callable[[str], str]) -> dict[int, str]:
    return {0: new_database("key_0"), 1: new_database("key_1")}


async def test_two_live_runs_of_one_key_are_both_cancelled_before_the_workflow_hears_of_it(two: dict[int, str]) -> None:
    async with at_work(app, two):
        runs = [await app.start(listens, workflow_id="one", shard_id=shard_id) for shard_id in two]
        assert await (await app.start(stops, "one")).result(SOON) == "asked"
        for run in runs:
            with pytest.raises(WorkflowFailedError) as ended:
                await run.result(SOON)
            assert ended.value.fields["state"] == "CANCELLED"


async def test_a_cancel_of_nobody_says_so(two: dict[int, str]) -> None:
    async with at_work(app, two):
        assert await (await app.start(stops, "nobody")).result(SOON) == "target_unknown"
        ended = await app.start(listens, workflow_id="over", shard_id=1)
        await ended.signal("word", "bye")
        await ended.result(SOON)
        assert await (await app.start(stops, "over", shard_id=0)).result(SOON) == "target_terminal"


async def test_the_end_of_a_run_on_the_other_shard_is_awaited_by_its_key(two: dict[int, str]) -> None:
    async with at_work(app, two):
        target = await app.start(listens, workflow_id="one", shard_id=1)
        run = await app.start(follows, "one", shard_id=0)
        await target.signal("word", "done")
        assert await run.result(SOON) == "done"


@asynccontextmanager
async def narrow(urls: dict[int, str], router: ShardRouter) -> AsyncIterator[tuple[Worker, Shards]]:
    """A worker whose router knows more shards than have a database there."""
    await app.connect(urls, router=router)
    shards = await Shards.open(urls, router)
    worker = Worker(app.registry, shards, FAST)
    await worker.start()
    try:
        yield worker, shards
    finally:
        await worker.stop()
        await shards.close()
        await app.close()


def told_by(worker: Worker) -> Totals:
    found = Totals()
    for part in worker._parts.values():
        found.add(part.committer.tracer.measures.whole)
        found.add(part.committer.tracer.measures.fresh)
    return found


async def test_a_shard_without_a_pool_keeps_signals_waiting_and_the_figures_say_so(two: dict[int, str]) -> None:
    router = ShardRouter(readable=(0, 1, 2), writable=(0, 1), default=0)
    async with narrow(two, router) as (worker, shards):
        found = await app.start(listens, workflow_id="here", shard_id=1)
        assert await (await app.start(speaks, "here")).result(SOON) == "delivered"
        assert await found.result(SOON) == "hello"
        waiting = [await app.start(flow, "nobody", shard_id=0) for flow in (speaks, stops)]

        async def tried() -> bool:
            for part in worker._parts.values():
                await part.deliverer.seeker.look_at_age()
                await part.rollups.write_rollup()
            gauges = told_by(worker).gauges
            return all(
                gauges[f"external_{what}.by_id_oldest_pending_indeterminate_age", "0"] > 0
                for what in ("signal", "cancel")
            )

        await eventually(tried)
        counters = told_by(worker).counters
        assert counters["external_signal.by_id_indeterminate_shard", "2", "no_pool"] >= 2
        assert counters["external_signal.by_id_found_over_incomplete_fanout",] == 1
        for run in waiting:
            assert (await reading.get(shards, run.execution_id)).state == State.RUNNING.name
    async with AsyncTestClient(create_app(settings(two)), base_url=ADDRESS) as console:
        text = (await console.get("/metrics", headers=BEARER)).text
    assert 'harvest_external_signal_by_id_oldest_pending_indeterminate_age_seconds{shard="0"}' in text
    assert 'harvest_external_cancel_by_id_oldest_pending_indeterminate_age_seconds{shard="0"}' in text


async def test_a_delivery_by_key_waits_for_a_shard_and_finishes_when_it_returns(
    new_database: Callable[[str], str], mortal_server: EmbeddedPostgres, mortal_database: str
) -> None:
    urls = {0: new_database("key_present"), 1: mortal_database}
    async with at_work(app, urls) as (_, shards):
        target = await app.start(listens, workflow_id="there", shard_id=1)
        mortal_server.kill()
        run = await app.start(speaks, "there", shard_id=0)

        async def put_off() -> bool:
            rows = await shards.store(0).read.fetch("select attempts from harvest_deliveries where last_error <> ''")
            return bool(rows)

        await eventually(put_off)
        mortal_server.start()
        assert await run.result(SOON) == "delivered"
        assert await target.result(SOON) == "hello"


# The API


@asynccontextmanager
async def asked(urls: dict[int, str], router: ShardRouter | None = None) -> AsyncIterator[httpx.AsyncClient]:
    async with AsyncTestClient(create_app(settings(urls, router=router)), base_url=ADDRESS) as console:
        console.headers.update(BEARER)
        yield console


@asynccontextmanager
async def without(urls: dict[int, str], how: str) -> AsyncIterator[httpx.AsyncClient]:
    """A console that cannot look at shard 1."""
    if how == "no pool":
        async with asked({0: urls[0]}, ShardRouter.of((0, 1))) as console:
            yield console
    elif how == "absent":
        async with asked({0: urls[0], 1: DEAD}) as console:
            yield console
    else:
        async with proxied(urls[1]) as proxy, asked({0: urls[0], 1: proxy.url}) as console:
            proxy.stall()
            yield console


KEYED: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("GET", "/history", None),
    ("GET", "/children", None),
    ("GET", "/result?wait=0s", None),
    ("POST", "/signal/word", "x"),
    ("POST", "/cancel", {}),
    ("POST", "/pause", {}),
    ("POST", "/terminate", {"reason": "r"}),
]
HOW = ("no pool", "absent", "stalled")


@pytest.fixture
async def population(two: dict[int, str]) -> AsyncIterator[Shards]:
    shards = await Shards.open(two)
    for shard_id in two:
        await register(shards, shard_id, "order_flow")
    yield shards
    await shards.close()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("there", ["nothing", "an ended run"])
async def test_the_api_says_nothing_of_a_key_while_a_shard_is_not_looked_at(
    two: dict[int, str], population: Shards, how: str, there: str
) -> None:
    if there == "an ended run":
        await add(population, 0, Run(state=State.COMPLETED))
    async with without(two, how) as console:
        for method, path, body in KEYED:
            response = await console.request(method, f"/api/harvest/workflows/by-id/order_flow/o-1{path}", json=body)
            assert (response.status_code, response.json()["code"]) == (503, "HVT-401"), path
            assert [shard["shard_id"] for shard in response.json()["unavailable_shards"]] == [1], path


@pytest.mark.parametrize("how", HOW)
async def test_the_api_reaches_a_live_run_that_was_found_without_all_shards(
    two: dict[int, str], population: Shards, how: str
) -> None:
    run = await add(population, 0, Run())
    async with without(two, how) as console:
        for method, path, body in KEYED:
            response = await console.request(method, f"/api/harvest/workflows/by-id/order_flow/o-1{path}", json=body)
            assert response.status_code < 300, (path, response.text)
            if path != "/children":
                assert response.headers["x-harvest-execution-id"] == str(run), path


@pytest.mark.parametrize("live", [0, 1])
async def test_the_api_means_the_live_run_whatever_shard_has_a_stale_one(
    two: dict[int, str], population: Shards, live: int
) -> None:
    run = await add(population, live, Run(age=100))
    await add(population, 1 - live, Run(age=1, state=State.COMPLETED))
    async with asked(two) as console:
        found = await console.get("/api/harvest/workflows/by-id/order_flow/o-1")
    assert found.json()["execution_id"] == str(run)
