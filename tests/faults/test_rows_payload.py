"""What is too large, or cannot be stored (docs/faults.md, 46): refused as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from litestar.testing import AsyncTestClient

from harvest import Harvest, WorkflowContext
from harvest.errors import PayloadTooLargeError
from harvest.history.limits import PAYLOAD_BYTES
from harvest.shards import Shards
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, API, BEARER, settings
from tests.store.rows import one
from tests.support import at_work

app = Harvest()
TABLES = (
    "executions", "execution_details", "events", "dedupe", "workflow_tasks", "activity_tasks", "timers", "children",
    "deliveries",
)  # fmt: skip


@app.workflow
async def takes_anything(ctx: WorkflowContext, value: str) -> int:
    return len(value)


async def rows(shards: Shards) -> dict[str, int]:
    store = shards.stores[0]
    return {table: await one(store, f"select count(*) from harvest_{table}") for table in TABLES}


async def test_46_an_input_over_the_limit_leaves_no_row_and_its_id_is_free(new_database: Callable[[str], str]) -> None:
    url, value = new_database("too_large"), "x" * PAYLOAD_BYTES
    async with at_work(app, url) as (_, shards):
        before = await rows(shards)
        with pytest.raises(PayloadTooLargeError):
            await app.start(takes_anything, value, workflow_id="large", idempotency_key="k")
        async with AsyncTestClient(create_app(settings({0: url})), base_url=ADDRESS) as console:
            body = {"workflow_id": "large", "input": value}
            response = await console.post(f"{API}/workflows/takes_anything/start", headers=BEARER, json=body)
        assert (response.status_code, response.json()["slug"]) == (413, "payload_too_large")
        assert await rows(shards) == before
        run = await app.start(takes_anything, "small", workflow_id="large", idempotency_key="k")
        assert await run.result(30) == 5
