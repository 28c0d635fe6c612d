"""`harvest worker …`: the fleet over the API, and worker processes under one parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from click.testing import CliRunner, Result

from harvest import Harvest, WorkflowContext
from harvest.shards import Shards
from harvest.worker.effective import NAMES
from harvest.worker.main import keep_working
from harvest.worker.options import WorkerOptions
from harvest_console.cli.root import root
from harvest_console.cli.working import run
from tests.console.conftest import TOKEN, settings
from tests.console.serving import served
from tests.console.test_dev import APP, HARVEST, environment, processes, query, until
from tests.support import FAST


class Cli:
    """`harvest worker …`, told where the console is by the environment."""

    def __init__(self, address: str) -> None:
        self.environment = {"HARVEST_URL": f"{address}/api/harvest", "HARVEST_TOKEN": TOKEN}

    async def __call__(self, *arguments: str) -> Result:
        """Run a command in a thread of its own."""
        return await asyncio.to_thread(CliRunner().invoke, root, ["worker", *arguments], env=self.environment)

    async def answer(self, *arguments: str) -> dict[str, Any]:
        """Run a command that must succeed; its answer."""
        result = await self(*arguments)
        assert result.exit_code == 0, result.output
        decoded: dict[str, Any] = msgspec.json.decode(result.stdout)
        return decoded


@pytest.fixture
async def cli(urls: dict[int, str], shards: Shards) -> AsyncIterator[Cli]:
    """The command line of a console over two shards."""
    async with served(settings(urls)) as address:
        yield Cli(address)


async def test_list_get_health_and_drain(cli: Cli, urls: dict[int, str]) -> None:
    app = Harvest()

    @app.workflow
    async def patient(ctx: WorkflowContext) -> str:
        return await ctx.wait_for_signal("go", str)

    begun, stop = asyncio.Event(), asyncio.Event()
    options = msgspec.structs.replace(FAST, name="w-1")
    working = asyncio.create_task(keep_working(app.registry, urls, options=options, stop=stop, on_start=begun.set))
    try:
        await begun.wait()
        listed = await cli.answer("list", "--status", "active", "--shard", "1")
        assert {each["name"] for each in listed["workers"]} == {"w", "w-1"}
        shown = await cli.answer("get", "w-1")
        assert shown["workflow_types"] == ["patient/1"]
        assert (await cli.answer("get", shown["worker_id"]))["name"] == "w-1"
        assert (await cli.answer("health"))["healthy"] == 3
        assert (await cli.answer("pinned", "w-1"))["pinned"] == []
        assert (await cli.answer("drain-preview", "w-1"))["workers"][0]["types_left"] == ["patient/1"]
        assert (await cli.answer("evict", "w-1", "--reason", "memory"))["outcome"] == "requested"
        ended = await cli.answer("drain", "w-1", "--deadline", "5", "--wait", "30", "--reason", "deploy")
        assert (ended["status"], ended["report"]["ended"]) == ("stopped", "drained")
        assert await asyncio.wait_for(working, 30) == "drained"
    finally:
        stop.set()
        await asyncio.gather(working, return_exceptions=True)


async def test_a_worker_that_is_not_there_or_not_the_only_one_of_its_name_is_told_so(cli: Cli) -> None:
    unknown = await cli("get", "nobody")
    assert (unknown.exit_code, "no worker is called 'nobody'" in unknown.output) == (2, True)
    several = await cli("drain", "w")
    assert (several.exit_code, "2 workers are called 'w'; name one by its id" in several.output) == (2, True)
    missing = await cli("drain", str(uuid4()))
    assert (missing.exit_code, "[HVT-303]" in missing.output) == (1, True)


async def test_a_drain_that_takes_longer_than_the_wait_exits_with_four(cli: Cli) -> None:
    listed = await cli.answer("list", "--shard", "0")
    late = await cli("drain", listed["workers"][0]["worker_id"], "--wait", "0.1")
    assert (late.exit_code, "still drains" in late.output) == (4, True)


@pytest.mark.parametrize("arguments", [[], ["--name", "x"], ["run"]])
def test_without_an_app_it_says_what_is_missing(arguments: list[str]) -> None:
    result = CliRunner().invoke(root, ["worker", *arguments])
    assert (result.exit_code, "Missing argument 'APP'" in result.output) == (2, True)


def test_every_option_of_a_worker_has_a_flag_that_tells_its_default() -> None:
    given = {parameter.name: parameter for parameter in run.params}
    assert set(NAMES) <= set(given)
    for name in set(NAMES) - {"name", "build", "workflow_cache_bytes", "resident_workflows", "shard_assignments"}:
        default = getattr(WorkerOptions(), name)
        shown = default[0] if name == "queues" else f"{default:g}" if isinstance(default, float) else default
        assert f"[{shown}]" in str(given[name].help), name


class Crew:
    """A running `harvest worker shop:app --processes N`."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*HARVEST, "worker", "shop:app", *arguments],
                cwd=folder,
                env=environment({"HARVEST_DATABASE_URL": url}),
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )

    def children(self) -> list[int]:
        """The process ids of its workers."""
        return [pid for pid, words in processes().items() if f"--parent {self.process.pid}" in words]

    def started(self) -> int:
        """How many workers have begun to work since its start."""
        return self.errors.read_text().count("has started")


def is_stopped(pid: int) -> bool:
    """Whether every thread of a process stands still: one that does not yet may still take a signal."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def waits_for_it(pid: int, signum: signal.Signals) -> bool:
    """Whether a stopped process has been sent a signal."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["ShdPnd"], 16) >> (signum - 1) & 1)


@pytest.fixture
def crew(new_database: Callable[[str], str]) -> Iterator[Callable[..., tuple[Crew, str]]]:
    """Start `harvest worker --processes` on a database of its own; whatever runs is ended at last."""
    begun: list[Crew] = []
    with tempfile.TemporaryDirectory(prefix="hvw-") as name:
        folder = Path(name)
        (folder / "shop.py").write_text(APP)

        def start(*arguments: str) -> tuple[Crew, str]:
            url = new_database("crew")
            begun.append(Crew(folder, url, *arguments))
            return begun[-1], url

        yield start
        for each in begun:
            if each.process.poll() is None:
                for pid in each.children():
                    os.kill(pid, signal.SIGKILL)
                each.process.kill()
                each.process.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_processes_are_kept_at_work_and_end_together(crew: Callable[..., tuple[Crew, str]]) -> None:
    running, url = crew("--processes", "2", "--name", "shop", "--activity-slots", "7")
    until(lambda: running.started() == 2, 60)
    named = "select string_agg(name || ' ' || slots, ', ' order by name) from harvest_workers where status = 'active'"
    assert asyncio.run(query(url, named)) == "shop-1 7, shop-2 7"
    victim = running.children()[0]
    os.kill(victim, signal.SIGKILL)
    until(lambda: running.started() == 3, 60)
    assert victim not in running.children()
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
    assert not running.children()
    reports = "select count(*) from harvest_workers where status = 'stopped' and report is not null"
    assert asyncio.run(query(url, reports)) == 2


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_drained_workers_are_not_started_again_and_their_parent_ends_with_the_last(
    crew: Callable[..., tuple[Crew, str]],
) -> None:
    running, url = crew("--processes", "2", "--owner-lease-ttl", "2")
    until(lambda: running.started() == 2, 60)
    asyncio.run(query(url, "update harvest_workers set drain_requested_at = clock_timestamp()"))
    assert running.process.wait(60) == 0
    assert running.started() == 2
    assert running.errors.read_text().count("has been drained") == 2


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_second_signal_ends_everything_at_once(crew: Callable[..., tuple[Crew, str]]) -> None:
    running, _ = crew("--processes", "2", "--drain-timeout", "600")
    until(lambda: running.started() == 2, 60)
    children = running.children()
    for pid in children:
        os.kill(pid, signal.SIGSTOP)  # as one that would take its time
    until(lambda: all(is_stopped(pid) for pid in children))
    running.process.send_signal(signal.SIGTERM)
    until(lambda: all(waits_for_it(pid, signal.SIGTERM) for pid in children))
    assert running.process.poll() is None
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(30) == 130
    assert not running.children()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_app_that_cannot_be_loaded_ends_the_parent_with_the_reason(crew: Callable[..., tuple[Crew, str]]) -> None:
    running, _ = crew("--processes", "2", "--queue", "a", "--queue", "b", "--name", "x")
    (running.errors.parent / "shop.py").write_text("app = 7\n")
    assert running.process.wait(60) == 2
    assert "the workers cannot load 'shop:app'" in running.errors.read_text()
