"""Where the consoles of a data folder say their addresses. Imports nothing that is slow: scripts ask it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

LOCK_FILE: Final = "dev.lock"
_SERVE_FILE: Final = "serve-{}.json"


class Holder(msgspec.Struct):
    """The process that holds a data folder, and its address once it has one."""

    pid: int
    url: str = ""


class Serving(msgspec.Struct, frozen=True):
    """The process of a `harvest serve`, its address, and a digest that tells its databases from others."""

    pid: int
    url: str
    databases: str


def running_address(path: Path) -> str | None:
    """The address of the development setup that runs on a folder; None if none does."""
    try:
        holder = msgspec.json.decode((path / LOCK_FILE).read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None
    return holder.url or None if _runs(holder.pid) else None


@contextlib.contextmanager
def announced(path: Path, url: str, databases: Mapping[int, str]) -> Iterator[None]:
    """Leave the address of this process's `harvest serve` in a folder (mode 0600) while it serves.

    A folder that cannot be written to keeps nobody from serving: `signin-link` is then told the address.
    """
    from harvest_console.settings import write_private

    file = path / _SERVE_FILE.format(os.getpid())
    with contextlib.suppress(OSError):
        path.mkdir(parents=True, exist_ok=True)
        for left in path.glob(_SERVE_FILE.format("*")):
            if _serving(left) is None:
                left.unlink(missing_ok=True)
        write_private(file, msgspec.json.encode(Serving(os.getpid(), url, _digest(databases))))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def serving_address(path: Path, databases: Mapping[int, str]) -> str | None:
    """The address of the newest `harvest serve` that runs with a folder and these databases; None if none does."""
    wanted = _digest(databases)
    found = [each for file in path.glob(_SERVE_FILE.format("*")) if (each := _serving(file)) is not None]
    return max(((at, one.url) for at, one in found if one.databases == wanted), default=(0, None))[1]


def _serving(file: Path) -> tuple[int, Serving] | None:
    """When a file was written and what it says, if its process still runs."""
    try:
        at = file.stat().st_mtime_ns
        serving = msgspec.json.decode(file.read_bytes(), type=Serving)
    except (OSError, msgspec.MsgspecError):
        return None
    return (at, serving) if _runs(serving.pid) else None


def _digest(databases: Mapping[int, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(sorted(databases.items()))).hexdigest()


def _runs(pid: int) -> bool:
    """Whether there is such a process: one that was killed leaves its address behind."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
