"""Print the path of a promtool for the tests of alert rules; fetch one where that is allowed. Exits with 3 for none.

In this order: PROMTOOL_PATH, one that is installed, one that was fetched before, the one in Debian's package: that is
unpacked beside the project's other tools, and nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

FETCHED = Path(__file__).parent.parent / ".tools" / "promtool"
FETCH_SECONDS = 600


def named() -> str | None:
    """The one in PROMTOOL_PATH, which must exist."""
    path = os.environ.get("PROMTOOL_PATH")
    if path and not Path(path).exists():
        sys.exit(f"PROMTOOL_PATH is {path}, and there is no such file")
    return path or None


def installed() -> str | None:
    """One on the path."""
    return shutil.which("promtool")


def fetched() -> str | None:
    """The one that was unpacked before."""
    return str(FETCHED) if FETCHED.exists() else None


def from_debian() -> str | None:
    """The program out of Debian's package `prometheus`, on a system that has apt-get."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    with tempfile.TemporaryDirectory(prefix="promtool-") as folder:
        if not _ran(["apt-get", "-q", "download", "prometheus"], folder):
            if os.geteuid() != 0 or not _ran(["apt-get", "-q", "update"], folder):
                return None
            if not _ran(["apt-get", "-q", "download", "prometheus"], folder):
                return None
        package = next(Path(folder).glob("prometheus_*.deb"), None)
        if package is None or not _ran(["dpkg-deb", "-x", str(package), "unpacked"], folder):
            return None
        FETCHED.parent.mkdir(exist_ok=True)
        partial = FETCHED.with_name(f"{FETCHED.name}.{os.getpid()}")
        shutil.copy(Path(folder) / "unpacked" / "usr" / "bin" / "promtool", partial)
        partial.replace(FETCHED)
    return str(FETCHED)


def _ran(command: list[str], folder: str) -> bool:
    print("promtool:", " ".join(command), file=sys.stderr)
    try:
        done = subprocess.run(command, cwd=folder, stdout=sys.stderr, check=False, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    """Try each way in turn."""
    ways: tuple[Callable[[], str | None], ...] = (named, installed, fetched, from_debian)
    path = next((path for way in ways if (path := way())), None)
    if path is None:
        print(
            "promtool: none was found and none could be fetched: install Prometheus' promtool and set PROMTOOL_PATH",
            file=sys.stderr,
        )
        sys.exit(3)
    print(path)


if __name__ == "__main__":
    main()
