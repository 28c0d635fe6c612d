"""A console that is served, a worker of a workflow with handlers of every sort, and a browser's requests as text."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any

import httpx
from msgspec import Meta, Raw, Struct

from harvest import ApplicationError, Harvest, WorkflowContext
from harvest.history.ids import ExecutionId, parse_execution_id
from harvest.operations import auditing, reading, starting
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest.store.audit import AuditFilter
from harvest.worker.worker import Worker
from tests.console.conftest import Client, settings
from tests.console.serving import served
from tests.support import FAST, eventually

ACTOR = Actor("token:admin", "api", "req-1", "POST /test")
HTML = {"accept": "text/html"}


class Line(Struct):
    """A line of an order."""

    sku: Annotated[str, Meta(min_length=2)]
    count: Annotated[int, Meta(ge=1)] = 1


def application() -> Harvest:
    """`acting_flow` waits for `go` and answers meanwhile; `plain_flow` waits for `go` and has no handlers.

    `declared_flow` declares signals, and waits for its second one, then for one that it does not declare.
    """
    app = Harvest()

    @app.activity
    async def never_well() -> None:
        raise ConnectionError("the gateway is away")

    @app.workflow
    async def child_flow(ctx: WorkflowContext) -> None:
        await ctx.wait_for_signal("go")

    @app.workflow
    async def acting_flow(ctx: WorkflowContext) -> str:
        lines: list[Line] = []

        def add_line(line: Line) -> int:
            lines.append(line)
            return len(lines)

        def check(line: Line) -> None:
            if line.sku.startswith("X"):
                raise ApplicationError(f"article {line.sku} is <b>not sold</b>", type="Discontinued")

        def explode(reason: str) -> None:
            raise RuntimeError(f"it broke: {reason}")

        def huge(count: int) -> list[str]:
            return ['<b>"&' + "x" * 60] * count

        def total(currency: str, factor: int = 1) -> str:
            return f"{factor * sum(line.count for line in lines)} {currency}"

        def broken() -> None:
            raise ValueError("no <i>such</i> thing")

        async def later() -> Raw:
            return Raw(await ctx.wait_for_signal("later", Raw))

        ctx.register_update_handler("add_line", add_line, validator=check)
        ctx.register_update_handler("explode", explode)
        ctx.register_update_handler("later", later)
        ctx.register_query_handler("total", total)
        ctx.register_query_handler("exact", lambda: Raw(b'{"n":123456789012345678901234567890,"f":1.10}'))
        ctx.register_query_handler("huge", huge)
        ctx.register_query_handler("broken", broken)
        await ctx.wait_for_signal("go")
        return "done"

    @app.workflow
    async def plain_flow(ctx: WorkflowContext) -> None:
        await ctx.wait_for_signal("go")

    @app.workflow(signals={"first": int, "second": int})
    async def declared_flow(ctx: WorkflowContext) -> None:
        for name in ("second", "undeclared"):
            await ctx.wait_for_signal(name)

    @app.workflow
    async def busy_flow(ctx: WorkflowContext) -> None:
        async def nap() -> None:
            await ctx.sleep(timedelta(hours=3))

        await ctx.start_child_workflow(child_flow.with_options(detached=True, close_policy="terminate"))
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(nap())
            group.create_task(ctx.execute_activity(never_well))
            await ctx.wait_for_signal("go")

    return app


class Site:
    """Requests of one signed-in browser. Pages come as their status and their HTML."""

    def __init__(self, shards: Shards, client: Client, csrf: str) -> None:
        self.shards = shards
        self.client = client
        self._csrf = csrf

    async def get(self, path: str, **more: Any) -> httpx.Response:
        """One page."""
        return await self.client("GET", path, headers=HTML, **more)

    async def post(self, path: str, **fields: str) -> httpx.Response:
        """One form, with the session's token."""
        return await self.client("POST", path, headers=HTML, data={"csrf": self._csrf, **fields})

    async def begin(self, workflow_name: str = "acting_flow") -> str:
        """Start a run and wait until it has come to rest."""
        started = await starting.start(self.shards, ACTOR, workflow_name=workflow_name, workflow_id=None)

        async def rests() -> bool:
            found = await reading.get(self.shards, started.execution_id)
            assert found.failure is None, found.failure
            return found.waiting is not None

        await eventually(rests)
        return str(started.execution_id)

    def id(self, run: str) -> ExecutionId:
        """A run's id as operations take it."""
        return parse_execution_id(run)

    async def events(self, run: str) -> list[str]:
        """The kinds of a run's events, in order."""
        page = await reading.history(self.shards, self.id(run), limit=1000)
        return [event.type for event in page.events]

    async def acts(self, run: str) -> list[str]:
        """What was done to a run, by the audit log, newest first."""
        found = (await auditing.list_audit(self.shards, AuditFilter(target_id=run))).rows.rows
        return [act.operation for act in found]


def words(response: httpx.Response) -> str:
    """A page's words, one space between them."""
    text = re.sub(r"<script.*?</script>|<[^>]+>", " ", response.text, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(text))


def hidden(response: httpx.Response, name: str) -> str:
    """The value of a hidden field."""
    found = re.search(rf'<input type="hidden" name="{name}" value="([^"]*)"', response.text)
    assert found is not None, f"the page has no hidden {name}"
    return html.unescape(found[1])


@asynccontextmanager
async def site_of(urls: dict[int, str]) -> AsyncIterator[Site]:
    """A served console over two shards, a worker of `application()`, and a browser that has signed in."""
    shards = await Shards.open(urls)
    worker = Worker(application().registry, shards, FAST)
    await worker.start()
    try:
        async with served(settings(urls)) as address, httpx.AsyncClient(base_url=address, timeout=60) as inner:
            client = Client(inner)
            yield Site(shards, client, await client.sign_in(shards))
    finally:
        await worker.stop()
        await shards.close()
