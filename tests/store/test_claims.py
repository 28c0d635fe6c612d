"""Who takes which work: the order of answers 4, pins, and activities (design 5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from harvest.store import claims, fleet
from harvest.store.claims import Claimed
from harvest.store.results import ActivityEnd, end_activities
from harvest.store.store import Store
from tests.store.rows import a_run, a_worker, activities_of, next_id, one, task_of

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
async def store(new_database: Callable[[str], str]) -> Any:
    opened = Store(0, new_database("claims"))
    yield opened
    await opened.close()


async def a_task(store: Store, *, priority: int = 0, age: float = 0.0, due: float = -1.0, first: bool = False) -> UUID:
    """A pending task that became due `age` seconds ago."""
    run = await a_run(store, None, state=0)
    await store.scan.write(
        """update harvest_workflow_tasks
              set priority = $2, due = clock_timestamp() + $4 * interval '1 second',
                  sort_at = clock_timestamp() + ($5::int * 30 - $3::float8) * interval '1 second'
            where execution_id = $1""",
        run, priority, age, due, int(first),
    )  # fmt: skip
    return run


async def claimed(store: Store, worker: UUID, most: int = 100) -> Sequence[Claimed]:
    return await claims.claim(store, worker, ["default"], most, LONG_AGO)


async def claimed_one_by_one(store: Store, worker: UUID) -> list[UUID]:
    order: list[UUID] = []
    while found := await claimed(store, worker, 1):
        order.append(found[0].execution_id)
    return order


async def test_priority_comes_first_then_what_has_waited_longest(store: Store) -> None:
    late, early = await a_task(store, age=1), await a_task(store, age=9)
    urgent = await a_task(store, priority=5)
    assert await claimed_one_by_one(store, await a_worker(store)) == [urgent, early, late]


async def test_a_run_that_goes_on_comes_before_one_that_begins_for_thirty_seconds(store: Store) -> None:
    old_beginner = await a_task(store, age=31, first=True)
    goes_on = await a_task(store, age=0)
    beginner = await a_task(store, age=29, first=True)
    assert await claimed_one_by_one(store, await a_worker(store)) == [old_beginner, goes_on, beginner]


async def test_what_is_not_due_waits(store: Store) -> None:
    await a_task(store, due=60)
    assert not await claimed(store, await a_worker(store))


async def test_a_pinned_task_is_its_residents_until_the_pin_ends(store: Store) -> None:
    resident, other = await a_worker(store), await a_worker(store)
    run = await a_task(store)
    pin = """
        update harvest_workflow_tasks set sticky_worker = $2, sticky_until = clock_timestamp() + $3::interval
         where execution_id = $1"""
    await store.scan.write(pin, run, resident, timedelta(minutes=1))
    assert not await claimed(store, other)
    assert [each.execution_id for each in await claimed(store, resident)] == [run]
    run = await a_task(store)
    await store.scan.write(pin, run, resident, timedelta(seconds=-1))
    assert [each.execution_id for each in await claimed(store, other)] == [run]


async def test_two_workers_never_take_the_same_task(store: Store) -> None:
    runs = {await a_task(store) for _ in range(40)}
    workers = [await a_worker(store) for _ in range(2)]

    async def take(worker: UUID) -> list[UUID]:
        return [each.execution_id for _ in range(5) for each in await claimed(store, worker, 4)]

    taken = await asyncio.gather(*map(take, workers))
    both = [*taken[0], *taken[1]]
    assert len(both) == len(set(both)) == 40
    assert set(both) == runs


async def test_each_claim_is_another_attempt(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_task(store)
    for attempt in (2, 3):
        (found,) = await claimed(store, worker)
        assert (found.execution_id, found.attempt) == (run, attempt)
        assert await claims.release(store, worker, [(run, attempt)]) == []


@pytest.mark.parametrize("lease", [-1.0, None])
async def test_without_a_living_lease_nothing_is_taken(store: Store, lease: float | None) -> None:
    run = await a_run(store, None, state=0, pending={1: 0})
    worker = await a_worker(store, lease=lease) if lease else UUID(int=1)
    assert not await claimed(store, worker)
    assert not await claims.claim_activities(store, worker, "w", ["default"], ["a"], 10)
    assert await task_of(store, run) == (0, None)
    assert await activities_of(store, run) == {1: (0, 0)}


async def test_claiming_an_activity_records_its_start_in_the_same_statement(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, None, state=2, pending={1: 0, 2: 3})
    taken = await claims.claim_activities(store, worker, "the worker", ["default"], ["a"], 10)
    assert {(each.seq, each.attempt) for each in taken} == {(1, 1), (2, 4)}
    assert await next_id(store, run) == 4
    rows = await store.scan.fetch("select seq, payload from harvest_events where execution_id = $1 and kind = 6", run)
    assert sorted((row["seq"], row["payload"]) for row in rows) == [
        (1, b'{"attempt":1,"worker":"the worker"}'),
        (2, b'{"attempt":4,"worker":"the worker"}'),
    ]


async def test_an_activity_of_another_name_or_queue_is_not_taken(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, None, state=2, pending={1: 0})
    assert not await claims.claim_activities(store, worker, "w", ["default"], ["b"], 10)
    assert not await claims.claim_activities(store, worker, "w", ["other"], ["a"], 10)
    assert await activities_of(store, run) == {1: (0, 0)}


async def test_a_parked_run_is_pinned_only_to_a_living_active_worker(store: Store) -> None:
    living, draining, dead = await a_worker(store), await a_worker(store), await a_worker(store, lease=-1)
    await fleet.drain(store, draining)
    for sticky, pinned in ((living, True), (draining, False), (dead, False)):
        run = await a_run(store, None, state=2, sticky=sticky)
        await store.scan.write(
            """insert into harvest_activity_tasks
                 (execution_id, seq, worker, attempt, state, scheduled_event_id, queue, name)
               values ($1, 1, $2, 1, 1, 1, 'default', 'a')""",
            run, living,
        )  # fmt: skip
        appended = await end_activities(store, [ActivityEnd(run, 1, 1, living, 7, b'{"output":1}')])
        assert appended.woken == {run: sticky if pinned else None}
        assert await task_of(store, run) == (0, None)
        assert (
            bool(await one(store, "select sticky_until from harvest_workflow_tasks where execution_id = $1", run))
            is pinned
        )


async def test_what_was_on_a_lost_worker_twice_is_taken_alone(store: Store) -> None:
    worker = await a_worker(store)
    runs = [await a_run(store, None, state=0, pending={1: 0}) for _ in range(2)]
    for table in ("harvest_workflow_tasks", "harvest_activity_tasks"):
        await store.scan.write(f"update {table} set strikes = 2 where execution_id = $1", runs[0])
    assert [each.execution_id for each in await claimed(store, worker)] == [runs[1]]
    suspects = await claims.claim(store, worker, ["default"], 1, LONG_AGO, suspects=True)
    assert [each.execution_id for each in suspects] == [runs[0]]
    for suspect, run in ((False, runs[1]), (True, runs[0])):
        taken = await claims.claim_activities(store, worker, "w", ["default"], ["a"], 10, suspects=suspect)
        assert [each.execution_id for each in taken] == [run]
