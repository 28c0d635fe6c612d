"""`HarvestPlugin`: workers, a client and the console in somebody's own Litestar application."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from litestar import Litestar, Request, get
from litestar.config.csrf import CSRFConfig
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.middleware import DefineMiddleware
from litestar.middleware.session.server_side import ServerSideSessionConfig
from litestar.testing import AsyncTestClient

from examples import embedded_litestar, shop
from harvest import Harvest, WorkflowContext
from harvest.errors import ConfigurationError
from harvest_console.plugin import HarvestPlugin
from tests.console.conftest import ADDRESS, BEARER, TOKEN, Client
from tests.support import FAST, eventually

ROOT = Path(__file__).parents[2]
HTML = {"accept": "text/html"}
SERVE = """
import socket, sys, uvicorn
listener = socket.socket(fileno=int(sys.argv[1]))
config = uvicorn.Config("examples.embedded_litestar:web", lifespan="on")
uvicorn.Server(config).run(sockets=[listener])
"""


def make_app() -> Harvest:
    """An application with one workflow."""
    app = Harvest()

    @app.workflow
    async def echo(ctx: WorkflowContext, text: str) -> str:
        return text

    return app


@get("/greet/{text:str}")
async def greet(harvest: Harvest, text: str) -> str:
    """Run a workflow and answer with its result."""
    workflow = harvest.registry.workflows["echo", 1]
    result: str = await (await harvest.start(workflow, text, workflow_id=f"of/{text}")).result(30)
    return result


@get("/link")
async def link(request: Request[Any, Any, Any]) -> str:
    """A link that signs in to the console."""
    return await request.app.plugins.get(HarvestPlugin).signin_link(str(request.base_url))


async def sign_in(web: Client, path: str) -> httpx.Response:
    """Sign in to the console below a path."""
    found = (await web("GET", "/link")).text
    assert found.startswith(f"{ADDRESS}{path}/signin?token="), found
    return await web("POST", f"{path}/signin", data={"token": found.partition("token=")[2]})


@asynccontextmanager
async def host(url: str, **more: Any) -> AsyncIterator[Client]:
    """A web application with the plugin; `around` are arguments of the application."""
    around = more.pop("around", {})
    plugin = HarvestPlugin(make_app(), urls=url, options=FAST, **{"secret_key": b"k" * 32, **more})
    handlers = [greet, link, *around.pop("route_handlers", [])]
    async with AsyncTestClient(Litestar(handlers, plugins=[plugin], **around), base_url=ADDRESS) as inner:
        yield Client(inner)


@pytest.fixture
def url(new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty shard, and no token in the environment."""
    monkeypatch.delenv("HARVEST_ADMIN_TOKEN", raising=False)
    return new_database("plugin")


async def test_handlers_start_workflows_that_run_here_and_the_console_shows_them(url: str) -> None:
    async with host(url, path="/ops/harvest/") as web:
        assert (await web("GET", "/greet/hello")).text == "hello"
        signed_out = await web("GET", "/ops/harvest", headers=HTML)
        assert (signed_out.status_code, signed_out.headers["location"]) == (303, "/ops/harvest/signin")
        spent = await sign_in(web, "/ops/harvest")
        assert spent.headers["location"] == "/ops/harvest/"
        page = await web("GET", "/ops/harvest/workflows", headers=HTML)
        assert "of/hello" in page.text
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        run = re.search(r'href="(/ops/harvest/w/[0-9a-f-]{36})"', page.text)
        assert run is not None
        assert (await web("GET", run[1], headers=HTML)).status_code == 200
        style = re.search(r'href="(/ops/harvest/static/[^"]+\.css)"', page.text)
        assert style is not None
        assert (await web("GET", style[1])).status_code == 200


async def test_the_api_is_there_with_its_token_and_keeps_slashes_in_names(url: str) -> None:
    async with host(url, admin_token=TOKEN) as web:
        await web("GET", "/greet/hello")
        api = "/harvest/api/harvest/workflows"
        assert (await web("GET", api)).status_code == 401
        listed = (await web("GET", api, headers=BEARER)).json()["workflows"]
        assert [row["workflow_id"] for row in listed] == ["of/hello"]
        found = await web("GET", f"{api}/by-id/echo/of%2Fhello", headers=BEARER)
        assert found.json()["execution_id"] == listed[0]["execution_id"]
        absent = await web("GET", "/harvest/nothing", headers=BEARER)
        assert (absent.status_code, absent.headers["content-type"]) == (404, "application/problem+json")


async def test_without_an_admin_token_only_this_machines_names_are_served(url: str) -> None:
    elsewhere = {"host": "shop.example"}
    async with host(url) as web:
        assert (await web("GET", "/harvest/signin", headers=elsewhere)).status_code == 421
        assert (await web("GET", "/greet/hello", headers=elsewhere)).text == "hello", "the application is its own"
    async with host(url, admin_token=TOKEN) as web:
        assert (await web("GET", "/harvest/signin", headers=elsewhere)).status_code == 200


async def test_guards_of_the_application_stand_before_the_console(url: str) -> None:
    def staff_only(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        if connection.headers.get("x-staff") != "yes":
            raise NotAuthorizedException("not you")

    async with host(url, guards=[staff_only], admin_token=TOKEN) as web:
        refused = await web("GET", "/harvest/signin")
        assert (refused.status_code, "not you" in refused.text) == (401, True)
        assert (await web("GET", "/harvest/signin", headers={"x-staff": "yes"})).status_code == 200


async def test_the_applications_own_middleware_and_the_console_do_not_meet(url: str) -> None:
    """Sessions, CSRF tokens and request state of the application are none of the console's."""
    sessions = ServerSideSessionConfig()

    @get("/count")
    async def count(request: Request[Any, Any, Any]) -> int:
        request.session["count"] = number = request.session.get("count", 0) + 1
        return int(number)

    def noting(app: Any) -> Any:
        async def noted(scope: Any, receive: Any, send: Any) -> None:
            scope["state"]["caller"] = "somebody of the application"
            await app(scope, receive, send)

        return noted

    around = {
        "middleware": [sessions.middleware, DefineMiddleware(noting)],
        "csrf_config": CSRFConfig(secret="s" * 32),
        "route_handlers": [count],
    }
    async with host(url, around=around) as web:
        assert [(await web("GET", "/count")).text for _ in range(2)] == ["1", "2"]
        assert (await web("GET", "/harvest/workflows")).status_code == 401
        assert (await sign_in(web, "/harvest")).status_code == 303
        assert (await web("GET", "/harvest/workflows", headers=HTML)).status_code == 200
        assert (await web("GET", "/count")).text == "3"


async def test_the_client_is_there_before_the_applications_lifespan_and_after_it(url: str) -> None:
    told = []

    @asynccontextmanager
    async def own(_: Litestar) -> AsyncIterator[None]:
        workflow = plugin.app.registry.workflows["echo", 1]
        told.append(await (await plugin.app.start(workflow, "first")).result(30))
        yield
        told.append(await (await plugin.app.start(workflow, "last")).result(30))

    plugin = HarvestPlugin(make_app(), urls=url, options=FAST, console=False)
    async with AsyncTestClient(Litestar(plugins=[plugin], lifespan=[own]), base_url=ADDRESS) as web:
        assert (await web.get("/harvest/signin")).status_code == 404, "there is no console"
        with pytest.raises(ConfigurationError, match="the console is not running"):
            await plugin.signin_link(ADDRESS)
    assert told == ["first", "last"]
    assert plugin.app.databases == {}


async def test_a_second_life_of_the_same_application_works(url: str) -> None:
    plugin = HarvestPlugin(make_app(), urls=url, options=FAST, secret_key=b"k" * 32)
    web = Litestar([greet], plugins=[plugin])
    for _ in range(2):
        async with AsyncTestClient(web, base_url=ADDRESS) as inner:
            assert (await inner.get("/greet/hello")).text == "hello"
            assert (await inner.get("/harvest/signin")).status_code == 200


@pytest.mark.parametrize("path", ["harvest", "/", "", "//", "/{any:str}"])
def test_a_path_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="path is"):
        HarvestPlugin(make_app(), path=path)


def test_a_token_that_can_be_guessed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="has 5 characters"):
        HarvestPlugin(make_app(), admin_token="guess")
    monkeypatch.setenv("HARVEST_ADMIN_TOKEN", "guess")
    with pytest.raises(ConfigurationError, match="has 5 characters"):
        HarvestPlugin(make_app())


async def test_the_example_takes_an_order(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HARVEST_DATABASE_URL", new_database("plugin_example"))
    monkeypatch.delenv("HARVEST_DATABASE_URLS", raising=False)
    monkeypatch.setenv("HARVEST_SECRET_KEY", "k" * 32)
    async with AsyncTestClient(embedded_litestar.web, base_url=ADDRESS) as web:
        placed = (await web.post("/orders", json={"items": ["book"]})).json()
        assert (await web.get(f"/orders/{placed['number']}")).json()["receipt"] is None
        approved = await web.post(f"/orders/{placed['number']}/approval", json={"by": "Ada"})
        assert approved.status_code == 204
        shipped = (await web.get(f"/orders/{placed['number']}", params={"wait": 60}, timeout=90)).json()
        assert UUID(shipped["number"])
        assert shipped["receipt"]["approved_by"] == "Ada"
    assert shop.app.databases == {}


async def test_a_server_that_is_told_to_end_does_not_wait_for_open_consoles(url: str, tmp_path: Path) -> None:
    """Servers wait for open responses before they end the lifespan; an open tab of the console is one."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.set_inheritable(True)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HARVEST_")}
    environment |= {"HARVEST_DATABASE_URL": url, "HARVEST_ADMIN_TOKEN": TOKEN, "HARVEST_SECRET_KEY": "k" * 32}
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVE, str(listener.fileno())),
        cwd=ROOT,
        env=environment,
        pass_fds=[listener.fileno()],
        stderr=(tmp_path / "log").open("wb"),
    )
    listener.close()
    try:
        async with httpx.AsyncClient(base_url=address, headers=BEARER, timeout=60) as web:

            async def serves() -> bool:
                assert server.returncode is None, (tmp_path / "log").read_text()
                return (await web.get("/harvest/api/harvest/workflows")).status_code == 200

            await eventually(serves, within=60)
            async with web.stream("GET", "/harvest/live?t=list") as stream:
                frames = stream.aiter_text()
                assert "event: hello" in await anext(frames)
                server.send_signal(signal.SIGTERM)
                async with asyncio.timeout(30):
                    async for _ in frames:
                        pass
            async with asyncio.timeout(30):
                await server.wait()
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
    said = (tmp_path / "log").read_text()
    assert "Application shutdown complete" in said, said
