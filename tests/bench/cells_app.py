"""Bench (l): what tenants run. An import calls out many times at once, an order once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from harvest import Harvest, WorkflowContext

app: Final = Harvest()


@app.activity(start_to_close=timedelta(seconds=60))
async def call(seconds: float) -> None:
    """Wait for somebody else, as activities do."""
    await asyncio.sleep(seconds)


@app.workflow
async def import_orders(ctx: WorkflowContext, calls: int, seconds: float) -> int:
    """The flood: so many calls at once."""
    await asyncio.gather(*(ctx.execute_activity(call, seconds) for _ in range(calls)))
    return calls


@app.workflow
async def order_flow(ctx: WorkflowContext) -> None:
    """A run of the tenant that is to notice nothing."""
    await ctx.execute_activity(call, 0.001)
