"""Pools, locks, migrations and load (docs/faults.md, 52 to 59)."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from harvest import Harvest, Retry, WorkflowContext, clock
from harvest.errors import ShardUnavailableError
from harvest.history.ids import ExecutionId
from harvest.operations import signalling
from harvest.operations.actor import in_process
from harvest.shards import Shards
from harvest.store import activity_claims, claims, migrate
from harvest.store.commit import Answer, Batch, commit
from harvest.store.pool import COMMIT, READ, WRITE
from harvest.store.store import Store
from harvest.worker import committer, trial
from harvest_console.embedded import EmbeddedPostgres
from tests.faults.test_chaos import insisted
from tests.scale import scale
from tests.store.rows import a_run, one
from tests.support import FAST, at_work, check_invariants, eventually

SOON = timedelta(seconds=60)
app = Harvest()
ran: Counter[str] = Counter()


@app.activity
async def note(key: str) -> str:
    ran[key] += 1
    return key


@app.activity(queue="other", retry=Retry(max_attempts=5, initial_interval=timedelta(milliseconds=10)))
async def note_at_the_second_try(key: str) -> None:
    ran[key] += 1
    if ran[key] == 1:
        raise ConnectionError("the first time")


@app.activity(heartbeat_timeout=timedelta(seconds=60))
async def endless() -> None:
    await asyncio.Event().wait()


@app.workflow
async def waits(ctx: WorkflowContext) -> str:
    return await ctx.wait_for_signal("go", str)


@app.workflow
async def notes(ctx: WorkflowContext, count: int) -> int:
    for n in range(count):
        await ctx.execute_activity(note, f"{ctx.info.workflow_id}/{n}")
    return count


@app.workflow
async def second_try(ctx: WorkflowContext, key: str) -> None:
    await ctx.execute_activity(note_at_the_second_try, key)


# 52: many wait for results


def timed_commits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    took: list[float] = []

    async def timed(store: Store, connection: Any, worker: UUID, batch: Batch) -> dict[UUID, Answer]:
        began = clock.monotonic()
        found = await commit(store, connection, worker, batch)
        took.append(clock.monotonic() - began)
        return found

    monkeypatch.setattr(committer, "commit", timed)
    return took


def p99(took: list[float]) -> float:
    return sorted(took)[int(0.99 * (len(took) - 1))]


@pytest.mark.slow
@pytest.mark.prove_whole_core
@pytest.mark.timeout(scale(120, 600))
async def test_52_those_who_wait_for_results_take_no_connections_from_those_who_work(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, proof: Callable[..., None], full_scale: bool
) -> None:
    clients, awaited, at_once = scale(300, 2_000), 50, scale(5, 20)
    took = timed_commits(monkeypatch)

    async def work() -> float:
        took.clear()
        runs = [await app.start(notes, 20) for _ in range(at_once)]
        assert [await run.result(SOON) for run in runs] == [20] * at_once
        return p99(took)

    async with at_work(app, new_database("waiters")) as (_, shards):
        await work()
        idle = min([await work() for _ in range(3)])
        runs = [await app.start(waits) for _ in range(awaited)]
        waiting = [asyncio.create_task(runs[n % awaited].result(timedelta(minutes=5))) for n in range(clients)]
        loaded = min([await work() for _ in range(3)])
        sessions = await one(
            shards.stores[0],
            "select count(*) from pg_stat_activity where datname = current_database() and application_name like $1",
            f"harvest-{READ.name}%",
        )
        assert sessions <= 2 * READ.size, "the client's and the worker's"
        assert not any(task.done() for task in waiting)
        for run in runs:
            await run.signal("go", "on")
        assert set(await asyncio.gather(*waiting)) == {"on"}
    proof("waiters for results", clients=clients, p99_idle_ms=1e3 * idle, p99_loaded_ms=1e3 * loaded)
    if full_scale:
        assert loaded <= 2 * idle


# 53: a foreign lock


async def test_53_limits_of_a_lock_and_of_a_statement_end_what_waits_for_a_foreign_session(
    new_database: Callable[[str], str],
) -> None:
    url = new_database("foreign")
    store = Store(0, url)
    run = await a_run(store, None, state=2)
    other: Any = await asyncpg.connect(url)
    quick = Shards({0: url})
    role = msgspec.structs.replace(WRITE, settings={"statement_timeout": "300"})
    quick.stores[0].write.role = role
    try:
        async with other.transaction():
            await other.execute("select from harvest_executions where execution_id = $1 for update", run)
            with pytest.raises(ShardUnavailableError, match="lock"):
                async with store.write.connection() as connection, connection.transaction():
                    await claims.lock_execution(connection, run)
            with pytest.raises(ShardUnavailableError, match="took too long"):
                await signalling.signal(quick, in_process("test"), ExecutionId(int=run.int), "s", b"1")
            assert await store.write.fetch("select 1"), "others go on"
        await signalling.signal(quick, in_process("test"), ExecutionId(int=run.int), "s", b"1")
    finally:
        await other.close()
        await store.close()
        await quick.close()


# 54: a server that is slow for a while

_SLOW = """
create table slowness (seconds float8 not null);
insert into slowness values (0);
create function slow() returns trigger language plpgsql as
  $$ begin perform pg_sleep((select seconds from slowness)); return null; end $$;
create trigger slow after insert on harvest_events for each statement execute function slow();
"""


async def test_54_commits_to_a_slow_server_are_repeated_ever_more_slowly_and_go_on_when_it_is_quick_again(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, proof: Callable[..., None]
) -> None:
    """Each commit takes longer than its limit allows: what is sent again at once would make it worse."""
    url, slow_for = new_database("slow"), scale(5, 60)
    sent: list[float] = []

    async def counted(store: Store, connection: Any, worker: UUID, batch: Batch) -> dict[UUID, Answer]:
        if not connection.is_in_transaction():  # those under a lock have another limit, and pass
            sent.append(clock.monotonic())
        return await commit(store, connection, worker, batch)

    admin: Any = await asyncpg.connect(url)
    await admin.execute(_SLOW)
    async with at_work(app, url) as (worker, shards):
        runs = [await app.start(notes, 100) for _ in range(20)]
        await eventually(lambda: has_passed(worker, 40))
        monkeypatch.setattr(committer, "commit", counted)
        worker._parts[0].store.commit.role = msgspec.structs.replace(COMMIT, limit=0.3)
        await admin.execute("update slowness set seconds = 1")
        began = clock.monotonic()
        await clock.sleep(slow_for)
        elapsed, attempts = clock.monotonic() - began, len(sent)
        await admin.execute("update slowness set seconds = 0")
        worker._parts[0].store.commit.role = COMMIT
        assert [await run.result(SOON) for run in runs] == [100] * 20
        await check_invariants(shards)
    await admin.close()
    assert attempts <= 2 * elapsed + 10
    assert {ran[f"{run.workflow_id}/{n}"] for run in runs for n in range(100)} == {1}
    proof("commits to a slow server", seconds=elapsed, attempts=attempts)


async def has_passed(worker: Any, decisions: int) -> bool:
    return bool(worker.counters.passed >= decisions)


# 56: deadlocks


@app.workflow
async def child(ctx: WorkflowContext, number: int) -> int:
    return number


@app.workflow
async def does_everything(ctx: WorkflowContext, left: int) -> str:
    """One of each kind of statement that a worker sends."""
    key = f"{ctx.info.workflow_id}/{left}"
    dropped = asyncio.ensure_future(ctx.execute_activity(endless))
    await asyncio.gather(
        ctx.execute_activity(note, f"{key}/eager"),
        ctx.execute_activity(note_at_the_second_try, f"{key}/retried"),
        ctx.execute_local_activity(note, f"{key}/local"),
        ctx.execute_child_workflow(child, 1),
        ctx.sleep(0.05),
    )
    ctx.upsert_search_attributes({"left": left})
    word = await ctx.wait_for_signal("go", str)
    dropped.cancel()
    await ctx.sleep(0.05)
    if left:
        ctx.continue_as_new(left - 1)
    return word


class Deadlocks:
    """Every statement fails as a deadlock the first time that it is sent, but for a rollback."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.struck: set[str] = set()
        self.armed = False
        for method in ("fetch", "fetchrow", "fetchval", "execute"):
            self._wrap(monkeypatch, method)

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        inner = getattr(asyncpg.Connection, method)

        async def wrapped(connection: Any, sql: str, *values: Any, **more: Any) -> Any:
            if self.armed and sql not in self.struck and sql != "ROLLBACK;":
                self.struck.add(sql)
                raise asyncpg.DeadlockDetectedError("deadlock detected")
            return await inner(connection, sql, *values, **more)

        monkeypatch.setattr(asyncpg.Connection, method, wrapped)


async def test_56_a_deadlock_of_any_statement_loses_no_work_and_no_slot(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, proof: Callable[..., None]
) -> None:
    deadlocks = Deadlocks(monkeypatch)
    options = msgspec.structs.replace(FAST, queues=("default", "other"))
    async with at_work(app, new_database("deadlocks"), options) as (worker, shards):
        deadlocks.armed = True
        runs: list[Any] = []
        for n in range(scale(6, 40)):
            runs.append(await insisted(lambda n=n: app.start(does_everything, 1, workflow_id=f"run-{n}")))  # type: ignore[misc]
        for run in runs:
            for n in range(2):
                await insisted(lambda run=run, n=n: run.signal("go", "done", idempotency_key=str(n)))  # type: ignore[misc]
        for run in runs:
            assert await insisted(lambda run=run: run.result(SOON)) == "done"  # type: ignore[misc]
        await eventually(lambda: slots_are_free(worker))
        deadlocks.armed = False
        assert not worker.lost.is_set()
        assert worker.counters.blocked == 0
        assert len(deadlocks.struck) >= 15
        await check_invariants(shards)
    for n in range(len(runs)):
        for left in range(2):
            assert ran[f"run-{n}/{left}/eager"] == 1
            assert ran[f"run-{n}/{left}/retried"] == 2
    proof("a deadlock of each statement", runs=len(runs), statements=len(deadlocks.struck))


class FailsAfter:
    """A claim that fails once: the first of the other kind, suspects or not, after one that took something."""

    def __init__(self, claim: Any) -> None:
        self._claim = claim
        self._took: bool | None = None
        self.failed = False

    async def __call__(self, *arguments: Any, suspects: bool = False, **options: Any) -> Any:
        if self._took is not None and suspects != self._took and not self.failed:
            self.failed = True
            raise asyncpg.DeadlockDetectedError("deadlock detected")
        found = await self._claim(*arguments, suspects=suspects, **options)
        if found and self._took is None:
            self._took = suspects
        return found


async def test_56_a_suspect_run_that_was_claimed_before_a_claim_that_failed_is_decided(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database("claimed_before")
    async with at_work(app, url) as (_, shards):
        run = await app.start(notes, 1, queue="other")
        await shards.stores[0].write.write("update harvest_workflow_tasks set strikes = 2")
    fails = FailsAfter(claims.claim)
    monkeypatch.setattr(claims, "claim", fails)
    async with at_work(app, url, msgspec.structs.replace(FAST, queues=("default", "other"))):
        assert await (await app.handle(run.execution_id)).result(SOON) == 1
    assert fails.failed


async def test_56_an_activity_that_was_claimed_before_a_claim_that_failed_runs(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = FailsAfter(activity_claims.claim_activities)
    monkeypatch.setattr(activity_claims, "claim_activities", fails)
    monkeypatch.setattr(trial, "SUSPECTS_SECONDS", 0.0)
    url = new_database("activity_claimed_before")
    async with at_work(app, url):
        run = await app.start(second_try, "claimed before")
        await eventually(lambda: is_pending(url))
    async with at_work(app, url, msgspec.structs.replace(FAST, queues=("default", "other"))):
        await (await app.handle(run.execution_id)).result(SOON)
    assert fails.failed
    assert ran["claimed before"] == 2


async def is_pending(url: str) -> bool:
    store = Store(0, url)
    try:
        return bool(await store.read.fetch("select from harvest_activity_tasks where state = 0"))
    finally:
        await store.close()


async def slots_are_free(worker: Any) -> bool:
    return bool(worker._runner.free == worker.options.activity_slots)


# 57 and 58: migrations

_MIGRATE = """
import asyncio, sys
from pathlib import Path
from harvest.store import migrate
migrate.migrations_folder = lambda: Path(sys.argv[2])
asyncio.run(migrate.upgrade(sys.argv[1]))
"""
_CONCURRENT = """
import os
from alembic import op

revision, down_revision = "0900", "{before}"

def upgrade():
    with open(os.environ["HARVEST_TEST_NOTES"], "a") as file:
        file.write("applied\\n")
    with op.get_context().autocommit_block():
        op.execute("create index concurrently a_test_index on harvest_events (at)")
"""
_ALTERS = """
from alembic import op

revision, down_revision = "{revision}", "{before}"

def upgrade():
    op.execute("set local lock_timeout = '{limit}'")
    for table in {tables}:
        op.execute(f"alter table harvest_{{table}} add column added_by_{revision} int")
"""
HOT = ("executions", "workflow_tasks", "activity_tasks")


def with_more(folder: Path, name: str, text: str) -> Path:
    """The migrations of this release in a folder of their own, and more."""
    if not folder.exists():
        shutil.copytree(migrate.migrations_folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / name).write_text(text)
    return folder


def newest() -> str:
    return sorted(path.name[:4] for path in (migrate.migrations_folder() / "versions").glob("[0-9]*.py"))[-1]


async def test_57_four_processes_migrate_at_once_though_an_index_is_made_concurrently(
    postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    url = postgres_server.ensure_database("migrated_by_four")
    folder = with_more(tmp_path / "migrations", "0900_pre_test.py", _CONCURRENT.format(before=newest()))
    notes_file = tmp_path / "notes"
    env = {**os.environ, "HARVEST_TEST_NOTES": str(notes_file)}
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", _MIGRATE, url, str(folder), env=env)
        for _ in range(4)
    ]
    try:
        async with asyncio.timeout(90):
            assert [await process.wait() for process in processes] == [0] * 4
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert notes_file.read_text() == "applied\n"
    connection: Any = await asyncpg.connect(url)
    try:
        assert await connection.fetchval("select version_num from harvest_alembic_version") == "0900"
        assert await connection.fetchval("select indisvalid from pg_index where indexrelid = 'a_test_index'::regclass")
        assert not await connection.fetch("select from pg_index where not indisvalid")
    finally:
        await connection.close()


async def test_58_tables_are_altered_while_workers_are_at_work(
    new_database: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In several orders of the hot tables, and first behind a session that does not let go in time."""
    url, folder, before = new_database("altered"), tmp_path / "migrations", newest()
    orders = [HOT, HOT[::-1], (HOT[1], HOT[0], HOT[2]), (HOT[2], HOT[0], HOT[1])]
    for n, tables in enumerate(orders):
        revision = f"09{n:02}"
        text = _ALTERS.format(revision=revision, before=before, tables=tables, limit="5s" if n else "1s")
        with_more(folder, f"{revision}_pre_test.py", text)
        before = revision
    monkeypatch.setattr(migrate, "migrations_folder", lambda: folder)
    other: Any = await asyncpg.connect(url)
    async with at_work(app, url) as (worker, shards), always_at_work(4) as done:
        async with other.transaction():
            await other.execute("select 1 from harvest_workflow_tasks limit 1")
            migrating = asyncio.create_task(migrate.upgrade(url))
            await eventually(lambda: is_put_off(caplog))
            assert not migrating.done()
        await asyncio.wait_for(migrating, 120)
        count = len(done)
        await eventually(lambda: goes_on(done, count + 4))
        assert worker.counters.blocked == 0
        assert not worker.lost.is_set()
        await check_invariants(shards)
    assert await other.fetchval("select version_num from harvest_alembic_version") == before
    await other.close()


async def is_put_off(caplog: pytest.LogCaptureFixture) -> bool:
    return "the tables are in use" in caplog.text


@asynccontextmanager
async def always_at_work(at_once: int) -> AsyncIterator[list[int]]:
    """Runs one after the other, so many at once; what has ended is added to the list."""
    done: list[int] = []
    stopping = asyncio.Event()

    async def work() -> None:
        while not stopping.is_set():
            run = await app.start(notes, 5)
            done.append(await run.result(SOON))

    working = [asyncio.create_task(work()) for _ in range(at_once)]
    try:
        yield done
    finally:
        stopping.set()
        await asyncio.gather(*working)


async def goes_on(done: list[int], count: int) -> bool:
    return len(done) >= count


# 59: what a decision reads


@app.workflow
async def long_and_warm(ctx: WorkflowContext, activities: int, signals: int) -> int:
    for n in range(activities):
        await ctx.execute_activity(note, f"{ctx.info.workflow_id}/{n}")
    for _ in range(signals):
        await ctx.wait_for_signal("go")
    return ctx.info.history_events


async def test_59_a_warm_decision_of_a_long_run_reads_its_news_and_nothing_else(
    new_database: Callable[[str], str], proof: Callable[..., None]
) -> None:
    signals = 30
    async with at_work(app, new_database("long_and_warm")) as (worker, shards):
        run = await app.start(long_and_warm, 340, signals)
        store = shards.stores[0]
        resting = "select state from harvest_workflow_tasks where execution_id = $1"

        async def rests() -> bool:
            return bool(await one(store, resting, run.execution_id) == 2)

        await eventually(rests, within=60)
        before = msgspec.structs.replace(worker.counters)
        for _ in range(signals):
            await run.signal("go")
        assert await run.result(SOON) > 1_000
        events = worker.counters.loaded_events - before.loaded_events
        size = worker.counters.loaded_bytes - before.loaded_bytes
        assert worker.counters.decisions_cold == before.decisions_cold
        assert events <= signals  # what comes while the row is locked is read by the commit itself
        assert size <= 200 * signals
    proof("a warm decision of a run of 1,000 events", signals=signals, loaded_events=events, loaded_bytes=size)
