"""`harvest workflow update`, `pause`, `start-batch` and the rest of the verbs that change runs, over a real console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from harvest.shards import Shards
from tests.console.conftest import settings
from tests.console.serving import served
from tests.console.test_api_changes import admitted
from tests.console.test_workflow_cli import Cli
from tests.operations.population import register
from tests.operations.rotating import events_of, worker_on
from tests.support import eventually


@pytest.fixture
async def cli(urls: dict[int, str], shards: Shards) -> AsyncIterator[Cli]:
    """The command line of a console over two shards."""
    async with served(settings(urls)) as address:
        yield Cli(address)


async def test_an_update_shows_its_answer_and_its_result_can_be_asked_for(cli: Cli, shards: Shards) -> None:
    run = str((await cli.answer("start", "any_flow", "--workflow-id", "a/b"))["execution_id"])
    of_it = ("a/b", "--workflow-name", "any_flow")
    sending = asyncio.create_task(cli.answer("update", "a/b", "set", *of_it[1:], "--input-json", "1.10"))
    await eventually(admitted(shards, run))
    (_, data) = (await events_of(shards, UUID(run)))[-1]
    waiting = await cli("update-result", "a/b", data["update_id"], *of_it[1:])
    assert (waiting.exit_code, "not answered yet" in waiting.stderr) == (4, True)
    worker = await worker_on(shards, shards.store_of(UUID(run)).shard_id)
    await worker.answer(UUID(run), admitted=2, update_id=data["update_id"], output=b'"done"')
    assert (await sending)["result"] == "done"
    told = await cli.answer("update-result", run, data["update_id"], "--wait", "5")
    assert (told["result"], told["stage"]) == ("done", "completed")
    late = await cli("update", run, "set", "--timeout-secs", "0")
    assert (late.exit_code, "HVT-636" in late.stderr) == (3, True)
    assert (await cli.answer("update", run, "set", "--wait", "admitted"))["stage"] == "admitted"


async def test_pause_and_resume(cli: Cli) -> None:
    run = str((await cli.answer("start", "any_flow", "--workflow-id", "a/b"))["execution_id"])
    held = await cli.answer("pause", run, "--reason", "a look")
    assert (held["newly_paused"], held["reason"], held["state"]) == (True, "a look", "PAUSED")
    let_go = await cli.answer("resume", "a/b", "--workflow-name", "any_flow")
    assert (let_go["newly_resumed"], let_go["execution_id"]) == (True, run)


async def test_a_start_takes_a_version_and_a_retry_policy(cli: Cli, shards: Shards) -> None:
    await register(shards, 0, "any_flow", version=2, input_schema=b"{}", build="b2")
    options = ("--version", "1", "--retry-json", '{"max_attempts": 4}', "--chain-execution-timeout-secs", "60")
    begun = await cli.answer("start", "any_flow", *options)
    ((_, started),) = await events_of(shards, UUID(str(begun["execution_id"])))
    assert (started["version"], started["retry"]["max_attempts"]) == (1, 4)
    assert "chain_deadline" in started
    unknown = await cli("start", "any_flow", "--version", "9")
    assert (unknown.exit_code, "HVT-301" in unknown.stderr) == (1, True)


async def test_a_batch_comes_from_a_file_or_standard_input(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "items.json"
    file.write_bytes(msgspec.json.encode([{"workflow_name": "any_flow", "workflow_id": f"b-{n}"} for n in range(3)]))
    assert (await cli.answer("start-batch", str(file)))["started"] == 3
    one = '[{"workflow_name": "order_flow", "input": {"cents": 0}}]'
    wrong = await cli("start-batch", "-", input=one)
    assert (wrong.exit_code, msgspec.json.decode(wrong.stdout)["failed"]) == (1, 1)
    refused = await cli("start-batch", "--atomic", "-", input=one)
    assert (refused.exit_code, "HVT-314" in refused.stderr) == (1, True)
