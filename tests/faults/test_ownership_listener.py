"""Owner mode under bad clocks, deaf listeners and a busy main loop: wakes keep their bound, and nobody writes late."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from harvest import Harvest, WorkflowContext, clock
from harvest.history.kinds import EventKind
from harvest.operations import owner_mode
from harvest.operations.actor import in_process
from harvest.shards import Shards
from harvest.store import listening
from harvest.store.store import Store
from harvest.store.wakes import CHANNEL
from tests.faults.app import app as process_app
from tests.faults.app import steps_signal_timer, stops_the_loop, three_steps
from tests.faults.process import WorkerProcess
from tests.faults.proxy import Proxy, proxied
from tests.faults.test_frozen import registered
from tests.faults.test_killers import client
from tests.faults.test_rows_wakeups import NEVER, outside, poll_never, send
from tests.scale import scale
from tests.store.rows import one
from tests.support import FAST, at_work, check_invariants, eventually, history_of

pytestmark = [pytest.mark.slow, pytest.mark.prove_ownership]
SOON = timedelta(seconds=60)
POLL = 0.5
LISTENER = f"harvest-listen-{CHANNEL}"
app = Harvest()


@app.workflow
async def waits(ctx: WorkflowContext) -> int:
    return await ctx.wait_for_signal("go", int)


async def turn_on(shards: Shards, workers: int) -> None:
    """Turn owner mode on as people do, and wait until each of the workers has its share."""

    async def is_ready() -> bool:
        (found,) = (await owner_mode.status(shards)).rows
        return found.is_ready and found.live_owners == workers

    await eventually(is_ready)
    await owner_mode.enable(shards, in_process("test"), 0, reason="a test")
    await eventually(lambda: is_shared(shards.stores[0], workers))


async def is_shared(store: Store, workers: int) -> bool:
    rows = await store.read.fetch("select owner, count(*) from harvest_partitions where owner is not null group by 1")
    return sum(row["count"] for row in rows) == 512 and len(rows) == workers


async def journal(store: Store, *events: str) -> int:
    """How often any of these happened to a partition."""
    return int(await one(store, "select count(*) from harvest_partition_journal where event = any($1)", list(events)))


# Listeners that hear nothing


@contextmanager
def disturbed(proxy: Proxy, how: str, backend: int) -> Iterator[None]:
    """The listener's connection is killed, is half-open, goes nowhere, or its server process stands still."""
    if how == "killed":
        assert proxy.cut(LISTENER)
    elif how == "half-open":
        assert proxy.mute(LISTENER)
    elif how == "stalled":
        proxy.stall(LISTENER)
    else:
        os.kill(backend, signal.SIGSTOP)
    try:
        yield
    finally:
        proxy.flow()
        if how == "stopped":
            os.kill(backend, signal.SIGCONT)


async def backend_of_listener(store: Store) -> int:
    """The server's process behind the listener, once that listens."""
    query = """select pid from pg_stat_activity where datname = current_database() and application_name = $1
                  and state = 'idle' and (query ilike 'listen%' or query ilike '%pg_notify%')"""

    async def listens() -> bool:
        return len(await store.read.fetch(query, LISTENER)) == 1

    await eventually(listens)
    return int(await one(store, query, LISTENER))


@pytest.mark.parametrize("how", ["killed", "half-open", "stalled", "stopped"])
async def test_wakes_keep_the_bound_of_a_poll_while_the_listener_is_deaf(
    new_database: Callable[[str], str], proof: Callable[..., None], how: str
) -> None:
    """Signals come from another process, while the worker hears of nothing."""
    url, count = new_database("deaf"), scale(10, 50)
    options = msgspec.structs.replace(FAST, poll_interval=POLL)
    async with proxied(url) as proxy, outside(url) as others, at_work(app, proxy.url, options) as (_, shards):
        await turn_on(shards, 1)
        runs = [await app.start(waits) for _ in range(count)]
        await eventually(lambda: all_parked(others.stores[0], count))
        backend, took = await backend_of_listener(others.stores[0]), []
        with disturbed(proxy, how, backend):
            for run in runs:
                began = clock.monotonic()
                await send(others, run.execution_id, 7)
                assert await run.result(SOON) == 7
                took.append(clock.monotonic() - began)
        await check_invariants(others)
    assert sorted(took)[len(took) // 2] < POLL + 2, "found by looking, not by somebody's lease that ended"
    proof(f"wakes while the listener is {how}", runs=count, poll_s=POLL, longest_s=max(took))


async def all_parked(store: Store, count: int) -> bool:
    return bool(await one(store, "select count(*) from harvest_workflow_tasks where state = 2") == count)


@pytest.mark.parametrize("how", ["killed", "half-open", "stopped"])
async def test_a_deaf_listener_is_found_and_replaced_where_nothing_polls(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, proof: Callable[..., None], how: str
) -> None:
    """What it missed is found by the look that follows the new LISTEN, what comes then is heard."""
    monkeypatch.setattr(listening, "_PROBE_SECONDS", 0.5)
    monkeypatch.setattr(listening, "_CONNECT_LIMIT", 1.0)
    poll_never(monkeypatch)
    url = new_database("replaced")
    options = msgspec.structs.replace(FAST, poll_interval=NEVER)
    async with proxied(url) as proxy, outside(url) as others, at_work(app, proxy.url, options) as (_, shards):
        await turn_on(shards, 1)
        runs = [await app.start(waits) for _ in range(2)]
        await eventually(lambda: all_parked(others.stores[0], 2))
        with disturbed(proxy, how, await backend_of_listener(others.stores[0])):
            began = clock.monotonic()
            await send(others, runs[0].execution_id, 1)
            assert await runs[0].result(SOON) == 1
            found = clock.monotonic() - began
            await send(others, runs[1].execution_id, 2)
            assert await runs[1].result(SOON) == 2
    proof(f"a {how} listener is replaced", missed_wake_found_after_s=found)


# Clocks


async def test_clocks_ten_minutes_apart_change_nothing_in_owner_mode(
    new_database: Callable[[str], str], tmp_path: Path, proof: Callable[..., None]
) -> None:
    """One owner is ahead, one behind: no partition changes hands, no timer is early, each stamp is the database's."""
    url, count = new_database("owners_clocks"), scale(20, 200)
    async with client(url) as shards:
        store = shards.stores[0]
        with (
            WorkerProcess(url, tmp_path / "ahead.log", name="ahead", HARVEST_TEST_CLOCK="600") as ahead,
            WorkerProcess(url, tmp_path / "behind.log", name="behind", HARVEST_TEST_CLOCK="-600") as behind,
        ):
            await registered(process_app)
            await turn_on(shards, 2)
            acquired = await journal(store, "acquired")
            began = await one(store, "select clock_timestamp()")
            runs = [await process_app.start(steps_signal_timer, n) for n in range(count)]
            for run in runs:
                await run.signal("add", 1000)
            for n, run in enumerate(runs):
                assert await run.result(SOON) == 2 * (n + 1) + 1000 + 1
            ended = await one(store, "select clock_timestamp()")
            assert "lost" not in ahead.said() + behind.said()
            assert await is_shared(store, 2)
            assert await journal(store, "acquired") == acquired
            assert await journal(store, "expired", "fenced") == 0
        late = [seconds for run in runs for seconds in await timers_of(shards, run.execution_id, began, ended)]
        assert len(late) == count
        assert min(late) >= 0
        await check_invariants(shards)
    proof("owners with clocks of their own", runs=count, worst_timer_ms=1e3 * max(late))


async def timers_of(shards: Shards, run: UUID, began: Any, ended: Any) -> list[float]:
    """By how much each timer of a run was late; all that happened to it lies between the two moments."""
    due: dict[int, Any] = {}
    late = []
    for event in await history_of(shards, run):
        assert began <= event.at <= ended
        if event.kind == EventKind.TIMER_STARTED:
            due[event.seq] = event.data().fires_at
        if event.kind == EventKind.TIMER_FIRED:
            late.append((event.at - due[event.seq]).total_seconds())
    return late


# A main loop that does nothing else

LEASE = scale(4, 10)
BUSY = 0.8 * LEASE


@pytest.mark.timeout(180)
@pytest.mark.parametrize("computing", [False, True], ids=["blocks", "computes"])
async def test_a_busy_main_loop_keeps_its_leases_and_what_it_owns(
    new_database: Callable[[str], str], tmp_path: Path, proof: Callable[..., None], computing: bool
) -> None:
    """Its runs wait for it, for longer than a live owner may be silent, and are decided by it: once."""
    url, count = new_database("busy_owner"), scale(20, 200)
    async with client(url) as shards:
        store = shards.stores[0]
        with (
            WorkerProcess(url, tmp_path / "one.log", name="one", HARVEST_TEST_LEASE=str(LEASE)) as first,
            WorkerProcess(url, tmp_path / "two.log", name="two", HARVEST_TEST_LEASE=str(LEASE)) as second,
        ):
            await registered(process_app)
            await turn_on(shards, 2)
            before = await journal(store, "expired", "fenced")
            busy = await process_app.start(stops_the_loop, str(tmp_path / "busy"), BUSY, computing)
            await eventually(lambda: exists(tmp_path / "busy"))
            began = clock.monotonic()
            runs = [await process_app.start(three_steps, n) for n in range(count)]
            assert [await run.result(SOON) for run in runs] == [n + 3 for n in range(count)]
            took = clock.monotonic() - began
            await busy.result(SOON)
            said = first.said() + second.said()
            assert "leases lost" not in said
            assert await journal(store, "expired", "fenced") == before
        starts = [e for e in await history_of(shards, busy.execution_id) if e.kind == EventKind.ACTIVITY_STARTED]
        assert len(starts) == 1
        await check_invariants(shards)
    what = "computes" if computing else "blocks"
    proof(f"a main loop that {what}", busy_s=BUSY, lease_s=LEASE, runs=count, all_done_after_s=took)


async def exists(path: Path) -> bool:
    return path.exists()
