"""The runs of a chain: how each went on, which try it was, and the way from one to the next."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest

from harvest.history.data import WorkflowStarted
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.operations.chains import run_chain
from harvest_console.pages import chain as chain_pages
from harvest_console.pages.chain import run_rows
from tests.operations.population import Happened, Run, add_history
from tests.pages.acting import Site, words
from tests.pages.families import run_with

CONTINUED, FAILED, RUNNING = State.CONTINUED_AS_NEW, State.FAILED, State.RUNNING


async def chain(site: Site, name: str, *states: State) -> list[UUID]:
    """A run for each state, each but the first following the one before; each knows which try it is."""
    runs: list[UUID] = []
    attempt = 1
    for n, state in enumerate(states):
        more: dict[str, Any] = {"first_execution_id": runs[0], "previous_execution_id": runs[-1]} if runs else {}
        run = await run_with(site.shards, [], Run(workflow_id=name, age=100 - n, state=state, **more))
        await site.shards.store(0).write.write("delete from harvest_events where execution_id = $1", run)
        started = WorkflowStarted("order_flow", name, 1, 1, attempt=attempt)
        await add_history(site.shards, run, [Happened(EventKind.WORKFLOW_STARTED, data=started)])
        runs.append(run)
        attempt = attempt + 1 if state == FAILED else 1
    return runs


async def test_every_run_tells_how_it_went_on_and_which_try_it_was(site: Site) -> None:
    runs = await chain(site, "chain-a", CONTINUED, FAILED, FAILED, RUNNING)
    found = await run_chain(site.shards, runs[1])
    rows = run_rows(found, runs[1], 1)
    assert [(row.run.exec_id, row.outcome, row.attempt) for row in rows] == [
        (runs[0], "continued as new", 1),
        (runs[1], "tried again", 1),
        (runs[2], "tried again", 2),
        (runs[3], "", 3),
    ]
    assert [row.is_current for row in rows] == [False, True, False, False]
    page = await site.get(f"/w/{runs[1]}/runs")
    said = words(page)
    assert f"2 {runs[1]} this run Failed tried again 1" in said
    assert f"4 {runs[3]} Running open 3" in said
    assert "4 runs, newest first" in said


async def test_windows_know_the_try_that_they_begin_with(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_pages, "WINDOW", 2)
    runs = await chain(site, "chain-b", FAILED, FAILED, FAILED, FAILED, RUNNING)
    page = await site.get(f"/w/{runs[0]}/runs")
    assert f"5 {runs[4]} Running open 5" in words(page)
    assert f"4 {runs[3]} Failed tried again 4" in words(page)
    older = re.search(r'id="older" href="([^"]+)"', page.text)
    assert older is not None
    second = await site.get(older[1])
    assert f"3 {runs[2]} Failed tried again 3" in words(second)
    newer = re.search(r'id="newer" href="([^"]+)"', second.text)
    assert newer is not None
    assert f"5 {runs[4]}" in words(await site.get(newer[1]))
    assert (await site.get(f"/w/{runs[0]}/runs?before=-3")).status_code == 200


async def test_the_head_of_a_run_leads_to_the_one_before_and_the_one_after(site: Site) -> None:
    runs = await chain(site, "chain-c", CONTINUED, CONTINUED, RUNNING)
    page = (await site.get(f"/w/{runs[1]}")).text
    head = page[: page.index('<nav class="tabs"')]
    assert re.findall(r'href="/w/([0-9a-f-]+)">(Earlier run|Later run)', head) == [
        (str(runs[0]), "Earlier run"),
        (str(runs[2]), "Later run"),
    ]
    assert f'Another run goes on from here.</span><a class="link" href="/w/{runs[2]}"' in page


async def test_a_run_alone_says_what_a_chain_is(site: Site) -> None:
    (run,) = await chain(site, "chain-d", RUNNING)
    assert "This one is alone so far." in words(await site.get(f"/w/{run}/runs"))
