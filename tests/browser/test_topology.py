"""The topology where processes do not agree, in a browser: what is marked, in both themes and on a phone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from harvest.shards import ShardRouter, Shards
from harvest.shards.presence import Presence
from tests.browser.server import DevServer
from tests.browser.test_every_page import RULES

ODD = ShardRouter(readable=(0, 1), writable=(0,), default=0, residency={"eu": 0, "us": 1}, reserved=(1,))
_SILENT = "update harvest_processes set seen_at = clock_timestamp() - interval '5 minutes' where process = $1"


async def _tell(urls: dict[int, str], odd: UUID, gone: UUID) -> None:
    shards = await Shards.open(urls, ODD)
    try:
        for process, name in ((odd, "odd <b>one</b>"), (gone, "gone")):
            told = Presence(shards, process, "worker", through=lambda store: store.write, name=name, assigned=(0,))
            await told.tick()
        for store in shards.stores.values():
            await store.write.write(_SILENT, gone)
    finally:
        await shards.close()


async def _forget(urls: dict[int, str], *processes: UUID) -> None:
    shards = await Shards.open(urls)
    try:
        for store in shards.stores.values():
            await store.write.write("delete from harvest_processes where process = any($1)", list(processes))
    finally:
        await shards.close()


@pytest.fixture(scope="module")
def disagreeing(server: DevServer) -> Iterator[None]:
    """A worker that routes differently, and one that was not heard of for minutes."""
    odd, gone = uuid4(), uuid4()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _tell(server.urls, odd, gone)).result()
        yield
        thread.submit(asyncio.run, _forget(server.urls, odd, gone)).result()


def test_who_differs_comes_first_and_is_marked_by_word_and_shape(page: Page, disagreeing: None) -> None:
    page.goto("/shards/topology")
    rows = page.locator("#topology tbody tr")
    expect(rows.first).to_contain_text("odd <b>one</b>")
    expect(rows.first.locator(".state.failed")).to_have_count(3)
    expect(rows.first.locator(".state.failed").first).to_contain_text("Differs")
    expect(rows.last).to_contain_text("gone")
    expect(rows.last.locator(".state.blocked")).to_contain_text("Stale, 5 min")
    heads = page.locator("#topology thead th")
    expect(heads.nth(3).locator(".state.failed")).to_be_visible()


def test_a_key_that_one_process_alone_declares_is_in_dispute(page: Page, disagreeing: None) -> None:
    page.goto("/shards/topology")
    page.get_by_role("link", name="Residency map").click()
    row = page.locator("#residency tbody tr").first
    expect(row).to_contain_text("Not declared here")
    expect(row).to_contain_text("odd <b>one</b>: shard 0")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/shards/topology", "/shards/residency"])
def test_the_marks_are_for_everybody(page: Page, disagreeing: None, path: str, theme: str) -> None:
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.goto(path)
    assert Axe().run(page, options=RULES).response["violations"] == []
    for width in (1440, 390, 320):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        assert page.locator("main .sheet").first.evaluate("e => e.scrollWidth - e.clientWidth") <= 0
