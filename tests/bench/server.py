"""The one PostgreSQL server that all sides of a bench share: embedded, fsync on, a database for every run."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from harvest_console.embedded import EmbeddedPostgres

MUST_BE_ON: Final = ("fsync", "synchronous_commit", "full_page_writes")


class BenchServer:
    """An ephemeral server in a folder of its own; a context manager that leaves nothing behind."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hvb-"))
        self._postgres = EmbeddedPostgres(self._folder / "pg", persistent=False)
        self._count = 0
        self.version = ""

    def __enter__(self) -> Self:
        try:
            self._postgres.start()
            for name in MUST_BE_ON:
                if self._postgres.sql(f"show {name}") != "on":
                    raise RuntimeError(f"{name} is off on the bench server: figures from it would mean nothing")
            self.version = self._postgres.sql("show server_version")
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self._postgres.remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    def fresh(self, name: str) -> str:
        """Make an empty database and return its URL."""
        self._count += 1
        url = self._postgres.create_database(f"{name}_{self._count}")
        self.settle()
        return url

    def settle(self) -> None:
        """Checkpoint, so that no run pays for the dirty pages of the one before it."""
        self._postgres.sql("checkpoint")

    def drop(self, url: str) -> None:
        """Drop a database that `fresh` made."""
        self._postgres.drop_database(url.partition("?")[0].rpartition("/")[2])
