"""A real Chromium on a real server. The pages' own rules hold in every test: no CSP violation, no script error."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.rows import Family, family_of
from tests.browser.server import DevServer

LISTEN_FOR_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation",
  event => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
expect.set_options(timeout=20_000)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """The Chromium of BROWSER_PATH; `make browser` finds or installs one."""
    path = os.environ.get("BROWSER_PATH")
    if not path:
        pytest.exit("BROWSER_PATH names no Chromium: run `make browser`, or set it", returncode=3)
    args = ["--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update"]
    args += ["--disable-sync", "--no-first-run"]
    if os.geteuid() == 0:
        args.append("--no-sandbox")
    return {**browser_type_launch_args, "executable_path": path, "args": args}


@pytest.fixture(scope="session")
def server() -> Iterator[DevServer]:
    """One development setup for all tests of the session."""
    with tempfile.TemporaryDirectory(prefix="hvb-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        running = DevServer(Path(folder) / "data")
        try:
            yield running
        finally:
            running.stop()


def sign_in(browser: Browser, link: str, base: str) -> Any:
    """Spend a sign-in link in a browser and return the cookies that it gave."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(link)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(base + "/")
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture(scope="session")
def signed_in(browser: Browser, server: DevServer) -> Any:
    """The cookies of a browser that spent the printed link."""
    return sign_in(browser, server.link, server.base)


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any], server: DevServer, signed_in: Any) -> dict[str, Any]:
    """A signed-in context in Berlin, with motion reduced."""
    return {
        **browser_context_args,
        "base_url": server.base,
        "storage_state": signed_in,
        "timezone_id": "Europe/Berlin",
        "locale": "en-GB",
        "reduced_motion": "reduce",
        "viewport": {"width": 1440, "height": 900},
    }


def watched(page: Page) -> list[str]:
    """Note script errors and dialogs of a page; none is ever right."""
    faults: list[str] = []
    page.add_init_script(LISTEN_FOR_VIOLATIONS)
    page.on("pageerror", lambda error: faults.append(f"script error: {error}"))
    page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    return faults


@contextmanager
def own_setup(browser: Browser) -> Iterator[tuple[DevServer, Page]]:
    """A setup whose databases may be killed, and a page on it, signed in; it must end without a fault."""
    with tempfile.TemporaryDirectory(prefix="hvb-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        server = DevServer(Path(folder) / "data")
        try:
            state = sign_in(browser, server.link, server.base)
            context = browser.new_context(base_url=server.base, storage_state=state, reduced_motion="reduce")
            page = context.new_page()
            faults = watched(page)
            yield server, page
            assert faults == []
            context.close()
        finally:
            server.stop()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that must end without a CSP violation, a script error or a dialog."""
    opened = context.new_page()
    faults = watched(opened)
    yield opened
    faults += opened.evaluate("window.violations ?? []")
    assert faults == []


@pytest.fixture(scope="session")
def waiting_run(server: DevServer) -> str:
    """An order that waits for `approved` until the end of the session."""
    run = server.start("order_flow", {"card": "4242 4242", "cents": 500}, workflow_id="waiting-order")
    return wait_until_waiting(server, run)


def wait_until_waiting(server: DevServer, run: str) -> str:
    """Wait until an order asks for its approval, on its own history."""

    def waits() -> bool:
        events = server.call("GET", f"/workflows/{run}/history")["events"]
        return any(event["type"] == "TimerStarted" for event in events)

    server.until(waits)
    return run


@pytest.fixture(scope="session")
def completed_run(server: DevServer) -> str:
    """An order that was approved and shipped."""
    run = server.start("order_flow", {"card": "4242 4242", "cents": 900}, workflow_id="completed-order")
    server.signal(run, "approved", b'{"by":"lena"}')
    assert server.ended(run) == "COMPLETED"
    return run


@pytest.fixture(scope="session")
def family(server: DevServer) -> Family:
    """A family over both shards, with histories of every sort."""
    return family_of(server)


@pytest.fixture(scope="session")
def failed_run(server: DevServer) -> str:
    """An order whose card is refused."""
    run = server.start("order_flow", {"card": "4242 0000", "cents": 900}, workflow_id="failed-order")
    assert server.ended(run) == "FAILED"
    return run
