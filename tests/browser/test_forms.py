"""Forms made from schemas: what is typed is kept, what is stored is exact (console 5.5)."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.server import DevServer


def test_a_refused_input_is_shown_at_its_field(page: Page) -> None:
    page.goto("/workflows/start?type=order_flow")
    page.get_by_label("card").fill("abc")
    page.get_by_label("cents").fill("0")
    page.get_by_role("button", name="Start order_flow").click()
    summary = page.get_by_role("alert")
    expect(summary).to_contain_text("2 things to mend")
    expect(summary).to_be_focused()
    cents = page.get_by_label("cents")
    expect(cents).to_have_value("0")
    expect(cents).to_have_attribute("aria-invalid", "true")
    summary.get_by_role("link", name="cents").click()
    expect(cents).to_be_in_viewport()


def test_the_raw_tab_keeps_the_text_to_the_digit(page: Page, server: DevServer) -> None:
    text = '{"card":"4242 4242", "cents":12345678901234567890123,\n "note": "1.10"}'
    page.goto("/workflows/start?type=order_flow&tab=raw")
    page.locator("#raw").fill(text)
    page.get_by_role("button", name="Fields").click()
    expect(page.get_by_label("cents")).to_have_value("12345678901234567890123")
    page.get_by_role("button", name="Raw JSON").click()
    page.locator("#raw").fill(text)
    page.get_by_role("button", name="Start order_flow").click()
    expect(page).to_have_url(re.compile("did=started"))
    expect(page.locator("#input")).to_contain_text('"cents": 12345678901234567890123')
    with page.expect_download() as download:
        page.evaluate("document.querySelector('#history')")
        page.goto(page.url.split("?")[0] + "/payload/input")
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_text() == text


def test_what_the_fields_cannot_hold_stays_on_the_raw_tab(page: Page) -> None:
    page.goto("/workflows/start?type=order_flow&tab=raw")
    page.locator("#raw").fill('{"cents": 5, "colour": "red"}')
    page.get_by_role("button", name="Fields").click()
    expect(page.locator(".note.info")).to_contain_text("The fields cannot hold this exactly")
    expect(page.locator("#raw")).to_have_value('{"cents": 5, "colour": "red"}')
    page.locator("#raw").fill('{"cents": 5,}')
    page.get_by_role("button", name="Start order_flow").click()
    expect(page.get_by_role("alert")).to_contain_text("Is not JSON")


def test_items_come_and_go_and_the_preview_follows(page: Page) -> None:
    page.goto("/workflows/start?type=order_flow")
    for place, sku in enumerate(["A", "B", "C"]):
        page.get_by_role("button", name="Add to items").click()
        page.locator(f'[name="v/items/{place}"]').fill(sku)
    page.get_by_role("button", name="Take items 2 away").click()
    expect(page.locator('[name="v/items/1"]')).to_have_value("C")
    page.get_by_label("cents").fill("42")
    expect(page.locator("#preview")).to_contain_text('"items": ["A", "C"]')
    expect(page.locator("#preview")).to_contain_text('"cents": 42')


def test_a_form_sent_twice_starts_one_run(page: Page) -> None:
    page.goto("/workflows/start?type=order_flow")
    typed: dict[str, str] = page.evaluate("Object.fromEntries(new FormData(document.querySelector('#payload-form')))")
    first = page.request.post("/workflows/start", form=typed)
    again = page.request.post("/workflows/start", form=typed)
    assert first.url.endswith("?did=started")
    assert again.url == first.url.replace("did=started", "did=repeated")


def test_a_single_number_is_a_single_field(page: Page) -> None:
    page.goto("/workflows/start?type=nightly_ledger")
    page.get_by_label("hours").fill("0.000001")
    page.get_by_role("button", name="Start nightly_ledger").click()
    expect(page.locator("#run-head .state")).to_have_text("Completed")
    expect(page.locator("#input")).to_have_text("0.000001")


def test_the_type_is_offered_when_a_closed_run_is_started_again(page: Page, completed_run: str) -> None:
    page.goto(f"/w/{completed_run}")
    page.get_by_role("link", name="Start another").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("order_flow")
