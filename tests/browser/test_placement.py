"""The start form shows where a run would live, with scripts as people choose, and without them by a button."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, Page, expect

from tests.browser.server import DevServer


def test_the_shard_is_shown_as_it_is_chosen_and_the_run_goes_there(page: Page, server: DevServer) -> None:
    page.goto("/workflows/start?type=order_flow")
    target = page.locator("#start-target")
    expect(target).to_contain_text(re.compile(r"It would run on shard [01]"))
    for shard in ("0", "1"):
        with page.expect_response("**/_f/workflows/start/placement*") as asked:
            page.get_by_label("Placement").select_option(f"shard:{shard}")
        sent = parse_qs(urlsplit(asked.value.url).query, keep_blank_values=True)
        assert sent.keys() <= {"type", "key", "placement", "workflow_id"}, "the input stays out of addresses"
        expect(target).to_contain_text(f"It would run on shard {shard}")
    page.get_by_label("cents").fill("700")
    page.get_by_role("button", name="Start order_flow").click()
    expect(page).to_have_url(re.compile("did=started"))
    run = page.url.partition("/w/")[2].partition("?")[0]
    assert server.call("GET", f"/workflows/{run}")["shard_id"] == 1


def test_what_an_id_leads_to_follows_the_typing_and_keeps_the_focus(page: Page) -> None:
    page.goto("/workflows/start?type=order_flow")
    field = page.get_by_label("Workflow id")
    field.press_sequentially("order-77")
    expect(page.locator("#start-target")).to_contain_text("As order-77, partition")
    expect(field).to_be_focused()
    expect(field).to_have_value("order-77")


def test_the_choice_is_made_with_the_keyboard_alone(page: Page) -> None:
    page.goto("/workflows/start?type=order_flow")
    page.get_by_label("Workflow id").focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    expect(page.get_by_label("Placement")).to_be_focused()
    page.keyboard.type("Shard 1")
    expect(page.locator("#start-target")).to_contain_text("It would run on shard 1")
    expect(page.get_by_label("Placement")).to_be_focused()


def test_without_scripts_a_button_shows_it_and_keeps_what_was_typed(
    browser: Browser, server: DevServer, signed_in: Any
) -> None:
    context = browser.new_context(base_url=server.base, storage_state=signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto("/workflows/start?type=order_flow")
    page.get_by_label("cents").fill("5")
    page.get_by_label("Placement").select_option("shard:1")
    page.get_by_role("button", name="Show where it would run").click()
    expect(page.locator("#start-target")).to_contain_text("It would run on shard 1")
    expect(page.get_by_label("cents")).to_have_value("5")
    expect(page.get_by_label("Placement")).to_have_value("shard:1")
    context.close()


def test_a_placement_that_is_refused_is_told_beside_its_field(page: Page) -> None:
    page.goto("/workflows/start?type=order_flow")
    page.evaluate("document.querySelector('#placement').append(new Option('gone', 'shard:9', true, true))")
    page.get_by_label("cents").fill("700")
    page.get_by_role("button", name="Start order_flow").click()
    summary = page.get_by_role("alert")
    expect(summary).to_contain_text("shard 9 is not a placeable shard for this deployment", ignore_case=True)
    expect(summary).to_be_focused()
    field = page.get_by_label("Placement")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_value("shard:9")
    expect(page.get_by_label("cents")).to_have_value("700")
    expect(page.locator("#start-target .err")).to_contain_text("It would be refused")
