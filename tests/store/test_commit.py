"""The commit statement: its four answers, alone and mixed, and that it waits for nobody (design 4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from harvest.history.kinds import EventKind
from harvest.store.commit import Answer, Batch, commit
from harvest.store.store import Store
from tests.store.rows import a_run, a_worker, activities_of, decide, next_id, one, task_of

AT_ONCE = 20.0  # the locks are held for longer


async def committed(store: Store, worker: UUID, batch: Batch) -> dict[UUID, Answer]:
    async with store.commit.connection() as connection:
        return await commit(store, connection, worker, batch)


@asynccontextmanager
async def holding(store: Store, lock: str, *values: Any) -> AsyncIterator[None]:
    """Another session that holds row locks meanwhile."""
    other: Any = await asyncpg.connect(store.url)
    try:
        async with other.transaction():
            assert await other.fetch(lock, *values)
            yield
    finally:
        await other.close()


async def test_a_decision_against_the_exact_history_passes_and_moves_it_on(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, next_event_id=4)
    batch = Batch()
    decide(batch, run, expected=4)
    assert await committed(store, worker, batch) == {run: Answer.PASSED}
    assert await next_id(store, run) == 5
    kind = await one(store, "select kind from harvest_events where execution_id = $1 and event_id = 4", run)
    assert kind == EventKind.MARKER_RECORDED
    assert await task_of(store, run) == (2, None)


@pytest.mark.parametrize("expected", [2, 4])
async def test_a_decision_against_another_history_has_moved_and_writes_nothing(store: Store, expected: int) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, next_event_id=3)
    batch = Batch()
    decide(batch, run, expected=expected)
    assert await committed(store, worker, batch) == {run: Answer.MOVED}
    assert await next_id(store, run) == 3
    assert await one(store, "select count(*) from harvest_events where execution_id = $1", run) == 2
    assert await task_of(store, run) == (1, worker)


LOCKS = {
    "execution": "select 1 from harvest_executions where execution_id = $1 for no key update",
    "task": "select 1 from harvest_workflow_tasks where execution_id = $1 for update",
    "merged activity": "select 1 from harvest_activity_tasks where execution_id = $1 and seq = 1 for update",
    "cancelled activity": "select 1 from harvest_activity_tasks where execution_id = $1 and seq = 2 for update",
    "cancelled timer": "select 1 from harvest_timers where execution_id = $1 and seq = 3 for update",
}


@pytest.mark.parametrize("lock", LOCKS)
async def test_a_foreign_lock_makes_one_decision_busy_and_its_neighbours_pass_at_once(store: Store, lock: str) -> None:
    worker = await a_worker(store)
    runs = [await a_run(store, worker, activities={1: 1, 2: 1}, timers={3: 60}) for _ in range(3)]
    batch = Batch()
    for run in runs:
        decide(batch, run, merges={1: 1}, cancels=(2, 3))
    async with holding(store, LOCKS[lock], runs[1]):
        async with asyncio.timeout(AT_ONCE):
            answers = await committed(store, worker, batch)
        assert answers == {runs[0]: Answer.PASSED, runs[1]: Answer.BUSY, runs[2]: Answer.PASSED}
    assert await next_id(store, runs[1]) == 2
    assert await activities_of(store, runs[1]) == {1: (1, 1), 2: (1, 1)}
    again = Batch()
    decide(again, runs[1], merges={1: 1}, cancels=(2, 3))
    assert await committed(store, worker, again) == {runs[1]: Answer.PASSED}


CLOSING_LOCKS = {
    "activity": "select 1 from harvest_activity_tasks where execution_id = $1 for update",
    "timer": "select 1 from harvest_timers where execution_id = $1 for update",
}


@pytest.mark.parametrize("lock", CLOSING_LOCKS)
async def test_the_end_of_a_run_waits_for_nobody_either(store: Store, lock: str) -> None:
    worker = await a_worker(store)
    runs = [await a_run(store, worker, activities={1: 1}, timers={2: 60}) for _ in range(2)]
    batch = Batch()
    for run in runs:
        decide(batch, run, closes=True)
    async with holding(store, CLOSING_LOCKS[lock], runs[0]), asyncio.timeout(AT_ONCE):
        answers = await committed(store, worker, batch)
    assert answers == {runs[0]: Answer.BUSY, runs[1]: Answer.PASSED}


async def test_a_batch_answers_for_each_of_its_decisions(store: Store) -> None:
    worker, other = await a_worker(store), await a_worker(store)
    passes, moved, busy = [await a_run(store, worker) for _ in range(3)]
    theirs = await a_run(store, other)
    batch = Batch()
    for run in (passes, busy, theirs):
        decide(batch, run)
    decide(batch, moved, expected=7)
    async with holding(store, LOCKS["execution"], busy):
        answers = await committed(store, worker, batch)
    assert answers == {passes: Answer.PASSED, moved: Answer.MOVED, busy: Answer.BUSY, theirs: Answer.FENCED}
    for run in (moved, busy, theirs):
        assert await next_id(store, run) == 2


class Failing:
    """A connection whose second statement is refused."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._sent = 0

    async def fetch(self, sql: str, *values: Any) -> Any:
        self._sent += 1
        if self._sent == 2:
            raise asyncpg.QueryCanceledError("canceling statement due to user request")
        return await self._inner.fetch(sql, *values)


async def test_what_has_passed_is_told_though_nobody_can_say_why_the_rest_did_not(store: Store) -> None:
    worker = await a_worker(store)
    passes, moved = [await a_run(store, worker) for _ in range(2)]
    batch = Batch()
    decide(batch, passes)
    decide(batch, moved, expected=7)
    async with store.commit.connection() as connection:
        answers = await commit(store, Failing(connection), worker, batch)
    assert answers == {passes: Answer.PASSED, moved: Answer.BUSY}
    assert (await next_id(store, passes), await next_id(store, moved)) == (3, 2)


async def test_a_task_of_another_worker_or_attempt_is_fenced(store: Store) -> None:
    worker, other = await a_worker(store), await a_worker(store)
    theirs, taken_again = await a_run(store, other), await a_run(store, worker)
    batch = Batch()
    decide(batch, theirs)
    decide(batch, taken_again, attempt=2)
    assert await committed(store, worker, batch) == {theirs: Answer.FENCED, taken_again: Answer.FENCED}


async def test_13_a_lease_that_has_ended_is_fenced_and_not_busy(store: Store) -> None:
    worker = await a_worker(store, lease=-0.001)
    run = await a_run(store, worker)
    batch = Batch()
    decide(batch, run)
    assert await committed(store, worker, batch) == {run: Answer.FENCED}
    assert await next_id(store, run) == 2


async def test_a_parked_task_is_nobodys(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, None, state=2, sticky=worker)
    batch = Batch()
    decide(batch, run)
    assert await committed(store, worker, batch) == {run: Answer.FENCED}


async def test_a_closed_run_is_fenced(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker)
    for answer in (Answer.PASSED, Answer.FENCED):
        batch = Batch()
        decide(batch, run, expected=2, closes=True)
        assert await committed(store, worker, batch) == {run: answer}


async def test_merged_results_go_in_and_their_tasks_go_away(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, activities={1: 1, 2: 3, 5: 1})
    batch = Batch()
    decide(batch, run, merges={1: 1, 2: 3})
    assert await committed(store, worker, batch) == {run: Answer.PASSED}
    assert await activities_of(store, run) == {5: (1, 1)}
    assert await next_id(store, run) == 5


async def test_an_attempt_that_has_timed_out_cannot_delete_its_successors_task(store: Store) -> None:
    worker = await a_worker(store)
    run, neighbour = [await a_run(store, worker, activities={1: 2}) for _ in range(2)]
    batch = Batch()
    decide(batch, run, merges={1: 1})
    decide(batch, neighbour, merges={1: 2})
    answers = await committed(store, worker, batch)
    assert answers == {run: Answer.MOVED, neighbour: Answer.PASSED}, (
        "moved: sent again as it stands it would never pass"
    )
    assert await activities_of(store, run) == {1: (1, 2)}
    assert await next_id(store, run) == 2


async def test_one_stale_result_of_several_holds_back_the_whole_decision(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, activities={1: 1}, pending={2: 1})
    batch = Batch()
    decide(batch, run, merges={1: 1, 2: 1})
    assert await committed(store, worker, batch) == {run: Answer.MOVED}
    assert await activities_of(store, run) == {1: (1, 1), 2: (0, 1)}


async def test_what_runs_is_asked_to_stop_and_what_waits_goes_away(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, activities={1: 1}, pending={2: 1}, timers={3: 60, 4: 60})
    batch = Batch()
    decide(batch, run, cancels=(1, 2, 3))
    assert await committed(store, worker, batch) == {run: Answer.PASSED}
    assert await activities_of(store, run) == {1: (1, 1)}
    assert await one(store, "select cancel_requested from harvest_activity_tasks where execution_id = $1", run)
    assert await one(store, "select seq from harvest_timers where execution_id = $1", run) == 4


async def test_the_end_of_a_run_takes_its_tasks_and_timers_along(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, activities={1: 1, 2: 1}, pending={3: 0}, timers={4: 60})
    batch = Batch()
    decide(batch, run, merges={1: 1}, closes=True)
    assert await committed(store, worker, batch) == {run: Answer.PASSED}
    assert await activities_of(store, run) == {}
    assert await task_of(store, run) == (-1, None)
    assert await one(store, "select count(*) from harvest_timers where execution_id = $1", run) == 0
    assert await one(store, "select result from harvest_execution_details where execution_id = $1", run) == b"1"
    assert await one(store, "select state from harvest_executions where execution_id = $1", run) == 10


async def test_news_that_the_decision_has_seen_is_news_no_more(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, state=3)
    batch = Batch()
    decide(batch, run)
    assert await committed(store, worker, batch) == {run: Answer.PASSED}
    assert await task_of(store, run) == (2, None)


async def test_the_estimate_of_the_databases_clock_is_not_ahead_after_a_slow_commit(store: Store) -> None:
    """Stamped by an estimate that is ahead, an event would lie beyond the one that the database stamps next."""
    worker = await a_worker(store)
    run = await a_run(store, worker)
    batch = Batch()
    decide(batch, run)
    await store.scan.write(
        """create function dawdle() returns trigger language plpgsql as
           $$ begin perform pg_sleep(1.5); return new; end $$"""
    )
    await store.scan.write(
        "create trigger dawdles before update on harvest_executions for each row execute function dawdle()"
    )
    try:
        assert await committed(store, worker, batch) == {run: Answer.PASSED}
        estimate = store.clock.now()
        now = await one(store, "select clock_timestamp()")
        assert now - timedelta(seconds=1.2) < estimate <= now
    finally:
        await store.scan.write("drop function dawdle cascade")
