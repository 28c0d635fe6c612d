"""The history of a run in a browser: in short and in full, filtered, unfolded, and as a file."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import wait_until_waiting
from tests.browser.rows import Family
from tests.browser.server import DevServer


def test_in_short_an_activity_is_one_line_and_in_full_all_of_its_events(page: Page, completed_run: str) -> None:
    page.goto(f"/w/{completed_run}/history")
    charge = page.locator("#history tr", has_text="charge")
    expect(charge).to_have_count(1)
    expect(charge.locator(".state")).to_have_text("completed")
    page.get_by_role("link", name="Full", exact=True).click()
    expect(page).to_have_url(re.compile("view=full"))
    assert page.locator("#history tr", has_text="charge").count() >= 3
    page.get_by_role("link", name="Newest first").click()
    expect(page.locator("#history tbody tr").first).to_contain_text("WorkflowCompleted")


def test_rows_that_lead_to_a_run_are_as_high_as_others(page: Page, family: Family) -> None:
    page.goto(f"/w/{family.parent}/history?view=full")
    rows = page.locator("#history tbody tr")
    expect(rows.filter(has=page.locator(".go")).first).to_be_visible()
    heights = rows.evaluate_all(
        "rows => rows.map(row => [!!row.querySelector('.go'), Math.round(row.getBoundingClientRect().height)])"
    )
    when = rows.locator("td:last-child").first.bounding_box()
    assert when is not None
    assert when["x"] + when["width"] <= 1440
    leading = [height for leads, height in heights if leads]
    assert min(leading) <= min(height for leads, height in heights if not leads) + 1


def test_a_line_unfolds_what_was_asked_for_and_what_came_of_it(page: Page, completed_run: str) -> None:
    page.goto(f"/w/{completed_run}/history")
    charge = page.locator("#history tr", has_text="charge")
    charge.locator("summary").click()
    expect(charge.locator("pre")).to_have_count(2)
    expect(charge.locator("pre").first).to_contain_text("4242 4242")
    expect(charge.locator("pre").last).to_contain_text("ch_")


def test_kinds_are_chosen_without_scripts(
    browser: Browser, server: DevServer, signed_in: object, family: Family
) -> None:
    context = browser.new_context(base_url=server.base, storage_state=signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"/w/{family.parent}/history")
    page.get_by_role("link", name=re.compile("^Failures")).click()
    rows = page.locator("#history tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("ActivityFailed")
    expect(rows.first).to_contain_text("<i>charge</i>, attempt 2: CardDeclined: no <b>money</b>")
    page.get_by_role("link", name=re.compile("^Timers")).click()
    expect(rows).to_have_count(4)
    page.get_by_role("link", name="All", exact=True).click()
    expect(page.get_by_role("link", name="All", exact=True)).to_have_attribute("aria-current", "true")
    context.close()


def test_the_document_is_a_file(page: Page, completed_run: str) -> None:
    page.goto(f"/w/{completed_run}/history")
    with page.expect_download() as download:
        page.get_by_role("link", name="with their sizes alone").click()
    assert download.value.suggested_filename == f"{completed_run}-history-redacted.json"
    document = json.loads(download.value.path().read_bytes())
    assert document["payload_policy"] == "redacted"
    assert "4242" not in json.dumps(document)


def test_a_line_that_is_unfolded_stays_so_while_the_run_goes_on(page: Page, server: DevServer) -> None:
    run = wait_until_waiting(server, server.start("order_flow", {"cents": 600}, workflow_id="short-history"))
    page.goto(f"/w/{run}/history")
    expect(page.locator("#badge")).to_have_text(re.compile("^Live"))
    reserve = page.locator("#history tr", has_text="reserve")
    reserve.locator("summary").click()
    expect(reserve.locator("pre").first).to_be_visible()
    server.signal(run, "approved", b'{"by":"lena"}')
    expect(page.locator("#history")).to_contain_text("WorkflowCompleted")
    expect(page.locator("#run-head .state")).to_have_text("Completed")
    expect(reserve.locator("pre").first).to_be_visible()


def test_every_tab_of_a_run_is_a_link_that_says_where_one_is(page: Page, waiting_run: str) -> None:
    page.goto(f"/w/{waiting_run}")
    tabs = page.get_by_role("navigation", name="Pages of this run")
    for name in ("History", "Timeline", "Tree", "Runs"):
        tabs.get_by_role("link", name=name).click()
        expect(tabs.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
        expect(page.get_by_role("heading", level=1)).to_have_text("waiting-order")
