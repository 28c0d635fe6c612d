"""The files of one PostgreSQL data folder: where it may lie, whose version it is, and who holds it."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from harvest import clock
from harvest_console.embedded.account import Account, may
from harvest_console.embedded.binaries import Binaries
from harvest_console.embedded.errors import DataFolderError, EmbeddedPostgresError
from harvest_console.lifeline import LINUX

PORT = 5432
_log = logging.getLogger("harvest.embedded")

_SYSTEM_HOME = Path("/var/lib/harvest")
_SOCKET_PATH_LIMIT = 80
_NO_PROCESS = 2**31 - 2  # above every system's highest process id


class Lock(msgspec.Struct, frozen=True):
    """What a data folder's `postmaster.pid` says: the server's process and the folder of its socket."""

    pid: int
    socket_folder: Path


def place(data_dir: Path, account: Account | None) -> Path:
    """The real folder for the data: `data_dir`, or where a link there leads.

    When the server's account cannot enter the parent (a checkout in root's home), the data lies below /var/lib and
    `data_dir` becomes a link to it: opening the parent to others is not ours to do.
    """
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    if data_dir.is_symlink() or may("-x", data_dir.parent, account):
        return data_dir.resolve()
    if data_dir.exists():
        raise DataFolderError(
            f"{data_dir} lies in a folder that {account.name if account else 'the server'} may not enter: "
            "move it to where every user may pass, or start Harvest as an ordinary user"
        )
    # A fresh name each time: who deletes the link wants to start anew.
    home = _SYSTEM_HOME / f"{data_dir.name}-{clock.random_bytes(6).hex()}"
    if not _SYSTEM_HOME.exists():
        _SYSTEM_HOME.mkdir(parents=True)
        _SYSTEM_HOME.chmod(0o711)  # whatever the umask is
    data_dir.symlink_to(home)
    _log.info("the data of %s is kept in %s, where the server's account may enter", data_dir, home)
    return home


def check(data_dir: Path, binaries: Binaries) -> bool:
    """Whether `data_dir` holds a cluster that these programs can open; False if there is nothing yet.

    Raises DataFolderError for anything else, and touches nothing.
    """
    if not data_dir.exists():
        return False
    version = data_dir / "PG_VERSION"
    if not version.exists():
        if any(data_dir.iterdir()):
            raise DataFolderError(f"{data_dir} is not a PostgreSQL data folder: name another folder, or empty this one")
        return False
    found = version.read_text().strip()
    if found != str(binaries.major):
        raise DataFolderError(
            f"{data_dir} was made by PostgreSQL {found} and this is PostgreSQL {binaries.major}. It was left as it is. "
            f"To keep its data, dump it with PostgreSQL {found} and load the dump here; to start anew, move it away",
            found=found,
            expected=binaries.major,
        )
    return True


def begin_init(data_dir: Path, binaries: Binaries, account: Account | None, *, sync: bool) -> subprocess.Popen[bytes]:
    """Start `initdb` into a folder beside `data_dir`; `finish_init` puts it in place. The caller holds the lock."""
    for leftover in data_dir.parent.glob(f"{data_dir.name}.init*"):
        shutil.rmtree(leftover)
    fresh = _fresh_folder(data_dir)
    fresh.mkdir(mode=0o700)
    if account is not None:
        os.chown(fresh, account.uid, account.gid)
    arguments = ["--locale=C", "--encoding=UTF8", "--auth=trust", "--username=postgres", f"--pgdata={fresh}"]
    if not sync:
        arguments.append("--no-sync")
    options = account.spawn_options() if account else {}
    return subprocess.Popen(
        [binaries.program("initdb"), *arguments],
        cwd="/",
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **options,
    )


def finish_init(data_dir: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for `begin_init` and put its result in place in one step, so that half a cluster is never opened."""
    output, _ = process.communicate()
    if process.returncode != 0:
        said = output.decode(errors="replace").strip()
        raise EmbeddedPostgresError(f"initdb failed for {data_dir}: {said}")
    if data_dir.exists():
        data_dir.rmdir()
    _fresh_folder(data_dir).rename(data_dir)


def _fresh_folder(data_dir: Path) -> Path:
    return data_dir.with_name(f"{data_dir.name}.init{os.getpid()}")


def environment() -> dict[str, str]:
    """The environment of PostgreSQL's programs: nothing of the user's, so that no PG* variable or secret leaks in."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def socket_folder(data_dir: Path, account: Account | None) -> Path:
    """A folder of mode 0700 whose path is short enough for a Unix socket: the data folder, else one made for it.

    A comma would part two hosts in a connection URL. Raises DataFolderError if another user has taken the name.
    """
    if len(os.fsencode(data_dir)) <= _SOCKET_PATH_LIMIT and "," not in str(data_dir):
        return data_dir
    folder = Path(tempfile.gettempdir()) / f"hv-{_short_hash(data_dir)}"
    owner = account.uid if account else os.geteuid()
    try:
        folder.mkdir(mode=0o700)
        os.chown(folder, owner, -1)
    except FileExistsError:
        found = folder.lstat()
        if found.st_uid != owner or found.st_mode & 0o777 != 0o700 or folder.is_symlink():
            raise DataFolderError(
                f"{folder} should be ours with mode 0700 and is not: remove it, or name a data folder with a path of "
                f"at most {_SOCKET_PATH_LIMIT} bytes"
            ) from None
    return folder


def read_lock(data_dir: Path) -> Lock | None:
    """What `postmaster.pid` says; None if there is none, or a server is just writing it."""
    try:
        lines = (data_dir / "postmaster.pid").read_text().splitlines()
        return Lock(int(lines[0]), Path(lines[4]))
    except (FileNotFoundError, ValueError, IndexError):
        return None


def disown_stale_lock(data_dir: Path, lock: Lock) -> None:
    """Make PostgreSQL see that the holder in `postmaster.pid` is gone, when its process id lives on as something else.

    Only the process id is replaced: PostgreSQL then still checks by the other lines that no backend of the old server
    is attached to its memory.
    """
    if is_postgres(lock.pid):
        return
    path = data_dir / "postmaster.pid"
    _, _, rest = path.read_text().partition("\n")
    path.write_text(f"{_NO_PROCESS}\n{rest}")


def is_postgres(pid: int) -> bool:
    """Whether `pid` is a living (not a zombie) process of PostgreSQL."""
    if LINUX:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
            return state not in "ZX" and Path(os.readlink(f"/proc/{pid}/exe")).name.split(" ")[0] == "postgres"
        except OSError:
            return False
    command = ["ps", "-o", "stat=,comm=", "-p", str(pid)]
    state, _, name = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip().partition(" ")
    return bool(state) and not state.startswith("Z") and Path(name.strip()).name == "postgres"


def _short_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
