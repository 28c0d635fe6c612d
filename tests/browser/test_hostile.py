"""Payloads, ids and names are hostile and huge: shown as what they are, exactly, and never run (R66 to R76)."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import wait_until_waiting
from tests.browser.server import DevServer

SCRIPT = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>"
WORKFLOW_ID = f"{SCRIPT}'\"`{{{{7*7}}}} a/b%2Fc?d#e&f=g \u202egnp.exe " + "x" * 1500


@pytest.fixture(scope="module")
def hostile_run(server: DevServer) -> str:
    """A run whose id, input and signals try everything; its input has 5 MB."""
    note = SCRIPT + "\u0000\u202e" + "y" * 5_000_000
    given = {"card": SCRIPT, "cents": 1, "items": [SCRIPT], "note": note}
    run = server.start("order_flow", given, workflow_id=WORKFLOW_ID)
    wait_until_waiting(server, run)
    payload = b'{"n":12345678901234567890123,"f":1.10,"s":"' + b"z" * 3000 + b'"}'
    server.signal(run, SCRIPT[:60].replace("/", ""), payload)
    return run


def test_the_run_page_shows_it_as_text_and_stays_small(page: Page, hostile_run: str) -> None:
    answer = page.goto(f"/w/{hostile_run}")
    assert answer is not None
    assert len(answer.body()) < 150_000
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(re.escape("<script>alert(1)</script>")))
    assert page.locator("#workflow-id").evaluate("one => one.textContent") == WORKFLOW_ID
    expect(page.locator("#input")).to_contain_text("<img src=x onerror=alert(2)>")
    expect(page.locator("#input-body")).to_contain_text("The first part of 5.0 MB.")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_more_of_it_comes_on_demand_and_the_whole_as_a_download(page: Page, hostile_run: str) -> None:
    page.goto(f"/w/{hostile_run}")
    page.get_by_role("link", name="Show 64 kB").click()
    expect(page.locator("#input-body")).to_contain_text("The first 64 kB of 5.0 MB.")
    assert 60_000 < len(page.locator("#input-body pre").inner_text()) <= 65_536
    with page.expect_download() as download:
        page.locator("#input-body").get_by_role("link", name="Download").click()
    assert json.loads(download.value.path().read_bytes())["note"].endswith("y" * 1000)


def test_a_signal_unfolds_to_the_digit(page: Page, hostile_run: str) -> None:
    page.goto(f"/w/{hostile_run}")
    row = page.locator("#history tr", has_text="SignalReceived")
    row.locator("summary").click()
    expect(row.locator("pre")).to_contain_text("12345678901234567890123")
    expect(row.locator("pre")).to_contain_text("1.10")


def test_the_list_and_its_filter_take_the_id_as_it_is(page: Page, hostile_run: str) -> None:
    page.goto("/workflows")
    page.locator("#search").fill(WORKFLOW_ID.replace("\n", ""))
    page.get_by_role("button", name="Apply").click()
    link = page.locator(f"#r{hostile_run} th a")
    assert link.evaluate("one => one.textContent") == WORKFLOW_ID
    assert page.locator("#search").input_value() == WORKFLOW_ID
    link.click()
    expect(page).to_have_url(re.compile(hostile_run))


@pytest.mark.parametrize(
    "path",
    [
        "/workflows?state={}&type={}&id={}&after={}&tz={}&cursor={}",
        "/audit?who={}&target={}&operation={}&since={}&cursor={}",
        "/workflows/start?type={}&tab={}",
        "/w/{}",
        "/signin?token={}&next={}",
    ],
)
def test_what_an_address_says_is_only_ever_text(page: Page, path: str) -> None:
    evil = "%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E"
    page.goto(path.replace("{}", evil))
    expect(page.locator("main, body").first).to_be_visible()
    assert page.locator("script:not([src])").count() == 0
