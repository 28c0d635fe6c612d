"""A shop: the workflows that a newcomer runs first.

harvest dev examples.shop:app
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct

from harvest import ActivityContext, ActivityError, ApplicationError, Harvest, Retry, WorkflowContext

app = Harvest()


class Order(Struct):
    """What a customer wants, and how it is paid."""

    card: Annotated[str, Meta(min_length=4, description="Number of the card to charge")] = "4242 4242 4242 4242"
    cents: Annotated[int, Meta(ge=1, description="Amount in cents")] = 1999
    items: Annotated[list[str], Meta(description="Articles")] = []
    note: str | None = None


class Approval(Struct):
    """Somebody says that the order may be shipped."""

    by: str
    note: str | None = None


class Receipt(Struct):
    """How an order ended."""

    charge: str
    parcel: str
    approved_by: str


@app.activity
async def reserve(items: list[str]) -> int:
    """Put the articles aside; returns how many."""
    await asyncio.sleep(0.05)
    return len(items)


@app.activity(
    start_to_close=timedelta(seconds=30),
    retry=Retry(max_attempts=8, initial_interval=timedelta(seconds=0.5), non_retryable=("CardDeclined",)),
)
async def charge(ctx: ActivityContext, card: str, cents: int) -> str:
    """Charge a card at a gateway that is out of order now and then."""
    if card.endswith("0000"):
        raise ApplicationError("the bank says no", type="CardDeclined")
    if random.random() < 0.3:
        raise ConnectionError("the payment gateway did not answer")
    return f"ch_{ctx.idempotency_key()[-12:].replace('/', '_')}_{cents}"


@app.activity
async def ship(items: list[str]) -> str:
    """Hand the parcel over; returns its number."""
    await asyncio.sleep(0.05)
    return f"parcel-{len(items)}-{random.randrange(10**6):06d}"


@app.activity(retry=Retry(max_attempts=20))
async def refund(charge_id: str) -> None:
    """Give the money back."""
    await asyncio.sleep(0.05)


@app.workflow(execution_timeout=timedelta(days=7), signals={"approved": Approval})
async def order_flow(ctx: WorkflowContext, order: Order) -> Receipt:
    """Reserve, charge, wait two days for `approved`, ship; whatever fails after the charge is refunded.

    Meanwhile it tells its `status`, and its note can be changed with the update `change_note`.
    """
    status, note = "new", order.note

    def change_note(text: Annotated[str, Meta(max_length=200)]) -> str:
        nonlocal note
        note = text
        return f"the note is {text!r} now"

    ctx.register_query_handler("status", lambda: {"status": status, "note": note})
    ctx.register_update_handler("change_note", change_note)
    await ctx.execute_activity(reserve, order.items)
    status = "reserved"
    charged = await ctx.execute_activity(charge, order.card, order.cents)
    status = "waits for its approval"
    ctx.set_current_details(f"charged {order.cents} cents, {status}")
    try:
        approval = await ctx.wait_for_signal("approved", Approval, timeout=timedelta(days=2))
        parcel = await ctx.execute_activity(ship, order.items)
    except (TimeoutError, ActivityError, asyncio.CancelledError):
        await ctx.execute_activity(refund, charged)
        raise
    return Receipt(charge=charged, parcel=parcel, approved_by=approval.by)


@app.workflow
async def parcel_flow(ctx: WorkflowContext, number: int) -> str:
    """One parcel of a shipment: a child."""
    return await ctx.execute_activity(ship, [f"article {number}"])


@app.workflow
async def shipment(ctx: WorkflowContext, parcels: Annotated[int, Meta(ge=1, le=100)] = 5) -> list[str]:
    """Send many parcels, each a child workflow, three at a time."""
    return await ctx.fan_out(parcel_flow, range(parcels), at_once=3)


@app.activity
async def import_one(number: int) -> int:
    """Import one order; returns its worth in cents."""
    await asyncio.sleep(0.02)
    return 100 + number


@app.workflow
async def import_orders(ctx: WorkflowContext, count: Annotated[int, Meta(ge=1, le=500)] = 20) -> int:
    """Import many orders at once and add up what they are worth."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ctx.execute_activity(import_one, number)) for number in range(count)]
    return sum(task.result() for task in tasks)


class Entry(Struct):
    """A line for the ledger."""

    text: str
    cents: int


@app.workflow(signals={"entry": Entry})
async def nightly_ledger(ctx: WorkflowContext, hours: float = 24.0) -> list[Entry]:
    """Collect entries until the books close, then return them."""
    await ctx.sleep_until(ctx.now() + timedelta(hours=hours))
    return ctx.drain_signals("entry", Entry)


@app.activity(
    heartbeat_timeout=timedelta(seconds=5), start_to_close=timedelta(minutes=10), retry=Retry(max_attempts=10)
)
async def write_pages(ctx: ActivityContext, pages: int) -> int:
    """Write a page a second; after the death of its worker it goes on where the last heartbeat was."""
    done = ctx.heartbeat_details(int) or 0
    while done < pages:
        await asyncio.sleep(1)
        done += 1
        ctx.heartbeat(done)
    return done


@app.workflow
async def slow_report(ctx: WorkflowContext, pages: Annotated[int, Meta(ge=1, le=600)] = 30) -> int:
    """Write a report slowly enough to kill a worker meanwhile."""
    return await ctx.execute_activity(write_pages, pages)
