"""Questions to running code over HTTP and the command line: shapes, exact numbers, refusals, progress as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator
from msgspec import Raw

from harvest import Harvest, WorkflowContext
from harvest.errors import ShardUnavailableError
from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.shards import Shards
from harvest.store import progress
from harvest.worker.worker import Worker
from harvest_console.api.requests import _frames
from harvest_console.cli.root import root
from harvest_console.live import Hub
from tests.console.conftest import API, BEARER, TOKEN, settings
from tests.console.serving import served
from tests.operations.population import Run, add
from tests.support import FAST, eventually

EXECUTION = "x-harvest-execution-id"


def application() -> Harvest:
    app = Harvest()

    @app.workflow
    async def price_flow(ctx: WorkflowContext) -> str:
        prices: list[Raw] = []

        def total(currency: str, factor: int) -> str:
            return f"{factor} {currency}"

        def broken() -> None:
            raise ValueError("no such thing")

        ctx.register_query_handler("prices", lambda: prices)
        ctx.register_query_handler("a/b", lambda: "slash")
        ctx.register_query_handler("total", total)
        ctx.register_query_handler("broken", broken)
        while True:
            prices.append(await ctx.wait_for_signal("price", Raw))
            ctx.publish_progress({"prices": len(prices)})
            if bytes(prices[-1]) == b'"end"':
                return "ended"

    @app.workflow
    async def rotating_flow(ctx: WorkflowContext, left: int) -> None:
        if left:
            ctx.continue_as_new(left - 1)
        ctx.register_query_handler("first", lambda: str(ctx.info.first_execution_id))
        await ctx.wait_for_signal("end")

    return app


@pytest.fixture
async def worker(shards: Shards) -> AsyncIterator[Worker]:
    """A worker of price_flow on both shards."""
    made = Worker(application().registry, shards, FAST)
    await made.start()
    yield made
    await made.stop()


class Console:
    """A console that serves beside the worker, and requests to its API."""

    def __init__(self, address: str, client: httpx.AsyncClient) -> None:
        self.address = address
        self._client = client

    async def api(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send one request with the token."""
        headers = {**BEARER, **more.pop("headers", {})}
        return await self._client.request(method, f"{self.address}{API}{path}", headers=headers, **more)


@pytest.fixture
async def console(urls: dict[int, str], shards: Shards) -> AsyncIterator[Console]:
    """A console on a socket: one in this process would not let the worker run while it is asked."""
    async with served(settings(urls)) as address, httpx.AsyncClient(timeout=30) as client:
        yield Console(address, client)


@pytest.fixture
async def run(console: Console, worker: Worker) -> str:
    """A run of price_flow with the workflow id p/1."""
    started = await console.api("POST", "/workflows/price_flow/start", json={"workflow_id": "p/1"})
    assert started.status_code == 201, started.text
    return str(started.json()["execution_id"])


async def signal(console: Console, run: str, payload: str) -> None:
    sent = await console.api("POST", f"/workflows/{run}/signal/price", content=payload)
    assert sent.status_code == 202, sent.text


async def test_a_query_answers_what_the_code_knows_to_the_digit(console: Console, run: str) -> None:
    await signal(console, run, "1.10")
    await signal(console, run, "123456789012345678901234567890")
    for path in (f"/workflows/{run}", "/workflows/by-id/price_flow/p%2F1"):
        told = await console.api("GET", f"{path}/query/prices")
        assert (told.status_code, told.content) == (200, b'{"result":[1.10,123456789012345678901234567890]}')
        assert told.headers[EXECUTION] == run
        told = await console.api("POST", f"{path}/query/total", json={"args": ["EUR", 3]})
        assert (told.status_code, told.json()) == (200, {"result": "3 EUR"})
    assert (await console.api("GET", f"/workflows/{run}/query/a%2Fb")).json() == {"result": "slash"}


async def test_a_question_to_a_run_that_went_on_as_another_is_asked_there(console: Console, worker: Worker) -> None:
    started = await console.api("POST", "/workflows/rotating_flow/start", json={"input": 2, "workflow_id": "rotates"})
    assert started.status_code == 201, started.text
    first = started.json()["execution_id"]

    async def answered() -> bool:
        told = await console.api("GET", f"/workflows/{first}/query/first")
        return told.status_code == 200 and told.json() == {"result": first} and told.headers[EXECUTION] != first

    await eventually(answered)


async def test_what_a_query_refuses_is_a_problem_with_the_reason(console: Console, run: str) -> None:
    for path, more, status, slug in (
        ("query/nothing", {}, 404, "query_not_found"),
        ("query/broken", {}, 422, "query_failed"),
        ("query/total", {"json": {"args": ["EUR", "many"]}}, 400, "input_invalid"),
        ("query/total", {"json": {"arguments": []}}, 400, "invalid_request"),
        ("query/total?x=1", {}, 400, "invalid_request"),
        ("query", {}, 400, "invalid_request"),
    ):
        refused = await console.api("POST" if more else "GET", f"/workflows/{run}/{path}", **more)
        assert (refused.status_code, refused.json()["slug"]) == (status, slug), refused.text
    assert (await console.api("GET", f"/workflows/{run}/query/nothing")).json()["known"] == [
        "a/b",
        "broken",
        "prices",
        "total",
    ]
    failed = (await console.api("GET", f"/workflows/{run}/query/broken")).json()
    assert (failed["failure"]["type"], failed["failure"]["message"]) == ("ValueError", "no such thing")


async def test_nobody_to_ask_a_run_that_has_ended_and_one_that_is_not_there(console: Console, shards: Shards) -> None:
    alone = await add(shards, 0, Run(workflow_name="nobodys_flow"))
    for name in ("query/total", "queries", "handlers", "stack"):
        refused = await console.api("GET", f"/workflows/{alone}/{name}")
        assert (refused.status_code, refused.json()["slug"]) == (503, "no_worker")
        assert refused.headers["retry-after"] == "1"
    waiting = await console.api("GET", f"/workflows/{alone}/awaitables")
    assert (waiting.status_code, waiting.json()["wait_set"]) == (200, "history_only")
    assert waiting.json()["wait_set_reason"] == "no_worker"
    ended = await add(shards, 0, Run(workflow_id="o-2", state=State.FAILED))
    for name in ("query/total", "queries", "handlers"):
        assert (await console.api("GET", f"/workflows/{ended}/{name}")).status_code == 409
    assert (await console.api("GET", f"/workflows/{ended}/stack")).json()["is_terminal"] is True
    for name in ("query/total", "queries", "handlers", "stack", "awaitables", "stream"):
        assert (await console.api("GET", f"/workflows/{mint_execution_id(0)}/{name}")).status_code == 404
        assert (await console.api("GET", f"/workflows/by-id/order_flow/none/{name}")).status_code == 404
        nobody = await console.api("GET", f"/workflows/{alone}/{name}", headers={"authorization": ""})
        assert nobody.status_code == 401


async def test_handlers_stack_and_waits_are_told_by_id_and_by_key(console: Console, run: str) -> None:
    for path in (f"/workflows/{run}", "/workflows/by-id/price_flow/p%2F1"):
        queries = await console.api("GET", f"{path}/queries")
        assert queries.json() == {"execution_id": run, "queries": ["a/b", "broken", "prices", "total"]}
        assert queries.headers[EXECUTION] == run
        told = (await console.api("GET", f"{path}/handlers")).json()
        assert told["queries"]["total"]["x-parameters"] == ["currency", "factor"]
        stack = (await console.api("GET", f"{path}/stack")).json()
        (frame,) = stack["tasks"][0]["frames"]
        assert (stack["tasks"][0]["task"], frame["function"]) == ("main", "price_flow")
        assert frame["code"] == 'prices.append(await ctx.wait_for_signal("price", Raw))'
        assert frame["file"].endswith("test_api_requests.py")
        assert (stack["is_terminal"], stack["pending_signals"]) == (False, ["price"])
        waits = (await console.api("GET", f"{path}/awaitables")).json()
        assert [(each["kind"], each["name"]) for each in waits["awaitables"]] == [("signal", "price")]


async def test_answers_fit_the_openapi_document(console: Console, run: str) -> None:
    document = (await console.api("GET", "/openapi.json")).json()
    for name in ("query/prices", "queries", "handlers", "stack", "awaitables"):
        template = f"{API}/workflows/{{execution_id}}/" + name.replace("prices", "{query_name}")
        told = await console.api("GET", f"/workflows/{run}/{name}")
        schema = document["paths"][template]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": document["components"]}).validate(told.json())
    stream = document["paths"][f"{API}/workflows/{{execution_id}}/stream"]["get"]
    assert list(stream["responses"]["200"]["content"]) == ["text/event-stream"]


class Events:
    """A stream of events as a client reads it."""

    def __init__(self, response: httpx.Response) -> None:
        self.headers = response.headers
        self._lines = response.aiter_lines()

    async def next(self) -> dict[str, str]:
        """The next event, its fields by name; a comment is named ''."""
        fields: dict[str, str] = {}
        while line := await asyncio.wait_for(anext(self._lines), 20):
            name, _, value = line.partition(": " if not line.startswith(":") else ":")
            fields[name] = value.strip()
        return fields


@asynccontextmanager
async def streaming(console: Console, run: str | UUID, **headers: str) -> AsyncIterator[Events]:
    """Look on at a run's progress; the stream has begun."""
    url = f"{console.address}{API}/workflows/{run}/stream"
    async with (
        httpx.AsyncClient(timeout=30) as client,
        client.stream("GET", url, headers={**BEARER, **headers}) as response,
    ):
        assert response.status_code == 200
        events = Events(response)
        assert await events.next() == {"": "following"}
        yield events


async def test_progress_of_a_run_is_streamed_until_it_ends(console: Console, run: str) -> None:
    async with streaming(console, run) as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        assert events.headers[EXECUTION] == run
        await signal(console, run, "1")
        first = await events.next()
        assert (first["event"], first["data"]) == ("progress", '{"prices":1}')
        await signal(console, run, '"end"')
        second = await events.next()
        assert (second["event"], second["data"]) == ("progress", '{"prices":2}')
        assert int(second["id"]) > int(first["id"])
        end = await events.next()
        assert end["event"] == "end"
        assert msgspec.json.decode(end["data"]) == {"execution_id": run, "state": "COMPLETED"}


async def test_one_who_comes_back_goes_on_where_it_was(console: Console, shards: Shards) -> None:
    run = await add(shards, 0, Run())
    await progress.publish(shards.store(0), [(run, b"1"), (run, b"2")])
    seen = (await progress.after(shards.store(0), {run: 0}))[run][0].seq
    async with streaming(console, run, **{"last-event-id": str(seen)}) as events:
        assert await events.next() == {"id": str(seen + 1), "event": "progress", "data": "2"}


async def silence() -> AsyncGenerator[None, None]:
    """A run that publishes nothing."""
    await asyncio.Event().wait()
    yield


async def a_lost_shard() -> AsyncGenerator[None, None]:
    """A run whose shard stops answering."""
    raise ShardUnavailableError("shard 0 does not answer", shard_id=0)
    yield


async def test_a_stream_ends_with_the_console_and_says_when_the_shard_is_lost(shards: Shards) -> None:
    hub = Hub(shards)
    frames = _frames(silence(), hub.closing, "req-1")
    assert await anext(frames) == b": following\n\n"
    ending = asyncio.ensure_future(anext(frames))
    await hub.close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(ending, 20)
    told = [frame async for frame in _frames(a_lost_shard(), asyncio.Event(), "req-1")]
    event, _, data = told[1].partition(b"\ndata: ")
    assert (len(told), event) == (2, b"event: error")
    assert msgspec.json.decode(data)["slug"] == "shard_unavailable"


async def ask(console: Console, *arguments: str) -> Result:
    """Run `harvest workflow …` in a thread of its own."""
    environment = {"HARVEST_URL": f"{console.address}{API}", "HARVEST_TOKEN": TOKEN}
    return await asyncio.to_thread(CliRunner().invoke, root, ["workflow", *arguments], env=environment)


async def test_the_command_line_asks_the_same(console: Console, run: str) -> None:
    await signal(console, run, "1.10")
    told = await ask(console, "query", run, "prices", "--output", "json")
    assert (told.exit_code, told.stdout) == (0, '{"result":[1.10]}\n'), told.output
    told = await ask(console, "query", "p/1", "total", "--workflow-name", "price_flow", "--args-json", '["EUR",2]')
    assert msgspec.json.decode(told.stdout) == {"result": "2 EUR"}
    keys = {"handlers": "queries", "stack": "tasks", "awaitables": "wait_set"}
    for verb, key in keys.items():
        for target in ([run], ["p/1", "--workflow-name", "price_flow"]):
            told = await ask(console, verb, *target)
            assert told.exit_code == 0, told.output
            assert key in msgspec.json.decode(told.stdout)
    refused = await ask(console, "query", run, "nothing")
    assert refused.exit_code == 1
    assert "HVT-632" in refused.stderr
