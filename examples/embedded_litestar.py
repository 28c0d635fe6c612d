"""A web shop that runs its own workflows, with the console at /harvest.

HARVEST_DATABASE_URL=postgresql://… PYTHONHASHSEED=0 uvicorn examples.embedded_litestar:web
"""

from __future__ import annotations

from uuid import UUID

from litestar import Litestar, get, post
from msgspec import Struct

from examples import shop
from harvest import Harvest, ResultTimeoutError
from harvest_console.plugin import HarvestPlugin


class Ordered(Struct):
    """The order's number, and its receipt once it is shipped."""

    number: UUID
    receipt: shop.Receipt | None = None


@post("/orders")
async def place_order(harvest: Harvest, data: shop.Order) -> Ordered:
    """Start an order and answer at once."""
    started = await harvest.start(shop.order_flow, data)
    return Ordered(started.execution_id)


@post("/orders/{number:uuid}/approval", status_code=204)
async def approve(harvest: Harvest, number: UUID, data: shop.Approval) -> None:
    """Let an order be shipped."""
    order = await harvest.handle(number, shop.order_flow)
    await order.signal("approved", data)


@get("/orders/{number:uuid}")
async def look(harvest: Harvest, number: UUID, wait: float = 0) -> Ordered:
    """The order; `wait` is how many seconds to wait for its receipt."""
    order = await harvest.handle(number, shop.order_flow)
    try:
        return Ordered(number, await order.result(timeout=wait))
    except ResultTimeoutError:
        return Ordered(number)


web = Litestar([place_order, approve, look], plugins=[HarvestPlugin(shop.app, migrate=True)])
