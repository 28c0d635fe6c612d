"""What a run has under way when its partition becomes another's: nothing is lost, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from harvest import Harvest, WorkflowContext
from harvest.history.kinds import EventKind
from harvest.store import partitions
from harvest.store.commit import Answer, commit
from tests.ownership.test_owners import is_owning, own
from tests.support import FAST, at_work, check_invariants, eventually

app = Harvest()
PATIENCE = timedelta(seconds=20)
begun: Counter[str] = Counter()
gate = asyncio.Event()


@app.activity
async def passes_the_gate() -> None:
    await gate.wait()


@app.activity
async def only_the_second_ends(key: str) -> str:
    begun[key] += 1
    if begun[key] == 1:
        await asyncio.Event().wait()
    return key


@app.activity
async def ends(key: str) -> str:
    begun[key] += 1
    return key


@app.workflow
async def has_a_local(ctx: WorkflowContext, key: str) -> str:
    return await ctx.execute_local_activity(only_the_second_ends, key)


@app.workflow
async def goes_on_to_a_local(ctx: WorkflowContext, key: str) -> str:
    await ctx.execute_activity(passes_the_gate)
    return await ctx.execute_local_activity(only_the_second_ends, key)


@app.workflow
async def has_an_activity(ctx: WorkflowContext, key: str) -> str:
    return await ctx.execute_activity(ends, key)


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_local_activity_runs_again_at_the_new_owner(
    new_database: Callable[[str], str], is_written: bool
) -> None:
    url = new_database(f"local_{is_written}")
    keys = [f"{is_written}-{n}" for n in range(12)]
    async with at_work(app, url) as (second, shards):
        await own(shards.stores[0])
        async with at_work(app, url) as (first, _):
            await eventually(is_owning(first, shards, 256))
            await eventually(is_owning(second, shards, 256))
            handles = [await app.start(has_a_local, key, workflow_id=key) for key in keys]

            async def all_begun() -> bool:
                decided = await shards.stores[0].read.fetch("select from harvest_executions where decided_through > 0")
                return all(begun[key] for key in keys) and len(decided) == (len(keys) if is_written else 0)

            await eventually(all_begun)
            held = set(first._parts[0].committer.held)
            assert held
        await app.connect(url)
        theirs = [handle for handle in handles if handle.execution_id in held]
        assert all([await handle.result(PATIENCE) for handle in theirs])
        await check_invariants(shards)


async def test_what_begins_while_its_partition_is_handed_over_runs_again(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, transfer = new_database("meanwhile"), partitions.transfer
    keys = [f"meanwhile-{n}" for n in range(12)]
    async with at_work(app, url, msgspec.structs.replace(FAST, drain_timeout=20)) as (second, shards):
        await own(shards.stores[0])

        async def written(kind: EventKind) -> bool:
            rows = await shards.stores[0].read.fetch("select from harvest_events where kind = $1", int(kind))
            return len(rows) == len(keys)

        async def transfer_late(*arguments: Any) -> dict[int, UUID]:
            gate.set()
            await eventually(lambda: written(EventKind.LOCAL_ACTIVITY_SCHEDULED))
            return await transfer(*arguments)

        async with at_work(app, url, second.options) as (first, _):
            await eventually(is_owning(first, shards, 256))
            await eventually(is_owning(second, shards, 256))
            handles = [await app.start(goes_on_to_a_local, key, workflow_id=key) for key in keys]
            await eventually(lambda: written(EventKind.ACTIVITY_STARTED))
            held = set(first._parts[0].committer.held)
            assert held
            monkeypatch.setattr(partitions, "transfer", transfer_late)
        await app.connect(url)
        assert first.counters.partitions_handed_over == 256
        theirs = [handle for handle in handles if handle.execution_id in held]
        assert all([await handle.result(PATIENCE) for handle in theirs])
        await check_invariants(shards)


async def test_an_activity_starts_although_its_run_goes_away(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(app, new_database("goes_away")) as (worker, shards):
        part = worker._parts[0]

        async def commit_late(*arguments: Any) -> dict[UUID, Answer]:
            answers = await commit(*arguments)
            if not begun["late"]:
                for work in list(part.committer.held.values()):
                    part.committer.hand_back(work)
            return answers

        monkeypatch.setattr("harvest.worker.committer.commit", commit_late)
        handle = await app.start(has_an_activity, "late")
        assert await handle.result(PATIENCE) == "late"
        assert worker._runner.free == worker.options.activity_slots
        await check_invariants(shards)
