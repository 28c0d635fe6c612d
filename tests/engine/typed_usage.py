"""What an author writes, for the type checker: each line marked `wrong` must be an error, and no other."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from msgspec import Struct

from harvest import ActivityContext, Harvest, WorkflowContext, WorkflowHandle

app = Harvest()


class Order(Struct):
    card: str
    cents: int


class Receipt(Struct):
    charge: str


class Approval(Struct):
    by: str


@app.activity
async def charge(card: str, cents: int) -> Receipt:
    return Receipt(f"{card}-{cents}")


@app.activity(start_to_close=timedelta(seconds=5))
def in_thread(ctx: ActivityContext, name: str) -> bytes:
    return name.encode()


@app.workflow(execution_timeout=timedelta(days=7))
async def order_flow(ctx: WorkflowContext, order: Order) -> Receipt:
    receipt = await ctx.execute_activity(charge, order.card, order.cents)
    assert_type(receipt, Receipt)
    assert_type(await ctx.execute_activity(charge, card="1", cents=2), Receipt)
    assert_type(await ctx.execute_activity(in_thread, "x"), bytes)
    assert_type(await ctx.execute_activity(in_thread.with_options(priority=2), "x"), bytes)
    assert_type(await ctx.wait_for_signal("approved", Approval, timeout=timedelta(days=2)), Approval)
    await ctx.execute_activity(charge, order.card)  # wrong: an argument is missing
    await ctx.execute_activity(charge, order.card, "12")  # wrong: cents is an int
    await ctx.execute_activity(in_thread, 5)  # wrong: name is a str
    await ctx.execute_activity(order_flow, order)  # wrong: a workflow is no activity
    return receipt


@app.workflow
async def counted(ctx: WorkflowContext, count: int = 20, note: str = "") -> int:
    return count


@app.workflow
async def bare(ctx: WorkflowContext) -> None:
    return None


async def client() -> None:
    handle = await app.start(order_flow, Order("1", 2), workflow_id="o-1", priority=5)
    assert_type(handle, WorkflowHandle[Receipt])
    assert_type(await handle.result(timedelta(seconds=5)), Receipt)
    assert_type(await handle.result(5), Receipt)
    assert_type(await (await app.start(counted)).result(), int)
    assert_type(await (await app.start(counted, 5, "n", queue="slow")).result(), int)
    assert_type(await app.start(bare), WorkflowHandle[None])
    assert_type(await app.handle("00000000-0000-8000-8000-000000000000", order_flow), WorkflowHandle[Receipt])
    await app.start(order_flow, 5)  # wrong: not an Order
    await app.start(order_flow)  # wrong: the order is missing
    await app.start(counted, "five")  # wrong: count is an int
    await app.start(bare, 1)  # wrong: it takes nothing
    await app.start(bare, workflow_ident="x")  # wrong: no such option
    await app.start(bare, reuse_policy="never")  # wrong: no such policy
    await app.start(charge, "1", 2)  # wrong: an activity is not started
