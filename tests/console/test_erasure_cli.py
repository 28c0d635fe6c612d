"""`harvest workflow erase-payloads`, `harvest erasure …` and `harvest legal-hold …` over a real console."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from click.testing import CliRunner, Result

from harvest.operations import auditing, erasing
from harvest.shards import Shards
from harvest_console.cli import erasing as cli
from harvest_console.cli.root import root
from tests.console.conftest import DEAD, TOKEN, settings
from tests.console.erasable import SECRET, ended, tamper
from tests.console.serving import served
from tests.operations.population import Run, add

Harvest = Callable[..., Any]


def harvest_at(address: str) -> Harvest:
    """`harvest …` against a console, in a thread of its own."""
    environment = {"HARVEST_URL": f"{address}/api/harvest", "HARVEST_TOKEN": TOKEN}

    async def run(*arguments: str, input: str | None = None) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, root, arguments, env=environment, input=input)

    return run


@pytest.fixture
async def harvest(urls: dict[int, str], shards: Shards) -> AsyncIterator[Harvest]:
    """The command line of a console over two shards."""
    async with served(settings(urls)) as address:
        yield harvest_at(address)


async def stored(harvest: Harvest, run: object) -> str:
    """What is shown of a run and its history."""
    shown = [await harvest("workflow", verb, str(run)) for verb in ("get", "history")]
    return "".join(each.stdout for each in shown)


ERASE = ("workflow", "erase-payloads")
WHY = ("--reason", "request 7")


async def test_what_is_confirmed_is_erased_and_audited_as_of_the_command_line(harvest: Harvest, shards: Shards) -> None:
    run = await ended(shards)
    done = await harvest(*ERASE, str(run), *WHY, input="erase\n")
    assert done.exit_code == 0, done.output
    assert "2 events" in done.stderr
    assert msgspec.json.decode(done.stdout)["newly_erased"] is True
    assert SECRET not in await stored(harvest, run)
    act = next(each for each in (await auditing.list_audit(shards)).rows.rows if each.target_id == str(run))
    assert (act.operation, act.source, act.reason) == ("workflow.erase_payloads", "cli", "request 7")


@pytest.mark.parametrize("typed", ["", "\n", "yes\n", "ERASE\n"])
async def test_what_is_not_confirmed_stays(harvest: Harvest, shards: Shards, typed: str) -> None:
    run = await ended(shards)
    done = await harvest(*ERASE, str(run), *WHY, input=typed)
    assert (done.exit_code, done.stdout) == (1, "")
    assert SECRET in await stored(harvest, run)


async def test_a_script_is_not_asked_and_repeats_it_without_harm(harvest: Harvest, shards: Shards) -> None:
    run = await ended(shards)
    first = msgspec.json.decode((await harvest(*ERASE, str(run), *WHY, "--yes")).stdout)
    again = await harvest(*ERASE, str(run), *WHY)
    assert msgspec.json.decode(again.stdout) == first | {"newly_erased": False, "digest_key": ""}


async def test_what_has_ended_below_an_erased_run_since_is_asked_for_too(harvest: Harvest, shards: Shards) -> None:
    run = await ended(shards)
    await harvest(*ERASE, str(run), *WHY, "--yes")
    child = await ended(shards, parent=run, workflow_id="child")
    assert (await harvest(*ERASE, str(run), *WHY, input="no\n")).exit_code == 1
    assert SECRET in await stored(harvest, child)
    again = msgspec.json.decode((await harvest(*ERASE, str(run), *WHY, input="erase\n")).stdout)
    assert [each["execution_id"] for each in again["children"]] == [str(child)]


async def test_what_is_left_of_those_below_it_is_told_and_the_status_is_1(
    harvest: Harvest, shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await ended(shards)
    await ended(shards, parent=run, workflow_id="child")
    with monkeypatch.context() as patch:
        patch.setattr(erasing, "MOST_SECONDS", 0.0)
        done = await harvest(*ERASE, str(run), *WHY, "--yes")
    assert (done.exit_code, "not all below it was erased" in done.stderr) == (1, True)
    assert msgspec.json.decode(done.stdout)["newly_erased"] is True
    assert (await harvest(*ERASE, str(run), *WHY, "--yes")).exit_code == 0


async def test_an_answer_that_does_not_come_in_time_says_that_it_may_still_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "LIMIT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        late = await harvest_at(address)(*ERASE, str(uuid4()), *WHY, "--yes")
    assert late.exit_code == 3
    for told in ("no answer in 0 s", "may still go on", "repeat the command"):
        assert told in late.stderr, told


async def test_a_dry_run_shows_the_plan_and_exits_by_what_is_in_its_way(harvest: Harvest, shards: Shards) -> None:
    run, running = await ended(shards), await add(shards, 1, Run(workflow_id="open"))
    child = await add(shards, 0, Run(workflow_id="child", parent_id=run))
    shown = await harvest(*ERASE, str(run), "--dry-run")
    plan = msgspec.json.decode(shown.stdout)
    assert (shown.exit_code, plan["blockers"]) == (0, [])
    assert [each["execution_id"] for each in plan["skipped_children"]] == [str(child)]
    assert SECRET in await stored(harvest, run)
    blocked = await harvest(*ERASE, str(running), "--dry-run")
    assert (blocked.exit_code, msgspec.json.decode(blocked.stdout)["blockers"]) == (1, ["open"])
    await harvest(*ERASE, str(run), *WHY, "--yes")
    assert (await harvest(*ERASE, str(run), "--dry-run")).exit_code == 0


async def test_what_is_refused_says_why_without_asking_first(harvest: Harvest, shards: Shards) -> None:
    running = await add(shards, 0, Run(workflow_id="open"))
    refused = await harvest(*ERASE, str(running), *WHY)
    assert (refused.exit_code, "HVT-317" in refused.stderr, "Type erase" in refused.stderr) == (1, True, False)
    unsaid = await harvest(*ERASE, str(running))
    assert (unsaid.exit_code, "--reason is missing" in unsaid.stderr) == (2, True)


async def test_a_hold_is_set_and_released(harvest: Harvest, shards: Shards) -> None:
    run = await ended(shards)
    held = await harvest("legal-hold", "set", str(run), "--reason", "case 12", "--until", "2999-01-31T00:00:00Z")
    assert msgspec.json.decode(held.stdout)["legal_hold_until"].startswith("2999-01-31")
    shown = msgspec.json.decode((await harvest("legal-hold", "get", str(run))).stdout)
    assert (shown["held"], shown["legal_hold_reason"]) == (True, "case 12")
    refused = await harvest(*ERASE, str(run), *WHY, "--yes")
    assert (refused.exit_code, "HVT-318" in refused.stderr) == (1, True)
    released = await harvest("legal-hold", "release", str(run))
    assert msgspec.json.decode(released.stdout)["released"] is True
    wrong = await harvest("legal-hold", "set", str(run), "--reason", "case 12", "--until", "tomorrow")
    assert (wrong.exit_code, "hold_until" in wrong.stderr) == (1, True)
    assert (await harvest("legal-hold", "set", str(run))).exit_code == 2


async def test_receipts_are_listed_read_and_checked(harvest: Harvest, shards: Shards) -> None:
    run = await ended(shards)
    done = msgspec.json.decode((await harvest(*ERASE, str(run), *WHY, "--yes")).stdout)
    listed = msgspec.json.decode((await harvest("erasure", "list", "--limit", "1")).stdout)
    assert [each["receipt"] for each in listed["erasures"]] == [done["receipt"]]
    shown = msgspec.json.decode((await harvest("erasure", "get", done["receipt"])).stdout)
    assert (shown["execution_id"], shown["reason"]) == (str(run), "request 7")
    good = await harvest("erasure", "verify", done["receipt"])
    assert (good.exit_code, msgspec.json.decode(good.stdout)["matches"]) == (0, True)
    await tamper(shards, run)
    bad = await harvest("erasure", "verify", done["receipt"])
    assert (bad.exit_code, msgspec.json.decode(bad.stdout)["differs_at"]) == (1, "event 1")


async def test_a_list_without_a_shard_says_so(urls: dict[int, str], shards: Shards) -> None:
    async with served(settings({0: urls[0], 1: DEAD})) as address:
        listed = await harvest_at(address)("erasure", "list")
    assert (listed.exit_code, "shard 1 is not in this answer" in listed.stderr) == (0, True)
