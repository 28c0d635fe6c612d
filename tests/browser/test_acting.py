"""What people do to a run beside ending it: update, ask, look where it stands, pause and resume."""

from __future__ import annotations

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import wait_until_waiting
from tests.browser.server import DevServer
from tests.browser.test_every_page import RULES

PAGES = {
    "update form": ("{held}", "/update"),
    "update form, raw": ("{waiting}", "/update?tab=raw"),
    "query form": ("{waiting}", "/query"),
    "no such query": ("{waiting}", "/query?name=nothing"),
    "query of an ended run": ("{ended}", "/query"),
    "stack": ("{waiting}", "/stack"),
    "stack of a paused run": ("{held}", "/stack"),
    "stack of an ended run": ("{ended}", "/stack"),
    "pause": ("{waiting}", "/pause"),
    "pause of a paused run": ("{held}", "/pause"),
    "resume": ("{held}", "/resume"),
    "resume of a run that is not paused": ("{waiting}", "/resume"),
    "paused run": ("{held}", ""),
}


def order(server: DevServer, workflow_id: str) -> str:
    """An order that waits for its approval."""
    return wait_until_waiting(server, server.start("order_flow", {"cents": 600}, workflow_id=workflow_id))


@pytest.fixture(scope="module")
def held(server: DevServer) -> str:
    """An order that is paused until the end of the session, with a reason that is hard to show."""
    run = order(server, "held-order")
    server.call("POST", f"/workflows/{run}/pause", b'{"reason": "<b>wait</b> ' + b"x" * 400 + b'"}')
    return run


def check(page: Page) -> None:
    """What holds on every page: no violation by axe, no sideways scrolling on a phone."""
    found: Any = Axe().run(page, options=RULES).response["violations"]
    assert [(one["id"], [node["target"] for node in one["nodes"]]) for one in found] == []
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 844})
        beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert beyond <= 0
    page.set_viewport_size({"width": 1440, "height": 900})


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page(page: Page, waiting_run: str, completed_run: str, held: str, name: str, theme: str) -> None:
    run, path = PAGES[name]
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.goto(f"/w/{run.format(waiting=waiting_run, held=held, ended=completed_run)}{path}")
    check(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_answers(page: Page, server: DevServer, held: str, theme: str) -> None:
    """An answer of a query, of an update, one that is refused by its schema, and one that has not come."""
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    run = order(server, f"answers-{theme}")
    page.goto(f"/w/{run}/query?name=status")
    page.get_by_role("button", name="Ask status").last.click()
    expect(page.locator("#answer")).to_contain_text('"status": "waits for its approval"')
    expect(page.get_by_role("heading", name="Answer of status")).to_be_focused()
    check(page)
    page.goto(f"/w/{run}/update")
    page.get_by_label("text").fill("y" * 201)
    page.get_by_role("button", name="Send change_note").last.click()
    expect(page.get_by_role("alert")).to_be_focused()
    check(page)
    page.get_by_label("text").fill("<i>gift</i>")
    page.get_by_role("button", name="Send change_note").last.click()
    expect(page.locator("#answer")).to_have_text("\"the note is '<i>gift</i>' now\"")
    check(page)
    page.goto(f"/w/{held}/update")
    page.get_by_label("text").fill("later")
    page.get_by_role("button", name="Send change_note").last.click()
    expect(page.locator("#update-answer")).to_contain_text("not answered yet")
    check(page)


def test_an_answer_comes_to_the_page_that_waits_for_it(page: Page, context: BrowserContext, server: DevServer) -> None:
    run = order(server, "answer-comes")
    server.call("POST", f"/workflows/{run}/pause", b"{}")
    page.goto(f"/w/{run}/update")
    page.get_by_label("text").fill("at last")
    page.get_by_role("button", name="Send change_note").last.click()
    expect(page.locator("#update-answer")).to_contain_text("The run is paused")
    expect(page.locator("#badge")).to_have_text(re.compile(r"^Live"))
    page.evaluate("window.same = true")
    server.call("POST", f"/workflows/{run}/resume", b"{}")
    expect(page.locator("#answer")).to_have_text("\"the note is 'at last' now\"")
    assert page.evaluate("window.same") is True


def test_a_pause_and_a_resume_are_seen_where_the_run_is_shown(
    page: Page, context: BrowserContext, server: DevServer
) -> None:
    run = order(server, "pause-and-resume")
    watching, listed = context.new_page(), context.new_page()
    watching.goto(f"/w/{run}")
    listed.goto("/workflows?id=pause-and-resume")
    for tab in (watching, listed):
        expect(tab.locator("#badge")).to_have_text(re.compile(r"^Live"))
        tab.evaluate("window.same = true")

    page.goto(f"/w/{run}")
    page.locator("#more summary").click()
    page.get_by_role("link", name="Pause run").click()
    page.get_by_label("Reason").fill("the bank asks us to wait")
    page.get_by_role("button", name="Pause this run").click()
    expect(page.locator(".note.info")).to_contain_text("It is paused")
    expect(watching.locator("#run-head .state")).to_have_text("Paused")
    expect(watching.locator("#run-now")).to_contain_text("the bank asks us to wait")
    expect(listed.locator(f"#r{run} .state")).to_have_text("Paused")

    page.locator("#run-head").get_by_role("link", name="Resume run").click()
    expect(page.locator("main")).to_contain_text("the bank asks us to wait")
    page.get_by_role("button", name="Resume this run").click()
    expect(watching.locator("#run-head .state")).to_have_text("Running")
    expect(watching.locator("#run-now")).to_contain_text("Waiting for signal approved. Nothing holds it back.")
    expect(listed.locator(f"#r{run} .state")).to_have_text("Running")
    assert [tab.evaluate("window.same") for tab in (watching, listed)] == [True, True]


def test_the_stack_shows_the_line_and_what_it_waits_for(page: Page, waiting_run: str) -> None:
    page.goto(f"/w/{waiting_run}")
    page.get_by_role("link", name="Stack").click()
    frame = page.locator(".frames li").last
    expect(frame).to_contain_text('await ctx.wait_for_signal("approved", Approval, timeout=timedelta(days=2))')
    expect(frame).to_contain_text("examples/shop.py:")
    expect(page.get_by_role("table")).to_contain_text("approved")
    expect(page.get_by_role("table")).to_contain_text("timer")


def test_all_of_it_works_without_scripts(browser: Browser, server: DevServer, signed_in: object) -> None:
    run = order(server, "without-scripts")
    context = browser.new_context(base_url=server.base, storage_state=signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"/w/{run}")
    page.get_by_role("link", name="Update").click()
    page.get_by_label("text").fill("no scripts")
    page.get_by_role("button", name="Send change_note").last.click()
    expect(page.locator("#answer")).to_contain_text("no scripts")
    page.goto(f"/w/{run}")
    page.get_by_role("link", name="Query").click()
    page.get_by_role("button", name="Ask status").last.click()
    expect(page.locator("#answer")).to_contain_text('"note": "no scripts"')
    page.goto(f"/w/{run}/pause")
    page.get_by_role("button", name="Pause this run").click()
    expect(page.locator("#run-head .state")).to_have_text("Paused")
    page.get_by_role("link", name="Resume run").click()
    page.get_by_role("button", name="Resume this run").click()
    expect(page.locator("#run-head .state")).to_have_text("Running")
    context.close()
