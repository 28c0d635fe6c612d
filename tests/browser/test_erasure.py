"""Erasure and legal holds: what is said before, what is left of a run, and what proves it later."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import asyncpg
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import own_setup
from tests.browser.server import DevServer
from tests.browser.test_acting import check

HOSTILE = "<b>asked to</b> \u202e" + "x" * 440
PAGES = {
    "erase": ("/w/{ended}/erase", 200),
    "erase of a parent": ("/w/{parent}/erase", 200),
    "erase of an open run": ("/w/{waiting}/erase", 200),
    "erase of a held run": ("/w/{held}/erase", 200),
    "erase of an erased run": ("/w/{erased}/erase", 200),
    "legal hold": ("/w/{waiting}/legal-hold", 200),
    "legal hold of a held run": ("/w/{held}/legal-hold", 200),
    "legal hold of an erased run": ("/w/{erased}/legal-hold", 200),
    "held run": ("/w/{held}", 200),
    "erased run": ("/w/{erased}", 200),
    "history of an erased run": ("/w/{erased}/history", 200),
    "event of an erased run": ("/w/{erased}/events/1", 200),
    "receipts": ("/erasure", 200),
    "receipts by an old link": ("/erasure?cursor=abc", 200),
    "receipt": ("/erasure/{receipt}", 200),
    "no such receipt": ("/erasure/00000000-0000-8000-8000-000000000000", 404),
    "no number of a receipt": ("/erasure/xyz", 400),
}


def ended(server: DevServer, workflow_id: str) -> str:
    """An order that was approved and shipped."""
    run = server.start("order_flow", {"card": "4242 4711", "cents": 900, "note": "for Lena"}, workflow_id=workflow_id)
    server.signal(run, "approved", b'{"by":"lena"}')
    assert server.ended(run) == "COMPLETED"
    return run


def post(server: DevServer, path: str, **body: Any) -> Any:
    """One request that changes something."""
    return server.call("POST", path, json.dumps(body).encode())


def erase(server: DevServer, run: str, reason: str = "asked to by Lena") -> str:
    """Erase a run; returns the number of its receipt."""
    return str(post(server, f"/workflows/{run}/erase-payloads", reason=reason)["receipt"])


def parent_of_one_held(server: DevServer, workflow_id: str) -> tuple[str, str]:
    """A run that has ended, three children of it that have, and a hold on one of them."""
    parent = server.start("shipment", 3, workflow_id=workflow_id)
    assert server.ended(parent) == "COMPLETED"
    children = [one["execution_id"] for one in server.call("GET", f"/workflows/{parent}/children")["items"]]
    post(server, f"/workflows/{children[0]}/legal-hold", reason="case 12")
    return parent, children[0]


@pytest.fixture(scope="module")
def places(server: DevServer, waiting_run: str) -> dict[str, str]:
    """Runs by what became of them, and a receipt; the texts are hard to show."""
    parent, _ = parent_of_one_held(server, "shipment-to-erase")
    held, erased = ended(server, "held-for-a-court"), ended(server, "<i>erased</i> order " + "y" * 200)
    post(server, f"/workflows/{held}/legal-hold", reason=HOSTILE, hold_until="2100-01-01T00:00:00Z")
    receipt = erase(server, erased, HOSTILE)
    plain = ended(server, "not-erased-order")
    return {
        "waiting": waiting_run,
        "ended": plain,
        "parent": parent,
        "held": held,
        "erased": erased,
        "receipt": receipt,
    }


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page(page: Page, places: dict[str, str], name: str, theme: str) -> None:
    path, status = PAGES[name]
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    answer = page.goto(path.format(**places))
    assert answer is not None
    assert answer.status == status
    check(page)


def test_a_run_is_erased_by_the_keyboard_alone(page: Page, server: DevServer) -> None:
    run = ended(server, "erased-by-keyboard")
    page.goto(f"/w/{run}")
    page.locator("#more summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Erase payloads")
    page.get_by_label("Reason").focus()
    page.keyboard.type("asked to by Lena")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_focused()
    expect(page.get_by_role("alert")).to_contain_text("Type the word erase to confirm.")
    expect(page.get_by_label("Reason")).to_have_value("asked to by Lena")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#phrase").focus()
    page.keyboard.type("erase")
    page.keyboard.press("Enter")
    expect(page.locator("#digest-key")).to_have_text(re.compile(r"^[0-9a-f]{64}$"))
    check(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("erased-by-keyboard")
    page.keyboard.press("g")
    page.keyboard.press("e")
    expect(page.get_by_role("heading", level=1)).to_have_text("Erasure")
    page.keyboard.press("j")
    page.keyboard.press("o")
    expect(page.locator("main")).to_contain_text("asked to by Lena")


def test_what_was_erased_is_a_word_with_a_mark_wherever_it_was(page: Page, server: DevServer) -> None:
    run = ended(server, "erased-everywhere")
    receipt = erase(server, run)
    page.goto(f"/w/{run}")
    banner = page.locator("#erased")
    expect(banner).to_contain_text("by token:admin: asked to by Lena")
    expect(banner.get_by_role("link", name="The receipt")).to_have_attribute("href", f"/erasure/{receipt}")
    for card in ("#input", "#result"):
        expect(page.locator(card)).to_have_text("erased")
        expect(page.locator(f"{card} .state.erased")).to_be_visible()
    for path in ("", "/history", "/history?view=full&dir=oldest", "/timeline", "/events/1", "/payload/input"):
        page.goto(f"/w/{run}{path}")
        for folded in page.locator("details.fold > summary").all():
            folded.click()
        expect(page.locator(".kept > a[data-fragment]")).to_have_count(0)
        expect(page.locator("main")).not_to_contain_text("_harvest_erased")
        for gone in ("4711", "lena", "for Lena", "parcel-"):
            expect(page.locator("main pre, main table, main .payload-body").filter(has_text=gone)).to_have_count(0)


def test_the_events_of_an_erased_run_say_so_when_they_are_unfolded(page: Page, server: DevServer) -> None:
    run = ended(server, "erased-events")
    erase(server, run)
    page.goto(f"/w/{run}/history?view=full&dir=oldest")
    page.locator("#p1 summary").click()
    expect(page.locator("#p1 pre")).to_contain_text('"input": erased')
    expect(page.locator("#p1 pre .state.erased")).to_be_visible()
    expect(page.locator("#p1 pre")).to_contain_text('"workflow_name": "order_flow"')


def test_a_parent_says_which_children_go_with_it_and_which_do_not(page: Page, server: DevServer) -> None:
    parent, held = parent_of_one_held(server, "family-to-erase")
    page.goto(f"/w/{parent}/erase")
    expect(page.locator("main .facts").first).to_contain_text("2 that have ended on this shard go with it.")
    left = page.get_by_role("region", name="Children that are left out")
    expect(left.locator("tbody tr")).to_have_count(1)
    expect(left).to_contain_text(held)
    expect(left).to_contain_text("a legal hold keeps it")
    page.get_by_label("Reason").fill("asked to by Lena")
    page.locator("#phrase").fill("erase")
    page.get_by_role("button", name="Erase this run and 2 children").click()
    expect(page.locator(".note.info")).to_contain_text("2 children were erased with it.")
    expect(left).to_contain_text(held)
    page.get_by_role("link", name="Erasure").first.click()
    rows = page.locator("main tbody tr").filter(has_text="with its parent")
    expect(rows.first.get_by_role("link", name="with its parent")).to_be_visible()


def test_an_open_run_is_not_erased(page: Page, server: DevServer, waiting_run: str) -> None:
    page.goto(f"/w/{waiting_run}/erase")
    expect(page.locator("main .note")).to_contain_text("This run has not ended.")
    expect(page.locator("#phrase")).to_have_count(0)
    token = page.locator("form input[name=csrf]").first.get_attribute("value") or ""
    answer = page.request.post(f"/w/{waiting_run}/erase", form={"csrf": token, "reason": "now", "phrase": "erase"})
    assert (answer.status, "This run has not ended." in answer.text()) == (409, True)
    assert server.call("GET", f"/workflows/{waiting_run}")["input"]["card"] == "4242 4242"


def test_a_hold_keeps_a_run_until_it_is_released(page: Page, server: DevServer) -> None:
    run = ended(server, "held-and-released")
    page.goto(f"/w/{run}")
    page.locator("#more summary").click()
    page.get_by_role("link", name="Legal hold").click()
    page.get_by_label("Until").fill("2020-01-01T10:00")
    page.get_by_role("button", name="Hold this run").click()
    alert = page.get_by_role("alert")
    expect(alert).to_be_focused()
    expect(alert).to_contain_text("Reason: Needed")
    expect(alert).to_contain_text("Until: This has passed.")
    expect(page.get_by_label("Until")).to_have_value("2020-01-01T10:00")
    page.get_by_label("Reason").fill("a court asks for it")
    page.get_by_label("Until").fill("2100-01-01T10:00")
    page.get_by_role("button", name="Hold this run").click()
    expect(page.locator("#run-head .on-hold")).to_have_text("Legal hold")
    expect(page.locator("#run-facts")).to_contain_text("until Jan 1, 2100, 10:00:00 UTC")

    page.goto(f"/w/{run}/erase")
    expect(page.locator("main .note")).to_contain_text("A legal hold keeps it.")
    expect(page.locator("main .note")).to_contain_text("a court asks for it")
    expect(page.get_by_role("button", name="Erase this run")).to_have_count(0)
    page.get_by_role("link", name="To the hold").click()
    page.get_by_label("Reason").fill("the case is closed")
    page.get_by_role("button", name="Release the hold").click()
    expect(page.locator(".note.info")).to_contain_text("The legal hold was released.")
    expect(page.locator("#run-head .on-hold")).to_have_count(0)
    page.goto(f"/w/{run}/erase")
    expect(page.get_by_role("button", name="Erase this run")).to_be_visible()


def test_an_open_run_keeps_its_badge_when_it_is_read_again(page: Page, server: DevServer) -> None:
    run = server.start("order_flow", {"cents": 500}, workflow_id="held-while-open")
    post(server, f"/workflows/{run}/legal-hold", reason="case 13")
    page.goto(f"/w/{run}")
    expect(page.locator("#badge")).to_have_text(re.compile(r"^Live"))
    page.evaluate("window.same = true")
    server.signal(run, "approved", b'{"by":"lena"}')
    expect(page.locator("#run-head .state").first).to_have_text("Completed")
    expect(page.locator("#run-head .on-hold")).to_be_visible()
    assert page.evaluate("window.same") is True


def test_a_receipt_is_checked_again(page: Page, server: DevServer) -> None:
    run = ended(server, "checked-again")
    page.goto(f"/erasure/{erase(server, run)}")
    page.get_by_role("button", name="Check again").click()
    expect(page.locator("#answer")).to_contain_text("every value is erased")
    expect(page.locator("#answer-title")).to_be_focused()
    expect(page.locator("#answer-title .state")).to_have_text("It is as the receipt says.")
    check(page)
    page.goto(f"/audit?target={run}")
    expect(page.locator("main tbody tr").first).to_contain_text("erasure_verify")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_run_that_was_written_to_since_is_told(page: Page, server: DevServer, theme: str) -> None:
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    run = ended(server, f"tampered-{theme}")
    receipt = erase(server, run)
    put_back(server, run)
    page.goto(f"/erasure/{receipt}")
    page.get_by_role("button", name="Check again").click()
    expect(page.locator("#answer-title .state")).to_have_text("It is not as the receipt says.")
    expect(page.locator("#answer").get_by_role("link", name="event 1")).to_have_attribute("href", f"/w/{run}/events/1")
    check(page)


def put_back(server: DevServer, run: str) -> None:
    """Write a value into the first event of an erased run, past Harvest."""

    async def write() -> None:
        connection = await asyncpg.connect(server.urls[int(run[:4], 16)])
        try:
            await connection.execute(
                "update harvest_events set payload = convert_to(replace(convert_from(payload, 'UTF8'), "
                """'{"_harvest_erased":true}', '"4242 4711"'), 'UTF8') where execution_id = $1 and event_id = 1""",
                run,
            )
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, write()).result()


def test_all_of_it_works_without_scripts(browser: Browser, server: DevServer, signed_in: Any) -> None:
    run = ended(server, "erased-without-scripts")
    context = browser.new_context(base_url=server.base, storage_state=signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"/w/{run}/legal-hold")
    page.get_by_label("Reason").fill("case 14")
    page.get_by_role("button", name="Hold this run").click()
    expect(page.locator("#run-head .on-hold")).to_be_visible()
    page.locator("#run-head .on-hold").click()
    page.get_by_role("button", name="Release the hold").click()
    page.locator("#more summary").click()
    page.get_by_role("link", name="Erase payloads").click()
    page.get_by_label("Reason").fill("asked to by Lena")
    page.locator("#phrase").fill("erase")
    page.get_by_role("button", name="Erase this run").click()
    expect(page.locator(".note.info")).to_contain_text("It was erased.")
    page.get_by_role("button", name="Check again").click()
    expect(page.locator("#answer")).to_contain_text("It is as the receipt says.")
    page.get_by_role("link", name="To the run").click()
    expect(page.locator("#erased")).to_contain_text("asked to by Lena")
    context.close()


class Crippled(NamedTuple):
    """A page on a console whose shard 1 is gone; by shard a receipt and an ended run; what was shown before."""

    page: Page
    receipts: dict[int, str]
    runs: dict[int, str]
    when_empty: str


@pytest.fixture(scope="module")
def crippled(browser: Browser) -> Iterator[Crippled]:
    """A setup of its own, whose second database is killed after a run of each was erased."""
    with own_setup(browser) as (server, page):
        page.goto("/erasure")
        when_empty = page.locator("main").inner_text()
        check(page)
        runs, receipts = _erased_on_each(server)
        server.kill_shard(1)
        server.until(lambda: server.call("GET", "/admin/erasures")["status"] == "partial")
        yield Crippled(page, receipts, runs, when_empty)


def _erased_on_each(server: DevServer) -> tuple[dict[int, str], dict[int, str]]:
    """A run that has ended of each shard, and the receipt of another that was erased."""
    found: dict[int, list[str]] = {0: [], 1: []}
    for number in range(60):
        if all(len(runs) >= 2 for runs in found.values()):
            break
        run = server.start("order_flow", {"cents": 500}, workflow_id=f"order-{number}")
        post(server, f"/workflows/{run}/terminate", reason="not needed")
        found[int(run[:4], 16)].append(run)
    return (
        {shard_id: runs[0] for shard_id, runs in found.items()},
        {shard_id: erase(server, runs[1]) for shard_id, runs in found.items()},
    )


def test_before_anything_was_erased_the_page_says_how_it_is_done(crippled: Crippled) -> None:
    assert "Nothing was erased yet" in crippled.when_empty
    assert "Erase payloads" in crippled.when_empty


def test_receipts_of_a_shard_that_is_gone_are_missing_and_not_none(crippled: Crippled) -> None:
    page = crippled.page
    page.goto("/erasure")
    banner = page.locator("#missing")
    expect(banner).to_contain_text("Shard 1 did not answer.")
    expect(banner.get_by_role("link", name="Retry shard 1")).to_be_visible()
    expect(page.locator("main tbody tr")).to_have_count(1)
    expect(page.locator("main")).to_contain_text("1 of 2 shards")
    check(page)


@pytest.mark.parametrize("path", ["/erasure/{receipt}", "/w/{run}/erase", "/w/{run}/legal-hold"])
def test_what_is_on_a_shard_that_is_gone_is_unknown_and_not_missing(crippled: Crippled, path: str) -> None:
    page = crippled.page
    answer = page.goto(path.format(receipt=crippled.receipts[1], run=crippled.runs[1]))
    assert answer is not None
    assert answer.status == 503
    expect(page.get_by_role("heading", level=1)).to_have_text("Cannot tell: a shard does not answer")
    expect(page.locator("main")).to_contain_text("Shard 1")


def test_a_run_of_another_shard_is_erased_all_the_same(crippled: Crippled) -> None:
    page = crippled.page
    page.goto(f"/w/{crippled.runs[0]}/erase")
    page.get_by_label("Reason").fill("asked to by Lena")
    page.locator("#phrase").fill("erase")
    page.get_by_role("button", name="Erase this run").click()
    expect(page.locator(".note.info")).to_contain_text("It was erased.")
    page.get_by_role("button", name="Check again").click()
    expect(page.locator("#answer")).to_contain_text("It is as the receipt says.")
