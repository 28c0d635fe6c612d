"""Who runs the server: PostgreSQL refuses to run as root, so root lends it an unprivileged system account."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from harvest_console.embedded.errors import EmbeddedPostgresError

_CREATED_NAME = "harvest-postgres"
_CANDIDATES = ("postgres", _CREATED_NAME)


class Account(msgspec.Struct, frozen=True):
    """An unprivileged system account."""

    name: str
    uid: int
    gid: int

    def spawn_options(self) -> dict[str, Any]:
        """Arguments of `subprocess` that start a program as this account and nothing more."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def server_account() -> Account | None:
    """The account to run PostgreSQL as; None if this process is not root and can run it itself.

    Raises EmbeddedPostgresError if there is none and none can be created.
    """
    if os.geteuid() != 0:
        return None
    found = next((entry for entry in map(_entry, _CANDIDATES) if entry), None)
    return found or _create() or _nobody()


def _entry(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name, entry.pw_uid, entry.pw_gid)


def _create() -> Account | None:
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:" + os.environ.get("PATH", ""))
    if useradd is None:
        return None
    command = [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", _CREATED_NAME]
    subprocess.run(command, check=False, capture_output=True)
    return _entry(_CREATED_NAME)


def _nobody() -> Account:
    account = _entry("nobody")
    if account is None:
        raise EmbeddedPostgresError(
            "PostgreSQL does not run as root, and this system has no account to run it as: "
            f"create a system user named {_CREATED_NAME!r}, or start Harvest as an ordinary user"
        )
    return account


def may(flag: str, path: Path, account: Account | None) -> bool:
    """Whether the server's account passes `test FLAG PATH` (`-x`: enter or run, `-r`: read), every parent included."""
    options = account.spawn_options() if account else {}
    done = subprocess.run(
        ["/bin/sh", "-c", f'test {flag} "$1"', "sh", str(path)], cwd="/", check=False, capture_output=True, **options
    )
    return done.returncode == 0
