"""Each attempt to decide is counted once, with its outcome and why it was not warm, and kept in the ring of its run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from harvest import Harvest, WorkflowContext, WorkflowHandle
from harvest.errors import OutcomeUnknownError
from harvest.history.events import Event
from harvest.operations.decisions import DecisionAttempt, decisions
from harvest.shards import Shards
from harvest.store import claims
from harvest.store.claims import NO_EPOCHS, Owner
from harvest.store.commit import Answer
from harvest.store.decisions import DecisionRow
from harvest.worker import committer
from harvest.worker.options import WorkerOptions
from harvest.worker.worker import Worker
from tests.support import FAST, at_work, eventually

SOON = timedelta(seconds=60)
STICKY = replace(FAST, lease_ttl=0.2)
app = Harvest()
different = asyncio.Event()
signalling: dict[str, WorkflowHandle[Any]] = {}


@app.activity
async def double(n: int) -> int:
    return n * 2


@app.activity
async def signal_first(workflow_id: str) -> str:
    """Lets somebody else write to the run before its own result is written."""
    await signalling[workflow_id].signal("other", 1)
    return workflow_id


@app.workflow
async def patient(ctx: WorkflowContext, n: int) -> int:
    first = await ctx.execute_activity(double, n)
    for _ in range(n):
        await ctx.wait_for_signal("go")
    return first


@app.workflow
async def overtaken(ctx: WorkflowContext, workflow_id: str) -> str:
    await ctx.sleep(timedelta(milliseconds=1))
    return await ctx.execute_activity(signal_first, workflow_id)


@app.workflow
async def unsteady(ctx: WorkflowContext) -> str:
    await ctx.execute_activity(double, 2 if different.is_set() else 1)
    await ctx.wait_for_signal("go")
    return "done"


@pytest.fixture
async def work(new_database: Callable[[str], str]) -> AsyncIterator[tuple[Worker, Shards]]:
    async with at_work(app, new_database("outcomes"), STICKY) as working:
        yield working


async def parked(shards: Shards, execution_id: UUID) -> None:
    """Wait until nobody has anything to do for the run."""

    async def rests() -> bool:
        rows = await shards.stores[0].read.fetch(
            "select state from harvest_workflow_tasks where execution_id = $1", execution_id
        )
        return [row["state"] for row in rows] == [2]

    await eventually(rests)


async def ring(work: tuple[Worker, Shards], execution_id: UUID, least: int) -> list[DecisionAttempt]:
    """The run's attempts, once there are so many: a result can be read before its worker knows that it was written."""
    worker, shards = work
    found: list[DecisionAttempt] = []

    async def are_there() -> bool:
        for part in worker._parts.values():
            await part.rollups.write_ring()
        found[:] = (await decisions(shards, execution_id)).attempts
        return len(found) >= least

    await eventually(are_there)
    return found


def words(attempts: Sequence[DecisionAttempt | DecisionRow]) -> list[tuple[str, str]]:
    return [(attempt.outcome, attempt.reason) for attempt in attempts]


def tracer_rows(worker: Worker) -> list[DecisionRow]:
    """The attempts that the worker has kept and not written yet."""
    tracer = worker._parts[0].committer.tracer
    return tracer.rows(tracer.ended, {})


def shares(worker: Worker, workflow: str) -> Mapping[tuple[str, str], int]:
    """What the worker has counted of a type: attempts by outcome and reason."""
    found: dict[tuple[str, str], int] = {}
    for part in worker._parts.values():
        measures = part.committer.tracer.measures
        measures.flush()
        for (name, _, outcome, reason, _), share in measures.whole.shares.items():
            if name == workflow:
                found[(outcome, reason)] = found.get((outcome, reason), 0) + share.count
    return found


async def test_the_first_decision_is_cold_and_all_that_follow_go_on_from_the_parked_code(
    work: tuple[Worker, Shards],
) -> None:
    handle = await app.start(patient, 1, workflow_id="hit")
    await parked(work[1], handle.execution_id)
    await handle.signal("go")
    assert await handle.result(SOON) == 2

    attempts = await ring(work, handle.execution_id, 3)
    assert words(attempts) == [("cold", "first"), ("hit", ""), ("hit", "")]
    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert [attempt.source for attempt in attempts] == ["postgres", "resident", "resident"]
    assert [attempt.events_loaded for attempt in attempts] == [1, 0, 1]
    assert {attempt.answer for attempt in attempts} == {"passed"}
    assert shares(work[0], "patient") == {("cold", "first"): 1, ("hit", ""): 2}


async def test_the_times_of_an_attempt_are_in_their_order(work: tuple[Worker, Shards]) -> None:
    handle = await app.start(patient, 1, workflow_id="times")
    await parked(work[1], handle.execution_id)
    await handle.signal("go")
    await handle.result(SOON)

    for attempt in await ring(work, handle.execution_id, 3):
        times = [
            attempt.taken_at,
            attempt.loaded_at,
            attempt.driven_at,
            attempt.fence_checked_at,
            attempt.committed_at,
        ]
        assert times == sorted(times)
        assert attempt.woken_at is not None
        assert attempt.woken_at <= attempt.taken_at
        assert attempt.notified_at is None or attempt.woken_at <= attempt.notified_at <= attempt.taken_at


async def test_a_run_that_was_let_go_for_its_memory_is_cold_as_evicted(work: tuple[Worker, Shards]) -> None:
    worker, shards = work
    handle = await app.start(patient, 1, workflow_id="evicted")
    await parked(shards, handle.execution_id)
    worker.let_go_residents()
    await handle.signal("go")
    await handle.result(SOON)

    attempts = await ring(work, handle.execution_id, 3)
    assert words(attempts)[-1] == ("cold", "evicted")
    assert attempts[-1].source == "postgres"
    assert attempts[-1].events_loaded > 3
    assert attempts[-1].bytes_loaded > 0


async def test_a_worker_without_residents_says_that_they_are_off(new_database: Callable[[str], str]) -> None:
    options = replace(FAST, workflow_cache_size=0)
    async with at_work(app, new_database("outcomes_off"), options) as work:
        handle = await app.start(patient, 1, workflow_id="off")
        await parked(work[1], handle.execution_id)
        await handle.signal("go")
        await handle.result(SOON)
        assert words(await ring(work, handle.execution_id, 3))[-1] == ("cold", "residents_off")


async def test_a_history_in_memory_is_the_source_and_only_what_is_new_is_read(
    new_database: Callable[[str], str],
) -> None:
    options = replace(FAST, resident_workflows=False)
    async with at_work(app, new_database("outcomes_memory"), options) as work:
        handle = await app.start(patient, 2, workflow_id="memory")
        await parked(work[1], handle.execution_id)
        await handle.signal("go")
        await parked(work[1], handle.execution_id)
        await handle.signal("go")
        await handle.result(SOON)
        last = (await ring(work, handle.execution_id, 4))[-1]
    assert (last.outcome, last.reason, last.source) == ("cold", "residents_off", "memory")
    assert 0 < last.events_loaded < 5


@asynccontextmanager
async def another(shards: Shards, options: WorkerOptions = STICKY) -> AsyncIterator[Worker]:
    """One more worker on the same shards."""
    worker = Worker(app.registry, shards, options)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


async def test_a_run_that_another_worker_had_last_is_cold_for_that(work: tuple[Worker, Shards]) -> None:
    worker, shards = work
    handle = await app.start(patient, 1, workflow_id="other")
    await parked(shards, handle.execution_id)
    for part in worker._parts.values():
        part.claimer.owner = lambda: Owner(0, NO_EPOCHS)
    async with another(shards) as other:
        await handle.signal("go")
        await handle.result(SOON)
        attempts = await ring((other, shards), handle.execution_id, 3)
    assert words(attempts)[-1] == ("cold", "other_worker")


async def test_a_run_of_a_worker_that_has_ended_is_taken_over(new_database: Callable[[str], str]) -> None:
    url = new_database("outcomes_over")
    async with at_work(app, url, STICKY) as (_, shards):
        handle = await app.start(patient, 1, workflow_id="over")
        await parked(shards, handle.execution_id)
    async with at_work(app, url, STICKY) as work:
        again = await app.handle(handle.execution_id)
        await again.signal("go")
        await again.result(SOON)
        attempts = await ring(work, handle.execution_id, 3)
    assert words(attempts) == [("cold", "first"), ("hit", ""), ("cold", "taken_over")]
    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert len({attempt.worker for attempt in attempts}) == 2


async def test_what_follows_a_block_is_cold_for_that(work: tuple[Worker, Shards]) -> None:
    worker, shards = work
    different.clear()
    handle = await app.start(unsteady, workflow_id="blocked")
    await parked(shards, handle.execution_id)
    worker.let_go_residents()
    different.set()
    await handle.signal("go")

    async def is_blocked() -> bool:
        return ("blocked", "evicted") in shares(worker, "unsteady")

    await eventually(is_blocked)
    different.clear()
    await handle.result(SOON)
    attempts = await ring(work, handle.execution_id, 4)
    assert words(attempts)[-2:] == [("blocked", "evicted"), ("cold", "blocked")]
    assert attempts[-2].answer == "blocked"


async def test_a_decision_that_bet_on_a_place_which_others_took_is_declined(
    work: tuple[Worker, Shards], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = work

    async def no_news(*_: object) -> list[UUID]:
        return []

    monkeypatch.setattr(claims, "news", no_news)
    handle = await app.start(overtaken, "bet", workflow_id="bet")
    signalling["bet"] = handle
    assert await handle.result(SOON) == "bet"

    attempts = await ring(work, handle.execution_id, 4)
    assert words(attempts)[-1] == ("declined", "overtaken")
    assert [attempt.answer for attempt in attempts][-2:] == ["overtaken", "passed"]
    assert sum(shares(worker, "overtaken").values()) == len(attempts) - 1


async def test_events_with_a_hole_decline_the_resident(
    work: tuple[Worker, Shards], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, shards = work
    handle = await app.start(patient, 2, workflow_id="gap")
    await parked(shards, handle.execution_id)
    load = claims.load_events
    holes: list[UUID] = []

    async def holed(store: Any, wanted: dict[UUID, int]) -> dict[UUID, list[Event]]:
        found = await load(store, wanted)
        if not holes and found.get(handle.execution_id):
            holes.append(handle.execution_id)
            found[handle.execution_id] = [
                replace(event, event_id=event.event_id + 1) for event in found[handle.execution_id]
            ]
        return found

    monkeypatch.setattr(claims, "load_events", holed)
    await handle.signal("go")
    await parked(shards, handle.execution_id)
    await handle.signal("go")
    await handle.result(SOON)
    assert ("declined", "gap") in words(await ring(work, handle.execution_id, 4))


async def test_a_commit_whose_answer_was_lost_declines_what_follows(
    work: tuple[Worker, Shards], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, shards = work
    handle = await app.start(patient, 2, workflow_id="unknown")
    await parked(shards, handle.execution_id)
    commit = committer.commit
    lost: list[UUID] = []

    async def losing(store: Any, connection: Any, worker: UUID, batch: Any) -> dict[UUID, Answer]:
        answers = await commit(store, connection, worker, batch)
        if not lost:
            lost.append(worker)
            raise OutcomeUnknownError("lost", shard_id=0, reason="a test")
        return answers

    monkeypatch.setattr(committer, "commit", losing)
    await handle.signal("go")
    await parked(shards, handle.execution_id)
    await handle.signal("go")
    await handle.result(SOON)
    attempts = await ring(work, handle.execution_id, 4)
    assert "unknown" in [attempt.answer for attempt in attempts]
    assert ("declined", "unknown_commit") in words(attempts)


async def test_a_refused_attempt_that_is_tried_again_is_counted_once(
    work: tuple[Worker, Shards], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, shards = work
    handle = await app.start(patient, 1, workflow_id="busy")
    await parked(shards, handle.execution_id)
    commit = committer.commit
    refusals: list[UUID] = []

    async def busy(store: Any, connection: Any, worker: UUID, batch: Any) -> dict[UUID, Answer]:
        if not refusals:
            refusals.extend(row[0] for row in batch.decisions)
            return dict.fromkeys(refusals, Answer.BUSY)
        return await commit(store, connection, worker, batch)

    monkeypatch.setattr(committer, "commit", busy)
    await handle.signal("go")
    await handle.result(SOON)
    assert refusals == [handle.execution_id]
    assert words(await ring(work, handle.execution_id, 3)) == [("cold", "first"), ("hit", ""), ("hit", "")]
    assert shares(worker, "patient") == {("cold", "first"): 1, ("hit", ""): 2}


async def test_a_span_tells_whether_the_run_was_replayed(work: tuple[Worker, Shards]) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    work[0]._parts[0].committer.tracer._spans = provider.get_tracer("harvest")
    handle = await app.start(patient, 0, workflow_id="span")
    await handle.result(SOON)

    async def both_told() -> bool:
        return len(kept.get_finished_spans()) == 2

    await eventually(both_told)
    spans = kept.get_finished_spans()
    assert [span.name for span in spans] == ["workflow.execute", "workflow.execute"]
    assert [(span.attributes or {})["harvest.replay"] for span in spans] == [True, False]
    assert all((span.attributes or {})["harvest.execution_id"] == str(handle.execution_id) for span in spans)


async def test_under_load_ordinary_attempts_are_counted_and_not_all_kept(work: tuple[Worker, Shards]) -> None:
    worker, shards = work
    tracer = worker._parts[0].committer.tracer
    handle = await app.start(patient, 2, workflow_id="load")
    await parked(shards, handle.execution_id)
    await ring(work, handle.execution_id, 2)
    tracer._budget = -1_000
    await handle.signal("go")
    await parked(shards, handle.execution_id)
    worker.let_go_residents()
    tracer._budget = -1_000
    await handle.signal("go")
    await handle.result(SOON)

    async def all_counted() -> bool:
        return sum(shares(worker, "patient").values()) == 4

    await eventually(all_counted)
    assert words(tracer_rows(worker)) == [("cold", "evicted")]
