from __future__ import annotations
import asyncio
from collections.abc import Callable
from datetime import timedelta
import time
from harvest import Harvest, WorkflowContext
from tests.support import at_work, check_invariants, history_of
app = Harvest()

@app.workflow
async def leaf(ctx: WorkflowContext, n: int) -> int:
    return n * 2

@app.workflow
async def parent(ctx: WorkflowContext, n: int) -> int:
    total = 0
    for i in range(n):
        total += await ctx.execute_child_workflow(leaf, i)
    return total

@app.workflow
async def fan(ctx: WorkflowContext, n: int) -> int:
    return sum(await asyncio.gather(*(ctx.execute_child_workflow(leaf, i) for i in range(n))))

@app.workflow
async def sleeper(ctx: WorkflowContext) -> None:
    await ctx.wait_for_signal("go", int)

@app.workflow
async def leaves(ctx: WorkflowContext) -> None:
    await ctx.start_child_workflow(sleeper.with_options(workflow_id="s-1"))
    await ctx.sleep(0.2)

async def test_it(new_database: Callable[[str], str]) -> None:
    async with at_work(app, new_database("smoke")) as (worker, shards):
        run = await app.start(parent, 20, workflow_id="p")
        t = time.monotonic()
        assert await run.result(timedelta(seconds=20)) == sum(2*i for i in range(20))
        print("seq", time.monotonic() - t)
        run = await app.start(fan, 300, workflow_id="f")
        t = time.monotonic()
        assert await run.result(timedelta(seconds=20)) == sum(2*i for i in range(300))
        print("fan", time.monotonic() - t)
        run = await app.start(leaves, workflow_id="l")
        await run.result(timedelta(seconds=20))
        await asyncio.sleep(0.5)
        rows = await shards.stores[0].read.fetch("select workflow_name, state from harvest_executions where workflow_id = 's-1'")
        print([tuple(r) for r in rows])
        print(worker.counters)
        rows = await shards.stores[0].read.fetch("select count(*) from harvest_children union all select count(*) from harvest_deliveries")
        print([tuple(r) for r in rows])
        await check_invariants(shards)
