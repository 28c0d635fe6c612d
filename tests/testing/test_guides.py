"""The examples of the guides do what the guides say."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harvest import UpdateRejectedError
from harvest.testing import WorkflowEnvironment
from tests.support import at_work

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"


def _blocks(path: Path) -> list[str]:
    """The Python blocks of a page, in their order."""
    found = re.findall(r"^( *)```python\n(.*?)^\1```$", path.read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def _module_of(name: str, path: Path, *blocks: str) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile("\n\n".join(blocks), str(path), "exec"), module.__dict__)
    return module


def _module(name: str, before: str = "") -> ModuleType:
    """A module of a guide's Python blocks, in their order, after what it takes for granted."""
    path = GUIDES / f"{name}.md"
    return _module_of(f"guide_{name.replace('-', '_')}", path, before, *_blocks(path))


def _tests(name: str) -> list[Any]:
    found = inspect.getmembers(_module(name), inspect.iscoroutinefunction)
    return [pytest.param(function, id=f"{name}: {test}") for test, function in found if test.startswith("test_")]


@pytest.mark.parametrize("function", [*_tests("testing"), *_tests("changing-code")])
async def test_an_example(function: Any) -> None:
    await function()


def test_the_guides_have_examples() -> None:
    assert len(_tests("testing")) >= 6
    assert len(_tests("changing-code")) == 1


async def test_the_flows_of_the_writing_guide_do_what_it_says() -> None:
    guide = _module("writing-workflows")
    async with WorkflowEnvironment(guide.app) as env:
        assert await (await env.start(guide.pay, "4242", 5)).result() == "charge-5"
        assert await (await env.start(guide.pay, "0000", 5)).result() == "not paid: the card was declined"
        assert await (await env.start(guide.quote, ["1", "2"])).result() == ["charge-1", "charge-1"]
        assert await (await env.start(guide.fastest, "4242")).result() == "in time"
        assert await (await env.start(guide.shipment, ["a", "b"])).result() == 2
        assert await (await env.start(guide.report, "harvest-guide.txt")).result() == 42


async def test_the_messages_of_the_writing_guide_do_what_it_says() -> None:
    guide = _module("writing-workflows")
    async with WorkflowEnvironment(guide.app) as env:
        order = await env.start(guide.order, 250)
        assert await order.update("set_note", "urgent") == "noted: urgent"
        with pytest.raises(UpdateRejectedError, match="at most 100 characters"):
            await order.update("set_note", "x" * 101)
        assert await order.query("note") == "urgent"
        await order.signal("approved", guide.Approval("mira"))
        assert await order.result() == "250 approved by mira (urgent)"


async def test_the_account_of_the_long_running_guide_goes_on_as_a_new_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harvest.replay.context.base.HISTORY_EVENTS_SOFT", 4)
    guide = _module("long-running", "from harvest import Harvest, WorkflowContext\n\napp = Harvest()")
    async with WorkflowEnvironment(guide.app) as env:
        account = await env.start(guide.account, 1)
        for _ in range(6):
            await account.signal("deposit", 10)
        states = [run.state for run in env.runs()]
        assert states[0] == "CONTINUED_AS_NEW"
        assert states[-1] == "RUNNING"


async def test_the_album_of_the_guide_spreads_its_children_over_the_shards(new_database: Callable[[str], str]) -> None:
    guide = _module("children-on-shards")
    async with at_work(guide.app, {shard: new_database(f"album_{shard}") for shard in range(2)}) as (_, shards):
        run = await guide.app.start(guide.album, [str(n) for n in range(12)])
        assert await run.result() == [f"small {n}" for n in range(12)]
        for store in shards.stores.values():
            assert await store.read.fetch("select from harvest_executions where workflow_name = 'resize'")


async def test_the_programs_of_the_readme_run_as_they_stand(new_database: Callable[[str], str], tmp_path: Path) -> None:
    url = new_database("readme")
    flow, program = _blocks(ROOT / "README.md")
    (tmp_path / "mine.py").write_text(flow)
    (tmp_path / "try.py").write_text(program)
    async with at_work(_module_of("readme_mine", ROOT / "README.md", flow).app, url):
        environment = {**os.environ, "HARVEST_DATABASE_URL": url}
        running = await asyncio.create_subprocess_exec(
            sys.executable, "try.py", cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await running.communicate()
    assert (running.returncode, printed.decode()) == (0, "charge-1999\n")
