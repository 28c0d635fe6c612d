"""What comes to runs and what they ask for, as metrics: each counts once, by type, whatever becomes of the decision."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from harvest import (
    ActivityContext,
    ActivityTimeoutError,
    ApplicationError,
    Harvest,
    Retry,
    UpdateFailedError,
    UpdateRejectedError,
    WorkflowContext,
    WorkflowFailedError,
)
from harvest.errors import QueryNotFoundError, ShardUnavailableError
from harvest.operations import requesting
from harvest.shards import Shards
from harvest.store import claims, fleet, rollups
from harvest.store.measures import Totals, with_derived
from harvest.store.store import Store
from harvest.worker.metrics import PROCESS, Measures
from harvest.worker.options import Counters
from harvest.worker.scanner import Scanner
from harvest.worker.watch import Lease
from harvest.worker.worker import Worker
from tests.store.rows import a_run, a_worker
from tests.support import FAST, at_work, eventually

SOON = timedelta(seconds=60)
SHORT = timedelta(seconds=0.2)
Work = tuple[Worker, Shards]
app = Harvest()


@app.activity
async def hangs(ctx: ActivityContext) -> None:
    await asyncio.sleep(60)


ONCE = Retry(max_attempts=1)
TWICE = Retry(max_attempts=2, initial_interval=timedelta(milliseconds=1))
LIMITS = {
    "start_to_close": hangs.with_options(start_to_close=SHORT, retry=TWICE),
    "heartbeat": hangs.with_options(heartbeat_timeout=SHORT, retry=TWICE),
    "schedule_to_start": hangs.with_options(schedule_to_start=SHORT, queue="nobody"),
    "schedule_to_close": hangs.with_options(schedule_to_close=SHORT, start_to_close=SHORT, queue="nobody"),
}


@app.workflow
async def naps(ctx: WorkflowContext, times: int) -> None:
    for _ in range(times):
        await ctx.sleep(0.01)


@app.workflow
async def is_quick(ctx: WorkflowContext) -> None:
    for _ in range(2):
        await ctx.wait_for_signal("go", timeout=3600)


@app.workflow
async def turns_back(ctx: WorkflowContext) -> None:
    sleeping = asyncio.ensure_future(ctx.sleep(3600))
    await asyncio.sleep(0)
    sleeping.cancel()


@app.workflow
async def hears(ctx: WorkflowContext, times: int) -> None:
    for _ in range(times):
        await ctx.wait_for_signal("go")


@app.workflow
async def hands_on(ctx: WorkflowContext, is_last: bool) -> None:
    await ctx.wait_for_signal("last" if is_last else "first")
    if not is_last:
        ctx.continue_as_new(True)


def refuse_negative(value: int) -> None:
    if value < 0:
        raise ApplicationError("only what is positive", type="Negative")


@app.workflow
async def account(ctx: WorkflowContext) -> int:
    total = 0

    def add(value: int) -> int:
        nonlocal total
        if value == 13:
            raise ApplicationError("unlucky", type="Unlucky")
        total += value
        return total

    ctx.register_update_handler("add", add, validator=refuse_negative)
    ctx.register_query_handler("total", lambda: total)
    await ctx.wait_for_signal("close")
    return total


@app.workflow
async def asked(ctx: WorkflowContext) -> None:
    ctx.register_query_handler("state", lambda: "fine")
    await ctx.wait_for_signal("close")


@app.workflow
async def meets_timeout(ctx: WorkflowContext, kind: str) -> str:
    try:
        await ctx.execute_activity(LIMITS[kind])
    except ActivityTimeoutError:
        return kind
    return ""


@app.workflow(execution_timeout=SHORT)
async def too_late(ctx: WorkflowContext) -> None:
    await ctx.wait_for_signal("never")


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, new_database("metrics_of_runs")) as working:
        yield working


async def told(work: Work) -> Totals:
    """What the worker has told by now."""
    found = Totals()
    for part in work[0]._parts.values():
        await part.rollups.write_rollup()
        found.add(part.committer.tracer.measures.whole)
    return with_derived(found)


async def counted(work: Work, workflow: str, **expected: float) -> None:
    """Wait until counters of a type have these values: `signal_received=2` is of `signal.received`."""

    async def are_told() -> bool:
        counters = (await told(work)).counters
        return {name: counters.get((name.replace("_", "."), workflow), 0) for name in expected} == expected

    await eventually(are_told)


async def test_timers_count_when_they_are_set_and_when_they_fire(work: Work) -> None:
    await (await app.start(naps, 3)).result(SOON)
    await counted(work, "naps", timer_started=3, timer_fired=3)


async def test_a_timer_that_is_cancelled_was_set_and_does_not_fire(work: Work) -> None:
    run = await app.start(is_quick)
    for times in (1, 2):
        await counted(work, "is_quick", timer_started=times)
        await run.signal("go")
    await run.result(SOON)
    await counted(work, "is_quick", timer_started=2, timer_fired=0)


async def test_a_timer_that_is_set_and_taken_back_at_once_never_began(work: Work) -> None:
    run = await app.start(turns_back)
    await run.result(SOON)
    await counted(work, "turns_back", workflow_started=1, timer_started=0)


async def test_a_signal_counts_once_however_its_run_is_decided(work: Work) -> None:
    run = await app.start(hears, 2)
    await run.signal("other")
    await run.signal("go")
    await counted(work, "hears", signal_received=2)
    work[0].let_go_residents()
    await run.signal("go")
    await run.result(SOON)
    await counted(work, "hears", signal_received=3, signal_unhandled=1)


async def test_a_signal_that_is_handed_on_is_not_unhandled_and_counts_for_its_successor(work: Work) -> None:
    run = await app.start(hands_on, False)
    await run.signal("last")
    await counted(work, "hands_on", signal_received=1)
    await run.signal("first")
    await run.result(SOON)
    await counted(work, "hands_on", signal_received=3, signal_unhandled=0)


async def test_updates_count_by_what_became_of_them(work: Work) -> None:
    run = await app.start(account)
    assert await run.update("add", 2) == 2
    assert await run.update("add", 3) == 5
    with pytest.raises(UpdateFailedError, match="unlucky"):
        await run.update("add", 13)
    for refused in (-1, "no number"):
        with pytest.raises(UpdateRejectedError):
            await run.update("add", refused)
    await run.signal("close")
    assert await run.result(SOON) == 5
    await counted(work, workflow="account", update_admitted=5, update_completed=2, update_failed=1, update_rejected=2)
    spread = (await told(work)).spreads["update.duration", "account", "completed"]
    assert 0 < spread.sum < 60


async def test_questions_are_timed_by_kind_and_by_how_they_ended(work: Work) -> None:
    run = await app.start(asked)
    before = (await told(work)).counters
    assert await run.query("state") == "fine"
    with pytest.raises(QueryNotFoundError):
        await run.query("nothing")
    await requesting.handlers(work[1], run.execution_id)

    async def all_known() -> bool:
        spreads = (await told(work)).spreads
        found = {key[2:]: spread.count for key, spread in spreads.items() if key[:2] == ("query.duration", "asked")}
        return found == {("query", "completed"): 1, ("query", "failed"): 1, ("handlers", "completed"): 1}

    await eventually(all_known)
    after = (await told(work)).counters
    answered = [("query.resident", how) for how in ("hit", "cold")]
    assert sum(after.get(key, 0) - before.get(key, 0) for key in answered) == 3


async def test_a_question_to_a_run_that_is_not_here_is_answered_by_a_replay(work: Work) -> None:
    run = await app.start(asked)
    assert await run.query("state") == "fine"
    before = (await told(work)).counters.get(("query.resident", "cold"), 0)
    work[0].let_go_residents()
    assert await run.query("state") == "fine"
    assert (await told(work)).counters["query.resident", "cold"] == before + 1


@pytest.mark.parametrize(
    ("kind", "times"), [("start_to_close", 2), ("heartbeat", 2), ("schedule_to_start", 1), ("schedule_to_close", 1)]
)
async def test_each_timeout_of_an_activity_counts_retried_or_not(work: Work, kind: str, times: int) -> None:
    assert await (await app.start(meets_timeout, kind)).result(SOON) == kind

    async def known() -> bool:
        return (await told(work)).counters.get(("activity.timeouts", "hangs", kind)) == times

    await eventually(known)


async def test_a_run_that_its_deadline_ends_is_closed_as_timed_out(work: Work) -> None:
    run = await app.start(too_late)
    with pytest.raises(WorkflowFailedError):
        await run.result(SOON)
    await counted(work, "too_late", workflow_timeout=1)
    assert (await told(work)).counters["workflow.terminal", "too_late", "timed_out"] == 1


async def test_what_workers_died_of_counts_when_it_is_put_aside(new_database: Callable[[str], str]) -> None:
    store = Store(0, new_database("metrics_quarantine"))
    shards = Shards({0: store.url})
    measures = Measures(0)
    runner = Worker(app.registry, shards, FAST)._runner
    scanner = Scanner(store, await a_worker(store), Lease(store, 10.0, 3.0), runner, FAST, Counters(), measures)
    lost = await a_worker(store, lease=-1)
    await a_run(store, lost)
    await store.scan.write("update harvest_workflow_tasks set strikes = 2")
    await scanner.lost_workers()
    lost = await a_worker(store, lease=-1)
    run = await a_run(store, lost, activities={1: 1})
    await store.scan.write("update harvest_activity_tasks set strikes = 2 where execution_id = $1", run)
    await scanner.lost_workers()
    counters = {key: amount for key, amount in measures.fresh.counters.items() if key[0] == "task.quarantined"}
    assert counters == {("task.quarantined", "workflow"): 1, ("task.quarantined", "activity"): 1}
    assert await fleet.free_lost(store) == fleet.Lost([], [])
    await shards.close()
    await store.close()


async def test_every_use_of_a_connection_is_timed_by_its_pool(work: Work) -> None:
    store = work[1].stores[0]
    before = (await told(work)).spreads
    await store.deliver.fetch("select pg_sleep(0.05)")
    after = (await told(work)).spreads
    key = ("db.query.duration", "deliver")
    assert after[key].sum - before[key].sum >= 0.05
    await (await app.start(naps, 1)).result(SOON)
    names = {key[1] for key in (await told(work)).spreads if key[0] == "db.query.duration"}
    assert {"commit", "claim", "scan", "deliver"} <= names <= {"commit", "claim", "scan", "deliver", "write"}


async def test_a_deadlock_of_a_commit_counts_as_a_retry_of_its_workflow_task(work: Work) -> None:
    store = work[1].stores[0]
    other: Any = await asyncpg.connect(store.url)
    lock = "select pg_advisory_xact_lock($1)"

    async def waits() -> bool:
        return bool(await store.read.fetch("select from pg_locks where locktype = 'advisory' and not granted"))

    async def commits() -> None:
        async with store.commit.connection() as connection, connection.transaction():
            await connection.execute("set local deadlock_timeout = '10ms'")
            await connection.execute(lock, 1)
            first.set()
            await eventually(waits)
            await connection.execute(lock, 2)

    first = asyncio.Event()
    try:
        async with other.transaction():
            await other.execute("set local deadlock_timeout = '1min'")
            await other.execute(lock, 2)
            committing = asyncio.create_task(commits())
            await first.wait()
            await other.execute(lock, 1)
            with pytest.raises(asyncpg.DeadlockDetectedError):
                await committing
    finally:
        await other.close()
    assert (await told(work)).counters["db.transaction_retry", "workflow_task", "deadlock"] == 1


async def test_a_lock_that_a_single_decision_waits_for_in_vain_counts_as_well(work: Work) -> None:
    store = work[1].stores[0]
    handle = await app.start(naps, 1)
    await handle.result(SOON)
    async with store.scan.connection() as other, other.transaction():
        await claims.lock_execution(other, handle.execution_id)
        with pytest.raises(ShardUnavailableError):
            async with store.write.connection(writes=True) as connection, connection.transaction():
                await claims.lock_execution(connection, handle.execution_id)
    assert (await told(work)).counters["db.transaction_retry", "workflow_task", "lock"] == 1


async def test_a_worker_tells_of_its_own_queues_at_its_own_port_alone(new_database: Callable[[str], str]) -> None:
    options = msgspec.structs.replace(FAST, workflow_slots=0, queues=("default", "idle"))
    async with at_work(app, new_database("metrics_own"), options) as (worker, shards):
        for _ in range(3):
            await app.start(naps, 1)
        await worker._stranded.tick()
        own = worker._stranded.own
        assert own["queue.depth", "default"] == 3
        assert own["queue.oldest_pending_age", "default"] > 0
        assert own["queue.depth", "idle"] == own["queue.oldest_pending_age", "idle"] == 0
        assert own["worker.pollers", "default"] == own["worker.pollers", "idle"] == 1

        async def exported() -> bool:
            return PROCESS.totals().gauges.get(("queue.depth", "idle")) == 0

        await eventually(exported)
        store = shards.stores[0]
        await worker._parts[0].rollups.write_rollup()
        until = await rollups.now(store)
        (written,) = (await rollups.read(store, until - timedelta(minutes=1), until))[-1:]
        assert not any(key[0].startswith("queue.") for key in written.totals.gauges)

    async def hidden() -> bool:
        return ("queue.depth", "idle") not in PROCESS.totals().gauges

    await eventually(hidden)


async def test_a_shard_that_stops_answering_is_left_out_of_a_workers_own_queues(
    new_database: Callable[[str], str],
) -> None:
    urls = {0: new_database("metrics_own_a"), 1: new_database("metrics_own_b")}
    async with at_work(app, urls) as (worker, shards):
        await worker._stranded.tick()
        assert worker._stranded.own["worker.pollers", "default"] == 2
        async with shards.store(1).write.connection() as connection, connection.transaction():
            await connection.execute("lock table harvest_activity_tasks in access exclusive mode")
            await worker._stranded.tick()
        assert worker._stranded.own["worker.pollers", "default"] == 1
