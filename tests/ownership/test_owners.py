"""Owner mode: each partition has one owner, every decision after a run's first is warm, a stale owner cannot write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from harvest import Harvest, WorkflowContext
from harvest.shards import Shards
from harvest.store.store import Store
from harvest.worker.worker import Worker
from tests.support import at_work, check_invariants, eventually

app = Harvest()
RUNS = 40


@app.workflow
async def waiting(ctx: WorkflowContext, times: int) -> int:
    total = 0
    for _ in range(times):
        total += await ctx.wait_for_signal("add", int)
    return total


async def own(store: Store) -> None:
    """Switch owner mode on, without the checks that people go through."""
    await store.write.write("update harvest_meta set owner_mode = true, owner_mode_since = now()")


async def owners_of(store: Store) -> dict[UUID | None, int]:
    rows = await store.read.fetch("select owner, count(*) as n from harvest_partitions group by owner")
    return {row["owner"]: row["n"] for row in rows}


async def journal_of(store: Store, event: str) -> int:
    rows = await store.read.fetch("select count(*) as n from harvest_partition_journal where event = $1", event)
    n: int = rows[0]["n"]
    return n


def is_owning(worker: Worker, shards: Shards, count: int) -> Callable[[], Any]:
    async def holds() -> bool:
        return (await owners_of(shards.stores[0])).get(worker.id, 0) == count

    return holds


async def parked(shards: Shards, count: int) -> bool:
    rows = await shards.stores[0].read.fetch("select count(*) as n from harvest_workflow_tasks where state = 2")
    return bool(rows[0]["n"] == count)


async def started(shards: Shards, times: int) -> list[Any]:
    handles = [await app.start(waiting, times, workflow_id=f"w-{n}") for n in range(RUNS)]
    await eventually(lambda: parked(shards, RUNS))
    return handles


async def test_one_owner_takes_every_partition_and_decides(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("one_owner")) as (worker, shards):
        await own(shards.stores[0])
        await eventually(is_owning(worker, shards, 512))
        handles = await started(shards, 2)
        for _ in range(2):
            for handle in handles:
                await handle.signal("add", 1)
        assert [await handle.result() for handle in handles] == [2] * RUNS
        assert worker.counters.decisions_cold == RUNS
        await check_invariants(shards)


async def test_who_joins_gets_a_share_warm(new_database: Callable[[str], str]) -> None:
    url = new_database("joins")
    async with at_work(app, url) as (first, shards):
        await own(shards.stores[0])
        await eventually(is_owning(first, shards, 512))
        handles = await started(shards, 1)
        async with at_work(app, url) as (second, _):
            await eventually(is_owning(second, shards, 256))
            await app.connect(url)
            for handle in handles:
                await handle.signal("add", 3)
            assert [await handle.result() for handle in handles] == [3] * RUNS
            assert first.counters.decisions_cold == RUNS
            assert second.counters.warmed > 0
            assert second.counters.decisions_cold == 0
            assert second.counters.closed == second.counters.warmed
        await app.connect(url)
        await eventually(is_owning(first, shards, 512))
        await check_invariants(shards)


async def test_who_leaves_hands_over_warm_runs(new_database: Callable[[str], str]) -> None:
    url = new_database("leaves")
    async with at_work(app, url) as (second, shards):
        await own(shards.stores[0])
        async with at_work(app, url) as (first, _):
            await eventually(is_owning(first, shards, 256))
            await eventually(is_owning(second, shards, 256))
            handles = await started(shards, 1)
        await app.connect(url)
        await eventually(is_owning(second, shards, 512))
        for handle in handles:
            await handle.signal("add", 5)
        assert [await handle.result() for handle in handles] == [5] * RUNS
        cold = first.counters.decisions_cold + second.counters.decisions_cold
        assert cold == RUNS, "only the first decision of each run replays"
        await check_invariants(shards)


async def test_a_commit_under_an_old_epoch_is_refused_and_told(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("old_epoch")) as (worker, shards):
        store = shards.stores[0]
        await own(store)
        await eventually(is_owning(worker, shards, 512))
        (handle,) = (await started(shards, 1))[:1]
        claim = worker._parts[0].claimer._claim

        async def late() -> Any:
            claimed = await claim()
            if claimed:
                await store.scan.write("update harvest_partitions set epoch = epoch + 1")
                worker._parts[0].claimer._claim = claim  # type: ignore[method-assign]
            return claimed

        worker._parts[0].claimer._claim = late  # type: ignore[method-assign]
        await handle.signal("add", 7)
        assert await handle.result() == 7
        assert worker.counters.fenced == 1

        async def told() -> bool:
            return await journal_of(store, "fenced") == 1

        await eventually(told)
        await check_invariants(shards)


@pytest.mark.parametrize("mode", ["claim", "own"])
async def test_a_claim_takes_only_what_is_its_own(new_database: Callable[[str], str], mode: str) -> None:
    async with at_work(app, new_database(f"only_{mode}")) as (worker, shards):
        store = shards.stores[0]
        if mode == "own":
            await own(store)
            await eventually(is_owning(worker, shards, 512))
        await started(shards, 1)
        rows = await store.read.fetch("select distinct owner_epoch from harvest_workflow_tasks")
        assert [row["owner_epoch"] for row in rows] == ([1] if mode == "own" else [None])
