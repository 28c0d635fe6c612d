"""The decisions of a run on their tab: each stage drawn and listed, newest first, and a word where nothing is kept."""

from __future__ import annotations

import re
from datetime import timedelta
from uuid import UUID

import pytest

from harvest import clock
from harvest.history.states import State
from harvest.shards import Shards
from tests.console.conftest import Client
from tests.console.fleet import Member, decide, join
from tests.console.test_workers_pages import text
from tests.operations.population import Run, add
from tests.pages.acting import HTML

A = UUID(int=30)


@pytest.fixture
async def run(console: Client, shards: Shards) -> str:
    """A run of which 60 decisions are kept."""
    await console.sign_in(shards)
    await join(shards, Member(worker=A, name="alpha"))
    execution_id = await add(shards, 0, Run(workflow_id="decided"))
    await decide(shards, 0, execution_id, A, 60, clock.now() - timedelta(minutes=5))
    return str(execution_id)


def _numbers(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'<li class="lane" id="d(\d+)">', page)]


async def test_they_are_drawn_and_listed_newest_first(console: Client, run: str) -> None:
    page = (await console("GET", f"/w/{run}/decisions", headers=HTML)).text
    assert _numbers(page) == list(range(60, 35, -1))
    assert [int(number) for number in re.findall(r'<tr id="t(\d+)">', page)] == list(range(60, 35, -1))
    assert "25 of 60 that are kept, newest first" in page
    assert 'aria-current="page">Decisions</a>' in page


async def test_each_has_its_stages_source_reason_answer_worker_and_epoch(console: Client, run: str) -> None:
    page = await text(console, f"/w/{run}/decisions?view=table")
    row = page.partition(" 60 ")[2].partition(" 59 ")[0]
    for told in ("declined", "overtaken, then replayed", "others wrote first", "parked code", "2 events, 310 B"):
        assert told in row, told
    for told in ("alpha", "epoch 7", "+0.20 ms", "+0.90 ms", "+1.10 ms", "+1.40 ms", "+7.50 ms", "+12 ms"):
        assert told in row, told
    drawn = (await console("GET", f"/w/{run}/decisions?view=drawing", headers=HTML)).text
    assert "Decision 59, 12 ms: until its worker was told 0.20 ms, until it was taken 0.70 ms" in drawn
    assert "<table" not in drawn.partition('id="decisions"')[2].partition("</section>")[0]


async def test_an_instant_that_nobody_knows_is_left_out(console: Client, run: str) -> None:
    page = (await console("GET", f"/w/{run}/decisions?before=2", headers=HTML)).text
    assert _numbers(page) == [1]
    assert page.count('fill="url(#d-') == 6 + 4
    assert "Decision 1, 11 ms: reading its events 3.10 ms" in page
    assert "first decision of a run" in page


async def test_windows_lead_to_each_other(console: Client, run: str) -> None:
    page = (await console("GET", f"/w/{run}/decisions", headers=HTML)).text
    older = re.search(r'id="older" href="([^"#]*)', page)
    assert older is not None
    page = (await console("GET", older[1], headers=HTML)).text
    assert _numbers(page) == list(range(35, 10, -1))
    newer = re.search(r'id="newer" href="([^"#]*)', page)
    assert newer is not None
    assert _numbers((await console("GET", newer[1], headers=HTML)).text)[0] == 60
    assert "There are no older ones." in await text(console, f"/w/{run}/decisions?before=1")


async def test_bars_have_one_scale_or_each_its_own(console: Client, run: str) -> None:
    one = await text(console, f"/w/{run}/decisions")
    assert "the longest bar is 12 ms" in one
    each = await text(console, f"/w/{run}/decisions?scale=each")
    assert "Each bar has its own scale" in each


async def test_nothing_kept_says_why(console: Client, shards: Shards) -> None:
    await console.sign_in(shards)
    opened = await add(shards, 0, Run(workflow_id="open"))
    closed = await add(shards, 1, Run(workflow_id="closed", state=State.COMPLETED))
    assert "written about once a second" in await text(console, f"/w/{opened}/decisions")
    assert "They are kept for a day" in await text(console, f"/w/{closed}/decisions")
    assert (
        "hx-get" in (await console("GET", f"/w/{opened}/decisions", headers=HTML)).text.partition('id="decisions"')[2]
    )
    assert (
        'id="decisions" aria-labelledby="decisions-title">'
        in (await console("GET", f"/w/{closed}/decisions", headers=HTML)).text
    )
