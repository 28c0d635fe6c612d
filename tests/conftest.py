"""Fixtures for tests on a real PostgreSQL: one server for each test process, databases cloned from a template."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harvest.store import migrate
from harvest_console.embedded import EmbeddedPostgres
from tests.servers import discard

_TEST_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "autovacuum": "off",  # a plan must not depend on when the statistics were gathered
}
_TEMPLATE = "harvest_template"
# Consoles of tests, those in processes of their own too, probe nothing unless a test asks for it: it counts rows.
os.environ.setdefault("HARVEST_CANARY", "off")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """A server of this test process alone, without fsync; it ends with the process, however that ends."""
    with tempfile.TemporaryDirectory(prefix="hvt-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # the server's account must be able to pass
        server = EmbeddedPostgres(Path(folder) / "pg", persistent=False, settings=_TEST_SETTINGS)
        server.start()
        try:
            yield server
        finally:
            discard(server, Path(folder) / "pg")


@pytest.fixture(scope="session")
def migrated_template(postgres_server: EmbeddedPostgres) -> str:
    """The name of a database at the newest migration, to which nobody is connected."""
    url = postgres_server.ensure_database(_TEMPLATE)
    with ThreadPoolExecutor(1) as thread:  # a loop of its own, whether or not one runs in this thread
        thread.submit(asyncio.run, migrate.upgrade(url)).result()
    return _TEMPLATE


@pytest.fixture(scope="session")
def new_database(postgres_server: EmbeddedPostgres, migrated_template: str) -> Callable[[str], str]:
    """Make a fresh migrated database of a name like the given one; answers its URL. A taken name gets a number."""
    taken: set[str] = set()

    def create(name: str) -> str:
        base = re.sub(r"[^a-z0-9_]", "_", name.lower())[:50]
        unique = next(candidate for n in range(10**6) if (candidate := f"db_{base}_{n}") not in taken)
        taken.add(unique)
        return postgres_server.create_database(unique, template=migrated_template)

    return create


@pytest.fixture(scope="session")
def full_scale() -> bool:
    """Whether heavy tests run at the size that the claims are made for (HARVEST_SCALE=full), not at a quick one."""
    return os.environ.get("HARVEST_SCALE") == "full"


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Note what was measured, with its figures and seeds: `proof("kills", seed=7, runs=500)`. Kept by `make prove`."""
    node = request.node
    module = node.path.relative_to(node.config.rootpath).with_suffix("")
    test = f"{'.'.join(module.parts)}::{node.name}"

    def note(name: str, **figures: Any) -> None:
        kept = os.environ.get("HARVEST_PROOF_FILE")
        if kept:
            with Path(kept).open("ab") as file:
                file.write(msgspec.json.encode({"test": test, "name": name, "figures": figures}) + b"\n")

    return note
