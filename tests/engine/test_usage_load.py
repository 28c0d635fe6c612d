"""The usage report of a load that a real worker has run equals a plain count over its events, to the microsecond."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest
from click.testing import CliRunner
from msgspec import Struct

from harvest import ActivityContext, ActivityError, ApplicationError, Harvest, Retry, WorkflowContext
from harvest.client import WorkflowHandle
from harvest.history.kinds import EventKind
from harvest.operations import usage
from harvest.operations.usage import UNATTRIBUTED, UsageGroup, UsageQuestion
from harvest.shards import Shards
from harvest_console.cli.root import root
from tests.console.conftest import TOKEN, settings
from tests.console.serving import served
from tests.scale import scale
from tests.support import FAST, at_work, check_invariants, eventually

pytestmark = [pytest.mark.slow, pytest.mark.prove_shards]
RUNS: Final = scale(60, 1_000)
QUICKLY: Final = timedelta(milliseconds=5)
MICROSECOND: Final = timedelta(microseconds=1)
K = EventKind


class Load:
    """The application; activities that wait at the gate begin in one window and end in the next."""

    def __init__(self) -> None:
        self.app = Harvest()
        self.gate = asyncio.Event()
        self.tokens: list[int] = []
        self.arrived = 0
        self._declare()

    def _declare(self) -> None:
        app = self.app

        @app.activity(retry=Retry(max_attempts=3, initial_interval=QUICKLY))
        async def work(ctx: ActivityContext, fails: int) -> int:
            await asyncio.sleep(0.002 * (ctx.info.seq % 5))
            if ctx.attempt <= fails:
                raise ConnectionError("not yet")
            return ctx.attempt

        @app.activity
        async def refuse() -> None:
            raise ApplicationError("never", non_retryable=True)

        @app.activity(start_to_close=timedelta(milliseconds=50), retry=Retry(max_attempts=2, initial_interval=QUICKLY))
        async def dawdle() -> None:
            await asyncio.sleep(30)

        @app.activity(queue="nobodys", schedule_to_start=timedelta(milliseconds=100))
        async def unclaimed() -> None: ...

        @app.activity
        async def wait_at_the_gate(ctx: ActivityContext) -> None:
            self._report(ctx, 1)
            self.arrived += 1
            await self.gate.wait()

        @app.activity
        def ask(ctx: ActivityContext, calls: int) -> None:
            for number in range(calls):
                self._report(ctx, number)

        async def tried(activity: Any) -> None:
            with suppress(ActivityError):
                await activity

        @app.workflow
        async def steady(ctx: WorkflowContext, n: int) -> None:
            """Completes, after retries of one activity and the failure of others."""
            attribute(ctx, n)
            await ctx.execute_activity(work, n % 3)
            await tried(ctx.execute_activity(work, 3))
            await tried(ctx.execute_activity(refuse))

        @app.workflow
        async def broken(ctx: WorkflowContext, n: int) -> None:
            attribute(ctx, n)
            await ctx.execute_activity(refuse)

        @app.workflow
        async def slow(ctx: WorkflowContext, n: int) -> None:
            """Activities that run into their timeouts, with and without having begun."""
            attribute(ctx, n)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(tried(ctx.execute_activity(dawdle)))
                tasks.create_task(tried(ctx.execute_activity(unclaimed)))

        @app.workflow
        async def inner(ctx: WorkflowContext, n: int) -> None:
            """Local activities, which ask models and fail, too."""
            attribute(ctx, n)
            await ctx.execute_local_activity(ask, n % 3)
            await tried(ctx.execute_local_activity(refuse))

        @app.workflow
        async def asking(ctx: WorkflowContext, n: int) -> None:
            attribute(ctx, n)
            await asyncio.gather(*(ctx.execute_activity(ask, n % 4) for _ in range(3)))

        @app.workflow
        async def held(ctx: WorkflowContext, n: int) -> None:
            """Runs over the edge of a window."""
            attribute(ctx, n)
            await ctx.execute_activity(wait_at_the_gate)

        @app.workflow
        async def endless(ctx: WorkflowContext, n: int) -> None:
            """Is cancelled, terminated, or runs into its deadline, while an activity runs."""
            attribute(ctx, n)
            await ctx.execute_activity(dawdle.with_options(start_to_close=timedelta(seconds=60)))

        @app.workflow
        async def going_on(ctx: WorkflowContext, n: int) -> None:
            attribute(ctx, n)
            if n >= 0:
                ctx.continue_as_new(-1)

        def attribute(ctx: WorkflowContext, n: int) -> None:
            if n % 7:
                ctx.upsert_search_attributes({"tenant": f"tenant-{n % 5}"})

    def _report(self, ctx: ActivityContext, number: int) -> None:
        self.tokens.append(10 + number)
        ctx.report_llm_usage(
            model="m",
            input_tokens=10 + number,
            output_tokens=number,
            cost_usd_micros=None if number % 2 else 1_500,
            latency_ms=12.6,
        )

    async def wave(self, numbers: Sequence[int]) -> list[WorkflowHandle[Any]]:
        """Start runs of every sort; those that do not end by themselves are ended."""
        flows = ("steady", "broken", "slow", "inner", "asking", "held", "endless", "endless", "endless", "going_on")
        handles = []
        for n in numbers:
            name = flows[n % len(flows)]
            limit = {"execution_timeout": timedelta(milliseconds=400)} if n % len(flows) == 8 else {}
            handles.append(await self.app.start(self.app.registry.workflows[name, 1], n, **limit))
        for n, handle in zip(numbers, handles, strict=True):
            if n % len(flows) == 6:
                await handle.cancel()
            elif n % len(flows) == 7:
                await handle.terminate()
        return handles


class Row(Struct, frozen=True):
    """One event."""

    execution_id: UUID
    event_id: int
    kind: int
    seq: int
    at: datetime


class Book:
    """Everything that the tables say, and the count by hand."""

    def __init__(self) -> None:
        self.events: list[Row] = []
        self.started: list[tuple[UUID, datetime]] = []
        self.names: dict[UUID, str] = {}
        self.tenants: dict[UUID, str] = {}
        self.calls: list[Any] = []

    async def read(self, shards: Shards) -> None:
        for store in shards.stores.values():
            rows = await store.read.fetch("select execution_id, event_id, kind, seq, at from harvest_events")
            self.events += [Row(**dict(row)) for row in rows]
            for row in await store.read.fetch(
                "select e.execution_id, e.workflow_name, e.started_at, d.search_attributes::text as shown"
                "  from harvest_executions e join harvest_execution_details d using (execution_id)"
            ):
                self.started.append((row["execution_id"], row["started_at"]))
                self.names[row["execution_id"]] = row["workflow_name"]
                shown = msgspec.json.decode(row["shown"]) if row["shown"] else {}
                self.tenants[row["execution_id"]] = shown.get("tenant", UNATTRIBUTED)
            self.calls += await store.read.fetch("select * from harvest_cost_ledger")

    def count(self, since: datetime, until: datetime, group_of: dict[UUID, str]) -> list[UsageGroup]:
        """What the report must say."""
        counted: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        micros: dict[str, int] = defaultdict(int)
        for execution_id, at in self.started:
            if since <= at <= until:
                counted[group_of[execution_id]]["workflow_starts"] += 1
        begun: dict[tuple[UUID, int], datetime] = {}
        outcomes = {K.WORKFLOW_COMPLETED: "completed", K.WORKFLOW_FAILED: "failed", K.WORKFLOW_CANCELLED: "cancelled"}
        outcomes[K.WORKFLOW_EXECUTION_TIMED_OUT] = "timed_out"
        for event in sorted(self.events, key=lambda each: (each.execution_id, each.event_id)):
            group, step = group_of[event.execution_id], (event.execution_id, event.seq)
            is_within = since <= event.at <= until
            if event.kind == K.ACTIVITY_STARTED:
                begun[step] = event.at
                if is_within:
                    counted[group]["activity_executions"] += 1
            elif event.kind in (K.ACTIVITY_COMPLETED, K.ACTIVITY_FAILED, K.ACTIVITY_TIMED_OUT) and is_within:
                # A group that is there for this alone is there.
                counted[group]["activity_executions_failed"] += event.kind != K.ACTIVITY_COMPLETED and step in begun
                if step in begun:
                    micros[group] += max(event.at - begun[step], timedelta(0)) // MICROSECOND
            elif event.kind in outcomes and is_within:
                counted[group][outcomes[K(event.kind)]] += 1
        for call in self.calls:
            if since <= call["recorded_at"] <= until:
                group = counted[group_of[call["execution_id"]]]
                group["llm_calls"] += 1
                group["llm_unpriced_calls"] += call["cost_usd_micros"] is None
                group["llm_cost_usd_micros"] += call["cost_usd_micros"] or 0
                for name in ("input_tokens", "output_tokens", "latency_ms"):
                    group[f"llm_{name}"] += call[name]
        return [
            UsageGroup(group=group, activity_compute_seconds=micros[group] / 1_000_000, **counted[group])
            for group in sorted(counted)
        ]


async def database_now(shards: Shards) -> datetime:
    rows = await shards.store(0).read.fetch("select clock_timestamp() as now")
    found: datetime = rows[0]["now"]
    return found


async def ended(handles: Sequence[WorkflowHandle[Any]]) -> None:
    """Wait for the end of each, however it ends."""
    await asyncio.gather(*(handle.result() for handle in handles), return_exceptions=True)


@pytest.mark.parametrize("shard_count", [1, 2])
async def test_the_report_of_a_known_load_is_what_the_events_say(
    new_database: Callable[[str], str], shard_count: int, proof: Callable[..., None]
) -> None:
    load = Load()
    urls = {shard: new_database(f"usage_load_{shard_count}_{shard}") for shard in range(shard_count)}
    third = RUNS // 3
    async with at_work(load.app, urls, FAST) as (_, shards):

        async def held(numbers: range) -> None:
            expected = sum(n % 10 == 5 for n in numbers)

            async def have_arrived() -> bool:
                return load.arrived == expected

            await eventually(have_arrived)

        early = await load.wave(range(third))
        await held(range(third))
        since = await database_now(shards)
        load.gate.set()
        await ended(early)
        middle = await load.wave(range(third, 2 * third))
        await ended(middle)
        load.gate.clear()
        load.arrived = 0
        late = await load.wave(range(2 * third, RUNS))
        await held(range(2 * third, RUNS))
        until = await database_now(shards)
        load.gate.set()
        await ended(late)
        await check_invariants(shards)
        book = Book()
        await book.read(shards)
        assert len(book.calls) == len(load.tokens)
        assert sum(call["input_tokens"] for call in book.calls) == sum(load.tokens)
        checked = await check(shards, book, since, until)
        await check_command_line(urls, book, since, until)
    whole = usage.sum_of(book.count(since, until, book.names))
    for field in UsageGroup.__struct_fields__[1:]:
        assert getattr(whole, field) > 0, field
    proof(
        f"usage of {RUNS:,} runs on {shard_count} shards",
        events=len(book.events),
        windows=checked,
        calls=len(book.calls),
        compute_s=round(whole.activity_compute_seconds, 3),
    )


async def check(shards: Shards, book: Book, since: datetime, until: datetime) -> int:
    """Compare the report with the count by hand: the window, windows that end at events, and all there is."""
    ordered = sorted(event.at for event in book.events)
    marked = sorted(
        event.at for event in book.events if event.kind in (K.ACTIVITY_STARTED, K.ACTIVITY_FAILED, K.WORKFLOW_COMPLETED)
    )
    low, high = marked[len(marked) // 4], marked[3 * len(marked) // 4]
    windows = [(since, until), (ordered[0], ordered[-1])]
    windows += [(low, high), (low + MICROSECOND, high), (low, high - MICROSECOND), (low, low)]
    for window in windows:
        for attribute, group_of in ((None, book.names), ("tenant", book.tenants)):
            question = UsageQuestion(since=window[0], until=window[1], attribute=attribute)
            found = await usage.report_usage(shards, question)
            assert found.status == "complete"
            assert found.groups == book.count(*window, group_of), (window, attribute)
    return len(windows) * 2


async def check_command_line(urls: dict[int, str], book: Book, since: datetime, until: datetime) -> None:
    """`harvest usage --json` says the same."""
    window = ("--from", since.isoformat(), "--to", until.isoformat())
    async with served(settings(urls)) as address:
        told = await asyncio.to_thread(
            CliRunner().invoke,
            root,
            ["usage", *window, "--group-by", "search_attr:tenant", "--json"],
            env={"HARVEST_URL": f"{address}/api/harvest", "HARVEST_TOKEN": TOKEN},
        )
    assert told.exit_code == 0, told.output
    answer = msgspec.json.decode(told.stdout)
    assert msgspec.convert(answer["groups"], list[UsageGroup]) == book.count(since, until, book.tenants)
