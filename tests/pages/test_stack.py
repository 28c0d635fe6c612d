"""The stack page: every task at its line, everything that is waited for, and what is recorded where nobody can say."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.errors import RequestTimeoutError
from harvest.history.data import ChildWorkflowStarted
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.operations import reading, signalling, stacks
from harvest.replay.inspecting import Frame, TaskStack
from harvest_console.pages.stack import MOST_FRAMES, places_of
from tests.operations.population import Happened, Run, add, add_history
from tests.operations.test_relations import adopt
from tests.pages.acting import ACTOR, Site, words
from tests.support import eventually


async def test_every_task_is_shown_at_its_line_and_those_at_one_place_together(site: Site) -> None:
    run = await site.begin("busy_flow")
    page = await site.get(f"/w/{run}/stack")
    assert page.status_code == 200
    said = words(page)
    assert "The main task" in said
    assert 'await ctx.wait_for_signal("go") in busy_flow ,' in said
    assert "2 tasks at one place" in said
    assert "await ctx.sleep(timedelta(hours=3)) in nap ," in said
    assert "tests/pages/acting.py:" in said
    assert "After event" in said


async def test_what_it_waits_for_has_its_times_its_tries_and_a_way_to_the_child(site: Site) -> None:
    run = await site.begin("busy_flow")

    async def failed_and_begun() -> bool:
        pending = (await reading.get(site.shards, site.id(run))).pending
        begun = [child for child in pending.children if "/w/" + str(child.execution_id) in (await site.get(here)).text]
        return any(one.last_failure for one in pending.activities) and bool(begun)

    here = f"/w/{run}/stack"
    await eventually(failed_and_begun)
    await signalling.signal(site.shards, ACTOR, site.id(run), "other", b"1")
    page = await site.get(here)
    said = words(page)
    for told in ("activity never_well", "ConnectionError: the gateway is away", "signal go", "in 2 h 59 min"):
        assert told in said, told
    assert "Signals that nobody has taken other 1" in said
    (child,) = (await reading.get(site.shards, site.id(run))).pending.children
    assert f'href="/w/{child.execution_id}">child_flow' in page.text


async def test_a_child_on_another_shard_is_told_with_its_type_its_id_and_its_shard(site: Site) -> None:
    parent, child = await add(site.shards, 0, Run()), mint_execution_id(1)
    asked = ChildWorkflowStarted(str(child), "ship_flow", "s-1" * 100, "")
    await add_history(site.shards, parent, [Happened(EventKind.CHILD_WORKFLOW_STARTED, 1, 1, asked)])
    await adopt(site.shards, parent, 1, child)
    said = words(await site.get(f"/w/{parent}"))
    assert "child ship_flow shard 1 s-1s-1" in said
    assert "s-1" * 100 not in said
    assert "awaited" in said


async def test_where_nobody_can_say_what_is_recorded_is_shown(site: Site) -> None:
    alone = await add(site.shards, 0, Run(workflow_name="nobodys_flow", workflow_id="no-stack", waiting="signal go"))
    page = await site.get(f"/w/{alone}/stack")
    assert page.status_code == 200
    said = words(page)
    assert "No worker can answer for it now." in said
    assert "What is recorded as under way" in said
    assert "When it last came to rest, that was: signal go." in said
    assert "Ask again" in said


async def test_a_late_answer_leaves_what_is_recorded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await site.begin("busy_flow")

    async def late(*_: Any, **__: Any) -> None:
        raise RequestTimeoutError("no worker has answered in 5 s")

    monkeypatch.setattr(stacks, "ask_code", late)

    async def child_has_begun() -> bool:
        return "child child_flow" in words(await site.get(f"/w/{run}/stack"))

    await eventually(child_has_begun)
    said = words(await site.get(f"/w/{run}/stack"))
    assert "Its workers did not answer in time." in said
    for told in ("What is recorded as under way", "activity never_well", "timer", "child child_flow", "not waited for"):
        assert told in said, told


async def test_a_run_that_has_ended_or_is_not_there(site: Site) -> None:
    ended = await add(site.shards, 1, Run(workflow_id="no-more", state=State.TERMINATED))
    page = await site.get(f"/w/{ended}/stack")
    assert (page.status_code, "its code stands nowhere any more" in words(page)) == (200, True)
    assert (await site.get(f"/w/{mint_execution_id(0)}/stack")).status_code == 404


def test_thousands_of_frames_are_counted_not_drawn() -> None:
    def frames(task: int) -> list[Frame]:
        return [Frame("flow.py", task * 100 + line, "step", "await next()") for line in range(50)]

    tasks = [TaskStack(f"t{n}", frames(n)) for n in range(200)]
    places, left_out = places_of(tasks)
    assert sum(len(place.frames) for place in places) <= MOST_FRAMES
    assert sum(place.count for place in places) + left_out == 200
    same, none = places_of([TaskStack("workflow", frames(0)) for _ in range(200)])
    assert ([(place.count, place.names) for place in same], none) == ([(200, [])], 0)
