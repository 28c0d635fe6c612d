"""A commit is refused at every decision of a run, and the run goes on (design 4, answers 3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from harvest import Harvest, WorkflowContext
from harvest.history.kinds import EventKind
from harvest.store import appends
from harvest.store.commit import Answer, Batch, commit
from harvest.store.store import Store
from harvest.worker import committer
from tests.store.rules import an_entry
from tests.support import at_work, check_invariants, eventually, history_of

app = Harvest()
ran: Counter[str] = Counter()


@app.activity
async def note(key: str) -> str:
    ran[key] += 1
    return key


@app.workflow
async def three_notes(ctx: WorkflowContext) -> int:
    """Three activities in sequence; returns how many signals came meanwhile."""
    key = ctx.info.workflow_id
    for n in range(3):
        await ctx.execute_activity(note, f"{key}/{n}")
    return len(ctx.drain_signals("noise", int))


@app.workflow
async def notes_at_once(ctx: WorkflowContext) -> int:
    key = ctx.info.workflow_id
    await asyncio.gather(*(ctx.execute_activity(note, f"{key}/{n}") for n in range(3)), ctx.sleep(0.05))
    await ctx.execute_activity(note, f"{key}/last")
    return len(ctx.drain_signals("noise", int))


Before = Callable[[Store, Batch], Awaitable[None]]


def before_each_commit(monkeypatch: pytest.MonkeyPatch, before: Before) -> list[Answer]:
    """Do something between "the loop has run" and "commit", except under the lock; collects the answers."""
    answers: list[Answer] = []

    async def disturbed(store: Store, connection: Any, worker: UUID, batch: Batch) -> dict[UUID, Answer]:
        if not connection.is_in_transaction():
            await before(store, batch)
        found = await commit(store, connection, worker, batch)
        answers.extend(found.values())
        return found

    monkeypatch.setattr(committer, "commit", disturbed)
    return answers


async def send_noise(store: Store, execution_id: UUID) -> None:
    await appends.append(store, execution_id, EventKind.SIGNAL_RECEIVED, b'{"name":"noise","payload":1}', an_entry())


@pytest.mark.parametrize("workflow", [three_notes, notes_at_once], ids=lambda w: w.name)
async def test_a_signal_before_the_commit_of_every_decision(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, workflow: Any
) -> None:
    disturbed: set[tuple[UUID, int]] = set()

    async def once_a_decision(store: Store, batch: Batch) -> None:
        for execution_id, _, _, next_event_id, *_ in batch.decisions:
            if (execution_id, next_event_id) not in disturbed and len(disturbed) < 40:
                disturbed.update({(execution_id, next_event_id), (execution_id, next_event_id + 1)})
                await send_noise(store, execution_id)

    answers = before_each_commit(monkeypatch, once_a_decision)
    async with at_work(app, new_database("refused")) as (worker, shards):
        runs = [await app.start(workflow, workflow_id=f"{workflow.name}-{n}") for n in range(3)]
        results = [await run.result(timedelta(seconds=60)) for run in runs]
        assert answers.count(Answer.MOVED) >= 9, "each run is refused several times"
        for run, result in zip(runs, results, strict=True):
            history = await history_of(shards, run.execution_id)
            before_the_end = [e for e in history if e.kind == EventKind.SIGNAL_RECEIVED]
            assert result <= len(before_the_end)
        assert worker.counters.declined_overtaken > 0, "results were merged, and overtaken"
        await check_invariants(shards)
    mine = {key: count for key, count in ran.items() if key.startswith(workflow.name)}
    assert set(mine.values()) == {1}, "no activity runs again because its commit was refused"


async def test_a_steady_stream_of_signals_cannot_starve_a_run(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def always(store: Store, batch: Batch) -> None:
        for execution_id, *_ in batch.decisions:
            await send_noise(store, execution_id)

    answers = before_each_commit(monkeypatch, always)
    async with at_work(app, new_database("starved")) as (_, shards):
        run = await app.start(three_notes, workflow_id="starved")
        assert await run.result(timedelta(seconds=60)) > 0
        assert Answer.PASSED in answers
        assert answers.count(Answer.MOVED) >= answers.count(Answer.PASSED), "only the locked attempts passed"
        await check_invariants(shards)
    assert {ran[f"starved/{n}"] for n in range(3)} == {1}


async def test_53_a_foreign_lock_delays_one_run_and_no_other(new_database: Callable[[str], str]) -> None:
    url = new_database("locked")
    async with at_work(app, url) as (worker, shards):
        other: Any = await asyncpg.connect(url)
        async with other.transaction():
            locked = await app.start(three_notes, workflow_id="locked")
            await other.execute(
                "select 1 from harvest_executions where execution_id = $1 for update", locked.execution_id
            )
            runs = [await app.start(three_notes, workflow_id=f"free-{n}") for n in range(20)]
            for run in runs:
                await run.result(timedelta(seconds=30))
            tries = worker.counters.busy
        await other.close()
        assert await locked.result(timedelta(seconds=30)) == 0
        assert tries < 200, "a lock that is held for long is not asked for without a pause"
        await check_invariants(shards)


async def test_a_decision_that_the_database_refuses_blocks_its_run_and_no_neighbour(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned: list[UUID] = []

    async def poison(store: Store, batch: Batch) -> None:
        for n, row in enumerate(batch.decisions):
            if row[0] in poisoned:
                batch.decisions[n] = (*row[:-1], "a\x00b")

    before_each_commit(monkeypatch, poison)
    async with at_work(app, new_database("poisoned")) as (worker, shards):
        bad = await app.start(three_notes, workflow_id="bad")
        poisoned.append(bad.execution_id)
        runs = [await app.start(three_notes, workflow_id=f"good-{n}") for n in range(30)]
        for run in runs:
            await run.result(timedelta(seconds=60))

        async def blocked() -> Any:
            return await shards.stores[0].read.fetch(
                "select 1 from harvest_executions where execution_id = $1 and blocked = 'commit_refused'",
                bad.execution_id,
            )

        await eventually(blocked)
        assert worker.counters.unknown == 0
        poisoned.clear()
        assert await bad.result(timedelta(seconds=60)) == 0
        await check_invariants(shards)


@pytest.mark.parametrize("state", ["40P01", "53100", "55P03", "57014"])
async def test_a_refusal_that_says_nothing_of_a_run_blocks_nobody(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    left = [4]

    async def refuse(store: Store, batch: Batch) -> None:
        if left[0]:
            left[0] -= 1
            error = asyncpg.PostgresError("not now")
            error.sqlstate = state
            raise error

    before_each_commit(monkeypatch, refuse)
    async with at_work(app, new_database("passing")) as (worker, shards):
        run = await app.start(three_notes, workflow_id=f"passing-{state}")
        assert await run.result(timedelta(seconds=60)) == 0
        assert worker.counters.blocked == 0
        assert left == [0]
        await check_invariants(shards)
    assert {ran[f"passing-{state}/{n}"] for n in range(3)} == {1}
