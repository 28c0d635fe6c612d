"""Which shards a worker works on: what it is told and no more, or all that have a database; cells only when told."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from harvest import Harvest, WorkerOptions, WorkflowContext, running
from harvest.errors import ConfigurationError
from harvest.shards import ShardRouter, Shards
from harvest.worker.assigning import assigned, uncovered
from harvest.worker.effective import effective, resolve
from harvest.worker.worker import Worker
from harvest_console.cli.dev import crew_of
from harvest_console.cli.root import root
from harvest_console.cli.working import run
from tests.console.conftest import DEAD
from tests.console.test_dev import APP, environment
from tests.support import FAST

ALL = ShardRouter.of((0, 1, 2))
CELL = ShardRouter(readable=(0, 1, 2), writable=(0, 1, 2), default=0, reserved=(2,))
URLS = {shard: f"{DEAD}{shard}" for shard in (0, 1, 2)}


def test_a_worker_that_is_told_nothing_works_on_every_shard_with_a_database() -> None:
    assert assigned((), ALL, URLS) == (0, 1, 2)
    assert assigned((), ALL, {1: DEAD}) == (1,), "readable elsewhere, without a database here"
    assert assigned((), ShardRouter.of((0,)), URLS) == (0, 1, 2), "not readable yet: workers come first"


def test_what_a_worker_is_told_is_never_widened() -> None:
    assert assigned((1,), ALL, URLS) == (1,)
    assert assigned((2, 0, 2), CELL, URLS) == (0, 2)


def test_a_shard_without_a_database_here_is_refused_naming_those_that_have_one() -> None:
    with pytest.raises(ConfigurationError, match=r"shard 7, which has no database here; there are 0, 1, 2"):
        assigned((0, 7), ALL, URLS)


def test_where_a_shard_is_reserved_every_worker_must_be_told() -> None:
    with pytest.raises(ConfigurationError, match=r"shard 2 is reserved, so every worker must be told its shards"):
        assigned((), CELL, URLS)
    with pytest.raises(ConfigurationError, match="shard 2 is reserved"):
        assigned((), CELL, {0: DEAD, 1: DEAD})
    assert assigned((0, 1), CELL, URLS) == (0, 1)


async def test_a_worker_refuses_before_it_joins(new_database: Callable[[str], str]) -> None:
    shards = await Shards.open({0: new_database("told_a"), 2: new_database("told_c")}, CELL)
    with pytest.raises(ConfigurationError, match="reserved"):
        Worker(Harvest().registry, shards)
    assert not await shards.store(0).read.fetch("select from harvest_workers")
    await shards.close()


async def test_writable_shards_that_it_leaves_to_others_are_in_the_log(
    new_database: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    assert uncovered((0, 2), ShardRouter(readable=(0, 1, 2, 3), writable=(0, 1, 3), default=0)) == [1, 3]
    shards = await Shards.open({0: new_database("left_a"), 1: new_database("left_b")}, ALL)
    for told, said in (((0,), ["1, 2"]), ((0, 1), ["2"])):
        caplog.clear()
        worker = Worker(Harvest().registry, shards, msgspec.structs.replace(FAST, shard_assignments=told))
        with caplog.at_level(logging.WARNING, "harvest.worker"):
            await worker.start()
            await worker.stop()
        left = [each.args for each in caplog.records if "does not cover the writable shards" in each.message]
        assert [args[1] for args in left if isinstance(args, tuple)] == said
    await shards.close()


async def test_it_joins_and_decides_on_its_shards_alone(new_database: Callable[[str], str]) -> None:
    app = Harvest()

    @app.workflow
    async def quick(ctx: WorkflowContext) -> str:
        return "done"

    urls = {0: new_database("alone_a"), 1: new_database("alone_b")}
    await app.connect(urls)
    shards = await Shards.open(urls)
    workers = [
        Worker(app.registry, shards, msgspec.structs.replace(FAST, name=f"w{shard}", shard_assignments=(shard,)))
        for shard in (1, 0)
    ]
    try:
        await workers[0].start()
        there = await app.start(quick, workflow_id="there", shard_id=1)
        here = await app.start(quick, workflow_id="here", shard_id=0)
        assert await there.result() == "done"
        assert [row["name"] for row in await shards.store(1).read.fetch("select name from harvest_workers")] == ["w1"]
        assert not await shards.store(0).read.fetch("select from harvest_workers")
        assert workers[0].counters.closed == 1
        await workers[1].start()
        assert await here.result() == "done"
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))
        await shards.close()
        await app.close()


def test_the_effective_configuration_has_the_resolved_list_with_its_origin() -> None:
    def shown(options: WorkerOptions, found: tuple[int, ...]) -> tuple[object, str]:
        (option,) = [each for each in effective(options, found) if each.name == "shard_assignments"]
        return option.value, option.origin

    assert shown(WorkerOptions(), (0, 1)) == ((0, 1), "default")
    assert shown(WorkerOptions(shard_assignments=(1,)), (1,)) == ((1,), "argument")
    assert shown(resolve({"HARVEST_WORKER_SHARD_ASSIGNMENTS": "1, 0"}), (0, 1)) == ((0, 1), "environment")


@pytest.mark.parametrize("wrong", ["one", "0,-1", "0;1"])
def test_a_variable_that_is_no_list_of_shards_is_named(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="HARVEST_WORKER_SHARD_ASSIGNMENTS is"):
        resolve({"HARVEST_WORKER_SHARD_ASSIGNMENTS": wrong})


def test_the_command_takes_shards_and_hands_them_to_its_children() -> None:
    from harvest_console.cli.working import _arguments

    shard = next(option for option in run.params if option.name == "shard_assignments")
    assert (shard.opts, shard.multiple) == (["--shard"], True)  # type: ignore[attr-defined]
    assert _arguments({"shard_assignments": (0, 1)}, 2, (None, "")) == ["--shard", "0", "--shard", "1"]
    refused = CliRunner().invoke(root, ["worker", "run", "shop:app", "--shard", "-1"])
    assert (refused.exit_code, "--shard" in refused.output) == (2, True)


def test_dev_gives_each_cell_a_worker_of_its_own_unless_it_is_told_otherwise() -> None:
    assert crew_of(ALL, URLS, {}, 2) == [(0, 1, 2), (0, 1, 2)]
    assert crew_of(CELL, URLS, {}, 2) == [(0, 1), (0, 1), (2,)]
    assert crew_of(CELL, URLS, {}, 0) == []
    assert crew_of(CELL, {0: DEAD, 1: DEAD}, {}, 1) == [(0, 1)], "a cell without a database here has no worker"
    told = {"HARVEST_WORKER_SHARD_ASSIGNMENTS": "0,2"}
    assert crew_of(CELL, URLS, told, 2) == crew_of(ALL, URLS, told, 2) == [(0, 2), (0, 2)]
    with pytest.raises(ConfigurationError, match="shard 9, which has no database here"):
        crew_of(CELL, URLS, {"HARVEST_WORKER_SHARD_ASSIGNMENTS": "9"}, 1)


async def test_a_client_passes_where_an_embedded_worker_must_be_told(new_database: Callable[[str], str]) -> None:
    urls = {0: new_database("embedded_a"), 1: new_database("embedded_b")}
    router = ShardRouter(readable=(0, 1), writable=(0, 1), default=0, reserved=(1,))
    app = Harvest()
    async with running(app, urls, workers=0, router=router):
        assert app.router == router
    with pytest.raises(ConfigurationError, match="shard 1 is reserved"):
        async with running(app, urls, workers=1, options=FAST, router=router):
            pytest.fail("the block was entered")
    told = msgspec.structs.replace(FAST, shard_assignments=(0,))
    async with running(app, urls, workers=1, options=told, router=router):
        shards = await Shards.open(urls)
        assert await shards.store(0).read.fetch("select from harvest_workers")
        assert not await shards.store(1).read.fetch("select from harvest_workers")
        await shards.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "settings", "said"),
    [
        ((), {"HARVEST_RESERVED_SHARDS": "1"}, "shard 1 is reserved, so every worker must be told its shards"),
        (("--processes", "2"), {"HARVEST_RESERVED_SHARDS": "1"}, "shard 1 is reserved"),
        (("--shard", "5"), {}, "shard 5, which has no database here; there are 0, 1"),
        ((), {"HARVEST_WORKER_SHARD_ASSIGNMENTS": "x"}, "HARVEST_WORKER_SHARD_ASSIGNMENTS is 'x'"),
    ],
)
def test_a_process_that_is_told_wrong_ends_with_the_reason_in_one_line(
    tmp_path: Path, more: tuple[str, ...], settings: dict[str, str], said: str
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    ended = subprocess.run(
        [sys.executable, "-m", "harvest_console.cli", "worker", "run", "shop:app", *more],
        cwd=tmp_path,
        env=environment({"HARVEST_DATABASE_URLS": f"0={DEAD}0,1={DEAD}1", **settings}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert said in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
