"""The pages of the shards in a browser: with all of them, with one missing, with none; and the checklist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import own_setup
from tests.browser.server import DevServer


def test_every_shard_is_ready_and_leads_to_its_page(page: Page) -> None:
    page.goto("/shards")
    expect(page.locator("#shards tbody tr")).to_have_count(2)
    expect(page.locator("#s0")).to_contain_text("Writable")
    page.locator("#go-shards").focus()
    page.get_by_role("link", name="Shard 1", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Shard 1")
    expect(page.locator("#shard tbody tr").filter(has_text="Healthy")).to_have_count(2)
    page.get_by_role("link", name="Partitions", exact=True).last.click()
    expect(page).to_have_url(re.compile(r"/shards/1/partitions$"))


def test_the_keyboard_leads_to_the_shards(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.get_by_role("heading", level=1)).to_have_text("Shards")


def test_the_table_reads_itself_again(page: Page, server: DevServer) -> None:
    page.goto("/shards")
    waiting = page.locator("#s0 td[data-label='Stranded'], #s1 td[data-label='Stranded']")
    run = server.start("order_flow", {"card": "4242 4242", "cents": 500}, queue="nobody-takes-this")
    expect(waiting.filter(has_text="1")).to_have_count(1)
    server.call("POST", f"/workflows/{run}/terminate", b'{"reason":"a test"}')
    expect(waiting.filter(has_text="1")).to_have_count(0)


def test_the_runbook_tells_each_step_and_works_without_scripts(
    browser: Browser, server: DevServer, signed_in: Any
) -> None:
    context = browser.new_context(base_url=server.base, storage_state=signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto("/shards")
    page.get_by_role("link", name="Add a shard").click()
    expect(page.locator("#candidate")).to_have_value("2")
    expect(page.locator("#check-database")).to_contain_text("This console knows no database of it.")
    page.locator("#candidate").fill("1")
    page.get_by_role("button", name="Look at it").click()
    for check in ("database", "migrated", "readable", "ready", "covered", "unstranded", "writable"):
        expect(page.locator(f"#check-{check} .state")).to_have_text("Done")
    expect(page.locator("#check-alert .state")).to_have_text("Yours to check")
    context.close()


class Losing(NamedTuple):
    """A setup of its own whose databases are killed one after the other, and a page on it."""

    server: DevServer
    page: Page


@pytest.fixture(scope="module")
def losing(browser: Browser) -> Iterator[Losing]:
    """A page on it, signed in."""
    with own_setup(browser) as (server, page):
        yield Losing(server, page)


def test_one_missing_shard_is_named_and_the_other_is_whole(losing: Losing) -> None:
    page = losing.page
    losing.server.kill_shard(1)
    page.goto("/shards")
    expect(page.locator("#missing")).to_contain_text("Shard 1 did not answer.")
    expect(page.locator("#s0")).to_contain_text("Ready")
    expect(page.locator("#s1")).to_contain_text("Unavailable")
    page.goto("/shards/1")
    expect(page.locator("#shard")).to_contain_text("Nothing can be told of it now")
    page.goto("/shards/add?candidate=1")
    expect(page.locator("#check-ready .state")).to_have_text("Blocked")
    page.goto("/shards/add?candidate=2")
    expect(page.locator("#steps .note").first).to_contain_text("Shard 1 did not answer.")


def test_without_any_shard_the_pages_say_so(losing: Losing) -> None:
    page = losing.page
    losing.server.kill_shard(0)
    for path, told in (
        ("/shards", "No shard answered"),
        ("/shards/0", "Unavailable"),
        ("/shards/add?candidate=1", "Blocked"),
    ):
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200
        expect(page.locator("main")).to_contain_text(told)
