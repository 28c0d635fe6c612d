"""Activities: async and in threads, retries, heartbeats, cancellation, what they fail with."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from harvest import ActivityContext, ActivityError, ApplicationError, Harvest, Retry, WorkflowContext, clock
from harvest.history.data import Failure, RetryPolicy
from harvest.history.kinds import EventKind
from harvest.history.retrying import retry_delay
from harvest.shards import Shards
from harvest.store import upkeep
from harvest.worker.options import WorkerOptions
from harvest.worker.worker import Worker
from tests.support import at_work, check_invariants, eventually, history_of

app = Harvest()
SOON = timedelta(seconds=60)
QUICK = Retry(max_attempts=5, initial_interval=timedelta(milliseconds=10))
Work = tuple[Worker, Shards]
calls: dict[str, list[Any]] = defaultdict(list)


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, new_database("activities")) as working:
        yield working
        await check_invariants(working[1])


@app.activity
def in_thread(ctx: ActivityContext, word: str) -> list[Any]:
    return [word, threading.current_thread() is not threading.main_thread(), ctx.attempt]


@app.workflow
async def one_in_thread(ctx: WorkflowContext, word: str) -> list[Any]:
    return await ctx.execute_activity(in_thread, word)


async def test_a_plain_function_runs_in_a_thread(work: Work) -> None:
    assert await (await app.start(one_in_thread, "x")).result(SOON) == ["x", True, 1]


@app.activity(retry=QUICK)
async def keyed(ctx: ActivityContext, name: str) -> str:
    calls[name].append((ctx.attempt, ctx.idempotency_key(), ctx.idempotency_key("part")))
    if ctx.attempt < 3:
        raise ValueError(f"attempt {ctx.attempt}")
    return ctx.idempotency_key()


@app.workflow
async def two_keyed(ctx: WorkflowContext, name: str) -> list[str]:
    return [await ctx.execute_activity(keyed, name), await ctx.execute_activity(keyed, name)]


async def test_the_key_is_that_of_the_activity_not_of_the_attempt(work: Work) -> None:
    handle = await app.start(two_keyed, "keys")
    first, second = await handle.result(SOON)
    assert first != second
    assert str(handle.execution_id) in first
    assert [call[0] for call in calls["keys"]] == [1, 2, 3, 1, 2, 3]
    assert {call[1] for call in calls["keys"][:3]} == {first}
    assert {call[2] for call in calls["keys"][:3]} == {f"{first}/part"}


async def test_history_has_one_start_for_each_attempt_and_no_event_for_a_failure_that_is_retried(work: Work) -> None:
    handle = await app.start(two_keyed, "attempts")
    await handle.result(SOON)
    mine = [event for event in await history_of(work[1], handle.execution_id) if event.seq == 1]
    kinds = [EventKind(event.kind) for event in mine]
    assert kinds == [EventKind.ACTIVITY_SCHEDULED, *[EventKind.ACTIVITY_STARTED] * 3, EventKind.ACTIVITY_COMPLETED]
    attempts = [event.data() for event in mine[1:4]]
    assert [each.attempt for each in attempts] == [1, 2, 3]
    assert attempts[0].last_failure is None
    assert attempts[2].last_failure.message == "attempt 2"


class Refused(Exception):
    """An error of the user's own."""


@app.activity(retry=Retry(max_attempts=5, initial_interval=timedelta(0), non_retryable=("Refused",)))
async def failing(ctx: ActivityContext, how: str) -> None:
    calls[how].append(ctx.attempt)
    if how.startswith("listed"):
        raise Refused("by the bank")
    if how.startswith("marked"):
        raise ApplicationError("for good", type="Marked", non_retryable=True)
    if how.startswith("typed"):
        raise ApplicationError("of a type", type="Refused")
    if how.startswith("exit"):
        raise SystemExit(3)
    if how.startswith("interrupt"):
        raise KeyboardInterrupt
    if how.startswith("stop"):
        raise StopIteration("enough")
    if how.startswith("cancelled"):
        raise asyncio.CancelledError
    if how.startswith("group"):
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])
    if how.startswith("nan"):
        return float("nan")  # type: ignore[return-value]
    if how.startswith("object"):
        return object()  # type: ignore[return-value]
    if how.startswith("speechless"):
        raise Speechless
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer \ud800 \x00") from error


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@app.activity(retry=Retry(max_attempts=2, initial_interval=timedelta(0)))
def failing_thread(how: str) -> None:
    calls[how].append(1)
    if how == "thread-stop":
        raise StopIteration
    if how == "thread-exit":
        raise SystemExit(3)
    raise ValueError(how)


@app.workflow
async def meets_failure(ctx: WorkflowContext, how: str) -> dict[str, Any]:
    try:
        if how.startswith("thread"):
            await ctx.execute_activity(failing_thread, how)
        else:
            await ctx.execute_activity(failing, how)
    except ActivityError as error:
        cause = error.__cause__
        assert isinstance(cause, ApplicationError)
        inner = cause.__cause__
        return {
            "type": cause.type,
            "message": cause.message,
            "attempt": error.fields["attempt"],
            "inner": inner.type if isinstance(inner, ApplicationError) else None,
        }
    return {}


@pytest.mark.parametrize(
    ("how", "type_", "message", "attempts"),
    [
        ("listed", "Refused", "by the bank", 1),
        ("marked", "Marked", "for good", 1),
        ("typed", "Refused", "of a type", 1),
        ("exit", "SystemExit", "3", 5),
        ("interrupt", "KeyboardInterrupt", "", 5),
        ("stop", "RuntimeError", "coroutine raised StopIteration", 5),
        ("cancelled", "Cancelled", "the activity raised CancelledError", 1),
        ("group", "ExceptionGroup", "several (2 sub-exceptions)", 5),
        ("nan", "PayloadError", "holds NaN", 1),
        ("object", "PayloadError", "cannot be written as JSON", 1),
        ("speechless", "Speechless", "", 5),
        ("chained", "ValueError", "outer ? \x00", 5),
        ("thread-stop", "RuntimeError", "StopIteration", 2),
        ("thread-exit", "SystemExit", "3", 2),
        ("thread-plain", "ValueError", "thread-plain", 2),
    ],
)
async def test_what_an_activity_fails_with(work: Work, how: str, type_: str, message: str, attempts: int) -> None:
    calls[how].clear()
    seen = await (await app.start(meets_failure, how)).result(SOON)
    assert seen["type"] == type_
    assert message in seen["message"]
    assert seen["attempt"] == attempts
    assert len(calls[how]) == attempts
    assert work[0].options.activity_slots == work[0]._runner.free


async def test_causes_travel_with_the_failure(work: Work) -> None:
    handle = await app.start(meets_failure, "chained-2")
    assert (await handle.result(SOON))["inner"] == "KeyError"
    event = next(e for e in await history_of(work[1], handle.execution_id) if e.kind == EventKind.ACTIVITY_FAILED)
    failure: Failure = event.data().failure
    assert "test_activities.py" in failure.traceback
    assert failure.cause is not None
    assert failure.cause.message == "'inner'"


def test_the_wait_before_a_retry_follows_the_policy() -> None:
    policy = RetryPolicy(max_attempts=6, initial_interval=1, coefficient=3, max_interval=20)
    failure = Failure("ValueError", "")
    assert [retry_delay(policy, failure, n, "k") for n in range(1, 7)] == [1, 3, 9, 20, 20, None]


def test_a_policy_of_very_many_attempts_does_not_overflow() -> None:
    policy = RetryPolicy(max_attempts=5_000, coefficient=10.0)
    assert retry_delay(policy, Failure("E", ""), 4_000, "k") == 300


@pytest.mark.parametrize(("jitter", "least"), [("full", 0.0), ("equal", 0.5)])
def test_jitter_is_within_its_bounds_and_the_same_for_the_same_try(jitter: str, least: float) -> None:
    policy = RetryPolicy(max_attempts=1_000, coefficient=1, jitter=jitter)
    delays = [retry_delay(policy, Failure("E", ""), n, "k") for n in range(1, 200)]
    assert delays == [retry_delay(policy, Failure("E", ""), n, "k") for n in range(1, 200)]
    known = [delay for delay in delays if delay is not None]
    assert least <= min(known) < least + 0.1
    assert 0.9 < max(known) <= 1


@app.activity(retry=Retry(max_attempts=3, initial_interval=timedelta(seconds=0.3), coefficient=2))
async def spaced(ctx: ActivityContext, name: str) -> int:
    calls[name].append(clock.monotonic())
    if ctx.attempt < 3:
        raise ValueError
    return ctx.attempt


@app.workflow
async def one_spaced(ctx: WorkflowContext, name: str) -> int:
    return await ctx.execute_activity(spaced, name)


async def test_retries_keep_their_distance(work: Work) -> None:
    assert await (await app.start(one_spaced, "spaced")).result(SOON) == 3
    first, second, third = calls["spaced"]
    assert second - first >= 0.29
    assert third - second >= 0.59


@app.activity(heartbeat_timeout=timedelta(seconds=30), retry=QUICK)
async def resumes(ctx: ActivityContext, name: str) -> list[Any]:
    done = ctx.heartbeat_details(int)
    calls[name].append(done)
    if ctx.attempt < 4:
        ctx.heartbeat((done or 0) + 7)
        raise ValueError
    return calls[name]


@app.workflow
async def one_resumes(ctx: WorkflowContext, name: str) -> list[Any]:
    return await ctx.execute_activity(resumes, name)


async def test_the_next_attempt_finds_what_the_last_one_said_even_just_before_it_failed(work: Work) -> None:
    assert await (await app.start(one_resumes, "resumes")).result(SOON) == [None, 7, 14, 21]


async def test_heartbeats_from_threads_do_not_disturb_who_writes_them(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread adds beats, of a shard that is not this one, while they are looked through."""
    worker, _ = work
    beats: dict[tuple[UUID, int], tuple[int, int, bytes]] = {}
    monkeypatch.setattr(worker._runner, "beats", beats)

    def add() -> None:
        for n in range(30_000):
            beats[(UUID(int=1), n)] = (9, 1, b"null")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    adding = threading.Thread(target=add)
    try:
        adding.start()
        while adding.is_alive():
            await worker._parts[0]._scanner.write_beats()
    finally:
        sys.setswitchinterval(interval)
        adding.join()
    assert len(beats) == 30_000


ended: dict[str, str] = {}


@app.activity(start_to_close=timedelta(seconds=60))
async def endless(name: str) -> str:
    ended[name] = "running"
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        ended[name] = "cancelled"
        if name.startswith("stubborn"):
            return "done all the same"
        raise
    return ""


@app.activity(start_to_close=timedelta(seconds=60))
def endless_thread(ctx: ActivityContext, name: str) -> str:
    ended[name] = "running"
    while not ctx.is_cancelled:
        threading.Event().wait(0.005)
    ended[name] = "cancelled"
    return "late"


@app.workflow
async def drops(ctx: WorkflowContext, name: str) -> str:
    """Start an endless activity, drop it on a signal, go on."""
    which = endless_thread if name.startswith("thread") else endless
    if name.startswith("elsewhere"):
        which = endless.with_options(queue="elsewhere")
    task = asyncio.create_task(ctx.execute_activity(which, name))
    await ctx.wait_for_signal("drop")
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        await ctx.sleep(0.01)
        return "dropped"
    return "not dropped"


async def running(name: str) -> None:
    async def runs() -> bool:
        return ended.get(name) == "running"

    await eventually(runs)


async def is_cancelled(name: str) -> None:
    async def holds() -> bool:
        return ended.get(name) == "cancelled"

    await eventually(holds)


@pytest.mark.parametrize("name", ["async", "stubborn", "thread"])
async def test_31_a_dropped_activity_is_stopped_at_once_in_the_same_process(
    work: Work, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any look into the database could tell that nobody waits for it."""

    async def nothing_to_stop(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(upkeep, "asked_to_stop", nothing_to_stop)
    handle = await app.start(drops, name)
    await running(name)
    await handle.signal("drop")
    assert await handle.result(SOON) == "dropped"
    await is_cancelled(name)


@app.workflow
async def waits_after_drop(ctx: WorkflowContext, name: str) -> str:
    task = asyncio.create_task(ctx.execute_activity(endless, name))
    await ctx.wait_for_signal("drop")
    task.cancel()
    return str(await ctx.wait_for_signal("end"))


async def test_the_late_result_of_a_dropped_activity_is_recorded_and_ignored(work: Work) -> None:
    handle = await app.start(waits_after_drop, "stubborn-late")
    await running("stubborn-late")
    await handle.signal("drop")

    async def recorded() -> bool:
        kinds = [event.kind for event in await history_of(work[1], handle.execution_id)]
        return EventKind.ACTIVITY_CANCEL_REQUESTED in kinds and EventKind.ACTIVITY_COMPLETED in kinds

    await eventually(recorded)
    await handle.signal("end", "good")
    assert await handle.result(SOON) == "good"


async def test_31_an_activity_that_another_worker_runs_is_told(work: Work) -> None:
    options = WorkerOptions(queues=("elsewhere",), poll_interval=0.2, scan_interval=0.1, drain_timeout=0.2)
    other_shards = await Shards.open({shard_id: store.url for shard_id, store in work[1].stores.items()})
    other = Worker(app.registry, other_shards, options)
    await other.start()
    try:
        handle = await app.start(drops, "elsewhere")
        await running("elsewhere")
        assert other.counters.activities_claimed == 1
        await handle.signal("drop")
        assert await handle.result(SOON) == "dropped"
        await is_cancelled("elsewhere")
    finally:
        await other.stop()
        await other_shards.close()


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_the_activities_of_a_run_that_ended_are_stopped(work: Work, how: str) -> None:
    name = f"ends-by-{how}"
    handle = await app.start(drops, name)
    await running(name)
    await (handle.terminate() if how == "terminate" else handle.cancel())
    await is_cancelled(name)


@app.workflow
async def outlasts_cancel(ctx: WorkflowContext, name: str) -> str:
    try:
        return await ctx.execute_activity(endless, name)
    except asyncio.CancelledError:
        return str(await ctx.wait_for_signal("end"))


async def test_what_is_dropped_before_it_was_scheduled_never_runs(work: Work) -> None:
    """A run cancelled before its first decision asks for the activity and takes it back in one commit."""
    _, shards = work
    handle = await app.start(outlasts_cancel, "early", queue="nobody")
    await handle.cancel("before it began")
    store = shards.store_of(handle.execution_id)
    await store.write.write(
        "update harvest_workflow_tasks set queue = 'default', sort_at = clock_timestamp() where execution_id = $1",
        handle.execution_id,
    )
    store.waker.wake(None)

    async def is_decided() -> bool:
        kinds = [event.kind for event in await history_of(shards, handle.execution_id)]
        return EventKind.ACTIVITY_CANCEL_REQUESTED in kinds

    await eventually(is_decided)
    await handle.signal("end", "over")
    assert await handle.result(SOON) == "over"
    assert "early" not in ended
    kinds = [event.kind for event in await history_of(shards, handle.execution_id)]
    assert EventKind.ACTIVITY_SCHEDULED in kinds
    assert EventKind.ACTIVITY_CANCEL_REQUESTED in kinds
    assert EventKind.ACTIVITY_STARTED not in kinds
