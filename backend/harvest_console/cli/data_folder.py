"""The folder of a development setup: who runs it, its embedded databases, its keys."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import IO

import msgspec

from harvest.errors import ConfigurationError
from harvest_console.cli.announcement import LOCK_FILE, Holder
from harvest_console.embedded import EmbeddedPostgres, start_all

_DEFAULT_SHARDS = 2
_DATABASE = "harvest"


class AlreadyRunningError(ConfigurationError):
    """A development setup runs on this data folder."""

    code, slug = "HVT-422", "already_running"


class DataFolder:
    """One development setup's folder, held by at most one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hold: IO[bytes] | None = None
        self._servers: list[EmbeddedPostgres] = []

    def take(self) -> None:
        """Make the folder if there is none and hold it. Raises AlreadyRunningError with the holder's address."""
        # Root lends the databases another account, which must be able to pass.
        self._path.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        ignore = self._path / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        hold = (self._path / LOCK_FILE).open("a+b")
        try:
            fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hold.seek(0)
            said = hold.read()
            hold.close()
            raise AlreadyRunningError(self._already_running(said)) from None
        self._hold = hold
        self.announce("")

    def announce(self, url: str) -> None:
        """Leave this process's address for whoever starts a second one."""
        assert self._hold is not None
        self._hold.truncate(0)
        self._hold.write(msgspec.json.encode(Holder(os.getpid(), url)))
        self._hold.flush()

    def start_databases(self, given: dict[int, str] | None, shards: int | None) -> dict[int, str]:
        """The shards' databases: those `given`, else embedded ones, started.

        Raises ConfigurationError when `shards` contradicts what is there: data would be out of reach, or doubled.
        """
        if given is not None:
            if shards is not None and shards != len(given):
                raise ConfigurationError(
                    f"--shards {shards} contradicts HARVEST_DATABASE_URLS, which names {len(given)}: leave --shards out"
                )
            return given
        found = self._shards_found()
        if found and shards is not None and shards != found:
            raise ConfigurationError(
                f"{self._path} was made with {found} shards and --shards says {shards}: leave --shards out, or name "
                "another folder with --data-dir"
            )
        count = found or shards or _DEFAULT_SHARDS
        servers = [EmbeddedPostgres(self._path / f"postgres-{n}", persistent=True) for n in range(count)]
        start_all(servers)
        self._servers = servers
        return {number: server.ensure_database(_DATABASE) for number, server in enumerate(servers)}

    def let_go(self) -> None:
        """Stop the embedded databases cleanly and release the folder."""
        try:
            for server in self._servers:
                server.stop()
        finally:
            if self._hold is not None:
                self.announce("")
                self._hold.close()
                self._hold = None

    def _shards_found(self) -> int:
        names = (path.name for path in self._path.iterdir())
        numbers = [int(match[1]) for name in names if (match := re.fullmatch(r"postgres-(\d+)", name))]
        return max(numbers) + 1 if numbers else 0

    def _already_running(self, said: bytes) -> str:
        try:
            holder = msgspec.json.decode(said, type=Holder)
        except msgspec.DecodeError:
            return f"Harvest is starting on {self._path} already"
        where = f"at {holder.url} " if holder.url else ""
        return f"Harvest runs on {self._path} already, {where}(process {holder.pid}). Nothing was changed."
