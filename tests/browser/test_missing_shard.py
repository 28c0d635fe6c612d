"""One database is gone: every page answers, names the shard, and says "unknown" where it cannot know (Must show 4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import own_setup


class Crippled(NamedTuple):
    """A page on a console whose shard 1 is gone, and a run on each shard."""

    page: Page
    runs: dict[int, str]


@pytest.fixture(scope="module")
def crippled(browser: Browser) -> Iterator[Crippled]:
    """A setup of its own, whose second database is killed after a run was started on each."""
    with own_setup(browser) as (server, page):
        runs: dict[int, str] = {}
        for number in range(40):
            run = server.start("order_flow", {"cents": 500}, workflow_id=f"order-{number}")
            runs.setdefault(int(run[:4], 16), run)
        server.kill_shard(1)
        yield Crippled(page, runs)


def test_the_list_names_the_shard_and_shows_the_rest(crippled: Crippled) -> None:
    page = crippled.page
    page.goto("/workflows")
    banner = page.locator("#list .note")
    expect(banner).to_contain_text("Shard 1 did not answer.")
    expect(banner.get_by_role("link", name="Retry shard 1")).to_be_visible()
    expect(page.locator(f"#r{crippled.runs[0]}")).to_be_visible()
    expect(page.locator(f"#r{crippled.runs[1]}")).to_have_count(0)
    expect(page.locator(".head")).to_contain_text("at least")


def test_where_a_key_lives_says_which_shard_was_not_looked_at(crippled: Crippled) -> None:
    page = crippled.page
    page.goto("/shards/key?workflow_name=order_flow&workflow_id=nobody")
    rows = page.locator("main tbody tr")
    expect(rows.nth(0)).to_contain_text("No run of this key.")
    expect(rows.nth(1)).to_contain_text("Not inspected")
    expect(page.locator("main")).to_contain_text("not every shard was looked at")
    page.goto(f"/w/{crippled.runs[0]}")
    page.get_by_role("link", name="Where does this key live?").click()
    expect(page.locator("main")).to_contain_text("It is the only open run of the key.")
    expect(page.locator("main .facts")).to_contain_text(f"{crippled.runs[0]} on shard 0")


def test_a_list_without_a_match_does_not_claim_there_is_none(crippled: Crippled) -> None:
    crippled.page.goto("/workflows?id=nothing-like-it")
    expect(crippled.page.locator("#list")).to_contain_text("those that did not answer may")


def test_a_run_of_the_shard_is_unknown_and_not_missing(crippled: Crippled) -> None:
    answer = crippled.page.goto(f"/w/{crippled.runs[1]}")
    assert answer is not None
    assert answer.status == 503
    expect(crippled.page.get_by_role("heading", level=1)).to_have_text("Cannot tell: a shard does not answer")
    expect(crippled.page.locator("main")).to_contain_text("Shard 1")


def test_a_run_of_another_shard_is_whole(crippled: Crippled) -> None:
    crippled.page.goto(f"/w/{crippled.runs[0]}")
    expect(crippled.page.locator("#run-head .state")).to_have_text("Running")


def test_overview_and_audit_name_it_too(crippled: Crippled) -> None:
    page = crippled.page
    page.goto("/")
    expect(page.locator("main .note")).to_contain_text("Shard 1 did not answer.")
    expect(page.locator("main")).to_contain_text("1 of 2")
    page.goto("/audit")
    expect(page.locator("main .note")).to_contain_text("Shard 1 did not answer.")
    expect(page.locator("main tbody tr").first).to_be_visible()


def test_the_topology_is_read_from_the_shards_that_answer(crippled: Crippled) -> None:
    page = crippled.page
    page.goto("/shards/topology")
    expect(page.locator("main .note").first).to_contain_text("Shard 1 did not answer.")
    expect(page.locator("#topology tbody tr").first).to_be_visible()
    page.goto("/shards/residency")
    expect(page.locator("main .note").first).to_contain_text("Shard 1 did not answer.")
    expect(page.locator("main")).to_contain_text("No residency key is declared")


def test_a_tree_names_the_shard_and_asks_it_alone_again(crippled: Crippled) -> None:
    page = crippled.page
    page.goto(f"/w/{crippled.runs[0]}/tree")
    expect(page.locator("main .note")).to_contain_text("Shard 1 did not answer.")
    expect(page.locator(".node")).to_have_count(1)
    page.evaluate("window.same = true")
    page.get_by_role("link", name="Retry shard 1").click()
    expect(page.locator("main .note")).to_contain_text("Still no answer from shard 1")
    assert page.evaluate("window.same") is True
