"""A run and an activity that were both on a lost worker twice are not tried at once (answers 15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from harvest import Harvest, WorkflowContext
from harvest.store import activity_claims, claims
from harvest.store.commit import commit
from harvest.worker import committer, trial
from tests.support import at_work, check_invariants, eventually

app = Harvest()
SOON = timedelta(seconds=60)
LOOKS = 5
began = asyncio.Event()
may_end = asyncio.Event()


@app.activity
async def holds() -> int:
    began.set()
    await may_end.wait()
    return 1


@app.workflow
async def holding(ctx: WorkflowContext) -> int:
    return await ctx.execute_activity(holds)


@app.workflow
async def hears(ctx: WorkflowContext) -> int:
    return await ctx.wait_for_signal("go", int)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    began.clear()
    may_end.clear()
    monkeypatch.setattr(trial, "SUSPECTS_SECONDS", 0.0)
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 3600.0)


async def suspects(url: str) -> tuple[Any, Any]:
    """An activity and a run, both pending with two strikes."""
    async with at_work(app, url) as (_, shards):
        first, second = await app.start(holding), await app.start(hears)
        await asyncio.wait_for(began.wait(), 30)
        await second.signal("other", 1)
    store = shards.stores[0]
    await store.write.write("update harvest_activity_tasks set strikes = 2")
    await store.write.write(
        "update harvest_workflow_tasks set strikes = 2, state = 0, worker = null where execution_id = $1",
        second.execution_id,
    )
    await store.close()
    began.clear()
    return first, second


async def test_no_activity_is_tried_while_a_run_is(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database("run_on_trial")
    _, run = await suspects(url)
    taken, may_commit, looks = asyncio.Event(), asyncio.Event(), 0
    claim = activity_claims.claim_activities

    async def commit_late(store: Any, connection: Any, worker: Any, batch: Any) -> Any:
        if any(row[0] == run.execution_id for row in batch.decisions):
            taken.set()
            await may_commit.wait()
        return await commit(store, connection, worker, batch)

    async def claim_once_the_run_is_on_trial(*arguments: Any, **options: Any) -> Any:
        nonlocal looks
        await taken.wait()
        looks += not options.get("suspects", False)
        return await claim(*arguments, **options)

    monkeypatch.setattr(committer, "commit", commit_late)
    monkeypatch.setattr(activity_claims, "claim_activities", claim_once_the_run_is_on_trial)
    async with at_work(app, url) as (_, shards):

        async def has_looked() -> bool:
            return looks >= LOOKS

        await eventually(has_looked)
        assert not began.is_set()
        may_commit.set()
        await asyncio.wait_for(began.wait(), 30)
        may_end.set()
        await check_invariants(shards)


async def test_no_run_is_tried_while_an_activity_is(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database("activity_on_trial")
    first, run = await suspects(url)
    looks, claim = 0, claims.claim

    async def claim_once_the_activity_runs(*arguments: Any, **options: Any) -> list[claims.Claimed]:
        nonlocal looks
        if not began.is_set():
            return []
        looks += not options.get("suspects", False)
        found: list[claims.Claimed] = await claim(*arguments, **options)
        return found

    monkeypatch.setattr(claims, "claim", claim_once_the_activity_runs)
    async with at_work(app, url) as (_, shards):

        async def has_looked() -> bool:
            return looks >= LOOKS

        await eventually(has_looked)
        rows = await shards.stores[0].read.fetch(
            "select state, strikes from harvest_workflow_tasks where execution_id = $1", run.execution_id
        )
        assert [(row["state"], row["strikes"]) for row in rows] == [(0, 2)], "it waits for its turn"
        may_end.set()
        assert await first.result(SOON) == 1
        await run.signal("go", 7)
        assert await run.result(SOON) == 7
        await check_invariants(shards)
