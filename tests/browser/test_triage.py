"""Who looks after a run, how bad it is, and a note: shown, changed and found again in a browser."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.server import DevServer
from tests.browser.test_acting import check, order

HOSTILE = "<b>call</b> \u202egnp.exe 🎁 " + "x" * 300


def triage(server: DevServer, run: str, **fields: str | None) -> None:
    """Set fields through the API."""
    server.call("PATCH", f"/workflows/{run}/triage", json.dumps(fields).encode())


@pytest.fixture(scope="module")
def triaged(server: DevServer) -> str:
    """An order of which everything is said, in texts that are hard to show."""
    run = order(server, "triaged-order")
    triage(server, run, owner="payments-" + "o" * 200, severity="sev1", note=HOSTILE + "\n\n" + "line\n" * 60)
    return run


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_run_the_form_and_the_list_hold_what_pages_hold(
    page: Page, triaged: str, completed_run: str, theme: str
) -> None:
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    for path in (
        f"/w/{triaged}",
        f"/w/{triaged}/triage",
        f"/w/{completed_run}/triage",
        "/workflows?columns=owner&columns=severity&severity=sev1",
        "/workflows?facet=severity",
    ):
        page.goto(path)
        check(page)
    page.goto(f"/w/{triaged}/triage")
    page.get_by_label("Owner").fill("o" * 300)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_be_focused()
    check(page)


def test_it_is_set_and_cleared_where_the_run_is_shown(page: Page, server: DevServer) -> None:
    run = order(server, "triaged-set")
    page.goto(f"/w/{run}")
    expect(page.locator("#run-triage")).to_contain_text("no owner, no severity, no note")
    page.get_by_role("link", name="Set the triage").click()
    page.get_by_label("Owner").fill("payments")
    page.get_by_role("radio", name="sev2").check()
    page.get_by_label("Note").fill("the bank\nis away")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("main .note.info").first).to_contain_text("Its triage is changed.")
    card = page.locator("#run-triage")
    expect(card.locator(".sev2")).to_have_text("sev2")
    expect(page.locator("#triage-note")).to_have_text("the bank\nis away")
    expect(page.locator("#run-head .sev2")).to_be_visible()
    page.get_by_role("link", name="See it in the audit").click()
    expect(page.locator("tbody tr").first).to_contain_text("owner, severity, note")

    page.goto(f"/w/{run}/triage")
    expect(page.get_by_role("radio", name="sev2")).to_be_checked()
    page.get_by_label("Owner").fill("")
    page.get_by_role("radio", name="None").check()
    page.get_by_label("Note").fill("")
    page.get_by_role("button", name="Save").click()
    expect(card).to_contain_text("no owner, no severity, no note")


def test_owner_and_severity_lead_to_the_runs_with_the_same(page: Page, server: DevServer) -> None:
    run, other = order(server, "triaged-mine"), order(server, "triaged-other")
    triage(server, run, owner="lena", severity="sev3")
    triage(server, other, owner="omar", severity="sev4")
    for link in ("lena", "sev3"):
        page.goto(f"/w/{run}")
        page.locator("#run-triage").get_by_role("link", name=link).click()
        expect(page.locator(f"#r{run}")).to_be_visible()
        expect(page.locator(f"#r{other}")).to_have_count(0)
    page.goto("/workflows?columns=severity&columns=owner")
    chips = page.get_by_role("group", name="Severity")
    chips.get_by_role("link", name="sev4").click()
    expect(page.locator(f"#r{other} .sev4")).to_have_text("sev4")
    expect(page.locator(f"#r{run}")).to_have_count(0)
    chips.get_by_role("link", name="sev4").click()
    expect(page.locator(f"#r{run}")).to_be_visible()


def test_what_is_too_long_is_told_at_its_field_and_what_was_typed_is_kept(page: Page, server: DevServer) -> None:
    run = order(server, "triaged-long")
    page.goto(f"/w/{run}/triage")
    page.get_by_label("Owner").fill("é" * 200)
    page.get_by_role("radio", name="sev1").check()
    page.get_by_label("Note").fill("kept")
    page.get_by_role("button", name="Save").click()
    alert = page.get_by_role("alert")
    expect(alert).to_be_focused()
    expect(alert).to_contain_text("Owner has 400 bytes; at most 255 are allowed.")
    owner = page.get_by_label("Owner")
    expect(owner).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("radio", name="sev1")).to_be_checked()
    expect(page.get_by_label("Note")).to_have_value("kept")
    alert.get_by_role("link", name="Owner").press("Enter")
    expect(owner).to_be_focused()
    owner.fill("lena")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#run-triage")).to_contain_text("lena")


def test_what_another_has_set_meanwhile_stays(page: Page, server: DevServer) -> None:
    run = order(server, "triaged-meanwhile")
    page.goto(f"/w/{run}/triage")
    triage(server, run, note="I look at it")
    page.get_by_label("Owner").fill("lena")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#run-triage")).to_contain_text("lena")
    expect(page.locator("#triage-note")).to_have_text("I look at it")


def test_a_forged_form_is_refused(page: Page, server: DevServer) -> None:
    run = order(server, "triaged-forged")
    page.goto(f"/w/{run}/triage")
    page.evaluate("document.querySelector('main input[name=csrf]').value = 'forged'")
    page.get_by_label("Owner").fill("mallory")
    with page.expect_response(re.compile("/triage$")) as answer:
        page.get_by_role("button", name="Save").click()
    assert answer.value.status == 403
    assert server.call("GET", f"/workflows/{run}")["owner"] is None


def test_it_is_done_by_keyboard_alone(page: Page, server: DevServer) -> None:
    run = order(server, "triaged-keys")
    page.goto(f"/w/{run}")
    page.locator("#triage").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Owner").focus()
    page.keyboard.type("lena")
    page.keyboard.press("Tab")
    expect(page.get_by_role("radio", name="None")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("radio", name="sev1")).to_be_checked()
    page.keyboard.press("Tab")
    page.keyboard.type("typed")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    card = page.locator("#run-triage")
    expect(card.locator(".sev1")).to_be_visible()
    expect(card).to_contain_text("lena")
    expect(page.locator("#triage-note")).to_have_text("typed")


def test_a_second_tab_follows(page: Page, context: BrowserContext, server: DevServer) -> None:
    run = order(server, "triaged-live")
    watching, listed = context.new_page(), context.new_page()
    watching.goto(f"/w/{run}")
    listed.goto("/workflows?id=triaged-live&columns=severity&columns=owner")
    for tab in (watching, listed):
        expect(tab.locator("#badge")).to_have_text(re.compile(r"^Live"))
        tab.evaluate("window.same = true")
    watching.locator("#triage").focus()
    page.goto(f"/w/{run}/triage")
    page.get_by_label("Owner").fill("lena")
    page.get_by_role("radio", name="sev1").check()
    page.get_by_role("button", name="Save").click()
    expect(watching.locator("#run-triage")).to_contain_text("lena")
    expect(watching.locator("#run-head .sev1")).to_be_visible()
    expect(watching.locator("#triage")).to_be_focused()
    expect(listed.locator(f"#r{run} .sev1")).to_have_text("sev1")
    expect(listed.locator(f"#r{run}")).to_contain_text("lena")
    assert [tab.evaluate("window.same") for tab in (watching, listed)] == [True, True]


def test_all_of_it_works_without_scripts(browser: Browser, server: DevServer, signed_in: object) -> None:
    run = order(server, "triaged-plain")
    context = browser.new_context(base_url=server.base, storage_state=signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"/w/{run}")
    page.get_by_role("link", name="Set the triage").click()
    page.get_by_label("Owner").fill("lena")
    page.get_by_role("radio", name="sev4").check()
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#run-triage")).to_contain_text("lena")
    page.get_by_role("link", name="Change the triage").click()
    page.get_by_label("Owner").fill("")
    page.get_by_role("radio", name="None").check()
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#run-triage")).to_contain_text("no owner, no severity, no note")
    context.close()
