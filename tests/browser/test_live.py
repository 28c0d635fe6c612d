"""The live page: hints re-read regions, and never take away what a reader is at (console 5.4)."""

from __future__ import annotations

import re

from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import wait_until_waiting
from tests.browser.server import DevServer


def _live(page: Page) -> None:
    expect(page.locator("#badge")).to_have_text(re.compile(r"^Live, \d\d:\d\d:\d\d$"))


def test_an_unfolded_event_and_the_focus_outlive_an_update(page: Page, server: DevServer) -> None:
    run = wait_until_waiting(server, server.start("order_flow", {"cents": 600}, workflow_id="live-order"))
    page.goto(f"/w/{run}")
    _live(page)
    scheduled = page.locator("#history tr", has_text="ActivityScheduled").last.locator("details")
    scheduled.locator("summary").click()
    expect(scheduled.locator("pre")).to_contain_text("reserve")
    scheduled.locator("summary").focus()
    focused = page.evaluate("document.activeElement.parentElement.id")
    rows = page.locator("#history tbody tr").count()

    server.signal(run, "nobody_waits_for_this", b"1")
    expect(page.locator("#history tbody tr")).to_have_count(rows + 1)
    expect(scheduled.locator("pre")).to_contain_text("reserve")
    assert scheduled.get_attribute("open") is not None
    assert page.evaluate("document.activeElement.parentElement.id") == focused
    expect(page.locator("#run-facts")).to_contain_text(f"{rows + 1} events")


def test_a_paused_page_stands_still_until_it_is_resumed(page: Page, server: DevServer) -> None:
    run = wait_until_waiting(server, server.start("order_flow", {"cents": 600}, workflow_id="paused-order"))
    page.goto(f"/w/{run}")
    _live(page)
    rows = page.locator("#history tbody tr").count()
    page.keyboard.press("p")
    expect(page.locator("#badge")).to_contain_text("Paused at")
    hints: list[str] = []
    page.on("request", lambda request: hints.append(request.url) if "/_f/" in request.url else None)
    # A page that is not paused shows the same signal: when it does, the hint has gone out.
    other = page.context.new_page()
    other.goto(f"/w/{run}")
    _live(other)
    server.signal(run, "late", b"1")
    expect(other.locator("#history tbody tr")).to_have_count(rows + 1)
    assert page.locator("#history tbody tr").count() == rows
    assert hints == []
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#history tbody tr")).to_have_count(rows + 1)


def test_new_runs_are_announced_and_move_nothing(page: Page, server: DevServer, waiting_run: str) -> None:
    page.goto("/workflows")
    _live(page)
    first = page.locator("#list tbody th a").first
    before = first.get_attribute("href")
    started = server.start("order_flow", {"cents": 600}, workflow_id="announced")
    expect(page.locator("#list .note")).to_contain_text("1 new run since.")
    assert first.get_attribute("href") == before
    page.locator("#list .note").get_by_role("link", name="Show it").click()
    expect(first).to_have_attribute("href", re.compile(started))


def test_a_row_changes_its_state_in_place(page: Page, server: DevServer) -> None:
    run = wait_until_waiting(server, server.start("order_flow", {"cents": 600}, workflow_id="row-in-place"))
    page.goto("/workflows?id=row-in-place")
    _live(page)
    row = page.locator(f"#r{run}")
    expect(row.locator(".state")).to_have_text("Running")
    server.signal(run, "approved", b'{"by":"lena"}')
    expect(row.locator(".state")).to_have_text("Completed")


def test_the_fifth_tab_of_a_session_polls(context: BrowserContext, page: Page, waiting_run: str) -> None:
    tabs = [context.new_page() for _ in range(4)]
    for tab in tabs:
        tab.goto(f"/w/{waiting_run}")
        _live(tab)
    page.goto(f"/w/{waiting_run}")
    expect(page.locator("#badge")).to_contain_text("Polling each 10 s")
    tabs[0].close()
    expect(page.locator("#badge")).to_have_text(re.compile("^Live"), timeout=25_000)


def test_a_closed_run_holds_no_stream(page: Page, completed_run: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"/w/{completed_run}")
    page.wait_for_load_state()
    assert not [url for url in asked if "/live?" in url or "/_f/" in url]
