"""Worker sessions: a series of activities on one worker, and what a run sees when that worker goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harvest import Harvest, Retry, WorkflowContext, WorkflowHandle
from harvest.errors import SessionBrokenError, SessionTimeoutError
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.worker.worker import Worker
from tests.support import FAST, check_invariants, eventually, history_of

app = Harvest()
SOON = timedelta(seconds=60)
at: ContextVar[str] = ContextVar("at")
gates: dict[str, asyncio.Event] = {}
tries: dict[str, int] = {}


@app.activity
async def where() -> str:
    """The worker that runs this: each one's tasks have a context of their own."""
    return at.get()


@app.activity(retry=Retry(max_attempts=5, initial_interval=timedelta(seconds=0.05)))
async def fails_twice(key: str) -> str:
    tries[key] = tries.get(key, 0) + 1
    if tries[key] < 3:
        raise ConnectionError("not yet")
    return at.get()


@app.activity(retry=Retry(max_attempts=5, initial_interval=timedelta(seconds=0.05)))
async def waits(key: str) -> str:
    await gates.setdefault(key, asyncio.Event()).wait()
    return at.get()


@app.workflow
async def in_a_session(ctx: WorkflowContext, steps: int) -> list[str]:
    async with ctx.create_session() as session:
        told = [session.worker]
        for _ in range(steps):
            told.append(await session.execute_activity(where))
            await ctx.wait_for_signal("on")
    return told


@app.workflow
async def retries_in_a_session(ctx: WorkflowContext, key: str) -> list[str]:
    async with ctx.create_session() as session:
        return [session.worker, await session.execute_activity(fails_twice, key)]


@app.workflow
async def starts_over(ctx: WorkflowContext, key: str) -> list[Any]:
    told: list[Any] = []
    try:
        async with ctx.create_session() as session:
            told.append(session.worker)
            await session.execute_activity(waits, key)
    except SessionBrokenError as error:
        told += [error.fields["reason"], session.is_broken]
        try:
            await session.execute_activity(where)
        except SessionBrokenError:
            told.append("still broken")
    async with ctx.create_session() as session:
        told += [session.worker, await session.execute_activity(where)]
    return told


@app.workflow
async def too_long(ctx: WorkflowContext, key: str) -> str:
    async with ctx.create_session(execution_timeout=0.3) as session:
        try:
            await session.execute_activity(waits, key)
        except SessionBrokenError as error:
            return str(error.fields["reason"])
    return "not broken"


@app.workflow
async def finds_nobody(ctx: WorkflowContext) -> str:
    try:
        async with ctx.create_session(queue="nobody polls this", creation_timeout=0.3):
            return "opened"
    except SessionTimeoutError as error:
        return f"{isinstance(error, TimeoutError)} {error.fields['reason']}"


@app.workflow
async def leaves_one_behind(ctx: WorkflowContext, key: str) -> str:
    async with ctx.create_session() as session:
        left = asyncio.ensure_future(session.execute_activity(waits, key))
        await ctx.wait_for_signal("on")
    try:
        return await left
    except asyncio.CancelledError:
        return "cancelled"


@app.workflow
async def holds(ctx: WorkflowContext) -> str:
    async with ctx.create_session() as session:
        await ctx.wait_for_signal("on")
        return session.worker


@asynccontextmanager
async def workers(url: str, *names: str, **options: Any) -> AsyncIterator[tuple[dict[str, Worker], Shards]]:
    """Workers of these names, each with connections of its own, and started in a context that knows its name."""
    own = {name: Shards({0: url}) for name in names}
    found = {
        name: Worker(app.registry, own[name], msgspec.structs.replace(FAST, name=name, **options)) for name in names
    }
    await app.connect(url)
    shards = await Shards.open({0: url})
    try:
        for name, worker in found.items():
            await _start(name, worker)
        yield found, shards
        await check_invariants(shards)
    finally:
        for gate in gates.values():
            gate.set()
        for worker in found.values():
            await worker.stop()
        for each in (*own.values(), shards):
            await each.close()
        await app.close()


async def _start(name: str, worker: Worker) -> None:
    async def begin() -> None:
        at.set(name)
        await worker.start()

    await asyncio.create_task(begin())


async def kinds(shards: Shards, handle: WorkflowHandle[Any]) -> list[EventKind]:
    return [EventKind(event.kind) for event in await history_of(shards, handle.execution_id)]


async def rows(shards: Shards) -> list[tuple[str, str]]:
    found = await shards.stores[0].read.fetch(
        "select s.status, w.name from harvest_worker_sessions s left join harvest_workers w on w.worker = s.worker"
    )
    return [(row["status"], row["name"]) for row in found]


async def opened(shards: Shards, handle: WorkflowHandle[Any], *, times: int = 1) -> None:
    async def is_open() -> bool:
        return (await kinds(shards, handle)).count(EventKind.SESSION_OPENED) >= times

    await eventually(is_open)


async def dies(shards: Shards, worker: Worker) -> None:
    """Its lease is over, and no renewal brings it back."""
    await shards.stores[0].write.write(
        "update harvest_workers set status = 'draining', lease_until = clock_timestamp() - interval '1 second' "
        "where worker = $1",
        worker.id,
    )


async def test_every_activity_of_a_session_runs_on_the_worker_that_opened_it(
    new_database: Callable[[str], str],
) -> None:
    async with workers(new_database("sessions"), "ann", "bob", "cyd", lease_ttl=0.0) as (_, shards):
        handles = [await app.start(in_a_session, 3) for _ in range(6)]
        for handle in handles:
            for _ in range(3):
                await handle.signal("on")
        told = [await handle.result(SOON) for handle in handles]
        assert [set(each) for each in told if len(set(each)) != 1] == []
        history = await kinds(shards, handles[0])
        assert history.count(EventKind.SESSION_REQUESTED) == history.count(EventKind.SESSION_CLOSED) == 1

        async def nothing_is_left() -> bool:
            return not await rows(shards)

        await eventually(nothing_is_left)


async def test_another_attempt_runs_on_the_same_worker(new_database: Callable[[str], str]) -> None:
    async with workers(new_database("sessions"), "ann", "bob") as (_, _shards):
        handles = [await app.start(retries_in_a_session, f"r{n}") for n in range(4)]
        for handle in handles:
            first, then = await handle.result(SOON)
            assert first == then


async def test_the_death_of_its_worker_breaks_a_session_and_a_new_one_can_be_made(
    new_database: Callable[[str], str],
) -> None:
    async with workers(new_database("sessions"), "ann", "bob") as (found, shards):
        handle = await app.start(starts_over, "lost")
        await opened(shards, handle)
        (_, host), *_ = await rows(shards)
        other = "bob" if host == "ann" else "ann"
        await dies(shards, found[host])
        assert await handle.result(SOON) == [host, "worker_lost", True, "still broken", other, other]
        history = await history_of(shards, handle.execution_id)
        broken = next(event for event in history if event.kind == EventKind.SESSION_BROKEN)
        failed = next(event for event in history if event.kind == EventKind.ACTIVITY_FAILED)
        assert broken.event_id < failed.event_id
        assert failed.data().failure.type == "SessionBroken"
        assert failed.data().failure.non_retryable
        assert found[host].counters.activities_completed == 0


async def test_a_session_is_broken_by_its_execution_timeout(new_database: Callable[[str], str]) -> None:
    async with workers(new_database("sessions"), "ann") as (_, _shards):
        handle = await app.start(too_long, "long")
        assert await handle.result(SOON) == "execution_timeout"


async def test_a_session_that_no_worker_opens_in_time_is_a_timeout(new_database: Callable[[str], str]) -> None:
    async with workers(new_database("sessions"), "ann") as (_, shards):
        handle = await app.start(finds_nobody)
        assert await handle.result(SOON) == "True creation_timeout"
        assert EventKind.SESSION_OPENED not in await kinds(shards, handle)


async def test_leaving_a_session_cancels_what_still_runs_in_it(new_database: Callable[[str], str]) -> None:
    async with workers(new_database("sessions"), "ann") as (_, shards):
        handle = await app.start(leaves_one_behind, "left")
        await opened(shards, handle)
        await handle.signal("on")
        assert await handle.result(SOON) == "cancelled"
        assert (await kinds(shards, handle))[-2:] != [EventKind.SESSION_BROKEN]


async def test_a_worker_opens_no_more_sessions_than_it_may(new_database: Callable[[str], str]) -> None:
    async with workers(new_database("sessions"), "ann", max_concurrent_sessions=2) as (_, shards):
        handles = [await app.start(holds) for _ in range(5)]

        async def two_are_open() -> bool:
            return sorted(status for status, _ in await rows(shards)) == ["open"] * 2 + ["pending"] * 3

        await eventually(two_are_open)
        for handle in handles:
            await handle.signal("on")
        assert [await handle.result(SOON) for handle in handles] == ["ann"] * 5


async def test_a_run_that_ends_takes_its_session_along(new_database: Callable[[str], str]) -> None:
    async with workers(new_database("sessions"), "ann") as (_, shards):
        handle = await app.start(holds)
        await opened(shards, handle)
        await handle.terminate("enough")

        async def nothing_is_left() -> bool:
            return not await rows(shards)

        await eventually(nothing_is_left)


async def test_a_draining_worker_keeps_its_sessions_until_they_end(new_database: Callable[[str], str]) -> None:
    async with workers(new_database("sessions"), "ann", drain_timeout=30.0) as (found, shards):
        handle = await app.start(in_a_session, 3)
        await opened(shards, handle)
        bob = Worker(app.registry, shards, msgspec.structs.replace(FAST, name="bob"))
        await _start("bob", bob)
        try:
            stopping = asyncio.create_task(found["ann"].stop())

            async def ann_drains() -> bool:
                told = await shards.stores[0].read.fetch("select status from harvest_workers where name = 'ann'")
                return bool(told[0]["status"] == "draining")

            await eventually(ann_drains)
            for _ in range(3):
                await handle.signal("on")
            assert await handle.result(SOON) == ["ann"] * 4
            await asyncio.wait_for(stopping, 30)
        finally:
            await bob.stop()


async def test_the_end_of_a_drain_breaks_what_is_still_open(new_database: Callable[[str], str]) -> None:
    async with workers(new_database("sessions"), "ann", drain_timeout=0.3) as (found, shards):
        handle = await app.start(starts_over, "drained")
        await opened(shards, handle)
        bob = Worker(app.registry, shards, msgspec.structs.replace(FAST, name="bob"))
        await _start("bob", bob)
        try:
            await found["ann"].stop()
            assert await handle.result(SOON) == ["ann", "worker_lost", True, "still broken", "bob", "bob"]
        finally:
            await bob.stop()


@pytest.mark.parametrize("cold", [False, True])
async def test_a_session_is_replayed_as_it_went(new_database: Callable[[str], str], cold: bool) -> None:
    async with workers(new_database("sessions"), "ann") as (found, shards):
        handle = await app.start(in_a_session, 2)
        for _ in range(2):
            await opened(shards, handle)
            if cold:
                found["ann"].let_go_residents()
            await handle.signal("on")
        assert await handle.result(SOON) == ["ann"] * 3
