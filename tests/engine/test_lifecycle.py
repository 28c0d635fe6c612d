"""How runs end: complete, fail, cancel, terminate, time out; and that nothing follows the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from harvest import (
    ActivityContext,
    ApplicationError,
    Harvest,
    Retry,
    WorkflowContext,
    WorkflowFailedError,
    WorkflowHandle,
)
from harvest.errors import ExecutionClosedError, ExecutionNotFoundError, LimitError, ResultTimeoutError
from harvest.history.kinds import EventKind
from harvest.operations import reading
from harvest.shards import Shards
from harvest.worker.worker import Worker
from tests.scale import scale
from tests.support import at_work, check_invariants, eventually, history_of

app = Harvest()
SOON = timedelta(seconds=60)
Work = tuple[Worker, Shards]
done: dict[str, list[str]] = {}


@pytest.fixture(scope="module")
async def work(new_database: Callable[[str], str]) -> AsyncIterator[Work]:
    async with at_work(app, new_database("lifecycle")) as working:
        yield working
        await check_invariants(working[1])


@app.activity(retry=Retry(max_attempts=1))
async def note(name: str, what: str) -> int:
    done.setdefault(name, []).append(what)
    return len(done[name])


async def ended(handle: WorkflowHandle[Any]) -> WorkflowFailedError:
    with pytest.raises(WorkflowFailedError) as caught:
        await handle.result(SOON)
    return caught.value


class Sad(Exception):
    """An error of the author's own."""


@app.workflow
async def fails(ctx: WorkflowContext, how: str) -> None:
    if how == "typed":
        raise ApplicationError("out of stock", type="OutOfStock")
    if how == "exit":
        raise SystemExit(4)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "cancelled":
        raise asyncio.CancelledError
    if how == "hostile":
        raise ApplicationError("a\ud800b\x00c", type="T\ud800")
    if how == "nan":
        return float("nan")  # type: ignore[return-value]
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise Sad("outer") from error


@pytest.mark.parametrize(
    ("how", "type_", "message"),
    [
        ("typed", "OutOfStock", "out of stock"),
        ("exit", "SystemExit", "4"),
        ("interrupt", "KeyboardInterrupt", ""),
        ("cancelled", "CancelledError", ""),
        ("hostile", "T?", "a?b\x00c"),
        ("nan", "PayloadError", "holds NaN"),
        ("chained", "Sad", "outer"),
    ],
)
async def test_an_exception_that_leaves_the_workflow_fails_it(work: Work, how: str, type_: str, message: str) -> None:
    handle = await app.start(fails, how)
    error = await ended(handle)
    assert (error.fields["state"], error.fields["failure_type"]) == ("FAILED", type_)
    view = await reading.get(work[1], handle.execution_id)
    assert view.failure is not None
    assert message in view.failure.message
    assert view.closed_at is not None
    assert view.result is None


async def test_a_failure_is_kept_with_traceback_and_causes(work: Work) -> None:
    handle = await app.start(fails, "chained")
    await ended(handle)
    failure = (await history_of(work[1], handle.execution_id))[-1].data().failure
    assert "test_lifecycle.py" in failure.traceback
    assert (failure.cause.type, failure.cause.message) == ("KeyError", "'inner'")


@app.workflow
async def waits(ctx: WorkflowContext, name: str = "") -> str:
    return str(await ctx.wait_for_signal("go"))


async def test_waiting_for_a_result_ends_with_its_timeout(work: Work) -> None:
    handle = await app.start(waits)
    with pytest.raises(ResultTimeoutError):
        await handle.result(timedelta(seconds=0.2))
    await handle.signal("go", "on")
    assert await handle.result(SOON) == "on"


@app.workflow
async def cleans_up(ctx: WorkflowContext, name: str, how: str) -> str:
    try:
        await ctx.execute_activity(note, name, "reserve")
        await ctx.wait_for_signal("go")
    except asyncio.CancelledError:
        assert ctx.is_cancelled()
        await ctx.execute_activity(note, name, "release")
        await ctx.sleep(0.02)
        await ctx.execute_activity(note, name, "told")
        if how == "completes":
            return "all the same"
        if how == "fails":
            raise Sad("in the cleanup") from None
        raise
    return "went"


@pytest.mark.parametrize(("how", "state"), [("raises", "CANCELLED"), ("completes", "COMPLETED"), ("fails", "FAILED")])
async def test_cancel_lets_the_code_clean_up_and_decide_how_it_ends(work: Work, how: str, state: str) -> None:
    name = f"cleanup {how}"
    handle = await app.start(cleans_up, name, how)

    async def reserved() -> bool:
        return bool(done.get(name))

    await eventually(reserved)
    assert await handle.cancel("no longer wanted")
    assert not await handle.cancel("again")
    if state == "COMPLETED":
        assert await handle.result(SOON) == "all the same"
    else:
        assert (await ended(handle)).fields["state"] == state
    assert done[name] == ["reserve", "release", "told"]
    events = await history_of(work[1], handle.execution_id)
    asked = [event.data().reason for event in events if event.kind == EventKind.WORKFLOW_CANCEL_REQUESTED]
    assert asked == ["no longer wanted"]
    if state == "CANCELLED":
        assert events[-1].data().reason == "no longer wanted"


async def test_concurrent_cancels_are_one(work: Work) -> None:
    handle = await app.start(waits)
    answers = await asyncio.gather(*(handle.cancel() for _ in range(12)), return_exceptions=True)
    assert sum(answer is True for answer in answers) == 1
    assert all(isinstance(answer, bool | ExecutionClosedError) for answer in answers)
    assert (await ended(handle)).fields["state"] == "CANCELLED"


async def test_cancel_before_the_first_decision(work: Work) -> None:
    handle = await app.start(cleans_up, "at once", "raises")
    await handle.cancel()
    assert (await ended(handle)).fields["state"] == "CANCELLED"


@app.workflow
async def loops(ctx: WorkflowContext, name: str, rounds: int) -> str:
    """Short activities with a compensation each; cancelled anywhere, it undoes exactly what it did."""
    undo: list[str] = []
    try:
        for n in range(rounds):
            undo.append(f"undo {n}")
            await ctx.execute_activity(note, name, f"do {n}")
        await ctx.wait_for_signal("never")
    finally:
        for each in reversed(undo):
            await ctx.execute_activity(note, name, each)
    return "done"


@pytest.mark.prove_main_job
async def test_30_cancelled_at_any_moment_a_run_always_ends_cancelled(work: Work, proof: Callable[..., None]) -> None:
    """Each run is cancelled when its history has reached another length: at every boundary of its events."""
    runs, rounds = scale(24, 200), 6
    store = work[1].stores[0]

    async def cancel_at(n: int) -> WorkflowHandle[str]:
        handle = await app.start(loops, f"loop {n}", rounds)
        at = 2 + n % (3 * rounds + 1)

        async def is_there() -> bool:
            row = await store.scan.fetch_row(
                "select next_event_id from harvest_executions where execution_id = $1", handle.execution_id
            )
            return bool(row["next_event_id"] >= at)

        await eventually(is_there, within=30)
        await handle.cancel(f"at {at}")
        return handle

    for first in range(0, runs, 8):
        handles = await asyncio.gather(*(cancel_at(n) for n in range(first, min(runs, first + 8))))
        for n, handle in enumerate(handles, first):
            assert (await ended(handle)).fields["state"] == "CANCELLED", n
            did = [what for what in done.get(f"loop {n}", []) if what.startswith("do")]
            undone = [what for what in done.get(f"loop {n}", []) if what.startswith("undo")]
            assert len(undone) >= len(did), n
            assert undone == sorted(undone, reverse=True), n
    proof("cancelled at every event boundary", runs=runs, ended_cancelled=runs)


async def test_terminate_ends_at_once_and_runs_no_code(work: Work) -> None:
    name = "terminated"
    handle = await app.start(cleans_up, name, "raises")

    async def reserved() -> bool:
        return bool(done.get(name))

    await eventually(reserved)
    assert await handle.terminate("out of patience")
    assert not await handle.terminate("again")
    error = await ended(handle)
    assert error.fields["state"] == "TERMINATED"
    last = (await history_of(work[1], handle.execution_id))[-1]
    assert (last.kind, last.data().reason) == (EventKind.WORKFLOW_TERMINATED, "out of patience")
    assert done[name] == ["reserve"]


@app.workflow(execution_timeout=timedelta(seconds=0.5))
async def too_long(ctx: WorkflowContext, name: str) -> None:
    try:
        await ctx.wait_for_signal("go")
    finally:
        await ctx.execute_activity(note, name, "never runs")


async def test_a_run_past_its_deadline_times_out_without_running_code(work: Work) -> None:
    declared = await app.start(too_long, "late")
    given = await app.start(waits, execution_timeout=timedelta(seconds=0.5))
    for handle in (declared, given):
        assert (await ended(handle)).fields["state"] == "TIMED_OUT"
        last = (await history_of(work[1], handle.execution_id))[-1]
        assert last.kind == EventKind.WORKFLOW_EXECUTION_TIMED_OUT
        assert last.data().deadline is not None
    assert "late" not in done


async def test_a_blocked_or_waiting_run_can_be_terminated(work: Work) -> None:
    handle = await app.start(waits, queue="nobody")
    assert await handle.terminate()
    assert (await ended(handle)).fields["state"] == "TERMINATED"


@pytest.mark.parametrize("end", ["complete", "cancel", "terminate", "fail"])
async def test_nothing_follows_the_end(work: Work, end: str) -> None:
    handle = await (app.start(fails, "typed") if end == "fail" else app.start(waits))  # type: ignore[arg-type]
    match end:
        case "complete":
            await handle.signal("go")
            await handle.result(SOON)
        case "cancel":
            await handle.cancel()
            await ended(handle)
        case "terminate":
            await handle.terminate()
        case _:
            await ended(handle)
    before = await history_of(work[1], handle.execution_id)
    with pytest.raises(ExecutionClosedError, match="takes no signals"):
        await handle.signal("go")
    with pytest.raises(ExecutionClosedError, match="cannot be cancelled"):
        await handle.cancel()
    if end != "terminate":
        with pytest.raises(ExecutionClosedError, match="cannot be terminated"):
            await handle.terminate()
    assert await history_of(work[1], handle.execution_id) == before


async def test_what_is_not_there_is_not_found(work: Work) -> None:
    handle = await app.handle("00000000-0000-8000-8000-000000000000")
    for call in (handle.signal("go"), handle.cancel(), handle.terminate(), handle.result()):
        with pytest.raises(ExecutionNotFoundError):
            await call


@pytest.mark.parametrize("reason", ["\x00", "\ud800", "x" * 2_001])
async def test_a_reason_that_cannot_be_kept_is_refused(work: Work, reason: str) -> None:
    handle = await app.start(waits)
    with pytest.raises(LimitError):
        await handle.cancel(reason)
    with pytest.raises(LimitError):
        await handle.terminate(reason)
    await handle.terminate("tidy")


async def test_signals_with_one_key_are_one(work: Work) -> None:
    handle = await app.start(waits)
    await asyncio.gather(*(handle.signal("other", n, idempotency_key="k") for n in range(20)))
    await handle.signal("other", idempotency_key="k2")
    await handle.signal("go", "end", idempotency_key="last")
    assert await handle.result(SOON) == "end"
    events = await history_of(work[1], handle.execution_id)
    assert [event.data().name for event in events if event.kind == EventKind.SIGNAL_RECEIVED] == ["other"] * 2 + ["go"]
    await handle.signal("go", "end", idempotency_key="last")
    with pytest.raises(ExecutionClosedError):
        await handle.signal("go", "end", idempotency_key="new")


async def test_signals_and_the_end_race_without_loss(work: Work) -> None:
    """Each signal is either in history before the end, or was refused."""
    for n in range(scale(5, 40)):
        handle = await app.start(waits)
        sent = [handle.signal("go", n, idempotency_key=str(n)) for n in range(6)]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        await handle.result(SOON)
        events = await history_of(work[1], handle.execution_id)
        taken = sum(event.kind == EventKind.SIGNAL_RECEIVED for event in events)
        assert taken == sum(answer is None for answer in answers), n
        assert all(answer is None or isinstance(answer, ExecutionClosedError) for answer in answers)


@app.activity(retry=Retry(max_attempts=1))
async def slow(ctx: ActivityContext, name: str) -> None:
    await asyncio.sleep(0.2)
    done.setdefault(name, []).append("slow")


@app.workflow
async def returns_early(ctx: WorkflowContext, name: str) -> str:
    asyncio.create_task(ctx.execute_activity(slow, name))  # noqa: RUF006 - dropped on purpose
    await ctx.sleep(0.05)
    return "early"


async def test_a_run_may_end_with_activities_under_way(work: Work) -> None:
    handle = await app.start(returns_early, "early")
    assert await handle.result(SOON) == "early"
    kinds = [event.kind for event in await history_of(work[1], handle.execution_id)]
    assert kinds[-1] == EventKind.WORKFLOW_COMPLETED
