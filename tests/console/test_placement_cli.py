"""`harvest workflow start --shard-id | --residency-key`, and processes whose shards are described wrongly."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harvest.shards import ShardRouter, Shards
from tests.console.conftest import settings
from tests.console.serving import served
from tests.console.test_dev import APP, HARVEST, environment
from tests.console.test_workflow_cli import Cli

ROUTER = ShardRouter(readable=(0, 1), writable=(0,), default=0, residency={"eu": 0, "us": 1})


@pytest.fixture
async def cli(urls: dict[int, str], shards: Shards) -> AsyncIterator[Cli]:
    """The command line of a console over two shards, of which shard 1 drains."""
    async with served(settings(urls, router=ROUTER)) as address:
        yield Cli(address)


async def test_a_placed_start_shows_its_shard_and_another_does_not(cli: Cli) -> None:
    for flags in (("--shard-id", "0"), ("--residency-key", "eu")):
        assert (await cli.answer("start", "any_flow", *flags))["shard_id"] == 0
    assert "shard_id" not in await cli.answer("start", "any_flow")


async def test_a_refused_placement_exits_1_in_the_words_of_the_console(cli: Cli) -> None:
    for flags, said in (
        (("--shard-id", "7"), "shard 7 is not a placeable shard for this deployment"),
        (("--shard-id", "1"), "shard 1 is not currently accepting new workflows; it is being drained"),
        (("--residency-key", "mars"), "residency key 'mars' is not declared for this deployment"),
        (("--residency-key", " "), "residency key must not be blank"),
    ):
        refused = await cli("start", "any_flow", *flags)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert said in refused.stderr
        assert "HVT-203" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--shard-id", "0", "--residency-key", "eu"), "--shard-id and --residency-key exclude each other"),
        (("--shard-id", "0", "--residency-key", ""), "--shard-id and --residency-key exclude each other"),
        (("--shard-id", "-1"), "not in the range"),
        (("--shard-id", "65535"), "not in the range"),
        (("--shard-id", "eu"), "not a valid integer"),
    ],
)
async def test_flags_that_cannot_be_exit_2_without_asking(flags: tuple[str, ...], said: str) -> None:
    result = await Cli("http://127.0.0.1:9")("start", "any_flow", *flags)
    assert (result.exit_code, said in result.stderr) == (2, True)


@pytest.fixture
def variables(urls: dict[int, str], tmp_path: Path) -> dict[str, str]:
    """The environment of a process over both databases; an application is in its folder."""
    (tmp_path / "mine.py").write_text(APP)
    return environment({"HARVEST_DATABASE_URLS": ",".join(f"{shard}={url}" for shard, url in urls.items())})


COMMANDS = {
    "serve": ["serve", "--port", "0"],
    "worker": ["worker", "mine:app"],
    "workers": ["worker", "mine:app", "--processes", "2"],
    "dev": ["dev", "mine:app", "--port", "0"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_process_whose_shards_are_described_wrongly_ends_with_the_reason(
    command: str, variables: dict[str, str], tmp_path: Path
) -> None:
    ended = subprocess.run(
        [*HARVEST, *COMMANDS[command]],
        cwd=tmp_path, env={**variables, "HARVEST_RESIDENCY_MAP": "eu=7"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert "HARVEST_RESIDENCY_MAP: residency key 'eu' leads to shard 7" in ended.stderr
    assert "HVT-420" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", ["serve", "worker", "dev"])
def test_what_is_worth_a_word_is_logged_when_a_process_starts(
    command: str, variables: dict[str, str], tmp_path: Path
) -> None:
    odd = {"HARVEST_WRITABLE_SHARDS": "0", "HARVEST_RESIDENCY_MAP": "us=1", "HARVEST_READABLE_SHARDS": "0,1,5"}
    said = ["residency key 'us' leads to shard 1, which takes no new workflows", "shard 5 is readable but has no"]
    with subprocess.Popen(
        [*HARVEST, *COMMANDS[command]],
        cwd=tmp_path, env={**variables, **odd}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        missing = set(said)
        try:
            for line in running.stderr:
                missing -= {each for each in missing if each in line}
                if not missing:
                    break
        finally:
            running.send_signal(signal.SIGTERM)
            running.stderr.read()
    assert not missing
