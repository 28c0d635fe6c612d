"""Warmth on its page: shares that leave out what cannot be warm, why not, what was read, and what is missing."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from harvest.shards import MissingShard, Shards
from tests.console.conftest import Client
from tests.console.fleet import Decided, Member, join, measured
from tests.console.test_workers_pages import text
from tests.pages.acting import HTML

A, B = UUID(int=20), UUID(int=21)


@pytest.fixture
async def warm(console: Client, shards: Shards) -> None:
    """Two workers that decided runs of two types in the last minutes; B has stopped since."""
    await console.sign_in(shards)
    await join(shards, Member(worker=A, name="alpha"))
    await join(shards, Member(worker=B, name="beta", status="stopped", seen_ago=120))
    first = Decided(count=100, outcome="cold", reason="first", source="postgres", bytes=500)
    await measured(shards, 0, A, 100, Decided(count=890), first, residents=41)
    await measured(
        shards, 1, A, 30, Decided(count=10, outcome="declined", reason="overtaken", source="postgres"), residents=41
    )
    lost = Decided(count=100, outcome="cold", reason="taken_over", source="postgres", bytes=90_000, workflow="<agent>")
    await measured(shards, 1, B, 130, lost, residents=7)


def _row(page: str, key: str) -> str:
    found = re.search(rf'<tr id="{re.escape(key)}">.*?</tr>', page, re.S)
    assert found is not None
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", found[0]))


async def test_the_share_leaves_out_each_runs_first(console: Client, warm: None) -> None:
    page = await text(console, "/warmth")
    for told in ("first 89.0 %", "second 3.7", "firsts 210 of 1,100", "Parked in memory 41"):
        assert told in page, told


async def test_types_queues_and_workers_have_their_own_shares(console: Client, warm: None) -> None:
    types = (await console("GET", "/warmth", headers=HTML)).text
    assert "98.9 %" in _row(types, "g-order_flow")
    assert "0 %" in _row(types, "g-%3Cagent%3E")
    assert "90 kB" in _row(types, "g-%3Cagent%3E")
    assert "By queue" in await text(console, "/warmth?by=queue")
    workers = (await console("GET", "/warmth?by=worker", headers=HTML)).text
    assert "Active" in _row(workers, f"g-{A}")
    assert "Stopped" in _row(workers, f"g-{B}")
    assert f'href="/workers/{B}"' in workers


async def test_reasons_are_told_in_words_with_their_parts(console: Client, warm: None) -> None:
    page = (await console("GET", "/warmth", headers=HTML)).text
    assert "its worker ended or gave it up 100 47.6 %" in _row(page, "why-taken_over")
    assert "overtaken, then replayed 10 4.8 %" in _row(page, "why-overtaken")


async def test_the_chart_and_its_table_say_the_same(console: Client, warm: None) -> None:
    page = (await console("GET", "/warmth", headers=HTML)).text
    titles = re.findall(r"<title>(\d\d:\d\d:\d\d: [^<]*)</title>", page)
    assert [title[10:] for title in titles] == ["cold 100 %", "declined 100 %"]
    assert "Between 0 % and 100 % of decisions were not warm. beta left at" in page
    twin = page.partition('id="twin"')[2].partition("</table>")[0]
    assert len(re.findall(r'<th scope="row">', twin)) == 30
    assert twin.count("100 %") == 3


async def test_the_window_is_in_the_address(console: Client, warm: None) -> None:
    for window, word in (("1h", "1 hour"), ("24h", "24 hours"), ("week", "5 minutes")):
        page = (await console("GET", f"/warmth?window={window}", headers=HTML)).text
        assert re.search(rf'aria-current="true">{word}</a>', page), window
        assert "89.0 %" in page
    region = (await console("GET", "/_f/warmth?window=1h&by=queue", headers=HTML)).text
    assert "/_f/warmth?window=1h&amp;by=queue" in region
    assert "throttle:15s" in region


async def test_nothing_decided_says_so(console: Client, shards: Shards) -> None:
    await console.sign_in(shards)
    page = await text(console, "/warmth")
    assert "Nothing was decided in the last 5 minutes" in page
    assert "Each worker writes its figures every few seconds." in page
    for shard_id in (0, 1):
        await shards.store(shard_id).write.write("delete from harvest_workers")
    assert "No worker is alive." in await text(console, "/warmth?window=24h")


async def test_a_shard_that_is_away_is_named(half_console: Client, shards: Shards) -> None:
    await half_console.sign_in(shards)
    await measured(shards, 0, A, 30, Decided(count=10))
    page = await text(half_console, "/warmth")
    assert "Shard 1 did not answer." in page
    assert "first 100 %" in page


async def test_nobody_answering_is_no_empty_page(
    console: Client, shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    await console.sign_in(shards)
    await text(console, "/workers")

    async def silent(_: Shards, shard_id: int, *__: object) -> MissingShard:
        return MissingShard(shard_id, "no answer in time")

    monkeypatch.setattr(Shards, "_ask", silent)
    for path in ("/warmth", "/workers"):
        page = await text(console, path)
        assert "No shard answered" in page
        assert "Nothing was decided" not in page
        assert "No worker yet" not in page
