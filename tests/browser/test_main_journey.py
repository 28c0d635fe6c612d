"""Must show 1: start an order from its form, watch it wait, approve it, watch it complete, find both acts."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.server import DevServer


@pytest.mark.prove_main_job
def test_an_order_is_started_approved_and_seen_to_complete_without_reloading(
    page: Page, context: BrowserContext
) -> None:
    page.goto("/workflows/start")
    page.get_by_role("link", name="order_flow").click()
    page.get_by_label("cents").fill("12900")
    page.get_by_role("button", name="Start order_flow").click()
    expect(page).to_have_url(re.compile(r"/w/[0-9a-f-]{36}\?did=started$"))
    page.evaluate("window.same = true")
    expect(page.locator("#run-now")).to_contain_text("Waiting for signal approved")

    # The signal is sent from another tab, so that this one has only its stream to learn from.
    form = context.new_page()
    form.goto(page.url.split("?")[0])
    form.get_by_role("link", name="Send a signal").click()
    form.get_by_label("by").fill("lena")
    form.get_by_role("button", name="Send approved").click()
    expect(form.locator(".note.info")).to_contain_text("The signal is in its history.")

    expect(page.locator("#run-head .state")).to_have_text("Completed")
    expect(page.locator("#result")).to_contain_text("approved_by")
    expect(page.locator("#history")).to_contain_text("WorkflowCompleted")
    assert page.evaluate("window.same") is True

    page.get_by_role("link", name="See it in the audit").click()
    acts = page.locator("main tbody tr")
    expect(acts).to_have_count(2)
    expect(acts.nth(0)).to_contain_text("workflow.signal")
    expect(acts.nth(1)).to_contain_text("workflow.start")
    expect(acts.nth(0)).to_contain_text("session:")


def test_all_of_it_works_without_scripts(browser: Browser, server: DevServer, signed_in: object) -> None:
    context = browser.new_context(base_url=server.base, storage_state=signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto("/workflows/start?type=order_flow")
    page.get_by_label("cents").fill("many")
    page.get_by_role("button", name="Add to items").click()
    page.locator('[name="v/items/0"]').fill("HV-01")
    page.get_by_role("button", name="Start order_flow").click()
    expect(page.get_by_role("alert")).to_contain_text("Must be a whole number, was “many”.")
    expect(page.locator('[name="v/items/0"]')).to_have_value("HV-01")
    page.get_by_label("cents").fill("700")
    page.get_by_role("button", name="Start order_flow").click()
    run = page.url.split("?")[0]

    page.goto(run + "/signal")
    page.get_by_label("by").fill("lena")
    page.get_by_role("button", name="Send approved").click()
    server.ended(run.rsplit("/", 1)[1])
    page.goto(run)
    expect(page.locator("#run-head .state")).to_have_text("Completed")
    page.locator("#history details summary").first.click()
    page.get_by_role("link", name="Show it").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"Event \d+"))
    context.close()


def test_a_link_is_spent_by_the_button_and_works_once(browser: Browser, server: DevServer, signed_in: object) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.link)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown, spent or expired")
    page.goto(server.base + "/workflows?state=FAILED")
    expect(page).to_have_url(re.compile(r"/signin\?next=%2Fworkflows%3Fstate%3DFAILED"))
    context.close()


def test_cancel_wants_a_reason_and_terminate_a_phrase(page: Page, server: DevServer) -> None:
    cancelled = server.start("order_flow", {"cents": 800}, workflow_id="to-cancel")
    page.goto(f"/w/{cancelled}")
    page.locator("#run-head").get_by_role("link", name="Cancel").click()
    page.get_by_role("button", name="Cancel this run").click()
    expect(page.get_by_role("alert")).to_contain_text("Reason: Needed")
    page.get_by_label("Reason").fill("customer asked")
    page.get_by_role("button", name="Cancel this run").click()
    expect(page.locator("#run-head .state")).to_have_text("Cancelled")

    terminated = server.start("order_flow", {"cents": 800}, workflow_id="to-terminate")
    page.goto(f"/w/{terminated}/terminate")
    page.get_by_label("Reason").fill("duplicate")
    page.locator("#phrase").fill("yes")
    page.get_by_role("button", name="Terminate this run").click()
    expect(page.get_by_role("alert")).to_contain_text("Type the word terminate")
    expect(page.get_by_label("Reason")).to_have_value("duplicate")
    page.locator("#phrase").fill("terminate")
    page.get_by_role("button", name="Terminate this run").click()
    expect(page.locator("#run-head .state")).to_have_text("Terminated")
    expect(page.locator("#run-now")).to_contain_text("“duplicate”")
    page.goto(f"/w/{terminated}/cancel")
    expect(page.locator("main")).to_contain_text("This run has ended already")
