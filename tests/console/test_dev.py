"""`harvest dev` as a newcomer meets it: what it starts, what it refuses, what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pytest

from harvest import clock
from harvest.store import migrate
from harvest_console import settings
from harvest_console.cli.data_folder import AlreadyRunningError, DataFolder
from harvest_console.embedded import cluster

HARVEST = [sys.executable, "-m", "harvest_console.cli"]
APP = """
from harvest import Harvest, WorkflowContext

app = Harvest()

@app.workflow
async def greet(ctx: WorkflowContext, name: str) -> str:
    return f"hello {name}"
"""
START_SECONDS = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without any setting of Harvest, and consoles that do not probe."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
    return kept | {"HARVEST_CANARY": "off"} | dict(extra or {})


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for the condition, or fail."""
    end, tick = clock.monotonic() + seconds, threading.Event()
    while not condition():
        assert clock.monotonic() < end, "the condition did not come true in time"
        tick.wait(0.05)


def get(url: str, **headers: str) -> int:
    """The status of a GET request."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    try:
        connection.request("GET", parts.path or "/", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


class Dev:
    """A running `harvest dev`, with its standard output read line by line."""

    def __init__(
        self, folder: Path, *arguments: str, extra: Mapping[str, str] | None = None, verb: str = "dev"
    ) -> None:
        self.folder = folder
        self.data = folder / ".harvest"
        self.errors = folder / "stderr"
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.output: list[str] = []
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*HARVEST, verb, *(arguments or ("shop:app", "--port", "0"))],
                cwd=folder,
                env=environment(extra),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def ready(self) -> str:
        """Wait for the line that says it serves; the address in it."""
        end = clock.monotonic() + START_SECONDS
        while True:
            line = self._lines.get(timeout=max(0.1, end - clock.monotonic()))
            assert line is not None, self.errors.read_text()
            self.output.append(line)
            if match := re.fullmatch(r"ready (http://\S+)", line):
                return match[1]

    def rest(self) -> list[str]:
        """What a process that has ended printed and nobody has read."""
        return list(iter(lambda: self._lines.get(timeout=10), None))

    def workers(self) -> list[int]:
        """The process ids of its worker children."""
        return [pid for pid, words in processes().items() if f"--parent {self.process.pid}" in words]

    def interrupt(self) -> int:
        """Press Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)


def processes() -> dict[int, str]:
    """The command line of every living process."""
    output = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,stat=,command="], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split(None, 2) for line in output.splitlines())
    return {int(row[0]): row[2] for row in rows if len(row) == 3 and not row[1].startswith("Z")}


def servers(folder: Path) -> list[int]:
    """The PostgreSQL servers with data in the folder."""
    return [pid for pid, words in processes().items() if f"-D {folder}/" in words]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A newcomer's folder with an app in it; whatever runs there is ended at last."""
    with tempfile.TemporaryDirectory(prefix="hvd-", ignore_cleanup_errors=True) as name:
        path = Path(name).resolve()
        path.chmod(0o711)
        (path / "shop.py").write_text(APP)
        yield path
        for pid in servers(path):
            os.kill(pid, signal.SIGQUIT)
        until(lambda: not servers(path))


@pytest.fixture
def dev(folder: Path) -> Iterator[Callable[..., Dev]]:
    """Start `harvest dev` in the folder."""
    started: list[Dev] = []

    def start(*arguments: str, extra: Mapping[str, str] | None = None, verb: str = "dev") -> Dev:
        started.append(Dev(folder, *arguments, extra=extra, verb=verb))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(30)
            each.process.kill()


def harvest(*arguments: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end."""
    return subprocess.run(
        [*HARVEST, *arguments], cwd=cwd, env=environment(extra), capture_output=True, text=True, timeout=60, check=False
    )


async def query(url: str, statement: str) -> object:
    """One value from a database."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


def test_starts_everything_and_ctrl_c_stops_everything(dev: Callable[..., Dev], folder: Path) -> None:
    running = dev()
    address = running.ready()
    assert get(f"{address}/health") == 200
    assert len([line for line in running.output if line.startswith("sign in")]) == 1
    until(lambda: len(running.workers()) == 2)
    assert len(servers(folder)) == 2
    assert running.interrupt() == 0
    assert servers(folder) == []
    assert running.workers() == []
    assert not (running.data / settings.DATABASES_FILE).exists()


def test_the_sign_in_link_is_in_no_file(dev: Callable[..., Dev], folder: Path) -> None:
    running = dev()
    running.ready()
    link = next(line.split()[-1] for line in running.output if line.startswith("sign in"))
    token = re.split(r"[/=#]", link)[-1]
    assert len(token) >= 32
    running.interrupt()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 100
    assert [path for path in files if token.encode() in path.read_bytes()] == []


@pytest.mark.prove_main_job
def test_the_next_start_finds_the_data(dev: Callable[..., Dev], full_scale: bool, proof: Callable[..., None]) -> None:
    began = clock.monotonic()
    first = dev()
    first.ready()
    first_seconds = clock.monotonic() - began
    urls = settings.find_databases({}, first.data)
    asyncio.run(query(urls[1], "create table kept as select 42 as n"))
    first.interrupt()
    began = clock.monotonic()
    second = dev()
    second.ready()
    second_seconds = clock.monotonic() - began
    assert asyncio.run(query(settings.find_databases({}, second.data)[1], "select n from kept")) == 42
    proof("`harvest dev` until it is ready", first=first_seconds, second=second_seconds)
    if full_scale:
        assert second_seconds < 5


def test_a_schema_that_is_up_to_date_costs_no_migration_tool(new_database: Callable[[str], str]) -> None:
    code = """
import asyncio, sys
from harvest_console.cli.schema import bring_up
asyncio.run(bring_up({0: sys.argv[1]}))
print("alembic" in sys.modules)
"""
    command = [sys.executable, "-c", code, new_database("level")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_started_twice_it_names_the_running_address_and_harms_nothing(dev: Callable[..., Dev], folder: Path) -> None:
    running = dev()
    address = running.ready()
    before = servers(folder)
    again = harvest("dev", "shop:app", "--port", "0", cwd=folder)
    assert again.returncode == 3
    assert address in again.stderr
    assert str(running.process.pid) in again.stderr
    assert servers(folder) == before
    assert get(f"{address}/health") == 200


def test_a_taken_port_is_said_before_anything_is_started(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = harvest("dev", "shop:app", "--port", port, cwd=folder)
    assert done.returncode == 2
    assert port in done.stderr
    assert "--port 0" in done.stderr
    assert not list((folder / ".harvest").glob("postgres-*"))


@pytest.mark.parametrize("token", ["", "short"])
def test_another_host_than_loopback_needs_a_long_token(folder: Path, token: str) -> None:
    done = harvest("dev", "shop:app", "--host", "0.0.0.0", "--port", "0", cwd=folder, HARVEST_ADMIN_TOKEN=token)
    assert done.returncode == 2
    assert "HARVEST_ADMIN_TOKEN" in done.stderr
    assert "32" in done.stderr
    assert not (folder / ".harvest").exists()


def test_secrets_are_readable_by_their_owner_alone(dev: Callable[..., Dev]) -> None:
    running = dev()
    running.ready()
    for name in ("secret.key", "admin.token", settings.DATABASES_FILE):
        assert (running.data / name).stat().st_mode & 0o777 == 0o600


def test_a_killed_worker_is_started_again(dev: Callable[..., Dev]) -> None:
    running = dev()
    running.ready()
    until(lambda: len(running.workers()) == 2)
    victim, bystander = running.workers()
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(running.workers()) == 2 and victim not in running.workers())
    assert bystander in running.workers()
    assert running.interrupt() == 0


def test_a_reserved_shard_gets_a_worker_of_its_own(dev: Callable[..., Dev]) -> None:
    running = dev("shop:app", "--port", "0", "--workers", "1", extra={"HARVEST_RESERVED_SHARDS": "1"})
    running.ready()
    told = [re.findall(r"--shard (\d+)", processes()[pid]) for pid in running.workers()]
    assert sorted(told) == [["0"], ["1"]]
    assert "Traceback" not in running.errors.read_text()


def test_killed_whole_it_leaves_no_worker_and_the_next_start_adopts_the_databases(
    dev: Callable[..., Dev], folder: Path
) -> None:
    running = dev()
    running.ready()
    until(lambda: len(running.workers()) == 2)
    before = {cluster.read_lock(running.data / f"postgres-{number}") for number in (0, 1)}
    running.process.kill()
    running.process.wait()
    until(lambda: running.workers() == [])
    heir = dev()
    heir.ready()
    after = {cluster.read_lock(heir.data / f"postgres-{number}") for number in (0, 1)}
    assert {lock.pid for lock in after if lock} == {lock.pid for lock in before if lock}
    assert heir.interrupt() == 0
    assert servers(folder) == []


def test_an_app_that_cannot_be_imported_ends_it_with_the_reason(dev: Callable[..., Dev], folder: Path) -> None:
    (folder / "shop.py").write_text("import no_such_module\n")
    running = dev()
    assert running.process.wait(START_SECONDS) == 2
    said = running.errors.read_text()
    assert said.count("No module named 'no_such_module'") == 1
    assert "raised ModuleNotFoundError while it was imported" in said
    assert "'shop:app'" in said
    assert servers(folder) == []
    assert running.rest() == []


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("nope:app", "there is no module 'nope' for 'nope:app'"),
        ("shop:nope", "has no Harvest application named 'nope'"),
        ("wrong:app", "[HVT-100], at "),
    ],
)
def test_what_is_wrong_with_an_app_is_said_once_in_one_line(
    dev: Callable[..., Dev], folder: Path, app: str, said: str
) -> None:
    (folder / "wrong.py").write_text(APP + APP.replace("app = Harvest()", ""))
    running = dev(app, "--port", "0")
    assert running.process.wait(START_SECONDS) == 2
    errors = running.errors.read_text()
    assert errors.count(said) == 1
    assert "Traceback" not in errors
    assert running.rest() == []


def sign_in(link: str) -> int:
    """Press the button of the page that a link opens; the status of the answer."""
    parts = urlsplit(link)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    try:
        form = {"content-type": "application/x-www-form-urlencoded"}
        connection.request("POST", parts.path, parts.query, form)
        return connection.getresponse().status
    finally:
        connection.close()


def test_serve_prints_a_link_and_another_can_be_made(dev: Callable[..., Dev], folder: Path) -> None:
    running = dev()
    own = running.ready()
    beside = dev("--port", "0", verb="serve")
    address = beside.ready()
    assert harvest("workflow", "list", cwd=folder).returncode == 0
    made = harvest("signin-link", cwd=folder).stdout.strip()
    there = harvest("signin-link", "--console-url", address, cwd=folder).stdout.strip()
    assert made.startswith(f"{own}/signin?token=")
    printed = next(line.split()[-1] for line in beside.output if line.startswith("sign in"))
    for link in (printed, there):
        assert link.startswith(f"{address}/signin?token=")
        assert sign_in(link) == 303
        assert sign_in(link) == 403


def test_a_link_leads_to_the_serve_that_runs_on_these_databases(
    dev: Callable[..., Dev], folder: Path, new_database: Callable[[str], str]
) -> None:
    mine = {"HARVEST_DATABASE_URLS": f"0={new_database('linked')}"}
    other = {"HARVEST_DATABASE_URLS": f"0={new_database('unlinked')}"}
    running = dev("--port", "0", "--base-path", "/harvest", verb="serve", extra=mine)
    address = running.ready()
    made = harvest("signin-link", cwd=folder, **mine)
    assert made.stdout.startswith(f"{address}/signin?token=")
    assert address.endswith("/harvest")
    elsewhere = harvest("signin-link", cwd=folder, **other)
    assert elsewhere.stdout.startswith("http://127.0.0.1:8400/signin?token=")
    assert "--console-url" in elsewhere.stderr
    assert running.interrupt() == 0
    assert list(running.data.glob("serve-*")) == []
    assert harvest("signin-link", cwd=folder, **mine).stdout.startswith("http://127.0.0.1:8400/")


def test_workers_run_with_one_hash_seed_on_the_databases_of_dev(dev: Callable[..., Dev], folder: Path) -> None:
    (folder / "shop.py").write_text(
        APP
        + 'import os\nfrom pathlib import Path\nPath(f"seen-{os.getpid()}").write_text(os.environ["PYTHONHASHSEED"])\n'
    )
    running = dev("shop:app", "--port", "0", "--workers", "1")
    running.ready()
    until(lambda: list(folder.glob("seen-*")))
    with (folder / "by_hand").open("wb") as errors:
        other = environment({"PYTHONHASHSEED": "7"})
        by_hand = subprocess.Popen([*HARVEST, "worker", "shop:app"], cwd=folder, env=other, stderr=errors)
    try:
        until(lambda: "has started" in (folder / "by_hand").read_text())
        assert {path.read_text() for path in folder.glob("seen-*")} == {"0"}
    finally:
        by_hand.terminate()
        assert by_hand.wait(30) == 0


def test_databases_of_ones_own_are_used_instead(
    dev: Callable[..., Dev], folder: Path, new_database: Callable[[str], str]
) -> None:
    mine = ",".join(f"{number}={new_database('dev')}" for number in (0, 1, 2))
    running = dev(extra={"HARVEST_DATABASE_URLS": mine})
    address = running.ready()
    assert get(f"{address}/health") == 200
    assert servers(folder) == []
    known = msgspec.json.decode((running.data / settings.DATABASES_FILE).read_bytes(), type=dict[int, str])
    assert ",".join(f"{number}={url}" for number, url in known.items()) == mine
    status = harvest("migrate", "status", cwd=folder)
    assert status.returncode == 0
    assert status.stdout.count("this release has") == 3


def test_a_database_that_does_not_answer_is_named_before_anything_runs(folder: Path) -> None:
    nowhere = "postgresql://user:hunter2@127.0.0.1:1/nothing"
    done = harvest("dev", "shop:app", "--port", "0", cwd=folder, HARVEST_DATABASE_URL=nowhere)
    assert done.returncode == 2
    assert "the database of shard 0 does not answer" in done.stderr
    assert "hunter2" not in done.stderr


def test_migrate_status_tells_an_empty_and_a_missing_database(
    folder: Path, new_database: Callable[[str], str], postgres_server: object
) -> None:
    ready = new_database("status")
    gone = ready.replace("/db_status", "/no_such_database_")
    done = harvest("migrate", "status", cwd=folder, HARVEST_DATABASE_URLS=f"0={ready},1={gone}")
    assert done.returncode == 1
    assert f"shard 0: level {migrate.SCHEMA_LEVEL}" in done.stdout
    assert "shard 1: no answer" in done.stdout


def test_another_number_of_shards_than_the_folder_has_is_refused(folder: Path) -> None:
    data = folder / ".harvest"
    for number in (0, 1):
        (data / f"postgres-{number}").mkdir(parents=True)
    done = harvest("dev", "shop:app", "--port", "0", "--shards", "3", cwd=folder)
    assert done.returncode == 2
    assert "made with 2 shards" in done.stderr


def test_a_folder_is_held_by_one_and_free_after_it(folder: Path) -> None:
    first, second = DataFolder(folder / ".harvest"), DataFolder(folder / ".harvest")
    first.take()
    first.announce("http://127.0.0.1:1")
    with pytest.raises(AlreadyRunningError, match=r"at http://127\.0\.0\.1:1 \(process"):
        second.take()
    first.let_go()
    second.take()
    second.let_go()


def test_help_answers_without_importing_what_is_slow() -> None:
    code = """
import sys
from harvest_console.cli import main
sys.argv = ["harvest", "--help"]
try:
    main()
except SystemExit:
    print(sorted({"litestar", "alembic", "sqlalchemy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "workflow" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
