"""Runs that belong together, in a browser: from a parent's history to a child, from the child to all of its family."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, Page, expect

from tests.browser.rows import LONG_ID, PARENT_ID, Family
from tests.browser.server import DevServer


def test_from_a_child_s_event_to_the_child_and_back_to_its_parent(page: Page, family: Family) -> None:
    page.goto(f"/w/{family.parent}")
    page.get_by_role("navigation", name="Pages of this run").get_by_role("link", name="History").click()
    failed = page.locator("#history tr", has_text="Lost: parcel")
    failed.get_by_role("link", name="ship_flow").click()
    expect(page).to_have_url(re.compile(family.there))
    assert page.locator("#workflow-id").evaluate("one => one.textContent") == LONG_ID
    page.locator("#run-head").get_by_role("link", name="Parent").click()
    expect(page.locator("#workflow-id")).to_have_text(PARENT_ID)


def test_the_tree_shows_every_run_with_its_state_and_place(page: Page, family: Family) -> None:
    page.goto(f"/w/{family.there}/tree")
    current = page.locator(".tree li[aria-current] > .node")
    expect(current).to_contain_text("this run")
    expect(current.locator(".state")).to_have_text("Failed")
    expect(current).to_contain_text("awaited, terminated with its parent, shard 1")
    expect(page.locator(".node")).to_have_count(6)
    expect(page.locator(".node").first).to_contain_text(PARENT_ID)
    page.locator(".node").first.get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"/w/{family.parent}$"))


def test_branches_fold_without_scripts_and_by_keyboard(
    browser: Browser, server: DevServer, signed_in: object, family: Family
) -> None:
    context = browser.new_context(base_url=server.base, storage_state=signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"/w/{family.parent}/tree")
    grandchild = page.get_by_role("link", name="grandchild")
    expect(grandchild).to_be_visible()
    page.locator(".tree summary").first.focus()
    page.keyboard.press("Enter")
    expect(grandchild).to_be_hidden()
    page.keyboard.press("Enter")
    expect(grandchild).to_be_visible()
    page.get_by_role("link", name="Fold all", exact=True).click()
    expect(page.get_by_role("link", name="grandchild")).to_be_hidden()
    page.locator(".tree summary").first.click()
    expect(page.get_by_text("2 earlier runs of its chain")).to_be_visible()
    context.close()


def test_a_large_family_leads_on_to_all_children(page: Page, family: Family) -> None:
    page.goto(f"/w/{family.large}/tree")
    expect(page.locator(".note.info")).to_contain_text("more than 200 runs")
    page.get_by_role("link", name="Show up to 1,000").click()
    expect(page.locator(".node")).to_have_count(301)
    page.go_back()
    page.get_by_role("link", name="All children of family_flow large-family").click()
    expect(page.locator("main tbody tr")).to_have_count(50)
    page.keyboard.press("]")
    expect(page).to_have_url(re.compile("cursor="))
    expect(page.locator("main tbody tr")).to_have_count(50)


def test_more_children_of_a_run_are_shown_in_its_tree_without_scripts(
    browser: Browser, server: DevServer, signed_in: object, family: Family
) -> None:
    context = browser.new_context(base_url=server.base, storage_state=signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"/w/{family.large}/tree")
    expect(page.locator(".node")).to_have_count(200)
    page.get_by_role("link", name="More children of family_flow large-family").click()
    expect(page).to_have_url(re.compile(f"more=.*#n{family.large}$"))
    expect(page.locator(".node")).to_have_count(102)
    page.get_by_role("link", name="From its first child").click()
    expect(page.locator(".node")).to_have_count(200)
    context.close()


def test_the_state_stands_beside_a_title_that_is_shorter_than_the_links_above_it(page: Page, family: Family) -> None:
    page.goto(f"/w/{family.child}")
    expect(page.locator("#run-head").get_by_role("link", name="Earlier run")).to_be_visible()
    page.locator("#workflow-id").evaluate("one => one.textContent = 'a'")
    copy = page.locator("#run-head [data-copy]").bounding_box()
    state = page.locator("#run-head .state").bounding_box()
    assert copy is not None
    assert state is not None
    assert state["x"] - (copy["x"] + copy["width"]) <= 16


def test_the_runs_of_a_chain_lead_to_each_other(page: Page, family: Family) -> None:
    page.goto(f"/w/{family.child}/runs")
    rows = page.locator("main tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("this run")
    expect(rows.nth(1)).to_contain_text("continued as new")
    rows.nth(1).get_by_role("link").click()
    expect(page.locator("#run-head .state")).to_have_text("Continued")
    page.locator("#run-head").get_by_role("link", name="Later run").click()
    expect(page).to_have_url(re.compile(family.child))
