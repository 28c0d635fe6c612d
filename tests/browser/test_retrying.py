"""A server that is stalled, in a browser: the list names it, asks it alone again, and takes in what it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from harvest.history.states import State
from harvest.shards import Shards
from tests.browser.conftest import own_setup
from tests.browser.server import DevServer
from tests.browser.test_every_page import overflow, violations
from tests.browser.test_workers import on_shards
from tests.operations.population import Run, add
from tests.servers import stalled

LIST = "/workflows?type=stalled_flow"


class Stalling(NamedTuple):
    """A page on a console whose databases can be stalled."""

    page: Page
    server: DevServer

    @contextmanager
    def without(self, *shard_ids: int) -> Iterator[None]:
        """Stop every process of these shards' servers: they accept, and never answer."""
        try:
            with stalled(*map(self.server.postmaster, shard_ids)):
                yield
        finally:
            self.server.until(lambda: bool(self.server.call("GET", "/workflows")["status"] == "complete"))


@pytest.fixture(scope="module")
def stalling(browser: Browser) -> Iterator[Stalling]:
    """A setup of its own with six runs, by turns on both shards."""
    with own_setup(browser) as (server, page):

        async def write(shards: Shards) -> None:
            for age in range(6):
                run = Run(workflow_name="stalled_flow", workflow_id=f"run-{age}", state=State.COMPLETED, age=age)
                await add(shards, age % 2, run)

        on_shards(server, write)
        yield Stalling(page, server)


def shows(page: Page, *numbers: int) -> None:
    expect(page.locator("#runs tr th a")).to_have_text([f"run-{number}" for number in numbers])


def test_all_shards_missing_is_no_empty_list(stalling: Stalling) -> None:
    page = stalling.page
    page.goto(LIST)
    shows(page, 0, 1, 2, 3, 4, 5)
    with stalling.without(0, 1):
        page.goto(LIST)
        expect(page.locator("#list").get_by_role("heading")).to_have_text("No shard answered")
        expect(page.locator("main")).to_contain_text("Saved views cannot be read: shard 0 does not answer.")
        assert violations(page) == []
        page.set_viewport_size({"width": 390, "height": 844})
        assert overflow(page) <= 0
    page.set_viewport_size({"width": 1440, "height": 900})


def test_what_a_shard_has_comes_into_the_list_when_it_answers_again(stalling: Stalling) -> None:
    page = stalling.page
    # The stream would read the list again by itself.
    page.route(re.compile("/live"), lambda route: route.abort())
    page.route(re.compile("/_f/workflows\\?"), lambda route: route.abort())
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/_f/workflows/missing" in request.url else None)
    with stalling.without(1):
        page.goto(LIST)
        expect(page.locator("#missing")).to_contain_text("Shard 1 did not answer.")
        shows(page, 0, 2, 4)
        assert violations(page) == []
        page.evaluate("window.same = document.querySelector('#runs tr')")
        page.locator("#retry").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#missing")).to_contain_text("Still no answer from shard 1")
        expect(page.locator("#retry")).to_be_focused()
        shows(page, 0, 2, 4)
    page.keyboard.press("Enter")
    expect(page.locator("#missing")).to_contain_text("3 runs came from shard 1.")
    shows(page, 0, 1, 2, 3, 4, 5)
    expect(page.locator("#retry")).to_be_focused()
    assert page.evaluate("window.same === document.querySelector('#runs tr')") is True
    assert len(asked) == 2
    assert all("shard=1" in url and "shard=0" not in url for url in asked)
    page.unroute_all()
