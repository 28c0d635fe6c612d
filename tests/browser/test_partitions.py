"""Owner mode and the map of partitions in a browser: live, by keyboard, and never taking away what a reader is at."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from harvest.shards import Shards
from harvest.store.store import Store
from tests.browser.server import DevServer
from tests.browser.test_every_page import RULES
from tests.operations.owning import an_owner

SHARD = 1
MAP = f"/shards/{SHARD}/partitions"


def switch(server: DevServer, enabled: bool) -> None:
    body = b'{"enabled":%s,"reason":"a browser test"}' % (b"true" if enabled else b"false")
    server.call("POST", f"/admin/shards/{SHARD}/owner-mode", body)


def partitions_of(server: DevServer) -> dict[str, Any]:
    found: dict[str, Any] = server.call("GET", f"/admin{MAP}")
    return found


@pytest.fixture(scope="module")
def owned(server: DevServer) -> Iterator[DevServer]:
    """Every partition has an owner."""
    server.until(lambda: all(one["live_owners"] for one in server.call("GET", "/admin/owner-mode")["shards"]))
    switch(server, True)
    server.until(lambda: bool(partitions_of(server)["owned"] == 512))
    yield server
    switch(server, False)


def on_shard(server: DevServer, act: Callable[[Store], Awaitable[Any]]) -> Any:
    """Do something in the database of the shard; Playwright has a loop in this thread."""

    async def run() -> Any:
        shards = await Shards.open(server.urls)
        try:
            return await act(shards.store(SHARD))
        finally:
            await shards.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()


@pytest.fixture
def mixed(server: DevServer) -> Iterator[str]:
    """The name of a living worker of an old release, of another build and with other queues."""
    name = "an-old-one"

    async def join(store: Store) -> UUID:
        return await an_owner(store, name, build="b0", queues=("mail",), scanned=None)

    worker = on_shard(server, join)
    yield name
    on_shard(server, lambda store: store.scan.write("delete from harvest_workers where worker = $1", worker))


def open_map(page: Page, path: str = MAP) -> None:
    page.goto(path)
    expect(page.locator("#badge")).to_have_text(re.compile(r"^Live, "))


def test_the_map_follows_a_worker_that_is_killed_and_keeps_what_is_open(page: Page, owned: DevServer) -> None:
    open_map(page)
    page.locator("#p0").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#journal-title")).to_have_text("Journal of partition 33")
    expect(page).to_have_url(re.compile(r"\?p=33$"))
    expect(page.locator("#p33")).to_be_focused()
    partition = partitions_of(owned)["partitions"][33]
    (pid,) = [
        worker["pid"]
        for worker in owned.call("GET", "/workers")["workers"]
        if worker["worker_id"] == partition["owner"]
    ]
    epoch = re.compile(f"epoch {partition['epoch']}$")
    expect(page.locator("#p33")).to_have_attribute("aria-label", epoch)

    os.kill(pid, signal.SIGKILL)
    expect(page.locator("#journal tbody")).to_contain_text("expired at", timeout=40_000)
    expect(page.locator("#p33")).not_to_have_attribute("aria-label", epoch)
    expect(page.locator("#p33")).to_be_focused()
    expect(page.locator("#p33")).to_have_attribute("aria-current", "true")
    expect(page.locator("#journal-title")).to_have_text("Journal of partition 33")
    # The one that is started in its place becomes an owner, and gets its share.
    owned.until(lambda: bool(min(each["held"] for each in partitions_of(owned)["owners"] if each["is_live"])))
    expect(page.locator(".tiles")).to_contain_text("live owners, target 256 each")
    expect(page.locator("#owner-none td").first).to_have_text("0")


def test_arrow_keys_go_through_the_map_and_one_cell_takes_the_tab(page: Page, owned: DevServer) -> None:
    open_map(page)
    page.locator("#p0").focus()
    for key, at in [("End", 31), ("ArrowRight", 32), ("ArrowUp", 0), ("ArrowUp", 0), ("ArrowDown", 32), ("Home", 32)]:
        page.keyboard.press(key)
        expect(page.locator(f"#p{at}")).to_be_focused()
    assert page.locator('.map a[tabindex="0"]').count() == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.map')") is None
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.closest('.map') !== null")


def test_a_partition_opens_in_place_and_by_its_address(page: Page, owned: DevServer) -> None:
    open_map(page)
    page.evaluate("window.same = true")
    page.locator("#p300").click()
    expect(page.locator("#journal-title")).to_have_text("Journal of partition 300")
    expect(page.locator("#say")).to_have_text("Journal of partition 300")
    page.locator("#journal").get_by_role("link", name="Close").click()
    expect(page.locator("#journal-title")).to_have_text("Journal")
    expect(page).to_have_url(re.compile(r"/partitions$"))
    assert page.evaluate("window.same")
    page.goto(f"{MAP}?p=300")
    expect(page.locator("#journal-title")).to_have_text("Journal of partition 300")


def test_while_the_page_is_paused_a_partition_still_opens(page: Page, owned: DevServer) -> None:
    open_map(page)
    page.get_by_role("button", name="Pause").click()
    page.locator("#p7").click()
    expect(page.locator("#journal-title")).to_have_text("Journal of partition 7")


def test_the_table_has_the_same(page: Page, owned: DevServer) -> None:
    open_map(page)
    letter = page.locator("#p5").inner_text()
    page.get_by_role("navigation", name="Show the partitions as").get_by_role("link", name="Table").click()
    expect(page.locator("#row5 .own")).to_have_text(letter)
    page.locator("#row5").get_by_role("link").click()
    expect(page.locator("#journal-title")).to_have_text("Journal of partition 5")
    page.locator("#older").click()
    expect(page.locator("#row128")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("query", ["", "?p=3", "?view=table&p=3"])
def test_it_is_accessible_and_fits(page: Page, owned: DevServer, theme: Any, query: str) -> None:
    page.emulate_media(color_scheme=theme)
    answer = page.goto(MAP + query)
    assert answer is not None
    assert len(answer.body()) < 150_000
    found = Axe().run(page, options=RULES).response["violations"]
    assert [(one["id"], [node["target"] for node in one["nodes"]]) for one in found] == []
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_a_mixed_fleet_is_refused_with_each_offender(page: Page, server: DevServer, mixed: str) -> None:
    switch(server, False)
    page.goto("/owner-mode")
    for code in ("worker_cannot_own", "queues_differ", "builds_differ"):
        row = page.locator(f"#s{SHARD}-{code}")
        expect(row.locator(".state")).to_have_class(re.compile("failed"))
        expect(row).to_contain_text(mixed)
    expect(page.locator(f"#s{SHARD}-no_live_owner .state")).to_have_class(re.compile("completed"))
    page.get_by_role("link", name=f"Turn on… for shard {SHARD}").click()
    expect(page.get_by_text("It cannot be turned on now.")).to_be_visible()
    expect(page.get_by_role("button", name="Turn owner mode on")).to_have_count(0)


def test_it_is_turned_on_and_off_by_hand(page: Page, server: DevServer) -> None:
    switch(server, False)
    for word in ("on", "off"):
        page.goto(f"/shards/{SHARD}/owner-mode")
        page.get_by_label("Reason").fill("by hand")
        page.get_by_role("button", name=f"Turn owner mode {word}").click()
        expect(page.get_by_role("alert")).to_contain_text(f"Type the word owner mode {word}")
        page.get_by_label("to confirm").fill(f"owner mode {word}")
        page.get_by_role("button", name=f"Turn owner mode {word}").click()
        expect(page).to_have_url(re.compile(f"did={word}$"))
        expect(page.get_by_role("main")).to_contain_text(f"Owner mode is {word}.")
        if word == "on":
            expect(page.locator(".tiles")).to_contain_text("512 of 512")
