"""Workers in a browser: the list is live, and a drain is asked for with what it would do in sight."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from playwright.sync_api import Page, expect

from harvest.shards import Shards
from tests.browser.server import DevServer
from tests.browser.test_every_page import overflow, violations
from tests.browser.test_warmth import LOST_MS, living, open_page
from tests.console.fleet import Member, join


def on_shards(server: DevServer, act: Callable[[Shards], Awaitable[None]]) -> None:
    """Do something in the databases; Playwright has a loop in this thread."""

    async def run() -> None:
        shards = await Shards.open(server.urls)
        try:
            await act(shards)
        finally:
            await shards.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result()


@pytest.fixture
def visitor(server: DevServer) -> Iterator[UUID]:
    """A worker that hears nothing, with work in flight and a queue that nobody else serves."""
    worker = uuid4()
    now = {"runs_held": 2, "activities_running": 1, "residents": 9, "resident_bytes": 27_000, "lacks": ["gone_flow/3"]}
    member = Member(worker=worker, name="visitor", queues=("attic",), counters={"passed": 12, "now": now})

    async def leave(shards: Shards) -> None:
        for store in shards.stores.values():
            await store.write.write("delete from harvest_workers where worker = $1", worker)

    on_shards(server, lambda shards: join(shards, member))
    yield worker
    on_shards(server, leave)


def test_the_list_follows_a_worker_that_is_killed(page: Page, server: DevServer) -> None:
    before = living(server)
    killed, other = before[0], before[1]
    open_page(page, "/workers")
    row, kept = (page.locator(f"[id='w{worker['worker_id']}']") for worker in (killed, other))
    expect(row.locator(".state").first).to_have_text("Active")
    kept.get_by_role("link", name="Drain").focus()
    os.kill(killed["pid"], signal.SIGKILL)
    expect(row).to_contain_text(re.compile("Stale|Stopped"), timeout=LOST_MS)
    known = {worker["worker_id"] for worker in before}
    server.until(lambda: any(worker["worker_id"] not in known for worker in living(server)))
    started = next(worker for worker in living(server) if worker["worker_id"] not in known)
    expect(page.locator(f"[id='w{started['worker_id']}'] .state").first).to_have_text("Active")
    expect(kept.get_by_role("link", name="Drain")).to_be_focused()


def test_a_drain_says_what_it_would_do_and_wants_a_reason_and_the_word(
    page: Page, server: DevServer, visitor: UUID
) -> None:
    page.goto("/workers?queue=attic")
    page.get_by_role("link", name="Drain visitor").click()
    main = page.locator("main")
    expect(main).to_contain_text("2 runs held, 1 activity running")
    expect(main).to_contain_text("Nobody else serves all that this worker does.")
    expect(main).to_contain_text("attic")
    page.get_by_role("button", name="Drain this worker").click()
    expect(page.get_by_role("alert")).to_be_focused()
    expect(page.get_by_role("alert")).to_contain_text("Type the word drain to confirm.")
    page.get_by_label("Reason").fill("its machine goes")
    page.get_by_label("Type drain to confirm").fill("drain")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/workers/{visitor}\?did=draining$"))
    expect(page.locator("main .note").first).to_contain_text("It takes on nothing new")
    expect(page.locator("#worker .head .state").first).to_have_text("Draining")
    page.get_by_role("link", name="See it in the audit").click()
    expect(page.locator("tbody tr").first).to_contain_text("its machine goes")


def test_a_drain_takes_a_deadline_and_says_when_it_ends(page: Page, server: DevServer, visitor: UUID) -> None:
    page.goto(f"/workers/{visitor}/drain")
    field = page.get_by_label("Deadline")
    page.get_by_label("Reason").fill("its machine goes")
    page.get_by_label("Type drain to confirm").fill("drain")
    field.fill("soon")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("is neither seconds, like 300, nor a time")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert violations(page) == []
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 844})
        assert overflow(page) <= 0
    page.get_by_role("alert").get_by_role("link", name="Deadline").press("Enter")
    expect(field).to_be_focused()
    field.fill("900")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/workers/{visitor}\?did=draining$"))
    expect(page.locator("#worker .note")).to_contain_text(re.compile("it ends in 1[45] min"))


def test_parked_runs_are_let_go_by_keyboard_alone(page: Page, server: DevServer, visitor: UUID) -> None:
    page.goto(f"/workers/{visitor}")
    page.locator("#evict").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("9 runs, in about 27 kB")
    page.get_by_label("Reason").focus()
    page.keyboard.type("memory is short")
    page.keyboard.press("Enter")
    expect(page.locator("main .note").first).to_contain_text("It lets go of its parked runs.")


def test_a_workers_page_leads_on_by_keys(page: Page, server: DevServer) -> None:
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page).to_have_url(re.compile("/workers$"))
    page.keyboard.press("j")
    page.keyboard.press("o")
    expect(page.locator("#worker h1")).to_be_visible()
    # The scripts of the page run only after its text is there.
    expect(page.locator("#badge")).to_have_text(re.compile("^Live"))
    page.keyboard.press("g")
    page.keyboard.press("h")
    expect(page).to_have_url(re.compile("/warmth$"))


def _config(server: DevServer, worker: Any) -> Any:
    return server.call("GET", f"/workers/{worker}")["config"]


def test_a_living_worker_tells_its_options_and_definitions(page: Page, server: DevServer) -> None:
    worker = living(server)[0]["worker_id"]
    page.goto(f"/workers/{worker}")
    for option in _config(server, worker):
        expect(page.locator("main")).to_contain_text(option["name"])
    expect(page.locator("main")).to_contain_text("order_flow/1")
