"""Owners that are not, leases that have ended, work that is taken twice or never (docs/faults.md, 10 to 21)."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from litestar import Litestar

from harvest import Harvest, Retry, WorkflowContext, running
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.store import claims, fleet
from harvest.store.commit import Answer, Batch, commit
from harvest.store.fleet import Lost
from harvest.store.marks import HANDICAP, Marks
from harvest.store.store import Store
from harvest.worker import committer, watch
from harvest.worker.options import WorkerOptions
from harvest.worker.worker import Worker
from harvest_console.plugin import HarvestPlugin
from tests.faults.app import app as process_app
from tests.faults.app import keeps_busy, takes, takes_long, waits_for_file
from tests.faults.process import ROOT, WorkerProcess
from tests.faults.test_frozen import registered
from tests.scale import scale
from tests.store.rows import a_run, a_worker, one, task_of
from tests.support import FAST, at_work, check_invariants, eventually, history_of

SOON = timedelta(seconds=60)
app = Harvest()
ran: Counter[int] = Counter()


@app.activity
async def note(n: int) -> int:
    ran[n] += 1
    return n


@app.workflow
async def notes(ctx: WorkflowContext, n: int) -> int:
    return await ctx.execute_activity(note, n)


@app.activity(queue="other")
async def note_elsewhere(n: int) -> int:
    ran[n] += 1
    return n


@app.workflow
async def notes_elsewhere(ctx: WorkflowContext, n: int) -> int:
    return await ctx.execute_activity(note_elsewhere, n)


@asynccontextmanager
async def on(url: str) -> AsyncIterator[Shards]:
    shards = Shards({0: url})
    try:
        yield shards
    finally:
        await shards.close()


# 10 to 12: two owners


async def test_10_of_two_that_find_a_lost_worker_the_second_frees_and_runs_nothing(
    new_database: Callable[[str], str],
) -> None:
    """The first statement has its locks and is not over: to the second, the worker still looks expired."""
    url = new_database("two_finders")
    store = Store(0, url)
    lost = await a_worker(store, lease=-1)
    run = await a_run(store, lost, activities={1: 3})
    await store.scan.write("update harvest_activity_tasks set strikes = 2")
    first: Any = await asyncpg.connect(url)
    try:
        async with first.transaction():
            found = await first.fetch(fleet._LOST)
            assert {(row["worker"], row["seq"]) for row in found} == {(lost, None), (None, 1)}
            assert await store.scan.fetch(fleet._EXPIRED), "the list of the second says so, too"
            assert await fleet.free_lost(store) == Lost([], [])
        assert await fleet.free_lost(store) == Lost([], [])
        assert await one(store, "select strikes from harvest_activity_tasks where execution_id = $1", run) == 3
    finally:
        await first.close()
        await store.close()


async def test_10_of_two_that_claim_a_task_the_second_gets_nothing(new_database: Callable[[str], str]) -> None:
    url = new_database("two_claimers")
    store = Store(0, url)
    ours, theirs = await a_worker(store), await a_worker(store)
    run = await a_run(store, None, state=0, pending={1: 0})
    seeks = claims.columns(Marks(HANDICAP).seeks(["default"]))
    first: Any = await asyncpg.connect(url)
    try:
        async with first.transaction():
            (row,) = await first.fetch(claims.CLAIM, ["default"], ours, 10, *seeks, [])
            assert row["execution_id"] == run
            assert await claims.claim(store, theirs, ["default"], 10) == []
        assert await claims.claim(store, theirs, ["default"], 10) == []
        assert await task_of(store, run) == (1, ours)
    finally:
        await first.close()
        await store.close()


async def test_11_runs_that_start_while_workers_begin_do_each_step_once(new_database: Callable[[str], str]) -> None:
    url, count = new_database("beginning"), scale(60, 500)
    ran.clear()
    async with at_work(app, url) as (_, shards), AsyncExitStack() as stack:

        async def begin() -> None:
            for _ in range(3):
                own = Shards({0: url})
                stack.push_async_callback(own.close)
                worker = Worker(app.registry, own, FAST)
                stack.push_async_callback(worker.stop)
                await worker.start()

        async def start() -> list[Any]:
            return [await app.start(notes, n) for n in range(count)]

        _, runs = await asyncio.gather(begin(), start())
        assert [await run.result(SOON) for run in runs] == list(range(count))
        await check_invariants(shards)
    assert ran == Counter(range(count))


outcomes = itertools.count(1)


@app.workflow
async def another_each_time(ctx: WorkflowContext) -> int:
    """Ends otherwise each time that its last step is decided, as code that is not deterministic does."""
    await ctx.wait_for_signal("go")
    return next(outcomes)


class Gates:
    """Holds the commits of one run: each worker's waits until its gate is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run: UUID | None = None
        self.answers: dict[UUID, Answer] = {}
        self.gates: dict[UUID, asyncio.Event] = {}
        monkeypatch.setattr(committer, "commit", self._commit)

    async def _commit(self, store: Store, connection: Any, worker: UUID, batch: Batch) -> dict[UUID, Answer]:
        mine = [row for row in batch.decisions if row[0] == self.run]
        if mine and worker not in self.gates:
            self.gates[worker] = asyncio.Event()
            await self.gates[worker].wait()
        found = await commit(store, connection, worker, batch)
        if mine and self.run is not None:
            self.answers[worker] = found[self.run]
        return found

    async def holds(self, worker: UUID) -> bool:
        return worker in self.gates

    async def answered(self, worker: UUID) -> bool:
        return worker in self.answers


@pytest.mark.parametrize("first", ["stale", "heir", "both"])
async def test_12_two_owners_decide_at_once(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    url = new_database("two_owners")
    others = Shards({0: url})
    async with at_work(app, url) as (stale, shards):
        run = await app.start(another_each_time)
        await eventually(lambda: rests(shards, run.execution_id))
        gates = Gates(monkeypatch)
        gates.run = run.execution_id
        await run.signal("go")
        await eventually(lambda: gates.holds(stale.id))
        await eventually(lambda: taken_from(shards, stale.id))
        heir = Worker(app.registry, others, FAST)
        await heir.start()
        try:
            await eventually(lambda: gates.holds(heir.id))
            order = {"stale": [stale, heir], "heir": [heir, stale], "both": [stale, heir]}[first]
            for worker in order:
                gates.gates[worker.id].set()
                if first != "both":
                    await eventually(lambda worker=worker: gates.answered(worker.id))  # type: ignore[misc]
            for worker in order:
                await eventually(lambda worker=worker: gates.answered(worker.id))  # type: ignore[misc]
            assert gates.answers == {stale.id: Answer.FENCED, heir.id: Answer.PASSED}
            result = await run.result(SOON)
            ends = [e for e in await history_of(shards, run.execution_id) if e.kind == EventKind.WORKFLOW_COMPLETED]
            assert [int(bytes(end.data().output)) for end in ends] == [result]
            await check_invariants(shards)
        finally:
            for gate in gates.gates.values():
                gate.set()
            await heir.stop()
            await others.close()


async def rests(shards: Shards, run: UUID) -> bool:
    return await task_of(shards.stores[0], run) == (2, None)


async def taken_from(shards: Shards, worker: UUID) -> bool:
    """Its lease has ended and somebody has noticed, before it could renew."""
    store = shards.stores[0]
    await store.scan.write("update harvest_workers set lease_until = '-infinity' where worker = $1", worker)
    await fleet.free_lost(store)
    return bool(await store.scan.fetch("select from harvest_workers where worker = $1 and status = 'stopped'", worker))


# 14 to 16: long activities


def test_14_a_lease_is_renewed_three_times_before_it_ends() -> None:
    options = WorkerOptions()
    assert options.owner_lease_ttl == fleet.LEASE_SECONDS
    assert options.renew_interval <= options.owner_lease_ttl / 3


TTL = scale(4, 10)


class Long:
    """Activities of several leases' length, under way on a process whose processor is kept busy."""

    def __init__(self, url: str, folder: Path) -> None:
        self.shards = Shards({0: url})
        self.folder = folder
        self.runs: dict[str, Any] = {}

    async def begin(self) -> None:
        self.runs["3 ttl"] = await process_app.start(takes_long, str(self.folder / "3 ttl"), 3.0 * TTL, None)
        self.runs["beats"] = await process_app.start(takes_long, str(self.folder / "beats"), 5.0 * TTL, 2.0 * TTL)
        self.runs["busy"] = await process_app.start(keeps_busy, 3.0 * TTL)

    async def ran_once(self, name: str) -> None:
        run = self.runs[name]
        assert await run.result(timedelta(seconds=20 * TTL)) == 1
        assert (self.folder / name).read_text() == "attempt 1\n"
        starts = [e for e in await history_of(self.shards, run.execution_id) if e.kind == EventKind.ACTIVITY_STARTED]
        assert len(starts) == 1


@pytest.fixture(scope="module")
async def long(new_database: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Long]:
    url, folder = new_database("long"), tmp_path_factory.mktemp("long")
    found = Long(url, folder)
    await process_app.connect(url)
    with WorkerProcess(url, folder / "log", HARVEST_TEST_LEASE=str(TTL)):
        await registered(process_app)
        await found.begin()
        yield found
    await process_app.close()
    await found.shards.close()


@pytest.mark.slow
@pytest.mark.timeout(scale(180, 600))
async def test_14_an_activity_of_three_leases_length_runs_once_on_a_busy_processor(long: Long) -> None:
    await long.ran_once("3 ttl")


@pytest.mark.slow
@pytest.mark.timeout(scale(180, 600))
async def test_16_an_activity_of_five_leases_length_that_beats_starts_once(long: Long) -> None:
    await long.ran_once("beats")


def an_app() -> tuple[Harvest, Any]:
    """The same application anew, to be embedded where another one is at work."""
    new = Harvest()
    activity = new.activity(name="takes", retry=Retry(max_attempts=1))(takes.function)

    @new.workflow
    async def takes_so_long(ctx: WorkflowContext, path: str, seconds: float) -> int:
        return await ctx.execute_activity(activity, path, seconds)

    return new, takes_so_long


async def by_command_line(url: str, notes_path: Path, seconds: float) -> int:
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "harvest_console.cli", "worker", "tests.faults.app:app"),
        cwd=ROOT,
        env={**os.environ, "HARVEST_DATABASE_URLS": f"0={url}"},
        stderr=asyncio.subprocess.DEVNULL,
    )
    await process_app.connect(url)
    try:
        await registered(process_app)
        run = await process_app.start(takes_long, str(notes_path), seconds, None)
        return await run.result(SOON)
    finally:
        await process_app.close()
        worker.send_signal(signal.SIGTERM)
        await worker.wait()


async def embedded(url: str, notes_path: Path, seconds: float) -> int:
    new, workflow = an_app()
    async with running(new, {0: url}, options=WorkerOptions(drain_timeout=0.5)):
        result: int = await (await new.start(workflow, str(notes_path), seconds)).result(SOON)
        return result


async def by_plugin(url: str, notes_path: Path, seconds: float) -> int:
    new, workflow = an_app()
    web = Litestar(plugins=[HarvestPlugin(new, urls={0: url}, options=WorkerOptions(drain_timeout=0.5))])
    async with web.lifespan():
        result: int = await (await new.start(workflow, str(notes_path), seconds)).result(SOON)
        return result


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_15_a_long_activity_runs_once_whichever_way_its_worker_was_started(
    new_database: Callable[[str], str], tmp_path: Path
) -> None:
    """Longer than the lease of ten seconds that each of them has."""
    seconds, ways = fleet.LEASE_SECONDS + scale(2, 25), (by_command_line, embedded, by_plugin)
    notes_of = {way: tmp_path / way.__name__ for way in ways}
    done = await asyncio.gather(*(way(new_database(way.__name__), notes_of[way], seconds) for way in ways))
    assert done == [1, 1, 1]
    assert [path.read_text() for path in notes_of.values()] == ["attempt 1\n"] * 3


# 17 to 20: leases that end


async def test_17_when_every_renewal_fails_ownership_ends_here_and_another_works(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database("no_renewal")
    others = Shards({0: url})

    async def refuses(*_: Any) -> None:
        raise asyncpg.PostgresError("no")

    with monkeypatch.context() as patched:
        patched.setattr(watch, "renew", refuses)
        async with at_work(app, url, msgspec.structs.replace(FAST, owner_lease_ttl=1.0)) as (cut_off, shards):
            await eventually(lambda: has_ended(cut_off))
            assert not cut_off.lost.is_set(), "by its own clock, as nobody has told it"
            before = cut_off.counters.claims
            patched.undo()
            monkeypatch.setattr(cut_off._watch, "_renew", refuses)
            healthy = Worker(app.registry, others, FAST)
            await healthy.start()
            try:
                for n in range(20):
                    assert await (await app.start(notes, n)).result(SOON) == n
                    assert await (await app.start(notes_elsewhere, n, queue="default")).terminate()
                assert cut_off.counters.claims == before
                assert cut_off.counters.activities_claimed == 0
                assert healthy.counters.claims >= 20
                await check_invariants(shards)
            finally:
                await healthy.stop()
                await others.close()


async def has_ended(worker: Worker) -> bool:
    return not worker._parts[0].lease.alive


@pytest.mark.slow
@pytest.mark.prove_whole_core
async def test_18_19_20_the_activities_of_a_killed_worker_all_run_again_though_its_heir_has_its_name(
    new_database: Callable[[str], str], tmp_path: Path, proof: Callable[..., None]
) -> None:
    """Nothing is set but the length of the lease, and nobody does anything."""
    url, count, ttl = new_database("killed"), 100, scale(3, 10)
    gate = tmp_path / "gate"
    shards = Shards({0: url})
    store = shards.stores[0]
    await process_app.connect(url)
    try:
        with WorkerProcess(url, tmp_path / "first.log", name="same", HARVEST_TEST_LEASE=str(ttl)) as first:
            await registered(process_app)
            runs = [await process_app.start(waits_for_file, str(gate)) for _ in range(count)]
            under_way = "select count(*) from harvest_activity_tasks where state = 1"

            async def all_run() -> bool:
                return bool(await one(store, under_way) == count)

            await eventually(all_run, within=30)
            first.kill()
            with WorkerProcess(url, tmp_path / "second.log", name="same", HARVEST_TEST_LEASE=str(ttl)) as second:
                gate.touch()
                assert {await run.result(SOON) for run in runs} == {second.process.pid}
        workers = await store.scan.fetch("select worker, name, status from harvest_workers order by started_at")
        assert {row["name"] for row in workers} == {"same"}
        assert len({row["worker"] for row in workers}) == 2
        assert workers[0]["status"] == "stopped"
        late = await one(store, _LATEST_START)
        await check_invariants(shards)
    finally:
        await process_app.close()
        await shards.close()
    proof("a worker killed in the middle of its activities", activities=count, lease_s=ttl, all_ran_again_after_s=late)


_LATEST_START = """
select max(extract(epoch from v.at - w.lease_until))::float8 from harvest_events v, harvest_workers w
 where v.kind = 6 and w.status = 'stopped' and convert_from(v.payload, 'UTF8') like '%"attempt":2%'"""


# 21: one of a batch

_SPOIL = "update harvest_events set payload = $2 where execution_id = $1 and event_id = $3"


async def started_unseen(url: str, workflow: Any) -> list[Any]:
    """Ten runs that wait for a worker, on a shard that knows their type."""
    async with at_work(app, url):
        pass
    await app.connect(url)
    runs = [await app.start(workflow, n) for n in range(10)]
    await app.close()
    return runs


async def all_but_the_third(runs: list[Any]) -> None:
    """At work again, the others end."""
    for n, run in enumerate(runs):
        if n != 3:
            again = await app.handle(run.execution_id)
            assert await again.result(SOON) == n


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff\xfe", b"[]"], ids=["empty", "cut", "no text", "another shape"])
async def test_21_a_history_that_cannot_be_read_blocks_its_run_and_no_other_of_the_batch(
    new_database: Callable[[str], str], payload: bytes
) -> None:
    url = new_database("unreadable_history")
    runs = await started_unseen(url, notes)
    async with on(url) as shards:
        await shards.stores[0].write.write(_SPOIL, runs[3].execution_id, payload, 1)
    async with at_work(app, url) as (worker, shards):
        await all_but_the_third(runs)
        blocked = "select blocked from harvest_executions where execution_id = $1"

        async def is_blocked() -> bool:
            return bool(await one(shards.stores[0], blocked, runs[3].execution_id))

        await eventually(is_blocked)
        assert not worker.lost.is_set()


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff\xfe", b"[]"], ids=["empty", "cut", "no text", "another shape"])
async def test_21_an_activity_that_cannot_be_read_fails_and_no_other_of_the_batch(
    new_database: Callable[[str], str], payload: bytes
) -> None:
    url = new_database("unreadable_activity")
    async with at_work(app, url) as (_, shards):
        store = shards.stores[0]
        runs = [await app.start(notes_elsewhere, n) for n in range(10)]

        async def all_pending() -> bool:
            return bool(await one(store, "select count(*) from harvest_activity_tasks where state = 0") == 10)

        await eventually(all_pending)
        await store.write.write(_SPOIL, runs[3].execution_id, payload, 2)
    other = msgspec.structs.replace(FAST, queues=("default", "other"))
    async with at_work(app, url, other) as (worker, shards):
        await all_but_the_third(runs)

        async def has_failed() -> bool:
            rows = await shards.stores[0].read.fetch(
                "select from harvest_events where execution_id = $1 and kind = $2",
                runs[3].execution_id, int(EventKind.ACTIVITY_FAILED),
            )  # fmt: skip
            return bool(rows)

        await eventually(has_failed)
        assert not worker.lost.is_set()
        assert worker.options.activity_slots == worker._runner.free
