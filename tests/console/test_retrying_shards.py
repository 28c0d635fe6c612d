"""A page that does without a shard asks that one alone again, and nothing of the list is lost or shown twice."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient

from harvest.shards import Shards
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, DEAD, Client, settings
from tests.operations.population import Run, add

HTML = {"accept": "text/html"}
SIZE = 25


class Away:
    """A console whose shard 1 can be sent away and called back, with what was asked of each shard."""

    def __init__(self, console: Client, real: Shards) -> None:
        self.console = console
        self.asked: set[int] = set()
        self._shards = console_shards(console)
        self._here = self._shards.stores[1]
        self._away = Shards({1: DEAD}).stores[1]
        for store in self._shards.stores.values():
            self._watch(store)
        self.real = real

    def _watch(self, store: Any) -> None:
        connection = store.read.connection

        def watched(*given: Any, **more: Any) -> Any:
            self.asked.add(store.shard_id)
            return connection(*given, **more)

        store.read.connection = watched

    def leave(self) -> None:
        self._shards.stores[1] = self._away

    def come(self) -> None:
        self._shards.stores[1] = self._here

    def fail(self) -> None:
        """Have a read on shard 1 fail now: for a second the pool asks it no more by itself."""
        self._here.read._note_outage(TimeoutError())

    async def page(self, path: str) -> str:
        """A page's HTML."""
        response = await self.console("GET", path, headers=HTML)
        assert response.status_code == 200, response.text
        self.asked.clear()
        return response.text

    async def retry(self, page: str) -> str:
        """What the banner's link fetches."""
        found = re.search(r'<a class="link" id="retry"[^>]* hx-get="([^"]+)"', page)
        assert found is not None, page
        self.asked.clear()
        return (await self.console("GET", html.unescape(found[1]), headers=HTML)).text


def console_shards(console: Client) -> Shards:
    """The shards of a console that runs in this process."""
    inner = console.inner
    assert isinstance(inner, AsyncTestClient)
    app = inner.app
    assert isinstance(app, Litestar)
    shards: Shards = app.state.shards
    return shards


@pytest.fixture
async def away(urls: dict[int, str], shards: Shards) -> AsyncIterator[Away]:
    """A signed-in console over both shards."""
    async with AsyncTestClient(create_app(settings(urls)), base_url=ADDRESS) as inner:
        console = Client(inner)
        await console.sign_in(shards)
        yield Away(console, shards)


def keys(page: str) -> list[str]:
    """The places of the rows in the order of the list."""
    return re.findall(r'<tr id="r[^"]*" data-key="([^"]*)"', page)


def older(page: str) -> str | None:
    found = re.search(r'<a class="link" id="older" href="([^"]+)"', page)
    return html.unescape(found[1]) if found else None


async def runs(away: Away, count: int, shard_of: Callable[[int], int]) -> list[UUID]:
    """Runs, each a second older than the one before."""
    return [await add(away.real, shard_of(age), Run(workflow_id=f"run-{age}", age=age)) for age in range(count)]


async def test_only_the_missing_shard_is_asked_and_its_rows_come_alone(away: Away) -> None:
    found = await runs(away, 10, lambda age: age % 2)
    away.leave()
    page = await away.page("/workflows")
    assert len(keys(page)) == 5
    assert "Still no answer from shard 1" in await away.retry(page)
    away.come()
    came = await away.retry(page)
    assert away.asked == {1}
    assert "5 runs came from shard 1." in came
    whole = sorted([*keys(page), *keys(came)], reverse=True)
    assert [key.partition(":")[2] for key in whole] == list(map(str, found))


@pytest.mark.parametrize("order", ["desc", "asc"])
async def test_rows_beyond_the_page_are_left_to_the_pages_that_have_them(away: Away, order: str) -> None:
    found = await runs(away, 60, lambda age: 1 if age % 3 == 0 else 0)
    away.leave()
    page = await away.page(f"/workflows?size={SIZE}&order={order}")
    following = older(page)
    assert following is not None
    away.come()
    came = await away.retry(page)
    assert away.asked == {1}
    rows = [*keys(page), *keys(came)]
    path: str | None = following
    while path:
        page = await away.page(path)
        rows += keys(page)
        path = older(page)
    assert len(rows) == len(set(rows)) == len(found)


async def test_where_more_has_come_than_a_page_has_room_for_the_list_is_read_anew(away: Away) -> None:
    await runs(away, 40, lambda age: 0 if age in (0, 39) else 1)
    away.leave()
    page = await away.page(f"/workflows?size={SIZE}")
    assert len(keys(page)) == 2
    away.come()
    came = await away.retry(page)
    assert keys(came) == []
    assert 'hx-trigger="load" hx-target="#list"' in came


async def test_a_shard_that_has_nothing_there_says_so(away: Away) -> None:
    await runs(away, 2, lambda _: 0)
    away.leave()
    page = await away.page("/workflows")
    away.come()
    assert "Shard 1 answered, and has no run in this part of the list." in await away.retry(page)


async def test_a_shard_is_really_asked_however_lately_it_has_failed(away: Away) -> None:
    await runs(away, 4, lambda age: age % 2)
    away.leave()
    page = await away.page("/workflows")
    away.come()
    away.fail()
    assert "2 runs came from shard 1." in await away.retry(page)


async def test_a_list_that_was_read_again_leads_to_what_follows_its_own_last_row(away: Away) -> None:
    await runs(away, 60, lambda age: age % 2)
    away.leave()
    page = await away.page(f"/workflows?size={SIZE}")
    region = re.search(r'id="list"[^>]* hx-get="([^"]+)"', page)
    assert region is not None
    away.come()
    page = (await away.console("GET", html.unescape(region[1]), headers=HTML)).text
    rows = keys(page)
    assert 'id="newer"' not in page
    path = older(page)
    while path:
        page = await away.page(path)
        rows += keys(page)
        path = older(page)
    assert len(rows) == len(set(rows)) == 60


BANNERS = {
    "/": "The figures below are of the others.",
    "/audit": "What was done there is not in this list",
    "/workers": "Workers that are there alone are not in this list",
    "/warmth": "What was decided there is not in these numbers",
    "/owner-mode": "Whether owner mode is on there is not known",
    "/workflows/start": "Types that only its workers have are not in this list",
}


@pytest.mark.parametrize("path", BANNERS)
async def test_every_page_with_the_banner_asks_the_missing_shard_alone(away: Away, path: str) -> None:
    away.leave()
    page = await away.page(path)
    assert "Shard 1 did not answer." in page
    assert BANNERS[path] in page
    assert f'id="retry" href="{path}"' in page
    assert "Still no answer from shard 1" in await away.retry(page)
    away.come()
    assert "Every shard answers now." in await away.retry(page)
    assert away.asked == {1}
