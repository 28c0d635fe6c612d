"""The four timeouts of an activity, with and without retries, for eager attempts and claimed ones."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from harvest import ActivityContext, ActivityTimeoutError, Harvest, Retry, WorkflowContext, clock
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.store import upkeep
from harvest.worker import activities
from harvest.worker.options import WorkerOptions
from harvest.worker.worker import Worker
from tests.support import at_work, check_invariants, eventually, history_of

app = Harvest()
SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]
ONCE = Retry(max_attempts=1)
TWICE = Retry(max_attempts=2, initial_interval=timedelta(milliseconds=10))
began: dict[str, list[float]] = defaultdict(list)
SHORT = timedelta(seconds=0.2)
LONGER = timedelta(seconds=1.5)  # enough for a second attempt that returns at once, on any machine


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, new_database("timeouts")) as working:
        yield working
        await check_invariants(working[1])


@app.activity
async def hangs(ctx: ActivityContext, name: str) -> int:
    began[name].append(clock.monotonic())
    if name.startswith("second") and ctx.attempt == 2:
        return ctx.attempt
    await asyncio.sleep(60)
    return 0


@app.activity(start_to_close=SHORT, retry=ONCE)
def hangs_in_thread(ctx: ActivityContext, name: str) -> int:
    began[name].append(clock.monotonic())
    while not ctx.is_cancelled:
        threading.Event().wait(0.01)
    return 0


OPTIONS: dict[str, Any] = {
    "start_to_close": hangs.with_options(start_to_close=SHORT, retry=ONCE),
    "start_to_close twice": hangs.with_options(start_to_close=SHORT, retry=TWICE),
    "second start_to_close": hangs.with_options(start_to_close=LONGER, retry=TWICE),
    "heartbeat": hangs.with_options(heartbeat_timeout=SHORT, retry=ONCE),
    "heartbeat twice": hangs.with_options(heartbeat_timeout=SHORT, retry=TWICE),
    "second heartbeat": hangs.with_options(heartbeat_timeout=LONGER, retry=TWICE),
    "schedule_to_close": hangs.with_options(
        start_to_close=timedelta(seconds=0.4), schedule_to_close=timedelta(seconds=0.4), retry=Retry(max_attempts=9)
    ),
    "schedule_to_start": hangs.with_options(schedule_to_start=SHORT, queue="nobody"),
    "schedule_to_close in the queue": hangs.with_options(schedule_to_close=SHORT, start_to_close=SHORT, queue="nobody"),
    "thread": hangs_in_thread,
}


@app.workflow
async def meets_timeout(ctx: WorkflowContext, name: str) -> list[Any]:
    try:
        attempt = await ctx.execute_activity(OPTIONS[name], name)
    except ActivityTimeoutError as error:
        return [error.fields["timeout_type"], error.fields["attempt"]] if isinstance(error, TimeoutError) else []
    return ["completed", attempt]


EXPECTED = [
    ("start_to_close", "start_to_close", 1),
    ("start_to_close twice", "start_to_close", 2),
    ("second start_to_close", "completed", 2),
    ("heartbeat", "heartbeat", 1),
    ("heartbeat twice", "heartbeat", 2),
    ("second heartbeat", "completed", 2),
    ("schedule_to_close", "schedule_to_close", 1),
    ("schedule_to_start", "schedule_to_start", 0),
    ("schedule_to_close in the queue", "schedule_to_close", 0),
    ("thread", "start_to_close", 1),
]


@pytest.mark.parametrize(("name", "kind", "attempt"), EXPECTED)
async def test_a_timeout_ends_or_retries_the_attempt(work: Work, name: str, kind: str, attempt: int) -> None:
    began[name].clear()
    handle = await app.start(meets_timeout, name)
    assert await handle.result(SOON) == [kind, attempt]
    assert len(began[name]) == attempt
    ends = {EventKind.ACTIVITY_TIMED_OUT, EventKind.ACTIVITY_COMPLETED, EventKind.ACTIVITY_FAILED}
    kinds = [EventKind(event.kind) for event in await history_of(work[1], handle.execution_id)]
    assert sum(each in ends for each in kinds) == 1
    assert kinds.count(EventKind.ACTIVITY_STARTED) == attempt


@pytest.mark.parametrize(("name", "kind", "attempt"), [each for each in EXPECTED if "start_to_close" in each[0]])
async def test_the_scanner_alone_ends_long_attempts_alike(
    work: Work, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, attempt: int
) -> None:
    monkeypatch.setattr(activities, "SHORT_LIMIT", 0.0)
    await test_a_timeout_ends_or_retries_the_attempt(work, name, kind, attempt)
    assert work[0].counters.busy < 50


@app.activity(heartbeat_timeout=timedelta(seconds=3), retry=ONCE)
async def keeps_beating(ctx: ActivityContext, seconds: float) -> str:
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        ctx.heartbeat()
        await asyncio.sleep(0.02)
    return "alive"


@app.workflow
async def long_beats(ctx: WorkflowContext) -> str:
    return await ctx.execute_activity(keeps_beating, 5.0)


async def test_who_beats_lives(work: Work) -> None:
    assert await (await app.start(long_beats)).result(SOON) == "alive"


@app.activity(start_to_close=SHORT, retry=Retry(max_attempts=3, initial_interval=timedelta(0)))
async def hangs_then_fails(ctx: ActivityContext) -> None:
    if ctx.attempt == 1:
        await asyncio.sleep(60)
    raise ValueError(f"attempt {ctx.attempt}")


@app.workflow
async def reasons(ctx: WorkflowContext) -> None:
    await ctx.execute_activity(hangs_then_fails)


async def test_the_reason_of_each_attempt_is_in_the_start_of_the_next(work: Work) -> None:
    handle = await app.start(reasons)
    with pytest.raises(Exception, match="ActivityError"):
        await handle.result(SOON)
    starts = [
        event.data().last_failure
        for event in await history_of(work[1], handle.execution_id)
        if event.kind == EventKind.ACTIVITY_STARTED
    ]
    assert starts[0] is None
    assert starts[1].type == "TimeoutError"
    assert starts[2].message == "attempt 2"


@app.activity(start_to_close=SHORT, retry=ONCE)
async def own_timeout() -> None:
    raise TimeoutError("the user's own")


@app.workflow
async def meets_own_timeout(ctx: WorkflowContext) -> str:
    try:
        await ctx.execute_activity(own_timeout)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


async def test_a_timeout_error_of_the_users_own_is_a_failure(work: Work) -> None:
    said = await (await app.start(meets_own_timeout)).result(SOON)
    assert said.startswith("ActivityError: ")
    assert "the user's own" in said


finished: list[int] = []


late = asyncio.Event()


@app.activity(heartbeat_timeout=SHORT, retry=ONCE, queue="far")
async def outlives() -> str:
    await late.wait()
    finished.append(1)
    return "too late"


@app.activity(heartbeat_timeout=LONGER, retry=TWICE, queue="far")
async def outlives_once(ctx: ActivityContext) -> str:
    if ctx.attempt == 1:
        await late.wait()
        finished.append(1)
    return f"attempt {ctx.attempt}"


@app.workflow(queue="far")
async def overtaken(ctx: WorkflowContext, again: bool) -> str:
    try:
        said = await ctx.execute_activity(outlives_once if again else outlives)
    except ActivityTimeoutError as error:
        said = str(error.fields["timeout_type"])
    await ctx.wait_for_signal("go")
    return said


@pytest.mark.parametrize(("again", "said"), [(False, "heartbeat"), (True, "attempt 2")])
async def test_a_result_that_comes_after_another_worker_called_time_counts_for_nothing(
    work: Work, monkeypatch: pytest.MonkeyPatch, again: bool, said: str
) -> None:
    """The attempt was started with its decision on one worker; the scanner of the other ends it meanwhile."""
    finished.clear()
    late.clear()

    async def nothing_to_stop(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(upkeep, "asked_to_stop", nothing_to_stop)
    blind = WorkerOptions(queues=("far",), poll_interval=0.1, scan_interval=3_600, drain_timeout=0.2)
    shards = await Shards.open({0: work[1].stores[0].url})
    runs = Worker(app.registry, shards, blind)
    await runs.start()
    try:
        handle = await app.start(overtaken, again)

        async def is_called() -> bool:
            kinds = [event.kind for event in await history_of(work[1], handle.execution_id)]
            return EventKind.ACTIVITY_TIMED_OUT in kinds or kinds.count(EventKind.ACTIVITY_STARTED) == 2

        async def is_over() -> bool:
            return bool(finished)

        await eventually(is_called)
        late.set()
        await eventually(is_over)
        await handle.signal("go")
        assert await handle.result(SOON) == said
        assert runs.counters.busy < 20
        assert runs.counters.decisions_warm < 20
    finally:
        await runs.stop()
        await shards.close()
