"""`harvest view …`: saved views from the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from harvest.operations import auditing
from harvest.shards import Shards
from harvest_console.cli.root import root
from tests.console.conftest import DEAD, TOKEN, settings
from tests.console.serving import served

View = Callable[..., Any]


def views_at(address: str) -> View:
    """`harvest view …` against a console, in a thread of its own."""
    environment = {"HARVEST_URL": f"{address}/api/harvest", "HARVEST_TOKEN": TOKEN}

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, root, ["view", *arguments], env=environment)

    return run


@pytest.fixture
async def view(urls: dict[int, str], shards: Shards) -> AsyncIterator[View]:
    """The command line of a console over two shards."""
    async with served(settings(urls)) as address:
        yield views_at(address)


async def names(view: View) -> list[str]:
    return [each["name"] for each in msgspec.json.decode((await view("list")).stdout)["views"]]


async def test_views_are_saved_listed_and_deleted_by_name_or_id(view: View, shards: Shards) -> None:
    saved = await view("save", "Failing orders", "--query", "?state=FAILED&type=order_flow")
    one = msgspec.json.decode(saved.stdout)["view"]
    assert one["query"] == "state=FAILED&type=order_flow"
    assert (await view("save", "all", "--query", "")).exit_code == 0
    assert await names(view) == ["all", "Failing orders"]
    assert msgspec.json.decode((await view("delete", "all")).stdout)["name"] == "all"
    assert (await view("delete", one["view_id"])).exit_code == 0
    assert await names(view) == []
    acts = (await auditing.list_audit(shards)).rows.rows
    assert [(act.operation, act.source) for act in acts] == [
        ("saved_view.delete", "cli"),
        ("saved_view.delete", "cli"),
        ("saved_view.save", "cli"),
        ("saved_view.save", "cli"),
    ]


async def test_a_name_that_is_another_views_id_deletes_that_one(view: View) -> None:
    first = msgspec.json.decode((await view("save", "z", "--query", "")).stdout)["view"]
    await view("save", first["view_id"], "--query", "state=FAILED")
    assert msgspec.json.decode((await view("delete", first["view_id"])).stdout)["name"] == "z"
    assert await names(view) == [first["view_id"]]


async def test_what_cannot_be_saved_or_is_not_there_is_refused(view: View) -> None:
    await view("save", "mine", "--query", "state=FAILED")
    taken = await view("save", "mine", "--query", "state=PAUSED")
    assert (taken.exit_code, "HVT-316" in taken.stderr) == (1, True)
    missing = await view("delete", "nobody's")
    assert (missing.exit_code, "harvest view list" in missing.stderr) == (1, True)
    assert (await view("save", "mine")).exit_code == 2


async def test_a_view_is_not_said_to_be_missing_while_its_shard_is(urls: dict[int, str], shards: Shards) -> None:
    async with served(settings({0: DEAD, 1: urls[1]})) as address:
        view = views_at(address)
        listed = await view("list")
        assert (listed.exit_code, "shard 0 is not in this answer" in listed.stderr) == (0, True)
        unknown = await view("delete", "mine")
        assert (unknown.exit_code, "is not known" in unknown.stderr) == (3, True)
