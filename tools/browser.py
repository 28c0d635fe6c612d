"""Print the path of a Chromium for the browser tests; install one where that is allowed. Exits with 3 if there is none.

In this order: BROWSER_PATH, one that is installed, Playwright's own, Debian's package (as root), Playwright's download.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
INSTALL_SECONDS = 600


def named() -> str | None:
    """The one in BROWSER_PATH, which must exist."""
    path = os.environ.get("BROWSER_PATH")
    if path and not Path(path).exists():
        sys.exit(f"BROWSER_PATH is {path}, and there is no such file")
    return path or None


def installed() -> str | None:
    """One on the path, or among a Mac's applications."""
    found = (shutil.which(name) for name in NAMES)
    return next((path for path in (*found, *APPLICATIONS) if path and Path(path).exists()), None)


def playwrights() -> str | None:
    """The one that Playwright keeps for itself."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def from_debian() -> str | None:
    """Debian's package, if this is root on a system that has apt-get."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"]):
        if not _ran(["apt-get", "-q", *arguments], environment):
            return None
    return installed()


def from_playwright() -> str | None:
    """Playwright's download."""
    if not _ran([sys.executable, "-m", "playwright", "install", "chromium"], dict(os.environ)):
        return None
    return playwrights()


def _ran(command: list[str], environment: dict[str, str]) -> bool:
    print("browser:", " ".join(command), file=sys.stderr)
    try:
        done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    """Try each way in turn."""
    ways: tuple[Callable[[], str | None], ...] = (named, installed, playwrights, from_debian, from_playwright)
    path = next((path for way in ways if (path := way())), None)
    if path is None:
        print(
            "browser: no Chromium was found and none could be installed: install one and set BROWSER_PATH",
            file=sys.stderr,
        )
        sys.exit(3)
    print(path)


if __name__ == "__main__":
    main()
