"""The timeline: to one scale, with breaks where nothing happens, window by window, and the same as a table."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvest.history.data import (
    ActivityFailed,
    ActivityScheduled,
    ActivityStarted,
    ChildWorkflowStarted,
    Failure,
    SignalReceived,
    TimerStarted,
)
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.operations import timelines
from harvest_console.pages import timeline
from harvest_console.pages.axis import Axis, build_axis
from harvest_console.pages.drawing import Bar, Drawing, draw
from harvest_console.pages.timeline import WINDOW
from tests.operations.population import EPOCH, Happened, Run
from tests.pages.acting import Site, words
from tests.pages.families import activity, run_with
from tests.scale import scale

MOST_BYTES = 150_000


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def axis(instants: list[float], busy: list[tuple[float, float]] | None = None, zone: str = "UTC") -> Axis:
    intervals = [(at(low), at(high)) for low, high in busy or []]
    return build_axis([at(each) for each in instants], intervals, zone=ZoneInfo(zone), now=EPOCH)


def test_a_long_wait_is_left_out_with_its_length_and_the_rest_is_to_scale() -> None:
    found = axis([0, 0.05, 0.15, 172_800.15], [(0.05, 0.15)])
    assert [(gap.text, gap.x + gap.width) for gap in found.gaps] == [("2 d", 100.0)]
    first, second = found.x(at(0.05)), found.x(at(0.15))
    assert round((second - first) / first, 1) == 2.0
    assert second == found.gaps[0].x


def test_what_an_activity_works_through_is_never_left_out() -> None:
    assert axis([0, 0.1, 3_600], [(0.1, 3_600)]).gaps == []


def test_one_wait_alone_is_not_left_out() -> None:
    assert axis([0, 60]).gaps == []


def test_many_waits_that_are_alike_are_all_left_out() -> None:
    instants = [each for n in range(20) for each in (16.0 * n, 16.0 * n + 1)]
    found = axis(instants, [(16.0 * n, 16.0 * n + 1) for n in range(20)])
    assert len(found.gaps) == 19
    assert sum(gap.width for gap in found.gaps) < 41


def test_marks_are_whole_units_of_the_readers_clock_and_name_the_day_once() -> None:
    # Half past of an hour in Kolkata is a whole one in UTC.
    found = axis([0, 4 * 3_600.0], zone="Asia/Kolkata")
    assert [mark.text for mark in found.marks if mark.text][:2] == ["18:00:00", "19:00:00"]
    now = EPOCH + timedelta(days=40)
    texts = [mark.text for mark in build_axis([at(0), at(7)], [], zone=UTC, now=now).marks if mark.text]
    assert (texts[0], texts[1]) == ("May 1, 12:00:01", "12:00:02")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 10**8), max_size=30), st.lists(st.tuples(st.floats(0, 10**8), st.floats(0, 10**6))))
def test_every_axis_runs_forward_from_edge_to_edge(instants: list[float], work: list[tuple[float, float]]) -> None:
    found = axis(instants, [(begun, begun + length) for begun, length in work])
    places = [found.x(at(each)) for each in sorted(instants)]
    assert all(low <= high for low, high in pairwise(places))
    assert all(0 <= place <= 100 for place in places)
    if len({at(each) for each in instants}) > 1:
        assert (places[0], places[-1]) == (0.0, 100.0)
    told = sorted(mark.x for mark in found.marks if mark.text)
    assert all(high - low >= 5 for low, high in pairwise(told))


async def drawn(site: Site, events: list[Happened], *, state: State = State.COMPLETED) -> Drawing:
    execution_id = await run_with(site.shards, events, Run(state=state))
    return draw(await timelines.timeline(site.shards, execution_id), zone=UTC, now=EPOCH)


async def bar(site: Site, events: list[Happened], *, state: State = State.COMPLETED) -> Bar:
    return (await drawn(site, events, state=state)).bars[0]


async def test_a_bar_says_what_it_is_how_long_it_took_and_how_it_went(site: Site) -> None:
    failed = [
        Happened(EventKind.ACTIVITY_SCHEDULED, 0, 1, ActivityScheduled("charge", "d")),
        Happened(EventKind.ACTIVITY_STARTED, 1, 1, ActivityStarted(1)),
        Happened(EventKind.ACTIVITY_STARTED, 2, 1, ActivityStarted(2)),
        Happened(EventKind.ACTIVITY_FAILED, 4, 1, ActivityFailed(Failure("E", "no"), 2)),
    ]
    found = await bar(site, failed)
    assert (found.look, found.mark, found.outcome) == ("failed", "FAILED", "failed")
    assert found.text == "4 s, failed, 2 attempts"
    assert found.title == (
        "Activity charge: failed, from 12:00:00.000, 4 s, failed, 2 attempts, waited 1 s for a worker"
    )
    assert (found.x, found.begun_x, found.width) == (0.0, 25.0, 100.0)


async def test_what_is_open_reaches_to_now_in_an_open_run_and_to_the_end_of_a_closed_one(site: Site) -> None:
    timer = [Happened(EventKind.TIMER_STARTED, 0, 1, TimerStarted(86_400, at(86_400)))]
    found = await drawn(site, timer, state=State.RUNNING)
    assert (found.bars[0].look, found.bars[0].text, found.bars[0].name) == ("open", "fires May 2, 12:00:00", "of 1 d")
    assert found.now_x == 100.0
    closed = await drawn(site, timer)
    assert (closed.bars[0].look, closed.bars[0].outcome, closed.now_x) == ("cancelled", "not ended", None)


async def test_an_instant_is_a_point_and_a_child_leads_to_its_run(site: Site) -> None:
    child = mint_execution_id(1)
    events = [
        Happened(EventKind.SIGNAL_RECEIVED, 0, 0, SignalReceived("approved")),
        Happened(
            EventKind.CHILD_WORKFLOW_STARTED, 1, 1, ChildWorkflowStarted(str(child), "ship_flow", f"{child}/1", "d")
        ),
        Happened(EventKind.CHILD_WORKFLOW_COMPLETED, 2, 1),
    ]
    signal, found = (await drawn(site, events)).bars
    assert (signal.is_instant, signal.took) == (True, "")
    assert (found.leads_to, found.name) == (child, "ship_flow …/1")


async def test_a_page_has_both_the_drawing_and_the_table_and_each_alone_by_a_link(site: Site) -> None:
    run = await run_with(site.shards, activity(1, 0), Run(state=State.COMPLETED))
    page = (await site.get(f"/w/{run}/timeline")).text
    assert ('id="drawing"' in page, 'class="rows lines if-slim"' in page) == (True, True)
    drawing = (await site.get(f"/w/{run}/timeline?view=drawing")).text
    assert ('id="drawing"' in drawing, 'class="rows lines' in drawing) == (True, False)
    table = await site.get(f"/w/{run}/timeline?view=table")
    assert 'id="drawing"' not in table.text
    assert "Activity charge completed May 1, 12:00:00.000 100 ms 900 ms 1 s" in words(table)
    assert len(re.findall(r"<title>Activity charge: completed", drawing)) == 1
    assert f'href="/w/{run}/history?at=2#e2"' in drawing


async def test_a_run_without_steps_says_so(site: Site) -> None:
    run = await run_with(site.shards, [])
    assert "It has no steps yet" in words(await site.get(f"/w/{run}/timeline"))


async def test_twenty_thousand_events_come_in_windows(site: Site) -> None:
    steps = scale(1_000, 20_000) // 3
    events = [each for n in range(1, steps + 1) for each in activity(n, n * 10.0)]
    run = await run_with(site.shards, events, Run(state=State.COMPLETED))
    page = await site.get(f"/w/{run}/timeline")
    assert f"Steps 1 to {WINDOW} of {steps:,}" in words(page)
    assert len(page.content) < MOST_BYTES
    later = re.search(r'id="older" href="([^"#]+)', page.text)
    assert later is not None
    second = await site.get(later[1].replace("&amp;", "&"))
    assert f"Steps {WINDOW + 1} to {2 * WINDOW} of {steps:,}" in words(second)
    earlier = re.search(r'id="newer" href="([^"#]+)', second.text)
    assert earlier is not None
    assert f"Steps 1 to {WINDOW} of" in words(await site.get(earlier[1].replace("&amp;", "&")))
    last = await site.get(f"/w/{run}/timeline?before=2147483647")
    assert f"to {steps:,} of {steps:,}" in words(last)
    for view in ("full", "compact"):
        assert len((await site.get(f"/w/{run}/history?view={view}")).content) < MOST_BYTES
    for beyond in (f"after={10**12}", f"before={-5}"):
        assert (await site.get(f"/w/{run}/timeline?{beyond}")).status_code == 200


async def test_an_open_run_begins_with_its_last_steps_and_a_long_one_is_not_read_again_by_itself(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await run_with(site.shards, [each for n in range(1, 151) for each in activity(n, n * 10.0)])
    page = await site.get(f"/w/{run}/timeline")
    assert "Steps 71 to 150 of 150" in words(page)
    region = await site.get(f"/_f/w/{run}/timeline")
    assert "Steps 71 to 150 of 150" in words(region)
    listens = f'hx-get="/_f/w/{run}/timeline"'
    assert (listens in page.text, listens in region.text) == (True, True)
    monkeypatch.setattr(timeline, "LIVE_STEPS", 100)
    page = await site.get(f"/w/{run}/timeline")
    assert (listens in page.text, "does not read itself again" in words(page)) == (False, True)


async def test_hostile_names_are_text_in_the_drawing(site: Site) -> None:
    name = "</title></svg><script>alert(1)</script>" + "x" * 200
    run = await run_with(site.shards, activity(1, 0, name=name))
    page = (await site.get(f"/w/{run}/timeline")).text
    assert "<script>alert" not in page
    assert "&lt;/title&gt;&lt;/svg&gt;&lt;script&gt;" in page
