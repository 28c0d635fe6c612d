"""Who takes which work: the order of answers 4, pins, and activities (design 5)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from harvest.store import activity_claims, claims, fleet
from harvest.store.claims import Claimed
from harvest.store.marks import HANDICAP, Marks
from harvest.store.results import ActivityEnd, end_activities
from harvest.store.store import Store
from tests.scale import scale
from tests.store.rows import a_run, a_worker, activities_of, next_id, one, task_of
from tests.support import eventually


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
    return await claims.claim(store, worker, ["default"], most)


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
    assert not await activity_claims.claim_activities(store, worker, "w", ["default"], ["a"], 10)
    assert await task_of(store, run) == (0, None)
    assert await activities_of(store, run) == {1: (0, 0)}


async def test_claiming_an_activity_records_its_start_in_the_same_statement(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, None, state=2, pending={1: 0, 2: 3})
    taken = await activity_claims.claim_activities(store, worker, "the worker", ["default"], ["a"], 10)
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
    assert not await activity_claims.claim_activities(store, worker, "w", ["default"], ["b"], 10)
    assert not await activity_claims.claim_activities(store, worker, "w", ["other"], ["a"], 10)
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
    suspects = await claims.claim(store, worker, ["default"], 1, suspects=True)
    assert [each.execution_id for each in suspects] == [runs[0]]
    for suspect, run in ((False, runs[1]), (True, runs[0])):
        taken = await activity_claims.claim_activities(store, worker, "w", ["default"], ["a"], 10, suspects=suspect)
        assert [each.execution_id for each in taken] == [run]


_BEST = """
select execution_id from {table} t
 where queue = 'default' and state = 0 and due <= clock_timestamp() and {gate}
 order by priority desc, sort_at limit $1"""
_SORTED = """
update {table} set priority = $2, due = clock_timestamp() + $3 * interval '1 second',
       sort_at = clock_timestamp() + $4 * interval '1 second' where execution_id = $1"""
_PINNED = "update harvest_workflow_tasks set sticky_worker = $2, sticky_until = 'infinity' where execution_id = $1"


class Backlog:
    """Tasks of one kind as they come: of several priorities, first ones, delayed ones, pinned ones."""

    def __init__(self, store: Store, kind: str) -> None:
        self.store = store
        self.is_first_kind = kind == "workflow tasks"
        table = "harvest_workflow_tasks" if self.is_first_kind else "harvest_activity_tasks"
        gate = "(sticky_until is null or sticky_worker = $2)" if self.is_first_kind else "$2::uuid is not null"
        self.best_sql = _BEST.format(table=table, gate=gate)
        self.sorted_sql = _SORTED.format(table=table)

    def marks(self) -> Marks:
        return Marks(HANDICAP) if self.is_first_kind else Marks()

    async def add(self, chance: random.Random, pin: UUID | None) -> UUID:
        if self.is_first_kind:
            run = await a_run(self.store, None, state=0)
        else:
            run = await a_run(self.store, None, state=2, pending={1: 0})
        delay = 3600.0 if chance.random() < 0.2 else 0.0
        handicap = 30.0 if self.is_first_kind and chance.random() < 0.5 else 0.0
        await self.store.scan.write(self.sorted_sql, run, chance.choice((7, 0, 0, 0, -3)), delay, delay + handicap)
        if pin is not None and self.is_first_kind:
            await self.store.scan.write(_PINNED, run, pin)
        return run

    async def best(self, worker: UUID, most: int) -> list[UUID]:
        rows = await self.store.scan.fetch(self.best_sql, most, worker)
        return [row["execution_id"] for row in rows]

    async def claim(self, worker: UUID, most: int, marks: Marks) -> list[UUID]:
        taken: Sequence[Any]
        if self.is_first_kind:
            taken = await claims.claim(self.store, worker, ["default"], most, marks)
        else:
            taken = await activity_claims.claim_activities(self.store, worker, "w", ["default"], ["a"], most, marks)
        return [each.execution_id for each in taken]


KINDS = pytest.mark.parametrize("kind", ["workflow tasks", "activities"])


@KINDS
async def test_claims_from_marks_take_what_claims_that_look_at_everything_would(store: Store, kind: str) -> None:
    backlog = Backlog(store, kind)
    for seed in range(scale(2, 40)):
        chance = random.Random(seed)
        workers = [(await a_worker(store), backlog.marks()) for _ in range(2)]
        most = chance.choice((1, 4))
        for _ in range(30):
            for _ in range(chance.randint(0, 4)):
                await backlog.add(chance, chance.choice(workers)[0] if chance.random() < 0.2 else None)
            worker, marks = chance.choice(workers)
            best = await backlog.best(worker, most)
            assert await backlog.claim(worker, most, marks) == best, f"seed {seed}"
        for worker, marks in workers:
            while best := await backlog.best(worker, most):
                assert await backlog.claim(worker, most, marks) == best, f"seed {seed}"


async def test_a_pin_that_ends_delays_a_task_behind_the_marks_by_a_full_look_at_most(store: Store) -> None:
    resident, other, marks = await a_worker(store), await a_worker(store), Marks(HANDICAP)
    pinned = await a_task(store, age=60)
    await store.scan.write(_PINNED, pinned, resident)
    usual = await a_task(store, age=1)
    first = await claims.claim(store, other, ["default"], 10, marks)
    assert [each.execution_id for each in first] == [usual]
    await store.scan.write("update harvest_workflow_tasks set sticky_until = null where execution_id = $1", pinned)

    async def taken() -> bool:
        found = await claims.claim(store, other, ["default"], 10, marks)
        return [each.execution_id for each in found] == [pinned]

    await eventually(taken)


async def test_an_activity_whose_run_was_locked_is_taken_by_the_next_claim(store: Store) -> None:
    worker, marks = await a_worker(store), Marks()
    run = await a_run(store, None, state=2, pending={1: 0})
    await store.scan.write(
        "update harvest_activity_tasks set sort_at = sort_at - interval '1 minute' where execution_id = $1", run
    )
    async with store.write.connection() as connection, connection.transaction():
        await connection.execute("select from harvest_executions where execution_id = $1 for update", run)
        assert not await activity_claims.claim_activities(store, worker, "w", ["default"], ["a"], 10, marks)
    taken = await activity_claims.claim_activities(store, worker, "w", ["default"], ["a"], 10, marks)
    assert [each.execution_id for each in taken] == [run]


async def test_each_queue_gives_up_to_the_most_that_was_asked_for(store: Store) -> None:
    worker, marks = await a_worker(store), Marks(HANDICAP)
    runs = [await a_task(store, age=n) for n in range(8)]
    await store.scan.write(
        "update harvest_workflow_tasks set queue = 'other' where execution_id = any($1::uuid[])", runs[:5]
    )
    for expected in ({"other": 2, "default": 2}, {"other": 2, "default": 1}, {"other": 1}):
        found = await claims.claim(store, worker, ["other", "default"], 2, marks)
        assert {queue: sum(each.queue == queue for each in found) for queue in expected} == expected
        assert len(found) == sum(expected.values())
