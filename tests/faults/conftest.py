"""A server of its own for the tests that kill it: fsync is off, but what was committed is with the operating system."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harvest.store import migrate
from harvest_console.embedded import EmbeddedPostgres
from tests.servers import discard


@pytest.fixture
def mortal_server() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL that a test may kill and start again."""
    with tempfile.TemporaryDirectory(prefix="hvm-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        settings = {"fsync": "off", "shared_buffers": "32MB"}
        server = EmbeddedPostgres(Path(folder) / "pg", persistent=False, settings=settings)
        server.start()
        try:
            yield server
        finally:
            discard(server, Path(folder) / "pg")


@pytest.fixture
async def mortal_database(mortal_server: EmbeddedPostgres) -> str:
    """A migrated database on it."""
    url = mortal_server.ensure_database("faults")
    await asyncio.create_task(migrate.upgrade(url))
    return url
