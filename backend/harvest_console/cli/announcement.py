"""Where the consoles of a data folder say their addresses. Imports nothing that is slow: scripts ask it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
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
    """The address of a `harvest serve`, and a digest that tells its databases from others."""

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

    It holds a lock on the file for as long: a number of a process says nothing where containers share the folder. A
    folder that cannot be written to keeps nobody from serving: `signin-link` is then told the address.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
            for left in path.glob(_SERVE_FILE.format("*")):
                if not _is_held(left):
                    left.unlink(missing_ok=True)
            file = path / _SERVE_FILE.format(secrets.token_hex(8))
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            stack.callback(os.close, descriptor)
            stack.callback(file.unlink, missing_ok=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, msgspec.json.encode(Serving(url, _digest(databases))))
        yield


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
    return (at, serving) if _is_held(file) else None


def _is_held(file: Path) -> bool:
    """Whether the process that wrote a file still serves: a lock ends with whoever holds it, however that ends."""
    with contextlib.suppress(BlockingIOError), file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    return True


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
