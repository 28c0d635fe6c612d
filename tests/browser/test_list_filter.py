"""The list's filter in a browser: conditions, completion, values to filter by, saved views, hostile values."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

import pytest
from playwright.sync_api import Browser, Page, expect

from harvest.history.states import State
from harvest.shards import Shards
from tests.browser.server import DevServer
from tests.browser.test_every_page import overflow, violations
from tests.browser.test_workers import on_shards
from tests.operations.population import Run, add

TYPE = "tagged_flow"
ACME = "attrs.tenant = 'acme'"
HOSTILE = "</code></td><script>alert(1)</script><img src=x onerror=alert(2)> \\u202egnp.exe 🎁 " + "x" * 1_500
ATTRIBUTES = (
    '{"tenant":"acme","amount":5}',
    '{"tenant":"acme","amount":50}',
    '{"tenant":"beta","amount":500,"tags":["a","b"]}',
    f'{{"tenant":"{HOSTILE}","<b>k</b> \\"q\\"":true,"kind":"{HOSTILE[:80]}","amount":1e300}}',
)


@pytest.fixture(scope="module", autouse=True)
def tagged(server: DevServer) -> None:
    """Runs with search attributes on both shards, the first of them the newest."""

    async def write(shards: Shards) -> None:
        for age, attributes in enumerate(ATTRIBUTES):
            run = Run(
                workflow_name=TYPE,
                workflow_id=f"tagged-{age}",
                state=State.FAILED if age == 1 else State.COMPLETED,
                age=3_600 + age,
                search_attributes=attributes,
            )
            await add(shards, age % 2, run)

    on_shards(server, write)


def ids(page: Page) -> list[str]:
    """The workflow ids of the rows that are shown."""
    return page.locator("#runs tr th a").all_inner_texts()


def shows(page: Page, *numbers: int) -> None:
    """Expect exactly these of the tagged runs."""
    expect(page.locator("#runs tr th a")).to_have_text([f"tagged-{number}" for number in numbers])


def test_a_condition_is_taken_away_by_keyboard(page: Page) -> None:
    expression = "attrs.tenant = 'acme' and attrs.amount > 10"
    page.goto(f"/workflows?type={TYPE}&filter={quote(expression)}")
    shows(page, 1)
    chips = page.locator("#conditions a")
    expect(chips).to_have_count(3)
    page.locator("#filter").focus()
    for _ in range(30):
        page.keyboard.press("Tab")
        if chips.nth(2).evaluate("chip => chip === document.activeElement"):
            break
    expect(chips.nth(2)).to_have_accessible_name("Take away: attrs.amount > 10")
    page.keyboard.press("Enter")
    expect(chips).to_have_count(2)
    assert "filter=attrs.tenant%20%3D%20%27acme%27" in page.url
    shows(page, 0, 1)


def test_what_is_typed_is_in_the_address(page: Page) -> None:
    page.goto(f"/workflows?type={TYPE}&order=asc&columns=attrs.tenant")
    page.locator("#filter").fill("attrs.tenant in ('acme', 'beta') and state = 'completed'")
    page.keyboard.press("Enter")
    shows(page, 2, 0)
    assert "attrs.tenant in ('acme', 'beta') and state = 'completed'" in unquote(page.url.replace("+", " "))
    assert page.locator("#filter").input_value() == "attrs.tenant in ('acme', 'beta') and state = 'completed'"
    assert "columns=attrs.tenant" in page.url


def test_a_wrong_filter_is_kept_with_its_place_marked_and_nothing_is_listed(page: Page) -> None:
    page.goto(f"/workflows?type={TYPE}&filter={quote('attrs.tenant ~ <b>')}")
    field = page.locator("#filter")
    assert field.input_value() == "attrs.tenant ~ <b>"
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_accessible_description(re.compile("Column 14"))
    expect(page.locator(".marked mark")).to_have_text("~")
    assert page.locator(".marked").inner_text().splitlines()[1] == " " * 13 + "^"
    expect(page.get_by_role("heading", name="Nothing is listed")).to_be_visible()
    expect(page.locator("#runs")).to_have_count(0)
    page.get_by_role("link", name="List without it").click()
    shows(page, 0, 1, 2, 3)


def test_a_value_in_a_cell_becomes_a_condition(page: Page) -> None:
    page.goto(f"/workflows?type={TYPE}&columns=attrs.tenant&columns=attrs.amount")
    page.locator("#runs tr").first.get_by_role("link", name="acme").click()
    shows(page, 0, 1)
    page.locator("#runs tr").nth(1).get_by_role("link", name="Failed").click()
    shows(page, 1)
    expect(page.locator("#conditions a code")).to_have_text(
        ["state = 'FAILED'", f"workflow_name = '{TYPE}'", "attrs.tenant = 'acme'"]
    )
    page.get_by_role("link", name="Hide the column attrs.amount").click()
    expect(page.locator("thead .attr")).to_have_count(1)
    shows(page, 1)


def test_a_runs_own_page_leads_to_those_with_the_same_value(page: Page) -> None:
    page.goto(f"/workflows?type={TYPE}")
    page.get_by_role("link", name="tagged-2").click()
    page.locator("#run-facts").get_by_role("link", name="beta").click()
    shows(page, 2)
    assert page.locator("#filter").input_value() == "attrs.tenant = 'beta'"


def test_a_filter_is_completed_by_keyboard(page: Page) -> None:
    page.goto(f"/workflows?type={TYPE}")
    field = page.get_by_role("combobox", name="Filter")
    options = page.get_by_role("option")
    field.press_sequentially("ten")
    expect(options.first).to_contain_text("attrs.tenant")
    expect(field).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    assert field.get_attribute("aria-activedescendant") == options.first.get_attribute("id")
    page.keyboard.press("Enter")
    expect(field).to_have_value("attrs.tenant ")
    expect(options.first).to_contain_text("=")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(field).to_have_value("attrs.tenant = ")
    expect(page.get_by_role("option", name="'acme'")).to_be_visible()
    assert violations(page) == []
    field.press_sequentially("'be")
    expect(options).to_have_count(1)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(field).to_have_value("attrs.tenant = 'beta' ")
    expect(options.first).to_contain_text("AND")
    page.keyboard.press("Escape")
    expect(page.locator("#completions")).to_be_hidden()
    expect(field).to_be_focused()
    page.keyboard.press("Enter")
    shows(page, 2)


def test_a_suggestion_can_be_pressed_and_leaves_the_focus_in_the_field(page: Page) -> None:
    page.goto("/workflows")
    field = page.get_by_role("combobox", name="Filter")
    field.press_sequentially("🎁")
    field.fill("")
    field.press_sequentially("sev")
    page.get_by_role("option", name="severity").click()
    expect(field).to_have_value("severity ")
    expect(field).to_be_focused()


def test_frequent_values_are_shown_on_demand_and_are_filters(page: Page) -> None:
    page.goto(f"/workflows?type={TYPE}")
    page.locator("#facets summary").click()
    panel = page.locator("#facet-values")
    panel.get_by_role("link", name="attrs.tenant", exact=True).click()
    acme = panel.locator("tr", has_text="acme")
    expect(acme.locator(".num")).to_have_text("2")
    expect(panel).to_contain_text("Counted among 4 runs")
    acme.get_by_role("link").click()
    shows(page, 0, 1)


def test_an_attribute_becomes_a_column_from_the_facets(page: Page) -> None:
    page.goto(f"/workflows?type={TYPE}&facet=attrs.tenant")
    page.get_by_role("link", name="Show as a column").click()
    expect(page.locator("thead .attr")).to_contain_text("attrs.tenant")
    expect(page.locator("#runs tr").first.locator(".attr")).to_have_text("acme")


def test_a_view_is_saved_opened_renamed_and_deleted(page: Page) -> None:
    page.goto(f"/workflows?type={TYPE}&filter={quote(ACME)}")
    page.locator("#views summary").click()
    page.get_by_role("link", name="Save this filter…").click()
    page.get_by_label("Name").fill("Acme <b>runs</b>")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Workflows Acme <b>runs</b>")
    shows(page, 0, 1)
    page.goto("/workflows")
    page.locator("#views summary").click()
    page.get_by_role("link", name="Acme <b>runs</b>").click()
    shows(page, 0, 1)
    page.locator("#views summary").click()
    page.get_by_role("link", name="Manage views").click()
    expect(page.locator("tbody tr")).to_contain_text(["attrs.tenant = 'acme'"])
    page.get_by_role("link", name="Rename or delete Acme <b>runs</b>").click()
    assert violations(page) == []
    page.get_by_label("Name").fill("Of acme")
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_role("link", name="Of acme", exact=True)).to_be_visible()
    page.get_by_role("link", name="Rename or delete Of acme").click()
    page.get_by_role("button", name="Delete this view").click()
    expect(page.get_by_role("heading", name="No view is saved yet")).to_be_visible()


@pytest.mark.parametrize("width", [390, 1440])
def test_hostile_values_are_text_and_push_nothing_aside(page: Page, width: int) -> None:
    key = quote('attrs."<b>k</b> ""q"""')
    page.set_viewport_size({"width": width, "height": 900})
    answer = page.goto(f"/workflows?type={TYPE}&columns=attrs.tenant&columns={key}&columns=attrs.kind&facet=attrs.kind")
    assert answer is not None
    assert len(answer.body()) < 150_000
    row = page.locator("#runs tr", has_text="tagged-3")
    expect(row).to_contain_text("<script>alert(1)</script>")
    expect(row.get_by_role("link", name="true")).to_be_visible()
    expect(page.locator("#facet-values")).to_contain_text("<script>alert(1)</script>")
    assert page.locator("script:not([src])").count() == 0
    assert overflow(page) <= 0
    assert violations(page) == []
    row.get_by_role("link", name="true").click()
    shows(page, 3)
    expect(page.locator("#conditions")).to_contain_text("<b>k</b>")
    assert overflow(page) <= 0
    page.goto(f"/workflows?id={quote('x' * 1_800)}&filter={quote('attrs.tenant = ' + chr(39) + 'y' * 1_500 + chr(39))}")
    expect(page.locator("#conditions a")).to_have_count(2)
    assert overflow(page) <= 0


def test_without_scripts_it_is_a_form_and_links(browser: Browser, server: DevServer, signed_in: Any) -> None:
    context = browser.new_context(java_script_enabled=False, base_url=server.base, storage_state=signed_in)
    page = context.new_page()
    try:
        page.goto(f"/workflows?type={TYPE}")
        page.locator("#filter").fill("attrs.amount < 100")
        page.get_by_role("button", name="Apply").click()
        shows(page, 0, 1)
        page.locator("#conditions a", has_text="attrs.amount").click()
        shows(page, 0, 1, 2, 3)
        page.locator("#facets summary").click()
        page.get_by_role("link", name="Show the most frequent values").click()
        page.locator("#facet-values").get_by_role("link", name="attrs.tenant", exact=True).click()
        page.locator("#facet-values tr", has_text="beta").get_by_role("link").click()
        shows(page, 2)
    finally:
        context.close()
