"""The console's application over two shards, asked in this process, and what a browser would remember."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient

from harvest.operations import signin
from harvest.shards import Shards
from harvest_console.app import create_app
from harvest_console.auth.cookies import PLAIN_NAME, unseal
from harvest_console.auth.csrf import token_for
from harvest_console.settings import Settings
from tests.operations.population import register

ADDRESS = "http://127.0.0.1:8400"
TOKEN = "a-token-of-thirty-two-characters!"
BEARER = {"authorization": f"Bearer {TOKEN}"}
DEAD = "postgresql://postgres@/x?host=/nonexistent"
API = "/api/harvest"


@pytest.fixture
def urls(new_database: Callable[[str], str]) -> dict[int, str]:
    """The databases of two empty shards."""
    return {0: new_database("console_a"), 1: new_database("console_b")}


@pytest.fixture
async def shards(urls: dict[int, str]) -> AsyncIterator[Shards]:
    """The shards beside the console's own connections; one workflow type is registered."""
    opened = await Shards.open(urls)
    schema = b'{"type":"object","properties":{"cents":{"type":"integer","minimum":1}},"required":["cents"]}'
    await register(opened, 0, "order_flow", input_schema=schema)
    await register(opened, 1, "any_flow", input_schema=b"{}")
    yield opened
    await opened.close()


def settings(urls: dict[int, str], **more: Any) -> Settings:
    """Settings of a console for these tests."""
    return Settings(urls=urls, secret_key=b"k" * 32, admin_token=TOKEN, **more)


class Client:
    """Requests to the console, redirects not followed."""

    def __init__(self, inner: AsyncTestClient[Litestar] | httpx.AsyncClient) -> None:
        self.inner = inner

    async def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send one request."""
        response: httpx.Response = await self.inner.request(method, path, follow_redirects=False, **more)
        return response

    async def api(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send one request to the API with the token."""
        return await self(method, API + path, headers={**BEARER, **more.pop("headers", {})}, **more)

    async def sign_in(self, shards: Shards) -> str:
        """Sign in by a link; answers the session's CSRF token."""
        link = await signin.create_link(shards, "")
        response = await self("POST", "/signin", data={"token": link.partition("token=")[2]})
        assert response.status_code == 303, response.text
        session = unseal(b"k" * 32, self.inner.cookies[PLAIN_NAME])
        assert session is not None
        return token_for(b"k" * 32, session)


@pytest.fixture
async def console(urls: dict[int, str], shards: Shards) -> AsyncIterator[Client]:
    """A console for this machine alone, over the two shards."""
    async with AsyncTestClient(create_app(settings(urls)), base_url=ADDRESS) as inner:
        yield Client(inner)


@pytest.fixture(scope="session")
async def refusing_console(new_database: Callable[[str], str]) -> AsyncIterator[Client]:
    """One console for all tests of requests that change nothing."""
    urls = {0: new_database("refusing_a"), 1: new_database("refusing_b")}
    opened = await Shards.open(urls)
    await register(opened, 1, "any_flow", input_schema=b"{}")
    await opened.close()
    async with AsyncTestClient(create_app(settings(urls)), base_url=ADDRESS) as inner:
        yield Client(inner)


@pytest.fixture
async def half_console(urls: dict[int, str], shards: Shards) -> AsyncIterator[Client]:
    """The same with shard 1 gone."""
    async with AsyncTestClient(create_app(settings({0: urls[0], 1: DEAD})), base_url=ADDRESS) as inner:
        yield Client(inner)
