"""Workflows inside a program of your own: no other process than this one and PostgreSQL.

HARVEST_DATABASE_URL=postgresql://… PYTHONHASHSEED=0 python -m examples.embedded_asyncio
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from examples import shop
from harvest import WorkerOptions, running


async def main() -> None:
    """Run the shop's workflows here, and order something."""
    async with running(shop.app, options=WorkerOptions(activity_slots=50), migrate=True) as app:
        order = await app.start(shop.order_flow, shop.Order(items=["book", "pen"]))
        await order.signal("approved", shop.Approval(by="Ada"))
        receipt = await order.result(timeout=timedelta(minutes=5))
        print(f"order {order.execution_id} was shipped as {receipt.parcel}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main())
