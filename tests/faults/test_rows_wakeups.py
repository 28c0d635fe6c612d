"""Wakes that are missed, listeners that are deaf (docs/faults.md, 1 to 9): what comes is decided without any poll."""

from __future__ import annotations

import asyncio
import signal
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from harvest import Harvest, WorkflowContext, clock
from harvest.errors import HarvestError
from harvest.operations import signalling
from harvest.operations.actor import in_process
from harvest.shards import Shards
from harvest.store import listening, marks, migrate
from harvest.store.address import Address
from harvest.store.commit import Answer, Batch, commit
from harvest.store.store import Store
from harvest.store.wakes import CHANNEL, LIVE_CHANNEL
from harvest.worker import committer
from harvest.worker.main import keep_working
from harvest.worker.supervisor import Backoff
from harvest_console.embedded import EmbeddedPostgres
from tests.faults.test_lost_answers import parked
from tests.scale import scale
from tests.support import FAST, at_work, eventually

NEVER = 3600.0
DEAF = msgspec.structs.replace(FAST, poll_interval=NEVER, scan_interval=NEVER)
LISTENING = f"""select pid from pg_stat_activity
                 where application_name = 'harvest-listen-{CHANNEL}' and datname = current_database()"""
SOON = timedelta(seconds=60)
app = Harvest()


@app.workflow
async def waits(ctx: WorkflowContext) -> int:
    return await ctx.wait_for_signal("go", int)


@app.workflow
async def answers(ctx: WorkflowContext) -> str:
    return ctx.info.workflow_id


@pytest.fixture(autouse=True)
def _no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a wake, or the look that follows a new LISTEN, finds work."""
    poll_never(monkeypatch)


def poll_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim loop that has found nothing waits for a wake."""

    async def idle(_: Backoff, wake: asyncio.Event, at_most: float | None = None) -> None:
        await clock.wait_event(wake, NEVER)

    monkeypatch.setattr(marks, "FULL_LOOK_SECONDS", NEVER)
    monkeypatch.setattr(Backoff, "idle", idle)


@asynccontextmanager
async def outside(url: str) -> AsyncIterator[Shards]:
    """Another process, as far as wakes go: it reaches the worker by NOTIFY alone."""
    shards = Shards({0: url})
    try:
        yield shards
    finally:
        await shards.close()


async def send(shards: Shards, run: UUID, value: int) -> None:
    """Signal a run; returns when the notification has gone out."""
    await signalling.signal(shards, in_process("test"), run, "go", b"%d" % value)
    await shards.stores[0].waker.close()


@pytest.mark.parametrize("when", ["before the commit that parks", "before its answer is read"])
async def test_01_a_signal_between_the_last_look_and_the_parking_is_decided_at_once(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    url = new_database("between")
    sent: list[UUID] = []
    async with at_work(app, url, DEAF) as (_, shards), outside(url) as others:

        async def disturbed(store: Store, connection: Any, worker: UUID, batch: Batch) -> dict[UUID, Answer]:
            ids = [row[0] for row in batch.decisions if row[0] not in sent]
            sent.extend(ids)
            if when.startswith("before the commit"):
                await asyncio.gather(*(send(others, run, 7) for run in ids))
            found = await commit(store, connection, worker, batch)
            if not when.startswith("before the commit"):
                await asyncio.gather(*(send(others, run, 7) for run in ids))
            return found

        await eventually(lambda: listens(shards))
        monkeypatch.setattr(committer, "commit", disturbed)
        runs = [await app.start(waits) for _ in range(5)]
        assert [await run.result(SOON) for run in runs] == [7] * 5


async def listens(shards: Shards) -> bool:
    return bool(await shards.stores[0].read.fetch(f"{LISTENING} and state = 'idle' and query ilike 'listen%'"))


class LateListener:
    """A connection on which something happens just before LISTEN."""

    def __init__(self, inner: Any, before: Callable[[], Any]) -> None:
        self._inner = inner
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def add_listener(self, channel: str, callback: Any) -> None:
        await self._before()
        await self._inner.add_listener(channel, callback)


async def test_03_what_comes_between_a_new_link_and_its_listen_is_found_by_the_look_that_follows(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database("order")
    connect = listening._connect
    links: list[int] = []
    async with at_work(app, url, DEAF) as (_, shards), outside(url) as others:
        run = await app.start(waits)
        await eventually(lambda: parked(shards, run.execution_id))
        await eventually(lambda: listens(shards))

        async def late(address: Address, channel: str) -> Any:
            links.append(1)
            return LateListener(await connect(address, channel), lambda: send(others, run.execution_id, 3))

        monkeypatch.setattr(listening, "_connect", late)
        assert await shards.stores[0].scan.fetch(f"select pg_terminate_backend(pid) from ({LISTENING}) l")
        assert await run.result(SOON) == 3
        assert links


@asynccontextmanager
async def kept_working(url: str) -> AsyncIterator[None]:
    """A worker that begins anew whenever it is lost, and a client."""
    stop = asyncio.Event()
    working = asyncio.create_task(keep_working(app.registry, {0: url}, options=DEAF, stop=stop))
    await app.connect(url)
    try:
        yield
    finally:
        stop.set()
        await working
        await app.close()


async def pings(count: int) -> float:
    """Start runs one after the other; the median of the seconds until each has ended."""
    took = []
    for _ in range(count):
        began = clock.monotonic()
        run = await insist_on_start()
        await run.result(timedelta(seconds=60))
        took.append(clock.monotonic() - began)
    return statistics.median(took)


async def insist_on_start() -> Any:
    while True:
        try:
            return await app.start(answers)
        except (HarvestError, asyncpg.PostgresError):
            await clock.sleep(0.1)


@pytest.mark.slow
@pytest.mark.prove_whole_core
@pytest.mark.timeout(scale(120, 300))
@pytest.mark.parametrize("away", [0, scale(4, 60)], ids=["04_restart", "05_away"])
async def test_04_05_wakes_are_as_quick_after_the_server_was_away_as_before(
    mortal_server: EmbeddedPostgres,
    mortal_database: str,
    monkeypatch: pytest.MonkeyPatch,
    proof: Callable[..., None],
    away: int,
) -> None:
    """No poll could find what these runs start with: each of them is a wake that was heard."""
    longest = scale(1, 5)
    monkeypatch.setattr(listening, "_LONGEST_DELAY", float(longest))
    async with kept_working(mortal_database), outside(mortal_database) as shards:
        before = await pings(20)
        mortal_server.kill()
        await clock.sleep(away)
        mortal_server.start()
        began = clock.monotonic()
        await eventually(lambda: answers_and_listens(shards), within=60)
        back = clock.monotonic() - began
        after = await pings(20)
    assert after < 20 * before + 1
    proof(
        "wakes after an outage", away_s=away, listens_again_after_s=back, before_ms=1e3 * before, after_ms=1e3 * after
    )


async def answers_and_listens(shards: Shards) -> bool:
    try:
        return await listens(shards)
    except (HarvestError, asyncpg.PostgresError):
        return False


async def test_08_notifications_are_of_one_small_size_however_many_and_whatever_is_woken(
    new_database: Callable[[str], str],
) -> None:
    url = new_database("payloads")
    heard: dict[str, set[str]] = {CHANNEL: set(), LIVE_CHANNEL: set()}
    holders = [uuid4() for _ in range(1_000)]
    listener: Any = await asyncpg.connect(url)
    async with at_work(app, url, DEAF) as (_, shards), outside(url) as others:
        for channel in heard:
            await listener.add_listener(channel, lambda _, __, channel, text: heard[channel].add(text))
        await eventually(lambda: listens(shards))
        run = await app.start(waits, workflow_id="i" * 2_000)
        await send(others, run.execution_id, 1)
        assert await run.result(SOON) == 1
        store = others.stores[0]
        for n, holder in enumerate(holders):
            store.waker.wake(holder)
            store.hints.touch(n % 512)

        async def all_heard() -> bool:
            return heard[CHANNEL] >= {holder.hex for holder in holders} and bool(heard[LIVE_CHANNEL])

        await eventually(all_heard, within=30)
    await listener.close()
    assert max(len(text) for texts in heard.values() for text in texts) <= 128


HOLD_THE_LOCK = """
import asyncio, sys
from harvest.store import migrate

async def hang(url):
    print("holds", flush=True)
    await asyncio.sleep(3600)

migrate._run_alembic = hang
asyncio.run(migrate.upgrade(sys.argv[1]))
"""


async def test_09_the_only_advisory_lock_is_free_when_its_holder_is_killed(new_database: Callable[[str], str]) -> None:
    url = new_database("advisory")
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_THE_LOCK, url, stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        assert await holder.stdout.readline() == b"holds\n"
        second = asyncio.create_task(migrate.upgrade(url))
        await asyncio.wait([second], timeout=0.5)
        assert not second.done(), "the lock is held"
        holder.send_signal(signal.SIGKILL)
        await asyncio.wait_for(second, 60)
    finally:
        if holder.returncode is None:
            holder.kill()
        await holder.wait()


def test_09_no_other_advisory_lock_is_taken_and_none_is_waited_for() -> None:
    engine = Path(migrate.__file__).parents[1]
    users = {path.name for path in engine.rglob("*.py") if "advisory_lock" in path.read_text()}
    assert users == {"migrate.py"}
    text = Path(migrate.__file__).read_text()
    assert text.count("advisory_lock") == text.count("pg_try_advisory_lock") == 1
