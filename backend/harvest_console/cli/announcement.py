"""Where the development setup of a data folder says its address. Imports nothing that is slow: scripts ask it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

LOCK_FILE: Final = "dev.lock"


class Holder(msgspec.Struct):
    """The process that holds a data folder, and its address once it has one."""

    pid: int
    url: str = ""


def running_address(path: Path) -> str | None:
    """The address of the development setup that runs on a folder; None if none does."""
    try:
        holder = msgspec.json.decode((path / LOCK_FILE).read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None
    return holder.url or None if _runs(holder.pid) else None


def _runs(pid: int) -> bool:
    """Whether there is such a process: one that was killed leaves its address behind."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
