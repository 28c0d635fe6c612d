"""What activities report of language models: each call once, kept before the end of its attempt, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from harvest import ActivityContext, Harvest, Retry, WorkflowContext, clock
from harvest.client import WorkflowHandle
from harvest.definitions.activity import ActivityInfo
from harvest.definitions.llm_usage import MOST_COUNT, MOST_REPORTS, LlmUsage
from harvest.errors import HarvestError, InvalidRequestError, LimitError
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.store.store import Store
from harvest.worker.costs import CostLedger
from tests.faults.proxy import proxied
from tests.support import FAST, at_work, check_invariants, eventually, history_of

Database = Callable[[str], str]
CALL = {"model": "m-1", "input_tokens": 100, "output_tokens": 20, "cost_usd_micros": 7, "latency_ms": 15.4}
AT_ONCE = Retry(initial_interval=timedelta(milliseconds=10))


def application() -> Harvest:
    """Activities that ask models: async, in a thread, as a local activity, and one that fails twice first."""
    app = Harvest()

    @app.activity
    async def ask(ctx: ActivityContext, calls: int) -> int:
        for number in range(calls):
            ctx.report_llm_usage(**{**CALL, "cost_usd_micros": None if number else 7})
        return calls

    @app.activity
    def ask_in_a_thread(ctx: ActivityContext, calls: int) -> int:
        for _ in range(calls):
            ctx.report_llm_usage(**CALL)
        return calls

    @app.activity(retry=AT_ONCE)
    async def ask_thrice(ctx: ActivityContext) -> None:
        ctx.report_llm_usage(**CALL)
        if ctx.attempt < 3:
            raise ConnectionError("the model is away")

    @app.workflow
    async def asking(ctx: WorkflowContext, calls: int) -> int:
        return await ctx.execute_activity(ask, calls)

    @app.workflow
    async def asking_in_threads(ctx: WorkflowContext, calls: int) -> list[int]:
        return await asyncio.gather(*(ctx.execute_activity(ask_in_a_thread, calls) for _ in range(4)))

    @app.workflow
    async def asking_inside(ctx: WorkflowContext) -> int:
        return await ctx.execute_local_activity(ask, 3)

    @app.workflow
    async def asking_thrice(ctx: WorkflowContext) -> None:
        await ctx.execute_activity(ask_thrice)

    @app.workflow
    async def silent(ctx: WorkflowContext) -> None:
        await ctx.execute_activity(ask, 0)

    return app


async def start(app: Harvest, name: str, *arguments: Any) -> WorkflowHandle[Any]:
    """Start a workflow of the application by its name."""
    return await app.start(app.registry.workflows[name, 1], *arguments)


async def rows_of(store: Store, run: UUID) -> list[Any]:
    """The ledger's rows of a run, as they are numbered."""
    return await store.read.fetch(
        "select * from harvest_cost_ledger where execution_id = $1 order by seq, attempt, number", run
    )


@asynccontextmanager
async def closed_ledger(store: Store) -> AsyncIterator[None]:
    """Nobody can write to the ledger for a while."""
    async with store.write.connection(limit=60) as connection, connection.transaction():
        await connection.execute("lock table harvest_cost_ledger in access exclusive mode")
        yield


async def test_several_calls_of_an_attempt_are_kept_as_they_were_reported(new_database: Database) -> None:
    app = application()
    async with at_work(app, new_database("llm_calls")) as (_, shards):
        handle = await start(app, "asking", 3)
        assert await handle.result() == 3
        rows = await rows_of(shards.store(0), handle.execution_id)
        assert [(row["attempt"], row["number"], row["cost_usd_micros"]) for row in rows] == [
            (1, 1, 7),
            (1, 2, None),
            (1, 3, None),
        ]
        assert {(row["model"], row["input_tokens"], row["output_tokens"], row["latency_ms"]) for row in rows} == {
            ("m-1", 100, 20, 15)
        }


async def test_what_is_reported_from_threads_is_all_kept(new_database: Database) -> None:
    app = application()
    async with at_work(app, new_database("llm_threads")) as (_, shards):
        handle = await start(app, "asking_in_threads", 250)
        assert await handle.result() == [250] * 4
        rows = await rows_of(shards.store(0), handle.execution_id)
        assert len(rows) == 1000
        assert {row["number"] for row in rows} == set(range(1, 251))


async def test_what_failed_attempts_have_spent_counts_too(new_database: Database) -> None:
    app = application()
    async with at_work(app, new_database("llm_retries")) as (_, shards):
        handle = await start(app, "asking_thrice")
        await handle.result()
        rows = await rows_of(shards.store(0), handle.execution_id)
        assert [(row["attempt"], row["number"]) for row in rows] == [(1, 1), (2, 1), (3, 1)]


async def test_local_activities_report_too(new_database: Database) -> None:
    app = application()
    async with at_work(app, new_database("llm_local")) as (_, shards):
        handle = await start(app, "asking_inside")
        assert await handle.result() == 3
        assert len(await rows_of(shards.store(0), handle.execution_id)) == 3


async def test_the_end_of_an_attempt_is_not_known_before_what_it_has_spent(new_database: Database) -> None:
    app = application()
    async with at_work(app, new_database("llm_before")) as (worker, shards):
        store = shards.store(0)
        async with closed_ledger(store):
            asking = await start(app, "asking", 2)
            inside = await start(app, "asking_inside")

            async def is_writing() -> bool:
                found = await store.read.fetch(
                    "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%harvest_cost_ledger%'"
                )
                return bool(found)

            await eventually(is_writing)
            # Who reports nothing is held up by nothing.
            await (await start(app, "silent")).result()
            for run in (asking, inside):
                kinds = {event.kind for event in await history_of(shards, run.execution_id)}
                assert not kinds & {EventKind.ACTIVITY_COMPLETED, EventKind.LOCAL_ACTIVITY_COMPLETED}
            await asking.cancel()
        with pytest.raises(HarvestError):
            await asking.result()
        assert await inside.result() == 3
        assert [len(await rows_of(store, run.execution_id)) for run in (asking, inside)] == [2, 3]
        ended = [event.kind for event in await history_of(shards, asking.execution_id) if event.seq == 1]
        assert ended.count(EventKind.ACTIVITY_STARTED) == 1
        assert worker.counters.activities_retried == 0
        await check_invariants(shards)


async def test_a_worker_that_ends_before_it_could_write_leaves_no_end_behind(new_database: Database) -> None:
    app = application()
    url = new_database("llm_stopped")
    shards = await Shards.open({0: url})
    store = shards.store(0)
    try:
        async with closed_ledger(store):
            async with at_work(app, url, FAST):
                run = await start(app, "asking", 2)

                async def has_begun() -> bool:
                    return any(e.kind == EventKind.ACTIVITY_STARTED for e in await history_of(shards, run.execution_id))

                await eventually(has_begun)
            kinds = [event.kind for event in await history_of(shards, run.execution_id)]
            assert EventKind.ACTIVITY_COMPLETED not in kinds
        async with at_work(app, url, FAST):
            assert await (await app.handle(run.execution_id)).result() == 2
        rows = [(row["attempt"], row["number"]) for row in await rows_of(store, run.execution_id)]
        assert len(rows) == len(set(rows))
        assert {(2, 1), (2, 2)} <= set(rows)
    finally:
        await shards.close()


async def test_a_write_whose_answer_was_lost_is_repeated_and_counts_once(new_database: Database) -> None:
    async with proxied(new_database("llm_lost")) as proxy:
        store = Store(0, proxy.url)
        try:
            await store.scan.fetch("select 1")
            ledger, run, loop = CostLedger(store), mint_execution_id(0), asyncio.get_running_loop()
            for number in range(1, 9):
                ledger.note(loop, run, 1, 1, number, LlmUsage("m", 1, 2, None, 3))
                proxy.lose_next("harvest-scan", request=number % 4 == 0)
                await ledger.written()
                assert proxy.lost == number
            assert [row["number"] for row in await rows_of(store, run)] == list(range(1, 9))
        finally:
            await store.close()


async def test_a_report_that_the_database_refuses_holds_up_no_other(
    new_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(0, new_database("llm_refused"))
    try:
        ledger, run, loop = CostLedger(store), mint_execution_id(0), asyncio.get_running_loop()
        for number, model in enumerate(("m", "nul \x00", "m"), start=1):
            ledger.note(loop, run, 1, 1, number, LlmUsage(model, 1, 2, None, 3))
        await ledger.written()
        assert [row["number"] for row in await rows_of(store, run)] == [1, 3]
        assert "the database refuses what an activity spent" in caplog.text
    finally:
        await store.close()


async def test_a_report_of_a_long_attempt_is_written_within_a_second_or_so(new_database: Database) -> None:
    store = Store(0, new_database("llm_long"))
    try:
        ledger, run = CostLedger(store), mint_execution_id(0)
        asked_at = clock.monotonic()
        ledger.note(asyncio.get_running_loop(), run, 1, 1, 1, LlmUsage("m", 1, 2, 3, 4))

        async def is_there() -> bool:
            return bool(await rows_of(store, run))

        await eventually(is_there)
        assert clock.monotonic() - asked_at >= 0.9
        (row,) = await store.read.fetch(
            "select extract(epoch from clock_timestamp() - recorded_at)::float8 as age from harvest_cost_ledger"
        )
        # By the database's clock at the report, not at the write.
        assert row["age"] >= 0.9
    finally:
        await store.close()


# What cannot be reported


def context() -> tuple[ActivityContext, list[tuple[int, LlmUsage]]]:
    """The context of an activity, and what it has reported."""
    reported: list[tuple[int, LlmUsage]] = []
    info = ActivityInfo(mint_execution_id(0), "w", "w-1", "ask", 1, 1)
    made = ActivityContext(
        info,
        heartbeat=lambda _: None,
        cancelled=lambda: False,
        last_details=None,
        report=lambda number, usage: reported.append((number, usage)),
    )
    return made, reported


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_tokens", -1),
        ("input_tokens", 1.5),
        ("output_tokens", "7"),
        ("output_tokens", True),
        ("cost_usd_micros", -1),
        ("cost_usd_micros", 0.01),
        ("latency_ms", -1),
        ("latency_ms", float("nan")),
        ("latency_ms", float("inf")),
        ("latency_ms", None),
        ("input_tokens", MOST_COUNT + 1),
        ("model", None),
    ],
)
def test_what_is_no_count_is_refused_by_its_name(field: str, value: Any) -> None:
    ctx, reported = context()
    with pytest.raises(InvalidRequestError) as told:
        ctx.report_llm_usage(**{**CALL, field: value})
    assert told.value.fields["field"] == field
    assert reported == []


@pytest.mark.parametrize("model", ["", "m" * 256, "\x00", "\ud800"])
def test_a_models_name_that_cannot_be_kept_is_refused(model: str) -> None:
    ctx, _ = context()
    with pytest.raises(LimitError):
        ctx.report_llm_usage(**{**CALL, "model": model})


def test_an_attempt_reports_so_many_calls_and_no_more() -> None:
    ctx, reported = context()
    for _ in range(MOST_REPORTS):
        ctx.report_llm_usage(**CALL)
    with pytest.raises(LimitError, match="at most 10,000 calls"):
        ctx.report_llm_usage(**CALL)
    assert [number for number, _ in reported] == list(range(1, MOST_REPORTS + 1))


def test_whole_numbers_of_other_types_are_counts() -> None:
    class Whole:
        def __index__(self) -> int:
            return 5

    ctx, reported = context()
    ctx.report_llm_usage(model=str(uuid4()), input_tokens=Whole(), output_tokens=0, latency_ms=2)  # type: ignore[arg-type]
    assert reported[0][1].input_tokens == 5
    assert reported[0][1].cost_usd_micros is None
