"""A stale worker cannot write: a take-over between a statement's snapshot and its locks, in both orders (design 9)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from harvest.store import activity_claims, claims, fleet, upkeep
from harvest.store.commit import Answer, Batch, commit
from harvest.store.store import Store
from tests.store.gate import stopped_commit
from tests.store.rows import a_run, a_worker, activities_of, decide, next_id, one, task_of
from tests.store.test_commit import committed
from tests.support import eventually


async def expire(store: Store, worker: UUID) -> None:
    await store.scan.write("update harvest_workers set lease_until = '-infinity' where worker = $1", worker)


async def take_over(store: Store, run: UUID) -> UUID:
    """Free what expired workers held, and claim the run by a new one."""
    await fleet.free_lost(store)
    heir = await a_worker(store)
    claimed = await claims.claim(store, heir, ["default"], 1000)
    assert run in {each.execution_id for each in claimed}
    return heir


async def test_a_take_over_between_snapshot_and_lock_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = await a_worker(store)
    run = await a_run(store, stale, activities={1: 1})
    batch = Batch()
    decide(batch, run, merges={1: 1})
    async with stopped_commit(store, stale, batch, monkeypatch) as sending:
        await expire(store, stale)
        heir = await take_over(store, run)
    assert sending.result() == {run: Answer.FENCED}
    assert await next_id(store, run) == 2
    assert await task_of(store, run) == (1, heir)
    assert await activities_of(store, run) == {1: (0, 1)}


async def test_a_take_over_after_the_lock_leaves_the_run_to_the_commit_that_was_first(store: Store) -> None:
    first = await a_worker(store)
    run = await a_run(store, first)
    batch, late = Batch(), Batch()
    decide(batch, run)
    decide(late, run, expected=3)
    connection: Any = await asyncpg.connect(store.url)
    try:
        async with connection.transaction():
            assert await commit(store, connection, first, batch) == {run: Answer.PASSED}
            await expire(store, first)
            await fleet.free_lost(store)  # the task is locked: it waits for the next look
    finally:
        await connection.close()
    await store.scan.write(
        "update harvest_workflow_tasks set state = 1, worker = $2 where execution_id = $1", run, first
    )
    heir = await take_over(store, run)
    assert await committed(store, first, late) == {run: Answer.FENCED}
    assert await next_id(store, run) == 3
    assert await task_of(store, run) == (1, heir)


async def test_a_signal_between_snapshot_and_lock_is_seen(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker)
    batch = Batch()
    decide(batch, run)
    async with stopped_commit(store, worker, batch, monkeypatch) as sending:
        await store.scan.write(
            "update harvest_executions set next_event_id = next_event_id + 1 where execution_id = $1", run
        )
    assert sending.result() == {run: Answer.MOVED}
    assert await next_id(store, run) == 3


async def test_a_result_whose_task_changed_between_snapshot_and_lock_is_merged_and_its_task_goes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, activities={1: 1})
    batch = Batch()
    decide(batch, run, merges={1: 1})
    async with stopped_commit(store, worker, batch, monkeypatch) as sending:
        await store.scan.write("update harvest_activity_tasks set timeout_at = 'infinity' where execution_id = $1", run)
    assert sending.result() == {run: Answer.PASSED}
    assert await activities_of(store, run) == {}, "a second result could come for what is left"


async def test_a_retry_between_snapshot_and_lock_cancels_what_is_there_now(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, activities={1: 1})
    batch = Batch()
    decide(batch, run, cancels=(1,))
    async with stopped_commit(store, worker, batch, monkeypatch) as sending:
        await store.scan.write(
            "update harvest_activity_tasks set state = 0, worker = null where execution_id = $1", run
        )
    assert sending.result() == {run: Answer.PASSED}
    assert await activities_of(store, run) == {}


async def test_two_looks_for_lost_workers_free_each_task_once(store: Store) -> None:
    lost = await a_worker(store, lease=-1)
    run = await a_run(store, lost, activities={1: 1})
    await fleet.free_lost(store)
    second = await fleet.free_lost(store)
    assert lost not in second.workers
    assert await one(store, "select strikes from harvest_workflow_tasks where execution_id = $1", run) == 1
    assert await one(store, "select strikes from harvest_activity_tasks where execution_id = $1", run) == 1


async def test_a_task_that_is_locked_is_freed_by_the_next_look_and_its_worker_is_not_revived(store: Store) -> None:
    lost = await a_worker(store, lease=-1)
    locked, free = await a_run(store, lost), await a_run(store, lost)
    connection: Any = await asyncpg.connect(store.url)
    try:
        async with connection.transaction():
            await connection.execute("select 1 from harvest_workflow_tasks where execution_id = $1 for share", locked)
            assert lost in (await fleet.free_lost(store)).workers
            assert await task_of(store, free) == (0, None)
            assert await task_of(store, locked) == (1, lost)
            async with store.scan.connection() as renewing:
                assert await fleet.renew(renewing, lost, b"{}") is None
    finally:
        await connection.close()
    assert lost in (await fleet.free_lost(store)).workers
    assert await task_of(store, locked) == (0, None)
    assert lost not in (await fleet.free_lost(store)).workers


async def test_a_lease_that_nobody_ended_is_renewed_late(store: Store) -> None:
    worker = await a_worker(store, lease=-1)
    async with store.scan.connection() as connection:
        assert await fleet.renew(connection, worker, b"{}") == fleet.Renewal(watched=False, orders=fleet.Orders())
    assert worker not in (await fleet.free_lost(store)).workers


async def test_the_third_lost_worker_puts_a_run_into_quarantine_until_another_build(store: Store) -> None:
    run = await a_run(store, None, state=0)
    for strike in range(1, 4):
        lost = await a_worker(store, lease=-1)
        await store.scan.write(
            "update harvest_workflow_tasks set state = 1, worker = $2 where execution_id = $1", run, lost
        )
        await fleet.free_lost(store)
        blocked = await one(store, "select blocked from harvest_executions where execution_id = $1", run)
        assert blocked == ("quarantined" if strike == 3 else None)
    heir = await a_worker(store)
    assert run not in {each.execution_id for each in await claims.claim(store, heir, ["default"], 1000)}
    await fleet.retry_blocked(store, "", ["default"])
    assert run not in {each.execution_id for each in await claims.claim(store, heir, ["default"], 1000)}
    await fleet.retry_blocked(store, "a new build", ["default"])
    assert run in {each.execution_id for each in await claims.claim(store, heir, ["default"], 1000)}


async def test_an_activity_that_has_struck_out_is_not_claimed_again_and_comes_up_as_overdue(store: Store) -> None:
    lost = await a_worker(store, lease=-1)
    run = await a_run(store, lost, activities={1: 3})
    await store.scan.write("update harvest_activity_tasks set strikes = 2 where execution_id = $1", run)
    assert (run, 1, 3) in (await fleet.free_lost(store)).struck_out
    heir = await a_worker(store)
    taken = await activity_claims.claim_activities(store, heir, "heir", ["default"], ["a"], 1000)
    assert run not in {each.execution_id for each in taken}
    assert run in {each.execution_id for each in await upkeep.overdue_activities(store)}


async def test_a_graceful_end_frees_everything_without_a_strike(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, activities={1: 1})
    pinned = await a_run(store, None, state=0, sticky=worker)
    await fleet.stop(store, worker)
    assert await task_of(store, run) == (0, None)
    assert await activities_of(store, run) == {1: (0, 1)}
    for table in ("harvest_workflow_tasks", "harvest_activity_tasks"):
        assert await one(store, f"select sum(strikes) from {table} where execution_id = $1", run) == 0
    assert await one(store, "select sticky_worker from harvest_workflow_tasks where execution_id = $1", pinned) is None


async def test_a_release_waits_for_a_commit_whose_answer_was_lost(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker)
    batch = Batch()
    decide(batch, run)
    connection: Any = await asyncpg.connect(store.url)
    try:
        async with connection.transaction():
            await commit(store, connection, worker, batch)
            assert await claims.release(store, worker, [(run, 1)]) == [(run, 1)], "it is still under way"
    finally:
        await connection.close()

    async def over() -> bool:
        return await claims.release(store, worker, [(run, 1)]) == []

    await eventually(over)
    assert await next_id(store, run) == 3


async def test_a_release_frees_only_the_attempt_that_it_names(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker)
    assert await claims.release(store, worker, [(run, 7)]) == []
    assert await task_of(store, run) == (1, worker)
    assert await claims.release(store, worker, [(run, 1)]) == []
    assert await task_of(store, run) == (0, None)


async def test_the_third_strike_is_for_the_suspect_alone(store: Store) -> None:
    lost = await a_worker(store, lease=-1)
    innocent = await a_run(store, lost, activities={1: 1, 2: 1})
    suspect = await a_run(store, lost)
    await store.scan.write("update harvest_workflow_tasks set strikes = 2 where execution_id = $1", suspect)
    await fleet.free_lost(store)
    assert await strikes_of(store, suspect) == 3
    assert await strikes_of(store, innocent) == 0
    assert await one(store, "select sum(strikes) from harvest_activity_tasks where execution_id = $1", innocent) == 0


async def test_of_two_suspect_activities_the_last_to_begin_is_struck(store: Store) -> None:
    lost = await a_worker(store, lease=-1)
    run = await a_run(store, lost, activities={1: 3, 2: 3, 3: 1})
    await store.scan.write(
        """update harvest_activity_tasks
              set strikes = case when seq < 3 then 2 else 0 end,
                  started_at = clock_timestamp() + seq * interval '1 second'
            where execution_id = $1""",
        run,
    )
    await fleet.free_lost(store)
    rows = await store.scan.fetch("select seq, strikes from harvest_activity_tasks where execution_id = $1", run)
    assert {row["seq"]: row["strikes"] for row in rows} == {1: 2, 2: 3, 3: 0}
    assert await strikes_of(store, run) == 0


async def strikes_of(store: Store, run: UUID) -> int:
    return int(await one(store, "select strikes from harvest_workflow_tasks where execution_id = $1", run))
