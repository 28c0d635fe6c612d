"""One PostgreSQL server on a data folder, started and stopped by this process (toolbox 5)."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

from harvest import clock
from harvest_console.embedded import cluster
from harvest_console.embedded.account import server_account
from harvest_console.embedded.binaries import find_binaries
from harvest_console.embedded.errors import DataFolderBusyError, EmbeddedPostgresError
from harvest_console.lifeline import LINUX, guard_by_pipe, parent_death_hook

_log = logging.getLogger("harvest.embedded")

_READY_SECONDS = 300.0  # crash recovery may take minutes
_TAKEOVER_SECONDS = 10.0
_STOP_SECONDS = 30.0
_LOG_LIMIT = 8 * 1024 * 1024
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HELD = ("already exists", "still in use")

DEFAULT_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "port": str(cluster.PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}


class EmbeddedPostgres:
    """One server on `data_dir`, reached through a Unix socket only.

    A `persistent` server outlives a killed parent and is adopted by the next start; an ephemeral one ends with its
    parent. `settings` are PostgreSQL's, on top of `DEFAULT_SETTINGS`. `programs` names the folder of another
    PostgreSQL's programs. The interface is synchronous; one object belongs to one thread, for an ephemeral server the
    main thread. Several servers start quickest by `start_all`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        persistent: bool,
        settings: Mapping[str, str] | None = None,
        programs: Path | None = None,
    ) -> None:
        self._asked = data_dir.absolute()
        self._persistent = persistent
        self._settings = dict(settings or {})
        self._account = server_account()
        self._binaries = find_binaries(self._account, programs)
        self._data: Path | None = None
        self._sockets: Path | None = None
        self._hold: IO[str] | None = None
        self._init: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._adopted: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The server's process; None while there is none."""
        return self._process.pid if self._process else self._adopted

    @property
    def log_path(self) -> Path:
        """The server's log, beside its data folder."""
        return self._data_dir.with_name(f"{self._data_dir.name}.log")

    def start(self) -> None:
        """Make the data folder if there is none, start the server or adopt the one that runs, and wait for it.

        Raises DataFolderBusyError, DataFolderError or EmbeddedPostgresError; nothing is left running then.
        """
        start_all([self])

    def url(self, database: str = "harvest") -> str:
        """A connection URL for asyncpg, psycopg and libpq. Creates nothing: see `ensure_database`."""
        if self._sockets is None:
            raise EmbeddedPostgresError(f"the PostgreSQL server on {self._asked} has not been started")
        return f"postgresql://postgres@/{database}?host={quote(str(self._sockets))}&port={cluster.PORT}"

    def ensure_database(self, name: str = "harvest") -> str:
        """Create the database unless it exists. Answers its URL."""
        if not self.sql(f"SELECT 1 FROM pg_database WHERE datname = '{_checked(name)}'"):
            self.create_database(name)
        return self.url(name)

    def create_database(self, name: str, template: str = "template1") -> str:
        """Create a database as a copy of `template`, to which nobody may be connected. Answers its URL."""
        self.sql(f'CREATE DATABASE "{_checked(name)}" TEMPLATE "{_checked(template)}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop the database if it exists, and end whoever is connected to it."""
        self.sql(f'DROP DATABASE IF EXISTS "{_checked(name)}" WITH (FORCE)')

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run one administrative statement and answer its unaligned output. Raises EmbeddedPostgresError."""
        command = [self._binaries.program("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.url(database)]
        done = subprocess.run(
            [*command, "-c", statement], env=cluster.environment(), check=False, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise EmbeddedPostgresError(f"{statement!r} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def is_ready(self) -> bool:
        """Whether the server accepts connections on its socket."""
        if self._sockets is None or not (self._sockets / f".s.PGSQL.{cluster.PORT}").exists():
            return False
        command = [self._binaries.program("pg_isready"), "-q", "-t", "3", "-h", str(self._sockets)]
        command += ["-p", str(cluster.PORT), "-d", "postgres", "-U", "postgres"]
        return subprocess.run(command, env=cluster.environment(), check=False).returncode == 0

    def kill(self) -> None:
        """SIGKILL the server, as a crash would, and wait until it is gone. `start` brings it back on the same data."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server cleanly, breaking its connections, and let go of the data folder. Harmless when stopped."""
        try:
            for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                if self.pid is None or self._end(signum):
                    break
                _log.warning("PostgreSQL on %s did not end within %s s of %s", self._asked, _STOP_SECONDS, signum.name)
        finally:
            self._let_go()

    def remove(self) -> None:
        """Stop the server and delete its data, log and lock."""
        self.stop()
        data = self._data_dir
        shutil.rmtree(data, ignore_errors=True)
        if self._sockets is not None and self._sockets != data:
            shutil.rmtree(self._sockets, ignore_errors=True)
        for path in (self.log_path, self._lock_path()):
            path.unlink(missing_ok=True)
        if self._asked.is_symlink():
            self._asked.unlink()

    # The three phases of a start; `start_all` runs each for every server before the next.

    def _prepare(self) -> None:
        if not self._persistent and LINUX and threading.current_thread() is not threading.main_thread():
            raise EmbeddedPostgresError(
                "an ephemeral server would die with the thread that starts it: start it from the main thread"
            )
        self._data = cluster.place(self._asked, self._account)
        self._take_hold()
        if not cluster.check(self._data, self._binaries):
            self._init = cluster.begin_init(self._data, self._binaries, self._account, sync=self._persistent)

    def _launch(self) -> None:
        data = self._data_dir
        if self._init is not None:
            cluster.finish_init(data, self._init)
            self._init = None
        self._sockets = cluster.socket_folder(data, self._account)
        lock = cluster.read_lock(data)
        if lock is not None and cluster.is_postgres(lock.pid):
            self._sockets = lock.socket_folder
            if self._take_over(lock.pid):
                return
            self._sockets = cluster.socket_folder(data, self._account)
        self._spawn()

    def _await_ready(self) -> None:
        if self._adopted is not None:
            return
        retry_until = clock.monotonic() + _TAKEOVER_SECONDS
        end = clock.monotonic() + _READY_SECONDS
        while not self.is_ready():
            process = self._process
            assert process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
            if process.returncode is not None:
                said = self._log_tail()
                self._process = None
                if not any(words in said for words in _HELD) or clock.monotonic() > retry_until:
                    raise EmbeddedPostgresError(f"PostgreSQL on {self._data} did not start: {said}")
                _wait(lambda: False, 0.2)  # backends of a killed server need a moment to notice
                self._spawn()
            elif clock.monotonic() > end:
                raise EmbeddedPostgresError(f"PostgreSQL on {self._data} was not ready in {_READY_SECONDS:.0f} s")

    def _abandon(self) -> None:
        if self._init is not None:
            self._init.kill()
            self._init.wait()
            self._init = None
        self.stop()

    # Parts of them.

    @property
    def _data_dir(self) -> Path:
        return self._data if self._data is not None else self._asked.resolve()

    def _lock_path(self) -> Path:
        return self._data_dir.with_name(f"{self._data_dir.name}.lock")

    def _take_hold(self) -> None:
        if self._hold is not None:
            return
        hold = self._lock_path().open("a+")
        try:
            fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hold.seek(0)
            holder = hold.read().strip() or "unknown"
            hold.close()
            raise DataFolderBusyError(
                f"process {holder} runs a PostgreSQL server on {self._data}: stop it, or name another data folder",
                pid=holder,
            ) from None
        hold.truncate(0)
        hold.write(f"{os.getpid()}\n")
        hold.flush()
        self._hold = hold

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def _take_over(self, pid: int) -> bool:
        """Adopt the running server `pid` if it answers and may outlive us; else see it end. True if adopted."""
        self._adopted = pid
        if self._persistent and _wait(lambda: self.is_ready() or not cluster.is_postgres(pid), _TAKEOVER_SECONDS):
            if self.is_ready():
                _log.info("adopted the PostgreSQL server %s that runs on %s", pid, self._data)
                return True
        elif self._persistent:
            self._adopted = None  # it is not ours to end
            raise EmbeddedPostgresError(
                f"a PostgreSQL server (process {pid}) holds {self._data} and does not answer: end it and start again"
            )
        else:
            self._end(signal.SIGINT)
        self._adopted = None
        return False

    def _spawn(self) -> None:
        data, sockets = self._data_dir, self._sockets
        lock = cluster.read_lock(data)
        if lock is not None:
            cluster.disown_stale_lock(data, lock)
        log_path = self.log_path
        if log_path.exists() and log_path.stat().st_size > _LOG_LIMIT:
            log_path.replace(log_path.with_suffix(".log.1"))
        settings = {**DEFAULT_SETTINGS, "unix_socket_directories": str(sockets), **self._settings}
        if self._binaries.major >= 18:
            settings.setdefault("io_method", "sync")
        command = [self._binaries.program("postgres"), "-D", str(data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                cwd="/",
                env=cluster.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=None if self._persistent else parent_death_hook(signal.SIGINT),
                **(self._account.spawn_options() if self._account else {}),
            )
        if not self._persistent and not LINUX:
            self._guard = guard_by_pipe(self._process.pid, signal.SIGINT)

    def _log_tail(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read()[-2000:].decode(errors="replace").strip()

    def _end(self, signum: signal.Signals) -> bool:
        """Send the signal and wait for the end; False if the server outlives the wait."""
        pid, process = self.pid, self._process
        if pid is None:
            return True
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            self._guard = None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
        ended = (lambda: process.poll() is not None) if process else (lambda: not cluster.is_postgres(pid))
        if not _wait(ended, _STOP_SECONDS):
            return False
        self._process = self._adopted = None
        return True


def start_all(servers: Sequence[EmbeddedPostgres]) -> None:
    """Start several servers side by side from this thread; if one fails, all are stopped and its error is raised."""
    try:
        for server in servers:
            server._prepare()
        for server in servers:
            server._launch()
        for server in servers:
            server._await_ready()
    except BaseException:
        for server in servers:
            server._abandon()
        raise


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll for `condition` up to `seconds`; whether it came true."""
    end, tick = clock.monotonic() + seconds, threading.Event()
    while not condition():
        if clock.monotonic() > end:
            return False
        tick.wait(0.01)
    return True


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise EmbeddedPostgresError(
            f"{name!r} is not a name for a database here: use lower-case letters, digits and _, at most 63"
        )
    return name
