"""Warmth in a browser: it follows workers that are killed and started, and takes nothing away from who reads it."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.server import DevServer

MEASURED_MS = 30_000
LOST_MS = 60_000


@pytest.fixture(scope="module")
def decided(server: DevServer) -> DevServer:
    """Something was decided within the last minutes, and that is written down."""
    run = server.start("order_flow", {"card": "4242 4242", "cents": 700}, workflow_id="warm-order")
    server.signal(run, "approved", b'{"by":"lena"}')
    server.ended(run)
    server.until(lambda: bool(server.call("GET", "/admin/warmth?window=5m")["decisions"]))
    return server


def open_page(page: Page, path: str) -> None:
    page.goto(path)
    expect(page.locator("#badge")).to_have_text(re.compile(r"^Live, "))


def living(server: DevServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.call("GET", "/workers?health=healthy")["workers"]
    return found


def test_it_follows_a_worker_that_is_killed_and_one_that_is_started(page: Page, decided: DevServer) -> None:
    before = living(decided)
    killed = before[0]
    open_page(page, "/warmth?by=worker")
    row = page.locator(f"[id='g-{killed['worker_id']}']")
    expect(row.locator(".state")).to_have_text("Active", timeout=MEASURED_MS)
    page.locator("#twin summary").click()
    expect(page.locator("#twin table")).to_be_visible()
    focused = row.get_by_role("link")
    focused.focus()
    page.evaluate("getSelection().selectAllChildren(document.getElementById('wc-title'))")

    os.kill(killed["pid"], signal.SIGKILL)
    expect(row.locator(".state")).to_have_text(re.compile("Stale|Stopped"), timeout=LOST_MS)
    known = {worker["worker_id"] for worker in before}
    decided.until(lambda: any(worker["worker_id"] not in known for worker in living(decided)))
    started = next(worker for worker in living(decided) if worker["worker_id"] not in known)
    expect(page.locator(f"[id='g-{started['worker_id']}'] .state")).to_have_text("Active", timeout=MEASURED_MS)
    expect(page.get_by_label("Workers that came or went")).to_contain_text(f"{started['name']} came")

    expect(focused).to_be_focused()
    expect(page.locator("#twin table")).to_be_visible()
    assert page.evaluate("getSelection().toString()") == "Why decisions were not warm"


def test_windows_and_groups_are_links_that_can_be_shared(page: Page, decided: DevServer) -> None:
    open_page(page, "/warmth")
    page.get_by_role("navigation", name="Window").get_by_role("link", name="1 hour").click()
    expect(page).to_have_url(re.compile(r"/warmth\?window=1h$"))
    page.get_by_role("navigation", name="Group by").get_by_role("link", name="Queue").click()
    expect(page).to_have_url(re.compile(r"/warmth\?window=1h&by=queue#groups$"))
    expect(page.locator("#by-title")).to_have_text("By queue")
    expect(page.locator("#groups tbody")).to_contain_text("default")


def test_the_decisions_of_a_run_come_to_its_tab_by_themselves(page: Page, server: DevServer) -> None:
    run = server.start("order_flow", {"card": "4242 4242", "cents": 700}, workflow_id="decided-order")
    page.goto(f"/w/{run}")
    page.get_by_role("link", name="Decisions").click()
    lanes = page.locator("#decisions .lanes li")
    expect(lanes.last).to_contain_text("first decision of a run", timeout=MEASURED_MS)
    server.until(lambda: any("Timer" in event["type"] for event in _events(server, run)))
    server.signal(run, "approved", b'{"by":"lena"}')
    server.ended(run)
    page.get_by_role("link", name="Each its own").click()
    expect(page).to_have_url(re.compile(r"scale=each"))
    page.get_by_role("navigation", name="How to show the decisions").get_by_role("link", name="Table").first.click()
    rows = page.locator("#decisions tbody tr")
    expect(rows.last).to_contain_text("whole history")
    expect(rows.last.get_by_role("link")).to_have_attribute("href", re.compile(r"/workers/[0-9a-f-]{36}$"))


def _events(server: DevServer, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.call("GET", f"/workflows/{run}/history")["events"]
    return found
