"""Pause and resume: what they do is said before, who holds a run and why is said after, wherever the run appears."""

from __future__ import annotations

import re

from harvest.history.states import State
from harvest.operations import closing, pausing
from tests.operations.population import Run, add
from tests.pages.acting import ACTOR, Site, words

MARK = '<span class="state paused">Paused</span>'


async def test_a_run_is_paused_from_its_page_and_says_who_holds_it_and_why(site: Site) -> None:
    run = await site.begin()
    assert f"/w/{run}/pause" in (await site.get(f"/w/{run}")).text
    before = words(await site.get(f"/w/{run}/pause"))
    for told in ("It stands still until somebody resumes it.", "Stops", "Goes on", "Is kept", "Reason optional"):
        assert told in before, told
    done = await site.post(f"/w/{run}/pause", reason="the <bank> asks us to wait")
    assert (done.status_code, done.headers["location"]) == (303, f"/w/{run}?did=paused")
    page = await site.get(done.headers["location"])
    assert MARK in page.text
    said = words(page)
    for told in ("Somebody holds it.", "session:", "the <bank> asks us to wait", "Waits for signal go", "Resume run"):
        assert told in said, told
    assert "Nothing holds it back" not in said
    assert f"/w/{run}/pause" not in page.text
    assert await site.acts(run) == ["workflow.pause", "workflow.start"]


async def test_a_paused_run_is_told_in_list_filter_and_overview(site: Site) -> None:
    run = await site.begin()
    overview = words(await site.get("/"))
    paused = int(re.search(r"Paused (\d+)", overview)[1])  # type: ignore[index]
    await pausing.pause(site.shards, ACTOR, site.id(run))
    page = await site.get("/")
    assert f"Paused {paused + 1}" in words(page)
    assert '<b class="state paused"><a href="/workflows?state=PAUSED">' in page.text
    listed = await site.get("/workflows?state=PAUSED&type=acting_flow")
    row = listed.text.partition(f'id="r{run}"')[2].partition("</tr>")[0]
    assert MARK in row
    chips = re.search(r'<a class="chip" aria-current="true"[^>]*>Paused</a>', listed.text)
    assert chips is not None
    assert run not in (await site.get("/workflows?state=RUNNING&type=acting_flow")).text
    # The count of open runs leads to a list of as many.
    assert 'href="/workflows?state=RUNNING&amp;state=PAUSED"' in page.text


async def test_a_resume_says_what_was_held_and_lets_it_go_on(site: Site) -> None:
    run = await site.begin()
    await pausing.pause(site.shards, ACTOR, site.id(run), reason="incident 812")
    await closing.cancel(site.shards, ACTOR, site.id(run), reason="")
    before = words(await site.get(f"/w/{run}/resume"))
    for told in ("By token:admin", "Why incident 812", "It was asked to cancel", "Resume this run", "Leave it paused"):
        assert told in before, told
    assert "takes effect once it is resumed" in words(await site.get(f"/w/{run}/cancel"))
    done = await site.post(f"/w/{run}/resume")
    assert (done.status_code, done.headers["location"]) == (303, f"/w/{run}?did=resumed")
    assert "It goes on, with all that came meanwhile." in words(await site.get(done.headers["location"]))
    assert (await site.acts(run))[0] == "workflow.resume"


async def test_sent_twice_it_changes_nothing(site: Site) -> None:
    run = await site.begin()
    assert "is not paused" in words(await site.get(f"/w/{run}/resume"))
    assert (await site.post(f"/w/{run}/resume")).headers["location"].endswith("did=unchanged")
    await site.post(f"/w/{run}/pause", reason="first")
    assert "is paused already" in words(await site.get(f"/w/{run}/pause"))
    assert (await site.post(f"/w/{run}/pause", reason="second")).headers["location"].endswith("did=unchanged")
    assert "Why first" in words(await site.get(f"/w/{run}"))
    assert (await site.events(run)).count("WorkflowExecutionPaused") == 1


async def test_what_is_wrong_or_too_late_is_said_in_place(site: Site) -> None:
    run = await site.begin()
    page = await site.post(f"/w/{run}/pause", reason="x" * 600)
    assert (page.status_code, "At most 500 characters, this has 600." in words(page)) == (422, True)
    assert "x" * 600 in page.text
    ended = await add(site.shards, 1, Run(workflow_id="not-held", state=State.COMPLETED))
    for act in ("pause", "resume"):
        assert "This run has ended" in words(await site.get(f"/w/{ended}/{act}"))
        refused = await site.post(f"/w/{ended}/{act}")
        assert (refused.status_code, "This run has ended" in words(refused)) == (409, True)
        assert (await site.post(f"/w/{run}/{act}", csrf="forged")).status_code == 403
    assert "WorkflowExecutionPaused" not in await site.events(run)


async def test_a_blocked_run_that_is_paused_too_says_both(site: Site) -> None:
    run = await site.begin()
    await pausing.pause(site.shards, ACTOR, site.id(run), reason="look at it")
    await site.shards.store_of(site.id(run)).write.write(
        "update harvest_executions set blocked = 'step_too_long' where execution_id = $1", site.id(run)
    )
    said = words(await site.get(f"/w/{run}"))
    assert "Why look at it" in said
    assert "One step of its code held the worker for too long." in said
    assert "Resume run" in said
