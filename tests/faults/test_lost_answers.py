"""Answers that are lost, links that are half open: the run goes on, nothing is doubled, nothing is stuck (design 4)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harvest import Harvest, Retry, WorkflowContext, clock
from harvest.errors import OutcomeUnknownError, ShardUnavailableError
from harvest.shards import Shards
from harvest.store import listening, marks
from harvest.store.store import Store
from harvest.store.wakes import CHANNEL, notify
from harvest.worker import doubts
from harvest.worker.worker import Worker
from tests.faults.proxy import Proxy, proxied
from tests.scale import scale
from tests.support import FAST, check_invariants, eventually

app = Harvest()
ran: Counter[str] = Counter()


@app.activity
async def note(key: str) -> None:
    ran[key] += 1


@app.activity(retry=Retry(max_attempts=2, initial_interval=timedelta(milliseconds=10)))
async def note_at_the_second_try(key: str) -> None:
    """Claimed for its second attempt, as every retry is, and ended by a statement of its own."""
    ran[key] += 1
    if ran[key] == 1:
        raise ConnectionError("the first time")


@app.workflow
async def notes(ctx: WorkflowContext) -> None:
    for n in range(3):
        await ctx.execute_activity(note, f"{ctx.info.workflow_id}/{n}")
    await ctx.execute_activity(note_at_the_second_try, f"{ctx.info.workflow_id}/3")


@app.workflow
async def waits(ctx: WorkflowContext) -> int:
    return await ctx.wait_for_signal("go", int)


@asynccontextmanager
async def behind_a_proxy(url: str, **options: Any) -> AsyncIterator[tuple[Worker, Proxy, Shards]]:
    """A worker that reaches its database through a proxy; everybody else goes straight."""
    async with proxied(url) as proxy:
        straight, through = Shards({0: url}), Shards({0: proxy.url})
        await app.connect(url)
        given = msgspec.structs.replace(FAST, **options)
        worker = Worker(app.registry, through, given)
        await worker.start()
        try:
            yield worker, proxy, straight
        finally:
            proxy.flow()
            await worker.stop()
            await app.close()
            await straight.close()
            await through.close()


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("request_too", [False, True], ids=["answer", "request"])
async def test_a_lost_commit_is_neither_repeated_nor_forgotten(
    new_database: Callable[[str], str], nth: int, request_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubts, "PAUSES", (0.1, 0.2, 0.2))
    key = f"commit-{nth}-{request_too}"
    async with behind_a_proxy(new_database("lost_commit")) as (worker, proxy, shards):
        passed = worker._parts[0].committer._passed

        def count(decision: Any) -> None:
            passed(decision)
            if worker.counters.passed == nth - 1:
                proxy.lose_next("harvest-commit", request=request_too)

        monkeypatch.setattr(worker._parts[0].committer, "_passed", count)
        if nth == 1:
            proxy.lose_next("harvest-commit", request=request_too)
        run = await app.start(notes, workflow_id=key)
        await run.result(timedelta(seconds=60))
        assert proxy.lost == worker.counters.unknown == 1
        await check_invariants(shards)
    each_ran_as_often_as_it_should(key)


@pytest.mark.parametrize("nth", range(1, 4))
async def test_a_lost_claim_is_found_again(
    new_database: Callable[[str], str], nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubts, "PAUSES", (0.1, 0.2, 0.2))
    async with behind_a_proxy(new_database("lost_claim")) as (_, proxy, shards):
        runs = []
        for n in range(nth):
            proxy.lose_next("harvest-claim")
            runs.append(await app.start(notes, workflow_id=f"claim-{nth}-{n}"))
        for run in runs:
            await run.result(timedelta(seconds=60))
        assert proxy.lost >= 1
        await check_invariants(shards)


async def test_lost_answers_of_results_and_retries_are_sent_again(new_database: Callable[[str], str]) -> None:
    async with behind_a_proxy(new_database("lost_scan"), scan_interval=30.0) as (_, proxy, shards):
        for n in range(6):
            proxy.lose_next("harvest-scan", request=n % 2 == 1)
            run = await app.start(notes, workflow_id=f"scan-{n}")
            await run.result(timedelta(seconds=60))
            each_ran_as_often_as_it_should(f"scan-{n}")
            await eventually(lambda n=n: _is(lambda: proxy.lost == n + 1))  # type: ignore[misc]
        await check_invariants(shards)


async def test_answers_lost_at_random(new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    seed, losses, at_once = 7, scale(15, 100), 10
    print(f"seed {seed}")
    chance = random.Random(seed)
    monkeypatch.setattr(doubts, "PAUSES", (0.1, 0.2, 0.4, 1.0))
    results: list[asyncio.Task[Any]] = []
    async with behind_a_proxy(new_database("lost_random")) as (_, proxy, shards):
        # Work goes on until enough was lost, however fast or slow the machine is.
        while proxy.lost < losses:
            while sum(not result.done() for result in results) < at_once:
                run = await app.start(notes, workflow_id=f"random-{len(results)}")
                results.append(asyncio.ensure_future(run.result(timedelta(seconds=60))))
            proxy.lose_next(
                chance.choice(("harvest-commit", "harvest-claim", "harvest-scan")), request=chance.random() < 0.3
            )
            under_way = [result for result in results if not result.done()]
            await asyncio.wait(under_way, timeout=chance.uniform(0.0, 0.05), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*results)
        await check_invariants(shards)
    for n in range(len(results)):
        each_ran_as_often_as_it_should(f"random-{n}")


async def test_02_a_lost_listener_scans_after_it_listens_again(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "FULL_LOOK_SECONDS", 3600.0)
    url = new_database("listener")
    async with behind_a_proxy(url, poll_interval=3600.0) as (_, proxy, shards):
        run = await app.start(waits)
        await eventually(lambda: parked(shards, run.execution_id))
        await eventually(lambda: has_links(proxy, "harvest-listen"))
        proxy.stall("harvest-listen")  # a new link cannot be made until it flows
        assert proxy.cut("harvest-listen")
        await run.signal("go", 5)
        proxy.flow()
        assert await run.result(timedelta(seconds=30)) == 5


async def test_06_a_listener_that_hears_nothing_is_found_by_its_own_note(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_PROBE_SECONDS", 0.2)
    monkeypatch.setattr(listening, "_CONNECT_LIMIT", 0.3)
    url = new_database("half_open")
    heard: list[str] = []
    gaps: list[float] = []
    async with proxied(url) as proxy:
        store, sender = Store(0, proxy.url), Store(0, url)
        task = asyncio.create_task(
            listening.listen(store, CHANNEL, heard.append, lambda: gaps.append(clock.monotonic()))
        )
        try:
            await eventually(lambda: _is(lambda: len(gaps) == 1))
            proxy.stall("harvest-listen")
            await notify(sender, {"lost"})
            await eventually(lambda: _is(lambda: proxy.accepted > 1))
            proxy.flow()
            await eventually(lambda: _is(lambda: len(gaps) == 2))
            await notify(sender, {"heard"})
            await eventually(lambda: _is(lambda: "heard" in heard))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await store.close()
            await sender.close()


async def test_07_a_worker_whose_links_are_all_half_open_stops_within_its_bound(
    new_database: Callable[[str], str],
) -> None:
    async with behind_a_proxy(new_database("stuck")) as (worker, proxy, _):
        await (await app.start(notes, workflow_id="stuck")).result(timedelta(seconds=30))
        proxy.stall()
        await app.start(notes, workflow_id="unreached")
        await asyncio.wait_for(worker.stop(), 45)


async def test_07_a_claim_that_hangs_has_a_limit_on_this_side(new_database: Callable[[str], str]) -> None:
    async with proxied(new_database("hangs")) as proxy:
        store = Store(0, proxy.url)
        assert await store.claim.fetch("select 1")
        assert await store.scan.fetch("select 1")
        proxy.stall()
        with pytest.raises(ShardUnavailableError):
            await store.claim.fetch("select 1", limit=0.2)
        with pytest.raises(OutcomeUnknownError):
            await store.scan.write("select 1", limit=0.2)
        await store.close()


async def test_35_cancelled_statements_leave_no_session_and_no_transaction_behind(
    new_database: Callable[[str], str],
) -> None:
    url = new_database("cancelled")
    chance = random.Random(11)
    store, watcher = Store(0, url), Store(0, url)
    for _ in range(scale(100, 500)):
        task = asyncio.create_task(store.write.write("select pg_sleep(0.01)"))
        await asyncio.wait([task], timeout=chance.uniform(0, 0.015))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert await store.write.write("select 1")

    async def clean() -> bool:
        rows = await watcher.read.fetch(
            """select count(*) as n, count(*) filter (where state like 'idle in transaction%') as open
                 from pg_stat_activity where application_name = 'harvest-write' and datname = current_database()"""
        )
        return rows[0]["n"] <= store.write.role.size and rows[0]["open"] == 0

    await eventually(clean)
    await store.close()
    await watcher.close()


async def parked(shards: Shards, execution_id: Any) -> bool:
    rows = await shards.stores[0].read.fetch(
        "select 1 from harvest_workflow_tasks where execution_id = $1 and state = 2", execution_id
    )
    return bool(rows)


async def has_links(proxy: Proxy, role: str) -> bool:
    return any(link.role.startswith(role) for link in proxy.links)


def each_ran_as_often_as_it_should(key: str) -> None:
    """No activity of this run ran again because an answer was lost."""
    assert [ran[f"{key}/{n}"] for n in range(4)] == [1, 1, 1, 2]


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()
