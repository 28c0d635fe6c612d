"""Where the next decision of a run is made, and from what: pins, parked code, histories in memory (design 5 and 6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from harvest import Harvest, WorkflowContext, WorkflowHandle
from harvest.shards import Shards
from harvest.store import claims
from harvest.worker.options import WorkerOptions
from harvest.worker.worker import Worker
from tests.support import FAST, check_invariants, eventually, history_of

app = Harvest()
SOON = timedelta(seconds=60)
gate = asyncio.Event()


@app.activity
async def double(number: int) -> int:
    return number * 2


@app.activity
async def slow(number: int) -> int:
    await gate.wait()
    return number


@app.workflow
async def listens(ctx: WorkflowContext, times: int) -> int:
    total = 0
    for _ in range(times):
        total += await ctx.wait_for_signal("on", int)
    return total


@app.workflow
async def works(ctx: WorkflowContext, steps: int) -> int:
    number = 1
    for _ in range(steps):
        number = await ctx.execute_activity(double, number)
        await ctx.sleep(0.01)
    return number


@app.workflow
async def hears_while_it_works(ctx: WorkflowContext) -> int:
    working = asyncio.ensure_future(ctx.execute_activity(slow, 3))
    heard = [await ctx.wait_for_signal("on", int) for _ in range(2)]
    return sum(heard) + await working


@asynccontextmanager
async def fleet(url: str, *given: dict[str, Any]) -> AsyncIterator[tuple[list[Worker], Shards]]:
    """A worker for each of these options, each with connections of its own."""
    own = [Shards({0: url}) for _ in given]
    await app.connect(url)
    shards = await Shards.open({0: url})
    found = [
        Worker(app.registry, mine, msgspec.structs.replace(FAST, **options))
        for mine, options in zip(own, given, strict=True)
    ]
    try:
        for worker in found:
            await worker.start()
        yield found, shards
        await check_invariants(shards)
    finally:
        gate.set()
        for worker in found:
            await worker.stop()
        for each in (*own, shards):
            await each.close()
        await app.close()


async def task(shards: Shards, handle: WorkflowHandle[Any]) -> Any:
    rows = await shards.stores[0].read.fetch(
        "select state, sticky_worker, extract(epoch from sticky_until - clock_timestamp())::float8 as pinned "
        "from harvest_workflow_tasks where execution_id = $1",
        handle.execution_id,
    )
    return rows[0]


async def parked(shards: Shards, handle: WorkflowHandle[Any], *, after: int) -> None:
    """Its history has more than `after` events, and nothing is left to decide."""

    async def rests() -> bool:
        return len(await history_of(shards, handle.execution_id)) > after and (await task(shards, handle))["state"] == 2

    await eventually(rests)


def deaf(worker: Worker) -> None:
    """It claims nothing more, and lives."""
    for part in worker._parts.values():
        part.claimer.stop()


# Pins


@pytest.mark.parametrize("seconds", [0.0, 30.0])
async def test_a_wake_pins_a_run_for_as_long_as_its_worker_says(
    new_database: Callable[[str], str], seconds: float
) -> None:
    async with fleet(new_database("sticky"), {"lease_ttl": seconds}) as ((worker,), shards):
        handle = await app.start(listens, 1)
        await parked(shards, handle, after=0)
        deaf(worker)
        await handle.signal("on", 1)
        row = await task(shards, handle)
        assert row["state"] == 0
        assert seconds - 10 < row["pinned"] <= seconds


async def test_a_pin_keeps_others_away_until_it_is_over(new_database: Callable[[str], str]) -> None:
    async with fleet(new_database("sticky"), {"lease_ttl": 1.0}) as ((worker,), shards):
        handle = await app.start(listens, 1)
        await parked(shards, handle, after=0)
        deaf(worker)
        await handle.signal("on", 1)
        stranger = uuid4()
        await shards.stores[0].write.write(
            "insert into harvest_workers (worker, name, host, pid, build, queues, slots, lease_until) "
            "values ($1, 'stranger', '', 1, '', '{default}', 1, clock_timestamp() + interval '1 minute')",
            stranger,
        )
        assert await claims.claim(shards.stores[0], stranger, ["default"], 10) == []

        async def is_free() -> bool:
            return bool(await claims.claim(shards.stores[0], stranger, ["default"], 10))

        await eventually(is_free)
        assert (await task(shards, handle))["sticky_worker"] == stranger
        await claims.release(shards.stores[0], stranger, [(handle.execution_id, 2)])


async def test_a_worker_that_drains_lets_its_pins_go_and_no_wake_brings_them_back(
    new_database: Callable[[str], str],
) -> None:
    async with fleet(new_database("sticky"), {"lease_ttl": 600.0}, {"lease_ttl": 600.0}) as ((ann, bob), shards):
        deaf(bob)
        pinned, still_parked = await app.start(listens, 1), await app.start(listens, 1)
        for handle in (pinned, still_parked):
            await parked(shards, handle, after=0)
        deaf(ann)
        await pinned.signal("on", 1)
        assert (await task(shards, pinned))["pinned"] > 60
        await ann._drain(ann._joined[0])
        await still_parked.signal("on", 2)
        for handle in (pinned, still_parked):
            row = await task(shards, handle)
            assert (row["state"], row["pinned"]) == (0, None)
        taken = await claims.claim(shards.stores[0], bob.id, ["default"], 10)
        assert {each.execution_id for each in taken} == {pinned.execution_id, still_parked.execution_id}
        await claims.release(shards.stores[0], bob.id, [(each.execution_id, each.attempt) for each in taken])


async def test_every_decision_after_the_first_is_made_where_the_run_was(new_database: Callable[[str], str]) -> None:
    async with fleet(new_database("sticky"), {"lease_ttl": 60.0}, {"lease_ttl": 60.0}) as (found, _):
        handles = [await app.start(listens, 3) for _ in range(20)]
        for number in range(3):
            for handle in handles:
                await handle.signal("on", number)
        assert [await handle.result(SOON) for handle in handles] == [3] * 20
        assert sum(worker.counters.decisions_cold for worker in found) == 20


async def test_what_is_warm_here_comes_first_where_more_is_due_than_a_claim_takes(
    new_database: Callable[[str], str],
) -> None:
    async with fleet(new_database("sticky"), {"lease_ttl": 0.0}) as ((worker,), shards):
        handles = [await app.start(listens, 1) for _ in range(6)]
        for handle in handles:
            await parked(shards, handle, after=0)
        deaf(worker)
        mine = handles[-2:]
        await shards.stores[0].write.write(
            "update harvest_workflow_tasks set sticky_worker = $1 where execution_id <> all($2::uuid[])",
            uuid4(),
            [handle.execution_id for handle in mine],
        )
        for handle in handles:
            await handle.signal("on", 1)
        matching = await claims.claim(shards.stores[0], worker.id, ["default"], 32, matching=True)
        assert {each.execution_id for each in matching} == {handle.execution_id for handle in mine}
        await claims.release(shards.stores[0], worker.id, [(each.execution_id, each.attempt) for each in matching])


# Levels of warmth


async def test_without_a_lease_nothing_is_kept(new_database: Callable[[str], str]) -> None:
    async with fleet(new_database("sticky"), {"lease_ttl": 0.0}) as ((worker,), shards):
        handle = await app.start(listens, 3)
        for number in range(3):
            await parked(shards, handle, after=number)
            assert len(worker.residents) == worker.residents.bytes == 0
            await handle.signal("on", number)
        assert await handle.result(SOON) == 3
        assert (worker.counters.decisions_warm, worker.counters.decisions_cold) == (0, 4)


async def test_without_residents_each_event_is_read_once(new_database: Callable[[str], str]) -> None:
    async with fleet(new_database("sticky"), {"resident_workflows": False}) as ((worker,), shards):
        handle = await app.start(listens, 5)
        for number in range(5):
            await parked(shards, handle, after=number)
            assert len(worker.residents) == 0
            await handle.signal("on", number)
        assert await handle.result(SOON) == 10
        history = await history_of(shards, handle.execution_id)
        assert (worker.counters.decisions_warm, worker.counters.decisions_cold) == (0, 6)
        assert worker.counters.loaded_events < len(history), "the first event comes with the claim, the last is written"
        assert worker.residents.snapshots is not None
        assert len(worker.residents.snapshots) == 0, "a run that has ended is not kept"


async def test_without_residents_a_run_whose_activity_is_under_way_replays_too(
    new_database: Callable[[str], str],
) -> None:
    async with fleet(new_database("sticky"), {"resident_workflows": False}) as ((worker,), shards):
        handle = await app.start(works, 6)
        assert await handle.result(SOON) == 64
        assert worker.counters.decisions_warm == 0
        assert worker.counters.loaded_events <= len(await history_of(shards, handle.execution_id))


async def test_news_of_a_held_run_whose_code_was_let_go_is_replayed_from_its_beginning(
    new_database: Callable[[str], str],
) -> None:
    gate.clear()
    async with fleet(new_database("sticky"), {}) as ((worker,), shards):
        handle = await app.start(hears_while_it_works)

        async def works_on_it() -> bool:
            return bool(worker._runner.running)

        for number in (1, 2):
            await eventually(works_on_it)
            worker.let_go_residents()
            await handle.signal("on", number)

            async def has_heard(events: int = 3 + number) -> bool:
                held = worker._parts[0].committer.held.get(handle.execution_id)
                return held is not None and held.next_event_id > events and not held.busy

            await eventually(has_heard)
        gate.set()
        assert await handle.result(SOON) == 6
        assert worker.counters.blocked == 0
        await check_invariants(shards)


async def test_a_history_that_runs_ahead_of_the_database_is_not_used(new_database: Callable[[str], str]) -> None:
    async with fleet(new_database("sticky"), {"resident_workflows": False}) as ((worker,), shards):
        handle = await app.start(listens, 1)
        await parked(shards, handle, after=0)
        snapshots = worker.residents.snapshots
        assert snapshots is not None
        kept = snapshots.take(handle.execution_id)
        assert kept is not None
        more = [msgspec.structs.replace(kept[-1], event_id=kept[-1].event_id + n) for n in range(1, 50)]
        snapshots.put(handle.execution_id, [*kept, *more])
        await handle.signal("on", 7)
        assert await handle.result(SOON) == 7


async def test_a_history_with_a_hole_before_what_is_read_falls_to_the_database(
    new_database: Callable[[str], str],
) -> None:
    async with fleet(new_database("sticky"), {"resident_workflows": False}) as ((worker,), shards):
        handle = await app.start(listens, 2)
        await parked(shards, handle, after=0)
        await handle.signal("on", 3)
        await parked(shards, handle, after=1)
        snapshots = worker.residents.snapshots
        assert snapshots is not None
        snapshots.clear()
        await handle.signal("on", 4)
        assert await handle.result(SOON) == 7
        assert worker.counters.loaded_events >= 3


async def test_the_options_of_a_worker_say_what_it_keeps() -> None:
    found = [
        Worker(app.registry, Shards({0: "postgresql://nowhere/none"}), WorkerOptions(**options)).residents
        for options in ({}, {"resident_workflows": False}, {"lease_ttl": 0.0})
    ]
    assert [(each.keeps_code, each.snapshots is not None) for each in found] == [
        (True, False),
        (False, True),
        (False, False),
    ]


async def test_an_eviction_lets_go_of_histories_too(new_database: Callable[[str], str]) -> None:
    async with fleet(new_database("sticky"), {"resident_workflows": False}) as ((worker,), shards):
        handle = await app.start(listens, 1)
        await parked(shards, handle, after=0)
        assert worker.residents.bytes > 0
        worker.let_go_residents()
        assert worker.residents.bytes == 0
        await handle.signal("on", 1)
        assert await handle.result(SOON) == 1
