"""What activities report of language models, as a test of a workflow sees it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from harvest import ActivityContext, Harvest, Retry, WorkflowContext
from harvest.testing import LlmUsage, WorkflowEnvironment

app = Harvest()


@app.activity(retry=Retry(max_attempts=2, initial_interval=timedelta(seconds=1)))
async def ask(ctx: ActivityContext, model: str) -> None:
    ctx.report_llm_usage(model=model, input_tokens=5, output_tokens=ctx.attempt, latency_ms=1.6)
    if ctx.attempt < 2:
        raise ConnectionError("away")


@app.activity
def ask_in_a_thread(ctx: ActivityContext) -> None:
    ctx.report_llm_usage(model="t", input_tokens=1, output_tokens=1, cost_usd_micros=9, latency_ms=1)


@app.workflow
async def asking(ctx: WorkflowContext, model: str) -> None:
    await ctx.execute_activity(ask, model)


@app.workflow
async def asking_otherwise(ctx: WorkflowContext) -> None:
    await ctx.execute_activity(ask_in_a_thread)
    await ctx.execute_local_activity(ask_in_a_thread)


async def test_each_attempts_reports_are_told_in_their_order_and_by_run() -> None:
    async with WorkflowEnvironment(app) as env:
        first = await env.start(asking, "a")
        await first.result()
        second = await env.start(asking, "b")
        await second.result()
        assert env.llm_usage(second) == [LlmUsage("b", 5, 1, None, 2), LlmUsage("b", 5, 2, None, 2)]
        assert [usage.model for usage in env.llm_usage()] == ["a", "a", "b", "b"]


async def test_activities_in_threads_and_local_ones_report_too() -> None:
    async with WorkflowEnvironment(app) as env:
        run = await env.start(asking_otherwise)
        await run.result()
        assert env.llm_usage(run) == [LlmUsage("t", 1, 1, 9, 1)] * 2


async def test_what_stands_in_for_an_activity_reports_with_its_context() -> None:
    async def stand_in(ctx: ActivityContext, model: Any) -> None:
        ctx.report_llm_usage(model=f"mock of {model}", input_tokens=0, output_tokens=0, latency_ms=0)

    async with WorkflowEnvironment(app) as env:
        env.mock(ask, stand_in)
        run = await env.start(asking, "a")
        await run.result()
        assert [usage.model for usage in env.llm_usage(run)] == ["mock of a"]
