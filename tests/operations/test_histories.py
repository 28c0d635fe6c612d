"""Histories for people: chosen groups of events, each half of a pair with the other, wherever that is."""

from __future__ import annotations

from uuid import UUID

import pytest

from harvest.errors import ExecutionNotFoundError, InvalidRequestError
from harvest.history.data import (
    ActivityFailed,
    ActivityScheduled,
    ActivityStarted,
    ChildWorkflowSpawnedDetached,
    ChildWorkflowStarted,
    Failure,
    SignalReceived,
    UpdateAdmitted,
    UpdateCompleted,
    WorkflowStarted,
)
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.operations.histories import GROUPS, HistoryWindow, begins_step, step_of, window
from harvest.shards import Shards
from tests.operations.population import Happened, Run, add, add_history

BEGUN = Happened(EventKind.WORKFLOW_STARTED, data=WorkflowStarted("order_flow", "o-1", 1, 1))


def scheduled(seq: int, name: str = "charge") -> Happened:
    return Happened(EventKind.ACTIVITY_SCHEDULED, 1, seq, ActivityScheduled(name, "d"))


def tried(seq: int, attempt: int = 1) -> Happened:
    return Happened(EventKind.ACTIVITY_STARTED, 2, seq, ActivityStarted(attempt))


def failed(seq: int) -> Happened:
    return Happened(EventKind.ACTIVITY_FAILED, 3, seq, ActivityFailed(Failure("E", "no"), 2))


def completed(seq: int) -> Happened:
    return Happened(EventKind.ACTIVITY_COMPLETED, 3, seq)


async def written(shards: Shards, *events: Happened, state: State = State.RUNNING) -> UUID:
    """A run with these events after its start, which has the id 1."""
    execution_id = await add(shards, 0, Run(state=state))
    await add_history(shards, execution_id, [BEGUN, *events])
    return execution_id


def ids(found: HistoryWindow) -> list[int]:
    return [event.event_id for event in found.events]


def beside(found: HistoryWindow) -> list[int]:
    return sorted(event.event_id for event in found.beside)


async def test_what_belongs_to_an_event_before_it_is_folded_away_and_told_beside_it(shards: Shards) -> None:
    run = await written(shards, scheduled(1), tried(1), tried(1, 2), completed(1), scheduled(2))
    whole = await window(shards, run)
    assert (ids(whole), beside(whole)) == ([1, 2, 3, 4, 5, 6], [])
    folded = await window(shards, run, folded=True)
    # Of the attempts the last.
    assert (ids(folded), beside(folded)) == ([1, 2, 6], [4, 5])
    assert (folded.state, folded.last_event_id) == ("RUNNING", 6)


async def test_a_window_brings_the_beginnings_of_what_it_shows_the_end_of(shards: Shards) -> None:
    run = await written(shards, scheduled(1), scheduled(2, "ship"), tried(1), completed(1), completed(2))
    found = await window(shards, run, after=3)
    assert (ids(found), beside(found)) == ([4, 5, 6], [2, 3])
    assert {event.event_id: bytes(event.data["name"]) for event in found.beside} == {2: b'"charge"', 3: b'"ship"'}


async def test_an_update_and_its_answer_are_a_pair_and_no_command_of_that_number(shards: Shards) -> None:
    admitted = Happened(EventKind.UPDATE_ADMITTED, 1, 0, UpdateAdmitted("u-1", "reprice"))
    answered = Happened(EventKind.UPDATE_COMPLETED, 2, 2, UpdateCompleted("u-1"))
    run = await written(shards, admitted, scheduled(2), answered, completed(2))
    folded = await window(shards, run, folded=True)
    assert (ids(folded), beside(folded)) == ([1, 2, 3], [4, 5])
    by_id = {event.event_id: event for event in [*folded.events, *folded.beside]}
    assert step_of(by_id[2]) == step_of(by_id[4]) == ("update", 2)
    assert step_of(by_id[3]) == step_of(by_id[5]) == ("command", 2)
    last = await window(shards, run, after=3)
    assert (ids(last), beside(last)) == ([4, 5], [2, 3])


async def test_children_that_are_awaited_have_an_end_and_detached_ones_have_none(shards: Shards) -> None:
    child = ChildWorkflowStarted(str(mint_execution_id(0)), "ship_flow", "s-1", "d")
    spawned = ChildWorkflowSpawnedDetached(str(mint_execution_id(0)), "mail_flow", "m-1", "d")
    run = await written(
        shards,
        Happened(EventKind.CHILD_WORKFLOW_STARTED, 1, 1, child),
        Happened(EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED, 1, 2, spawned),
        Happened(EventKind.CHILD_WORKFLOW_COMPLETED, 2, 1),
    )
    folded = await window(shards, run, folded=True)
    assert (ids(folded), beside(folded)) == ([1, 2, 3], [4])
    assert [begins_step(event) for event in folded.events] == [False, True, False]


async def test_groups_are_chosen_and_counted_over_the_whole_history(shards: Shards) -> None:
    signal = Happened(EventKind.SIGNAL_RECEIVED, 2, 0, SignalReceived("approved"))
    run = await written(shards, scheduled(1), tried(1), failed(1), signal, scheduled(2), completed(2))
    found = await window(shards, run, groups=["messages", "activities"], folded=True, limit=2)
    assert (ids(found), beside(found), found.next_cursor) == ([2, 5], [3, 4], 5)
    assert (await window(shards, run, groups=["messages"])).events[0].type == "SignalReceived"
    told = {group: count for group, count in found.counts.items() if count}
    assert told == {"workflow": 1, "activities": 5, "messages": 1, "failed": 1}


async def test_failures_are_shown_as_they_are_even_where_pairs_are_folded(shards: Shards) -> None:
    run = await written(shards, scheduled(1), tried(1), failed(1), scheduled(2), completed(2))
    found = await window(shards, run, groups=["failed"], folded=True)
    assert (ids(found), beside(found)) == ([4], [2, 3])


async def test_windows_lead_on_in_both_directions(shards: Shards) -> None:
    run = await written(shards, *(scheduled(n) for n in range(1, 8)))
    assert [ids(await window(shards, run, after=after, limit=3)) for after in (0, 3, 6)] == [
        [1, 2, 3],
        [4, 5, 6],
        [7, 8],
    ]
    back = await window(shards, run, before=7, limit=3, newest_first=True)
    assert (ids(back), back.next_cursor) == ([6, 5, 4], 4)
    assert (await window(shards, run, before=2, limit=3, newest_first=True)).next_cursor is None


async def test_events_of_a_newer_release_are_shown_unless_something_else_is_chosen(shards: Shards) -> None:
    run = await written(shards, scheduled(1))
    await shards.store(0).write.write(
        "update harvest_events set kind = 99 where execution_id = $1 and event_id = 2", run
    )
    for folded in (False, True):
        assert [event.type for event in (await window(shards, run, folded=folded)).events][1] == "Unknown99"
    assert ids(await window(shards, run, groups=["workflow"])) == [1]


async def test_every_kind_is_in_one_group() -> None:
    grouped = [kind for group, kinds in GROUPS.items() if group != "failed" for kind in kinds]
    assert sorted(grouped) == sorted(EventKind)


async def test_what_cannot_be_read_is_told(shards: Shards) -> None:
    run = await written(shards)
    with pytest.raises(InvalidRequestError, match="no group of events"):
        await window(shards, run, groups=["nonsense"])
    with pytest.raises(InvalidRequestError, match="limit"):
        await window(shards, run, limit=0)
    with pytest.raises(ExecutionNotFoundError):
        await window(shards, mint_execution_id(0))
