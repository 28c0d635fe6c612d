"""The timeline in a browser: drawn where there is room, a table elsewhere, and both by keyboard."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.rows import Family

PHONE = {"width": 390, "height": 844}


def test_it_is_drawn_where_there_is_room_and_a_table_elsewhere(page: Page, family: Family) -> None:
    page.goto(f"/w/{family.parent}/timeline")
    drawing, table = page.locator("#drawing"), page.locator("#timeline table.lines")
    expect(drawing).to_be_visible()
    expect(table).to_be_hidden()
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    expect(drawing).to_be_hidden()
    expect(table).to_be_visible()
    page.locator("nav:visible", has_text="Table").get_by_role("link", name="Drawing").click()
    expect(drawing).to_be_visible()
    expect(table).to_have_count(0)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_role("link", name="Table").click()
    expect(page).to_have_url(re.compile("view=table"))
    expect(table.locator("tbody tr")).to_have_count(11)


def test_every_bar_says_what_it_is_and_how_it_ended_by_more_than_colour(page: Page, family: Family) -> None:
    page.goto(f"/w/{family.parent}/timeline")
    bars = page.locator("#drawing .lanes svg.track")
    expect(bars).to_have_count(11)
    titles = bars.locator("> title").all_text_contents()
    assert all(re.search(r": [a-z ]+, from May 1, 12:00:\d\d|: [a-z ]+, from May 3", title) for title in titles)
    texts = [re.sub(r"\s+", " ", one.inner_text()) for one in page.locator("#drawing .lanes li").all()]
    assert all(texts)
    failed = page.locator("#drawing .lanes li", has_text="<i>charge</i>").locator("rect.bar")
    assert failed.get_attribute("fill") == "url(#tl-failed)"
    expect(page.locator("#drawing .legend")).to_contain_text("timed out")
    # The two days in which nothing happens take up little of the width, and are told.
    expect(page.locator("#drawing .axis")).to_contain_text("2 d")
    last = bars.last.locator("rect.bar").bounding_box()
    assert last is not None
    assert last["width"] > 20


def test_it_is_walked_by_keyboard_and_leads_to_events_and_children(page: Page, family: Family) -> None:
    page.goto(f"/w/{family.parent}/timeline")
    first = page.locator("#drawing .lanes a").first
    first.focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="The run of ship_flow s/1")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#run-head .state")).to_have_text("Continued")
    page.go_back()
    page.locator("#drawing .lanes a", has_text="charge").click()
    expect(page).to_have_url(re.compile(r"/history\?at=\d+#e\d+$"))
    expect(page.locator("#history tr:target")).to_contain_text("ActivityScheduled")


def test_its_axis_is_in_the_readers_zone(page: Page, family: Family) -> None:
    page.goto(f"/w/{family.parent}/timeline")
    expect(page.locator("#drawing .axis").first).to_contain_text("UTC, a mark each")
    page.locator(".scope summary").click()
    page.get_by_role("button", name="Europe/Berlin").click()
    expect(page.locator("#drawing .axis").first).to_contain_text("Europe/Berlin, a mark each")
    expect(page.locator("#drawing .axis").first).to_contain_text("14:00:0")
    expect(page.locator("#drawing .lanes title").first).to_contain_text("14:00:00")


def test_a_run_that_goes_on_grows_by_itself(page: Page, waiting_run: str) -> None:
    page.goto(f"/w/{waiting_run}/timeline?view=table")
    expect(page.locator("#badge")).to_have_text(re.compile("^Live"))
    rows = page.locator("#timeline table.lines tbody tr")
    before = rows.count()
    assert before >= 3
    expect(rows.last).to_contain_text("under way")
