"""Servers of the tests: some that are taken away, and how one is put away whose files may be gigabytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harvest_console.embedded import EmbeddedPostgres, start_all

SMALL = {"fsync": "off", "shared_buffers": "16MB", "max_connections": "80"}
_REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"


@contextmanager
def several(count: int) -> Iterator[list[EmbeddedPostgres]]:
    """So many small servers that run, for tests that take them away."""
    with tempfile.TemporaryDirectory(prefix="hvf-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # the server's account must be able to pass
        servers = [EmbeddedPostgres(Path(folder) / f"pg{n}", persistent=False, settings=SMALL) for n in range(count)]
        start_all(servers)
        try:
            yield servers
        finally:
            for server in servers:
                server.remove()


@contextmanager
def stalled(*postmasters: int | None) -> Iterator[None]:
    """None of these servers' processes runs: they accept, and never answer."""
    processes: list[int] = []
    for parent in postmasters:
        assert parent is not None
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        processes += [parent, *map(int, children)]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(processes):
            os.kill(pid, signal.SIGCONT)


def discard(server: EmbeddedPostgres, data: Path) -> None:
    """Stop a server and leave the deletion of its `data` to a process that nobody waits for."""
    server.stop()
    gone = Path(tempfile.mkdtemp(prefix="hvgone-", dir=data.resolve().parent.parent))
    with suppress(OSError):
        data.resolve().rename(gone / "data")
    server.remove()
    subprocess.Popen(
        [sys.executable, "-c", _REMOVE, str(gone)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
