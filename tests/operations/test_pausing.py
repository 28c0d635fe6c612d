"""A paused run is held whole: nothing of it is claimed, decided or timed out; what comes is seen when it is resumed."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from harvest.errors import ExecutionClosedError, ExecutionNotFoundError
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.operations import auditing, closing, pausing, reading, signalling, starting
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest.store import activity_claims, claims, closings, results
from harvest.store.commit import Answer, Batch, commit
from harvest.store.results import ActivityRetry
from harvest.store.store import Store
from tests.operations.population import register
from tests.operations.rotating import events_of, worker_on
from tests.store.rows import a_run, a_worker, activities_of, decide, one, task_of

PAUSED_TASK = 4


@pytest.fixture
def store(shards: Shards) -> Store:
    """The shard of the runs that these tests write by themselves."""
    return shards.store(0)


async def begin(shards: Shards, actor: Actor, **options: Any) -> UUID:
    await register(shards, 0, "any_flow", input_schema=b"{}")
    started = await starting.start(shards, actor, workflow_name="any_flow", workflow_id="o-1", **options)
    return started.execution_id


async def deadline_of(shards: Shards, execution_id: UUID) -> datetime:
    found = await reading.get(shards, execution_id)
    assert found.deadline_at is not None
    return found.deadline_at


async def test_a_pause_says_since_when_why_and_by_whom_and_repeating_it_changes_nothing(
    shards: Shards, actor: Actor
) -> None:
    run = await begin(shards, actor)
    first = await pausing.pause(shards, actor, run, reason="a look")
    assert (first.newly_paused, first.state, first.reason, first.actor) == (True, "PAUSED", "a look", "token:admin")
    again = await pausing.pause(shards, actor, run, reason="another")
    assert (again.newly_paused, again.reason, again.paused_at) == (False, "a look", first.paused_at)
    assert await task_of(shards.store_of(run), run) == (PAUSED_TASK, None)
    shown = await reading.get(shards, run)
    assert shown.state == "PAUSED"
    acts = (await auditing.list_audit(shards)).rows.rows
    assert [act.operation for act in acts[:2]] == ["workflow.pause", "workflow.pause"]


async def test_a_resume_says_how_long_it_was_and_is_no_error_where_nothing_was_held(
    shards: Shards, actor: Actor
) -> None:
    run = await begin(shards, actor)
    nothing = await pausing.resume(shards, actor, run)
    assert (nothing.newly_resumed, nothing.state, nothing.pause_duration_secs) == (False, "RUNNING", 0)
    await pausing.pause(shards, actor, run)
    await shards.store_of(run).write.write(
        "update harvest_events set at = at - interval '90 seconds' where execution_id = $1 and kind = 40", run
    )
    done = await pausing.resume(shards, actor, run)
    assert (done.newly_resumed, done.state) == (True, "RUNNING")
    assert 90 <= done.pause_duration_secs < 120
    kinds = [kind for kind, _ in await events_of(shards, run)]
    assert kinds[1:] == [EventKind.WORKFLOW_EXECUTION_PAUSED, EventKind.WORKFLOW_EXECUTION_RESUMED]
    assert await task_of(shards.store_of(run), run) == (0, None)


async def test_closed_and_unknown_runs_are_refused(shards: Shards, actor: Actor) -> None:
    run = await begin(shards, actor)
    await closing.terminate(shards, actor, run, reason="")
    for act in (pausing.pause, pausing.resume):
        with pytest.raises(ExecutionClosedError):
            await act(shards, actor, run)
        with pytest.raises(ExecutionNotFoundError):
            await act(shards, actor, UUID(int=mint_execution_id(1).int))


async def test_a_paused_run_is_not_claimed_and_keeps_what_comes_until_it_is_resumed(
    shards: Shards, actor: Actor
) -> None:
    run = await begin(shards, actor)
    store = shards.store_of(run)
    worker = await a_worker(store)
    await pausing.pause(shards, actor, run)
    await signalling.signal(shards, actor, run, "go", b"1")
    assert (await closing.cancel(shards, actor, run, reason="")).newly_cancelled
    assert await task_of(store, run) == (PAUSED_TASK, None)
    assert await claims.claim(store, worker, ["default"], 10) == []
    await pausing.resume(shards, actor, run)
    (claimed,) = await claims.claim(store, worker, ["default"], 10)
    assert claimed.execution_id == run
    kinds = [event.kind for event in (await claims.load_events(store, {run: 1}))[run]]
    assert kinds == [
        EventKind.WORKFLOW_STARTED,
        EventKind.WORKFLOW_EXECUTION_PAUSED,
        EventKind.SIGNAL_RECEIVED,
        EventKind.WORKFLOW_CANCEL_REQUESTED,
        EventKind.WORKFLOW_EXECUTION_RESUMED,
    ]


async def test_a_paused_run_can_be_terminated(shards: Shards, actor: Actor) -> None:
    run = await begin(shards, actor)
    await pausing.pause(shards, actor, run)
    assert (await closing.terminate(shards, actor, run, reason="")).newly_terminated
    assert await task_of(shards.store_of(run), run) == (-1, None)


async def test_the_holder_of_a_paused_run_is_fenced(shards: Shards, store: Store, actor: Actor) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker)
    await pausing.pause(shards, actor, run)
    batch = Batch()
    decide(batch, run)
    async with store.commit.connection(writes=True) as connection:
        assert (await commit(store, connection, worker, batch))[run] is Answer.FENCED


async def test_activities_of_a_paused_run_wait_and_their_timeouts_with_them(
    shards: Shards, store: Store, actor: Actor
) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, pending={3: 0})
    other = await a_run(store, worker, pending={1: 0})
    await store.scan.write(
        """update harvest_activity_tasks set timeout_at = clock_timestamp() + interval '60 seconds',
                  due = clock_timestamp() - interval '1 second' where execution_id = $1""",
        run,
    )
    await scheduled(store, run, other)
    before = await one(store, "select timeout_at from harvest_activity_tasks where execution_id = $1", run)
    await pausing.pause(shards, actor, run)
    claimed = await activity_claims.claim_activities(store, worker, "w", ["default"], ["a"], 10)
    assert [each.execution_id for each in claimed] == [other]
    pending = (await reading.get(shards, run)).pending.activities
    assert [(each.next_try_at, each.timeout_at) for each in pending] == [(None, None)]
    await store.scan.write(
        "update harvest_events set at = at - interval '30 seconds' where execution_id = $1 and kind = 40", run
    )
    await pausing.resume(shards, actor, run)
    after = await one(store, "select timeout_at from harvest_activity_tasks where execution_id = $1", run)
    assert timedelta(seconds=30) <= after - before < timedelta(seconds=60)
    claimed = await activity_claims.claim_activities(store, worker, "w", ["default"], ["a"], 10)
    assert [each.execution_id for each in claimed] == [run]


async def scheduled(store: Store, *runs: UUID) -> None:
    """A first event that can stand for the one that scheduled the activities."""
    for run in runs:
        await store.scan.write(
            "update harvest_events set payload = $2 where execution_id = $1 and event_id = 1",
            run,
            b'{"name":"a","digest":""}',
        )


async def test_an_attempt_that_fails_while_the_run_is_paused_is_tried_again_after_the_resume_only(
    shards: Shards, store: Store, actor: Actor
) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, activities={3: 1})
    await scheduled(store, run)
    await pausing.pause(shards, actor, run)
    assert await activities_of(store, run) == {3: (1, 1)}
    await results.retry_activities(store, [ActivityRetry(run, 3, 1, worker, 0.0, None)])
    for _ in range(3):
        assert await activity_claims.claim_activities(store, worker, "w", ["default"], ["a"], 10) == []
    put_off = "select count(*) from harvest_activity_tasks where execution_id = $1 and due > now() + interval '1 day'"
    assert await one(store, put_off, run) == 1
    await pausing.resume(shards, actor, run)
    (claimed,) = await activity_claims.claim_activities(store, worker, "w", ["default"], ["a"], 10)
    assert (claimed.execution_id, claimed.seq, claimed.attempt) == (run, 3, 2)


async def test_a_back_off_goes_on_where_the_pause_was_shorter(shards: Shards, store: Store, actor: Actor) -> None:
    run = await a_run(store, await a_worker(store), pending={3: 1})
    due = "select due from harvest_activity_tasks where execution_id = $1"
    await store.scan.write(
        "update harvest_activity_tasks set due = due + interval '1 hour', sort_at = sort_at + interval '1 hour' "
        "where execution_id = $1",
        run,
    )
    before = await one(store, due, run)
    await pausing.pause(shards, actor, run)
    await pausing.resume(shards, actor, run)
    assert await one(store, due, run) == before


async def test_a_first_task_that_is_delayed_stays_so(shards: Shards, store: Store, actor: Actor) -> None:
    run = await a_run(store, None, state=0)
    due = "select due from harvest_workflow_tasks where execution_id = $1"
    await store.scan.write(
        "update harvest_workflow_tasks set due = due + interval '1 hour' where execution_id = $1", run
    )
    before = await one(store, due, run)
    await pausing.pause(shards, actor, run)
    await pausing.resume(shards, actor, run)
    assert await one(store, due, run) == before


async def test_the_deadline_waits_with_the_run(shards: Shards, actor: Actor) -> None:
    run = await begin(shards, actor, execution_timeout_secs=600)
    store = shards.store_of(run)
    before = await deadline_of(shards, run)
    await pausing.pause(shards, actor, run)
    await store.write.write(
        "update harvest_executions set deadline_at = deadline_at - interval '1 hour' where execution_id = $1", run
    )
    await store.write.write(
        "update harvest_events set at = at - interval '1 hour' where execution_id = $1 and kind = 40", run
    )
    assert await closings.close_overdue(store) == []
    await pausing.resume(shards, actor, run)
    assert timedelta(0) <= await deadline_of(shards, run) - before < timedelta(seconds=60)
    assert await closings.close_overdue(store) == []


async def test_a_pause_and_a_resume_at_once_leave_the_deadline_in_reason(shards: Shards, actor: Actor) -> None:
    run = await begin(shards, actor, execution_timeout_secs=600)
    before = await deadline_of(shards, run)
    for _ in range(5):
        await asyncio.gather(
            *(pausing.pause(shards, actor, run) for _ in range(3)),
            *(pausing.resume(shards, actor, run) for _ in range(3)),
        )
    await pausing.resume(shards, actor, run)
    assert timedelta(0) <= await deadline_of(shards, run) - before < timedelta(seconds=60)
    kinds = [kind for kind, _ in await events_of(shards, run)][1:]
    assert kinds == [EventKind.WORKFLOW_EXECUTION_PAUSED, EventKind.WORKFLOW_EXECUTION_RESUMED] * (len(kinds) // 2)


async def test_a_resumed_run_goes_to_its_last_worker_while_that_lives(shards: Shards, actor: Actor) -> None:
    run = await begin(shards, actor)
    worker = await worker_on(shards, run.int >> 112)
    await worker.decide(run)
    await pausing.pause(shards, actor, run)
    await pausing.resume(shards, actor, run)
    stranger = await a_worker(worker.store)
    assert await claims.claim(worker.store, stranger, ["default"], 10) == []
    assert [each.execution_id for each in await claims.claim(worker.store, worker.id, ["default"], 10)] == [run]
