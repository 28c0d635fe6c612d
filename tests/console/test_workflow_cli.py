"""`harvest workflow …` against a console that serves: exact JSON, the audit source, exit statuses for scripts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from harvest.history.ids import mint_execution_id
from harvest.history.states import State
from harvest.operations import auditing
from harvest.shards import Shards
from harvest_console.cli.announcement import LOCK_FILE, Holder, running_address
from harvest_console.cli.root import root
from tests.console.conftest import DEAD, TOKEN, settings
from tests.console.serving import served
from tests.operations.population import Run, add

BIG = '{"cents": 123456789012345678901234567890, "price": 1.10}'


class Cli:
    """The command line, told where the console is as a person would: by the environment."""

    def __init__(self, address: str, token: str = TOKEN) -> None:
        self.environment = {"HARVEST_URL": f"{address}/api/harvest", "HARVEST_TOKEN": token}

    async def __call__(self, *arguments: str, input: str | None = None) -> Result:
        """Run `harvest workflow …` in a thread of its own."""
        return await asyncio.to_thread(
            CliRunner().invoke, root, ["workflow", *arguments], env=self.environment, input=input
        )

    async def answer(self, *arguments: str, input: str | None = None) -> dict[str, object]:
        """Run a command that must succeed; its answer."""
        result = await self(*arguments, input=input)
        assert result.exit_code == 0, result.output
        decoded: dict[str, object] = msgspec.json.decode(result.stdout)
        return decoded


@pytest.fixture
async def cli(urls: dict[int, str], shards: Shards) -> AsyncIterator[Cli]:
    """The command line of a console over two shards."""
    async with served(settings(urls)) as address:
        yield Cli(address)


async def test_start_signal_look_cancel_and_terminate(cli: Cli, shards: Shards) -> None:
    begun = await cli.answer("start", "any_flow", "--workflow-id", "a/b", "--input-json", BIG, "--memo-json", '"m"')
    execution_id = str(begun["execution_id"])
    assert (begun["workflow_id"], begun["started_fresh"]) == ("a/b", True)
    sent = await cli.answer("signal", "a/b", "approved", "--workflow-name", "any_flow", "--payload-json", BIG)
    assert sent["signal_delivered"] is True
    shown = await cli("get", execution_id)
    assert '"cents": 123456789012345678901234567890' in shown.stdout
    assert '"price": 1.10' in shown.stdout
    events = await cli.answer("history", execution_id, "--limit", "1", "--order", "desc")
    assert events["events"][0]["type"] == "SignalReceived"  # type: ignore[index]
    assert (await cli.answer("cancel", execution_id, "--reason", "wrong"))["newly_cancelled"] is True
    assert (await cli.answer("terminate", execution_id))["state"] == "TERMINATED"
    listed = await cli.answer("list", "--state", "terminated", "--state", "RUNNING", "--output", "json")
    assert [row["execution_id"] for row in listed["workflows"]] == [execution_id]  # type: ignore[attr-defined]
    acts = (await auditing.list_audit(shards)).rows.rows
    assert {act.source for act in acts} == {"cli"}
    assert [act.operation for act in acts] == [
        "workflow.terminate",
        "workflow.cancel",
        "workflow.signal",
        "workflow.start",
    ]


async def test_json_output_is_the_answer_byte_for_byte(cli: Cli, shards: Shards) -> None:
    execution_id = await add(shards, 0, Run(input=BIG.encode()))
    assert BIG in (await cli("get", str(execution_id), "--output", "json")).stdout


async def test_input_comes_from_a_file_or_standard_input(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"cents": 7}')
    begun = await cli.answer("start", "order_flow", "--input-file", str(file))
    shown = await cli.answer("get", str(begun["execution_id"]))
    assert shown["input"] == {"cents": 7}
    await cli.answer("start", "order_flow", "--input-file", "-", input='{"cents": 8}')


async def test_a_key_starts_once(cli: Cli) -> None:
    first = await cli.answer("start", "any_flow", "--idempotency-key", "k")
    again = await cli.answer("start", "any_flow", "--idempotency-key", "k")
    assert (again["execution_id"], again["deduplicated"]) == (first["execution_id"], True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("start", "any_flow", "--input-json", "{"), "--input-json is not JSON"),
        (("start", "any_flow", "--input-json", "text"), "quotes inside"),
        (("start", "any_flow", "--input-json", "1", "--input-file", "x"), "exclude each other"),
        (("start", "any_flow", "--input-file", "/nowhere.json"), "cannot be read"),
        (("list", "--limit", "0"), "limit"),
        (("get",), "EXECUTION"),
    ],
)
async def test_what_is_used_wrongly_exits_2_without_asking(arguments: tuple[str, ...], said: str) -> None:
    result = await Cli("http://127.0.0.1:9")(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


async def test_what_the_console_refuses_exits_1_and_says_why(cli: Cli) -> None:
    result = await cli("start", "order_flow", "--input-json", '{"cents": 0}')
    assert result.exit_code == 1
    assert "HVT-201" in result.stderr
    assert result.stderr.count("/cents: 0 is less than the minimum of 1") == 1
    assert result.stdout == ""
    named = await cli("get", "ann")
    assert (named.exit_code, "--workflow-name TYPE" in named.stderr) == (1, True)
    missing = await cli("get", str(mint_execution_id(0)))
    assert (missing.exit_code, "HVT-300" in missing.stderr) == (1, True)
    unsigned = await Cli(cli.environment["HARVEST_URL"].removesuffix("/api/harvest"), token="wrong")("list")
    assert (unsigned.exit_code, "HARVEST_TOKEN" in unsigned.stderr) == (1, True)


async def test_a_console_that_is_not_there_exits_3(cli: Cli) -> None:
    for address in ("http://127.0.0.1:9", "http://no-such-host.invalid:8400"):
        gone = await Cli(address)("list")
        assert (gone.exit_code, "no console at" in gone.stderr) == (3, True)
    assert (await Cli("not an address")("list")).exit_code == 2


async def test_on_this_machine_the_token_of_a_development_setup_is_found(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "admin.token").write_text(TOKEN + "\n")
    console = cli.environment["HARVEST_URL"].removesuffix("/api/harvest")
    arguments = ["workflow", "list", "--base-url", console, "--data-dir", str(tmp_path)]
    nothing_set = {"HARVEST_URL": None, "HARVEST_TOKEN": None, "HARVEST_ADMIN_TOKEN": None}
    listed = await asyncio.to_thread(CliRunner().invoke, root, arguments, env=nothing_set)
    assert listed.exit_code == 0, listed.output


async def test_on_this_machine_the_address_of_a_development_setup_is_found(cli: Cli, tmp_path: Path) -> None:
    console = cli.environment["HARVEST_URL"].removesuffix("/api/harvest")
    (tmp_path / "admin.token").write_text(TOKEN + "\n")
    arguments = ["workflow", "list", "--data-dir", str(tmp_path)]
    nothing_set = {"HARVEST_URL": None, "HARVEST_TOKEN": None, "HARVEST_ADMIN_TOKEN": None}

    async def listed(pid: int, **more: str) -> Result:
        (tmp_path / LOCK_FILE).write_bytes(msgspec.json.encode(Holder(pid, console)))
        return await asyncio.to_thread(CliRunner().invoke, root, arguments, env=nothing_set | more)

    assert (await listed(os.getpid())).exit_code == 0
    elsewhere = await listed(os.getpid(), HARVEST_URL="http://127.0.0.1:9")
    assert (elsewhere.exit_code, "no console at http://127.0.0.1:9" in elsewhere.stderr) == (3, True)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    await listed(gone.pid)
    assert running_address(tmp_path) is None


async def test_a_token_that_no_header_can_carry_is_refused_and_not_repeated(cli: Cli) -> None:
    for token in ("geheim-\N{SNOWMAN}", "two\nlines"):
        refused = await Cli(cli.environment["HARVEST_URL"].removesuffix("/api/harvest"), token=token)("list")
        assert (refused.exit_code, "the token holds a character" in refused.stderr) == (2, True)
        assert token not in refused.output
    assert "--actor holds" in (await cli("list", "--actor", "\N{SNOWMAN}")).stderr


async def test_an_answer_that_is_no_api_s_is_said_to_be_none(cli: Cli) -> None:
    console = cli.environment["HARVEST_URL"].removesuffix("/api/harvest")
    page = await cli("get", "x", "--base-url", f"{console}/signin?")
    assert (page.exit_code, "not as Harvest's API does" in page.stderr) == (3, True)


async def test_every_command_on_a_run_takes_its_business_key(cli: Cli) -> None:
    begun = await cli.answer("start", "any_flow", "--workflow-id", "a/b")
    of_it = ("a/b", "--workflow-name", "any_flow")
    assert (await cli.answer("history", *of_it))["execution_id"] == begun["execution_id"]
    assert (await cli.answer("cancel", *of_it))["newly_cancelled"] is True
    assert (await cli.answer("terminate", *of_it))["newly_terminated"] is True


async def test_a_missing_shard_is_named_on_standard_error(urls: dict[int, str], shards: Shards) -> None:
    async with served(settings({0: urls[0], 1: DEAD})) as address:
        listed = await Cli(address)("list")
        assert listed.exit_code == 0
        assert "shard 1 is not in this answer: connection refused" in listed.stderr
        unknown = await Cli(address)("get", str(mint_execution_id(1)))
        assert (unknown.exit_code, "HVT-400" in unknown.stderr) == (3, True)


async def test_a_result_exits_by_how_the_run_ended(cli: Cli, shards: Shards) -> None:
    done = await add(shards, 0, Run(workflow_id="a", state=State.COMPLETED, result=b"1.10"))
    failed = await add(shards, 0, Run(workflow_id="b", state=State.FAILED))
    running = await add(shards, 0, Run(workflow_id="c"))
    good = await cli("result", str(done))
    assert (good.exit_code, '"output": 1.10' in good.stdout) == (0, True)
    assert (await cli("result", str(failed))).exit_code == 1
    assert (await cli("result", str(running), "--wait", "0.2")).exit_code == 4
    waiting = asyncio.create_task(cli("result", "c", "--workflow-name", "order_flow", "--wait", "30"))
    await shards.store(0).write.write(
        "update harvest_executions set state = 10, closed_at = clock_timestamp() where execution_id = $1", running
    )
    assert (await waiting).exit_code == 0
