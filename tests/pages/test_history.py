"""The history of a run: in short with pairs folded, in full, filtered, window by window, and as a document."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from uuid import UUID

import pytest
from msgspec import Raw

from harvest.history.data import (
    ActivityFailed,
    ActivityScheduled,
    ActivityStarted,
    ChildWorkflowFailed,
    ChildWorkflowSpawnedDetached,
    ChildWorkflowStarted,
    ExternalFailed,
    ExternalSignalRequested,
    Failure,
    SignalReceived,
    Target,
    TimerStarted,
    UpdateAdmitted,
    UpdateFailed,
    WorkflowContinuedAsNew,
)
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.operations.histories import window
from harvest_console.pages import windows
from harvest_console.pages.lines import Line, lines
from tests.operations.population import EPOCH, Happened, Run
from tests.pages.acting import Site, words
from tests.pages.families import activity, run_with

CHILD = mint_execution_id(1)


async def told(site: Site, *events: Happened, state: State = State.RUNNING) -> list[Line]:
    """The lines of a run with these events, but for its start."""
    run = await run_with(site.shards, events, Run(state=state))
    return lines(await window(site.shards, run, folded=True))[1:]


async def test_an_activity_is_one_line_with_its_attempts_and_its_end(site: Site) -> None:
    (line,) = await told(
        site,
        Happened(EventKind.ACTIVITY_SCHEDULED, 0, 1, ActivityScheduled("charge", "d", Raw(b"[1]"))),
        Happened(EventKind.ACTIVITY_STARTED, 1, 1, ActivityStarted(1)),
        Happened(EventKind.ACTIVITY_STARTED, 3, 1, ActivityStarted(2)),
        Happened(EventKind.ACTIVITY_FAILED, 4, 1, ActivityFailed(Failure("CardDeclined", "no"), 2)),
    )
    assert (line.word, line.text, line.outcome, line.mark, line.took) == (
        "Activity",
        "charge",
        "failed",
        "FAILED",
        "4 s",
    )
    assert line.detail == "2 attempts, CardDeclined: no"
    assert [(part.event_id, part.word) for part in line.parts] == [(2, "asked for"), (5, "ended")]


async def test_what_is_under_way_says_by_whom_and_what_a_closed_run_left_says_so(site: Site) -> None:
    events = activity(1, 0, took=None)
    (line,) = await told(site, *events)
    assert (line.outcome, line.detail, line.took) == ("under way", "on worker b", "")
    (line,) = await told(site, *events, state=State.TERMINATED)
    assert (line.outcome, line.mark) == ("not ended", "LEFT")


async def test_each_kind_of_pair_is_one_line(site: Site) -> None:
    child = ChildWorkflowStarted(str(CHILD), "ship_flow", f"{CHILD}/2", "d")
    spawned = ChildWorkflowSpawnedDetached(str(CHILD), "mail_flow", "m-1", "d")
    asked = ExternalSignalRequested(Target(workflow_name="other_flow", workflow_id="x-1"), "go", "d")
    found = await told(
        site,
        Happened(EventKind.TIMER_STARTED, 0, 1, TimerStarted(60, EPOCH + timedelta(seconds=60))),
        Happened(EventKind.CHILD_WORKFLOW_STARTED, 0, 2, child),
        Happened(EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED, 0, 3, spawned),
        Happened(EventKind.EXTERNAL_SIGNAL_REQUESTED, 0, 4, asked),
        Happened(EventKind.UPDATE_ADMITTED, 0, 0, UpdateAdmitted("u-1", "reprice")),
        Happened(EventKind.SIGNAL_RECEIVED, 1, 0, SignalReceived("approved", Raw(b"1"), "token:ops")),
        Happened(EventKind.TIMER_CANCELLED, 1, 1),
        Happened(EventKind.CHILD_WORKFLOW_FAILED, 2, 2, ChildWorkflowFailed(Failure("E", "m"), "TIMED_OUT")),
        Happened(EventKind.EXTERNAL_SIGNAL_FAILED, 3, 4, ExternalFailed("target_unknown")),
        Happened(
            EventKind.UPDATE_FAILED, 4, 6, UpdateFailed(update_id="u-1", failure=Failure("Bad", "price"), rejected=True)
        ),
    )
    assert [(line.word, line.text, line.outcome, line.detail) for line in found] == [
        ("Timer", "of 1 min", "cancelled", ""),
        ("Child", "ship_flow …/2", "timed out", "E: m"),
        ("Detached child", "mail_flow m-1", "spawned", ""),
        ("Signal to a run", "go to other_flow x-1", "failed", "target unknown"),
        ("Update", "reprice", "refused", "Bad: price"),
        ("SignalReceived", "approved from token:ops", "", ""),
    ]
    assert [line.leads_to for line in found[1:3]] == [CHILD, CHILD]


def refused(update_id: str, failure: Failure) -> UpdateFailed:
    return UpdateFailed(update_id=update_id, failure=failure, rejected=True)


async def test_a_failure_with_a_long_traceback_still_says_what_it_was(site: Site) -> None:
    failure = Failure("PayloadDecodeError", 'it says "int"', traceback="Traceback\n" * 200)
    happened = (
        Happened(EventKind.UPDATE_ADMITTED, 0, 0, UpdateAdmitted("u-1", "set_price")),
        Happened(EventKind.UPDATE_FAILED, 1, 2, refused("u-1", failure)),
    )
    (line,) = await told(site, *happened)
    assert (line.outcome, line.detail) == ("refused", 'PayloadDecodeError: it says "int"')
    run = await run_with(site.shards, happened, Run())
    page = words(await site.get(f"/w/{run}/history?view=full"))
    assert 'set_price: refused, PayloadDecodeError: it says "int"' in page


async def test_child_events_lead_to_the_child_and_a_rotation_to_the_next_run(site: Site) -> None:
    following = mint_execution_id(0)
    run = await run_with(
        site.shards,
        [
            Happened(EventKind.CHILD_WORKFLOW_STARTED, 0, 1, ChildWorkflowStarted(str(CHILD), "ship_flow", "s-1", "d")),
            Happened(EventKind.CHILD_WORKFLOW_COMPLETED, 1, 1),
            Happened(EventKind.WORKFLOW_CONTINUED_AS_NEW, 2, 0, WorkflowContinuedAsNew(str(following))),
        ],
        Run(state=State.CONTINUED_AS_NEW),
    )
    full = (await site.get(f"/w/{run}/history?view=full")).text
    assert full.count(f'href="/w/{CHILD}">to the run') == 2
    assert f'href="/w/{following}">to the run' in full
    # The end of a child whose beginning lies in another window leads there too.
    last = (await site.get(f"/w/{run}/history?view=full&dir=oldest&after=2")).text
    assert f'href="/w/{CHILD}">to the run' in last
    assert "ship_flow s-1" in last
    assert f'<a href="/w/{CHILD}">ship_flow s-1</a>' in (await site.get(f"/w/{run}/history")).text


async def numbers(site: Site, path: str) -> list[int]:
    """The events that a page shows, in order."""
    return [int(each) for each in re.findall(r'<tr id="e(\d+)"', (await site.get(path)).text)]


async def neighbours(site: Site, path: str) -> dict[str, str]:
    page = (await site.get(path)).text
    return {name: html.unescape(url) for name, url in re.findall(r'id="(newer|older)" href="([^"#]+)', page)}


@pytest.mark.parametrize("view", ["full", "compact"])
@pytest.mark.parametrize("order", ["oldest", "newest"])
async def test_windows_show_each_line_once_and_lead_back(
    site: Site, monkeypatch: pytest.MonkeyPatch, view: str, order: str
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 4)
    monkeypatch.setattr(windows, "FOLDED_WINDOW", 4)
    events = [each for n in range(1, 5) for each in activity(n, n * 10.0)]
    run = await run_with(site.shards, events, Run(state=State.COMPLETED))
    path = f"/w/{run}/history?view={view}&dir={order}"
    pages, seen = [path], [await numbers(site, path)]
    while onward := (await neighbours(site, pages[-1])).get("older"):
        pages.append(onward)
        seen.append(await numbers(site, onward))
    expected = list(range(1, 14)) if view == "full" else [1, 2, 5, 8, 11]
    assert [number for page in seen for number in page] == (expected if order == "oldest" else expected[::-1])
    back = (await neighbours(site, pages[-1]))["newer"]
    assert await numbers(site, back) == seen[-2]


async def test_kinds_are_chosen_by_links_that_keep_all_else(site: Site) -> None:
    events = [*activity(1, 0), Happened(EventKind.SIGNAL_RECEIVED, 2, 0, SignalReceived("approved"))]
    run = await run_with(site.shards, events)
    page = await site.get(f"/w/{run}/history?view=full&dir=oldest")
    assert "All Workflow 1 Activities 3 Signals and updates 1" in words(page)
    chosen = re.search(r'href="([^"#]+)[^"]*">Signals and updates', page.text)
    assert chosen is not None
    url = html.unescape(chosen[1])
    assert url == f"/w/{run}/history?view=full&kind=messages&dir=oldest"
    assert await numbers(site, url) == [5]
    assert await numbers(site, f"/w/{run}/history?kind=messages&kind=workflow&dir=oldest") == [1, 5]
    assert "No events of these kinds here." in words(await site.get(f"/w/{run}/history?kind=timers"))
    assert (await site.get(f"/w/{run}/history?kind=nonsense")).status_code == 400


async def test_an_event_has_an_address_and_old_addresses_lead_there(site: Site) -> None:
    events = [each for n in range(1, 101) for each in activity(n, n * 10.0)]
    run = await run_with(site.shards, events)
    shown = await numbers(site, f"/w/{run}/history?at=250")
    assert (shown[0], shown[-1]) == (201, 301)
    moved = await site.get(f"/w/{run}?at=250")
    assert moved.status_code == 303
    assert moved.headers["location"] == f"/w/{run}/history?view=full&at=250"
    for odd in ("at=0", "at=-4", f"at={10**12}", "before=-1", f"after={10**12}", "view=nothing&dir=sideways"):
        assert (await site.get(f"/w/{run}/history?{odd}")).status_code == 200
    brief = await numbers(site, f"/w/{run}")
    assert (brief[0], len(brief)) == (301, 50)


async def test_the_document_is_downloaded_with_the_payloads_that_were_asked_for(site: Site) -> None:
    events = [Happened(EventKind.SIGNAL_RECEIVED, 2, 0, SignalReceived("approved", Raw(b'{"secret":1}')))]
    run = await run_with(site.shards, events)
    page = (await site.get(f"/w/{run}/history")).text
    for policy in ("full", "redacted", "omit"):
        assert f"/w/{run}/history.json?payload_policy={policy}" in page
        answer = await site.get(f"/w/{run}/history.json?payload_policy={policy}")
        document = json.loads(answer.content)
        assert (document["payload_policy"], len(document["events"])) == (policy, 2)
        assert ("secret" in answer.text) == (policy == "full")
        assert answer.headers["content-disposition"].startswith(f'attachment; filename="{run}-history')
        assert answer.headers["content-type"] == "application/octet-stream"
    assert (await site.get(f"/w/{run}/history.json?payload_policy=some")).status_code == 400


async def test_a_run_says_what_its_code_says_and_where_it_belongs(site: Site) -> None:
    parent, root = mint_execution_id(0), mint_execution_id(1)
    run = await run_with(
        site.shards,
        [],
        Run(
            parent_id=parent,
            awaited=True,
            close_policy=2,
            search_attributes='{"tenant":"<b>acme</b>","amount":12,"tags":["vip","new"]}',
            details=b'"half of it is done\\n<i>so far</i> \\ud83c\\udf81"',
        ),
    )
    write = site.shards.store(0).write.write
    await write("update harvest_executions set root_id = $2 where execution_id = $1", run, root)
    await write(
        "insert into harvest_progress (execution_id, chunk) values ($1, '\"packed 1 of 2\"'), ($1, $2)",
        run,
        b'{"long":"' + b"z" * 900 + b'"}',
    )
    page = await site.get(f"/w/{run}")
    said = words(page)
    for text in (
        "half of it is done <i>so far</i> 🎁",
        "tenant <b>acme</b>",
        "amount 12",
        "tags vip, new",
        "packed 1 of 2",
        "of 911 B",
        "awaited; when the parent ends: it is terminated",
    ):
        assert text in said, text
    assert f'href="/w/{parent}">Parent</a>' in page.text
    assert f'href="/w/{root}"' in page.text
    region = await site.get(f"/_f/w/{run}/progress")
    assert "packed 1 of 2" in words(region)
    assert (await site.get(f"/w/{run}/payload/current_details")).status_code == 200


async def test_children_under_way_lead_to_their_runs(site: Site) -> None:
    run = await run_with(site.shards, [])
    child = UUID(str(CHILD))
    await site.shards.store(0).write.write(
        "insert into harvest_children (child_execution_id, parent_execution_id, seq, awaited, close_policy) "
        "values ($1, $2, 1, true, 1)",
        child,
        run,
    )
    page = await site.get(f"/w/{run}")
    assert f'<a href="/w/{child}">' in page.text
    assert "awaited when this run ends: it is asked to cancel" in words(page)
