"""Putting away a server of the tests, whose files may be gigabytes of databases."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from harvest_console.embedded import EmbeddedPostgres

_REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"


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
