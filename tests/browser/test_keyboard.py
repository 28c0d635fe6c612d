"""The console by keyboard alone; no key changes anything but the view (console 5.9)."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect


def test_from_the_overview_to_a_run_and_its_signal_form(page: Page, waiting_run: str) -> None:
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(page.get_by_role("heading", level=1)).to_have_text("Workflows")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("waiting-order")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("id=waiting-order"))
    page.keyboard.press("j")
    page.keyboard.press("o")
    expect(page).to_have_url(re.compile(waiting_run))
    signal = page.get_by_role("link", name="Send a signal")
    for _ in range(30):
        if signal.evaluate("link => link === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Send a signal")


def test_the_skip_link_comes_first_and_leads_to_the_content(page: Page, waiting_run: str) -> None:
    page.goto("/workflows")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_the_list_of_shortcuts_opens_and_closes(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_shortcuts_can_be_switched_off(page: Page) -> None:
    page.goto("/")
    page.locator(".who summary").click()
    page.get_by_role("group", name="keys").get_by_role("button", name="Off").click()
    page.wait_for_load_state()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.locator(".who summary").click()
    page.get_by_role("group", name="keys").get_by_role("button", name="On").click()
    page.wait_for_load_state()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()


def test_theme_and_zone_are_kept(page: Page, waiting_run: str) -> None:
    page.goto(f"/w/{waiting_run}")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.locator(".scope summary").click()
    page.get_by_role("button", name="Europe/Berlin").click()
    expect(page).to_have_url(re.compile(waiting_run))
    expect(page.locator("#history thead")).to_contain_text("Time (Europe/Berlin)")
    expect(page.locator("#run-facts")).to_contain_text("CET")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
