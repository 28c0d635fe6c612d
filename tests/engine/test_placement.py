"""Runs that are placed from code: where they live, and that all that follow from them live there too."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from uuid import UUID

import pytest

from harvest import Harvest, PlacementError, Retry, ShardRouter, WorkflowContext, WorkflowFailedError
from harvest.history.ids import shard_of
from harvest.shards import Shards
from harvest.testing import WorkflowEnvironment
from harvest.worker.worker import Worker
from tests.support import FAST, at_work, check_invariants

app = Harvest()
SOON = timedelta(seconds=60)
MAP = {"eu": 0, "us": 1}


@app.workflow
async def greets(ctx: WorkflowContext, name: str) -> str:
    return f"hello {name}"


@app.workflow
async def goes_on(ctx: WorkflowContext, left: int) -> int:
    if left:
        ctx.continue_as_new(left - 1)
    return left


@app.workflow(retry=Retry(max_attempts=3, initial_interval=timedelta(milliseconds=10)))
async def third_time(ctx: WorkflowContext) -> int:
    if ctx.info.attempt < 3:
        raise ValueError("not yet")
    return ctx.info.attempt


@app.workflow(retry=Retry(max_attempts=2, initial_interval=timedelta(milliseconds=10)))
async def never(ctx: WorkflowContext) -> None:
    raise ValueError("no")


@pytest.fixture(scope="module")
async def shards(new_database: Callable[[str], str]) -> AsyncIterator[Shards]:
    """Two shards with a worker on both."""
    urls = {0: new_database("placed_0"), 1: new_database("placed_1")}
    async with at_work(app, urls) as (_, opened):
        await app.connect(urls, router=ShardRouter(readable=(0, 1), writable=(0, 1), default=0, residency=MAP))
        yield opened
        await check_invariants(opened)


def against_its_hash(shards: Shards, workflow_name: str, stem: str) -> tuple[str, int]:
    """A workflow id, and the shard that it does not lead to."""
    return stem, 1 - shards.router.pick(workflow_name, stem)


async def chain(shards: Shards, workflow_id: str) -> list[tuple[int, UUID]]:
    """Every run of a workflow id on any shard, each with its shard."""
    found = []
    for store in shards.stores.values():
        rows = await store.read.fetch("select execution_id from harvest_executions where workflow_id = $1", workflow_id)
        found += [(store.shard_id, row["execution_id"]) for row in rows]
    return found


async def test_a_start_takes_a_shard_or_a_residency_key(shards: Shards) -> None:
    for key, shard_id in MAP.items():
        by_key = await app.start(greets, "ann", residency_key=key)
        by_number = await app.start(greets, "bob", shard_id=shard_id)
        assert [shard_of(each.execution_id) for each in (by_key, by_number)] == [shard_id, shard_id]
        assert await by_key.result(SOON) == "hello ann"
        assert await by_number.result(SOON) == "hello bob"


async def test_a_start_that_cannot_be_placed_raises(shards: Shards) -> None:
    with pytest.raises(PlacementError, match="'mars' is not declared"):
        await app.start(greets, "ann", residency_key="mars")
    with pytest.raises(PlacementError, match="exclude each other"):
        await app.start(greets, "ann", residency_key="eu", shard_id=0)


@pytest.mark.parametrize("flow", [goes_on, third_time], ids=["continue-as-new", "retry"])
async def test_what_follows_a_placed_run_lives_where_it_does(shards: Shards, flow: object) -> None:
    workflow = goes_on if flow is goes_on else third_time
    workflow_id, elsewhere = against_its_hash(shards, workflow.name, f"follows-{workflow.name}")
    if workflow is goes_on:
        run = await app.start(goes_on, 4, workflow_id=workflow_id, shard_id=elsewhere)
    else:
        run = await app.start(third_time, workflow_id=workflow_id, shard_id=elsewhere)
    await run.result(SOON)
    runs = await chain(shards, workflow_id)
    assert len(runs) == (5 if workflow is goes_on else 3)
    assert {(shard_id, shard_of(execution_id)) for shard_id, execution_id in runs} == {(elsewhere, elsewhere)}


async def test_a_placed_run_that_fails_for_good_leaves_nothing_elsewhere(shards: Shards) -> None:
    workflow_id, elsewhere = against_its_hash(shards, never.name, "fails")
    run = await app.start(never, workflow_id=workflow_id, shard_id=elsewhere)
    with pytest.raises(WorkflowFailedError):
        await run.result(SOON)
    assert {shard_id for shard_id, _ in await chain(shards, workflow_id)} == {elsewhere}


async def test_what_follows_a_run_begins_on_its_shard_while_that_drains(new_database: Callable[[str], str]) -> None:
    urls = {0: new_database("drains_0"), 1: new_database("drains_1")}
    draining = await Shards.open(urls, ShardRouter(readable=(0, 1), writable=(0,), default=0))
    worker, client = Worker(app.registry, draining, FAST), Harvest()
    await worker.start()
    try:
        await client.connect(urls)
        run = await client.start(goes_on, 3, workflow_id="drains", shard_id=1)
        assert await run.result(SOON) == 0
        assert [shard_id for shard_id, _ in await chain(draining, "drains")] == [1] * 4
    finally:
        await worker.stop()
        await draining.close()
        await client.close()


async def test_where_a_start_would_go_can_be_asked_before(shards: Shards, caplog: pytest.LogCaptureFixture) -> None:
    for workflow_id in ("a", "b", "c", "d"):
        expected = await app.resolve_placement(greets, workflow_id)
        assert shard_of((await app.start(greets, "ann", workflow_id=workflow_id)).execution_id) == expected
    assert await app.resolve_placement(greets, "a", residency_key="us") == 1
    with pytest.raises(PlacementError, match="shard 9 is not a placeable shard"):
        await app.resolve_placement(greets, "a", shard_id=9)
    assert not [record for record in caplog.records if record.name == "harvest.shards"]


async def test_a_client_says_at_once_what_is_worth_a_word_of_its_shards(
    new_database: Callable[[str], str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARVEST_READABLE_SHARDS", "0,1")
    client = Harvest()
    with caplog.at_level(logging.WARNING, "harvest.shards"):
        await client.connect({0: new_database("client_warnings")})
        await client.close()
    assert [record.getMessage() for record in caplog.records] == [
        "shard 1 is readable but has no database here; of a worker here, deliveries to it wait"
    ]


async def test_the_testing_environment_takes_placements_as_given_and_refuses_what_none_grants() -> None:
    async with WorkflowEnvironment(app) as env:
        assert await (await env.start(greets, "ann", residency_key="mars")).result() == "hello ann"
        assert await (await env.start(greets, "bob", shard_id=7)).result() == "hello bob"
        with pytest.raises(PlacementError, match="must not be blank"):
            await env.start(greets, "cid", residency_key=" ")
