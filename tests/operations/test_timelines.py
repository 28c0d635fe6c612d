"""Timelines: every kind of step paired as its events say, in windows, with figures of the whole."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from uuid import UUID

import msgspec
import pytest

from harvest import clock
from harvest.errors import ExecutionNotFoundError, InvalidRequestError
from harvest.history.data import (
    ActivityScheduled,
    ActivityStarted,
    ChildWorkflowSpawnedDetached,
    ChildWorkflowStarted,
    ExternalAwaitRequested,
    ExternalCancelRequested,
    ExternalSignalRequested,
    LocalActivityScheduled,
    SignalReceived,
    Target,
    TimerStarted,
    UpdateAdmitted,
    UpdateCompleted,
    WorkflowStarted,
)
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.operations.timelines import Step, Timeline, timeline
from harvest.shards import Shards
from tests.operations.population import EPOCH, Happened, Run, add, add_history
from tests.scale import scale

BEGUN = Happened(EventKind.WORKFLOW_STARTED, data=WorkflowStarted("order_flow", "o-1", 1, 1))
CHILD, OTHER = mint_execution_id(0), mint_execution_id(1)


def scheduled(seq: int, at: float, name: str = "charge") -> Happened:
    return Happened(EventKind.ACTIVITY_SCHEDULED, at, seq, ActivityScheduled(name, "d"))


def tried(seq: int, at: float, attempt: int = 1) -> Happened:
    return Happened(EventKind.ACTIVITY_STARTED, at, seq, ActivityStarted(attempt))


async def drawn(shards: Shards, events: list[Happened], *, state: State = State.RUNNING) -> Timeline:
    """The timeline of a run with these events after its start, which came at second 0; it ends at second 1."""
    execution_id = await add(shards, 0, Run(state=state))
    await add_history(shards, execution_id, [BEGUN, *events])
    return await timeline(shards, execution_id)


async def only(shards: Shards, *events: Happened) -> Step:
    found = await drawn(shards, list(events))
    assert len(found.steps) == 1
    return found.steps[0]


async def test_an_activity_s_time_is_told_apart_into_waiting_and_running(shards: Shards) -> None:
    step = await only(
        shards, scheduled(1, 1), tried(1, 3), tried(1, 5, 2), Happened(EventKind.ACTIVITY_COMPLETED, 9.5, 1)
    )
    assert (step.step, step.kind, step.name, step.seq, step.attempts) == (2, "activity", "charge", 1, 2)
    assert (step.start, step.end) == (EPOCH + timedelta(seconds=1), EPOCH + timedelta(seconds=9.5))
    assert (step.total_ms, step.wait_ms, step.exec_ms, step.outcome) == (8500, 2000, 6500, "completed")


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (EventKind.ACTIVITY_FAILED, "failed"),
        (EventKind.ACTIVITY_TIMED_OUT, "timed_out"),
        (EventKind.ACTIVITY_CANCEL_REQUESTED, "cancelled"),
    ],
)
async def test_an_activity_says_how_it_ended(shards: Shards, kind: EventKind, outcome: str) -> None:
    assert (await only(shards, scheduled(1, 1), Happened(kind, 2, 1))).outcome == outcome


async def test_what_comes_after_a_cancellation_changes_nothing(shards: Shards) -> None:
    cancelled = Happened(EventKind.ACTIVITY_CANCEL_REQUESTED, 2, 1)
    step = await only(shards, scheduled(1, 1), cancelled, Happened(EventKind.ACTIVITY_COMPLETED, 9, 1))
    assert (step.outcome, step.total_ms) == ("cancelled", 1000)


async def test_an_open_step_has_no_end(shards: Shards) -> None:
    step = await only(shards, scheduled(1, 1), tried(1, 2))
    assert (step.end, step.total_ms, step.exec_ms, step.outcome, step.wait_ms) == (None, None, None, None, 1000)


async def test_every_kind_of_step_has_its_name_its_target_and_its_outcome(shards: Shards) -> None:
    update = Happened(EventKind.UPDATE_ADMITTED, 9, 0, UpdateAdmitted("u-1", "reprice"))
    child = ChildWorkflowStarted(str(CHILD), "ship_flow", "s-1", "d", msgspec.Raw(b'{"name":"not it"}'))
    spawned = ChildWorkflowSpawnedDetached(str(CHILD), "mail_flow", "m-1", "d")
    target = Target(workflow_name="other_flow", workflow_id="x-1")
    events = [
        Happened(EventKind.LOCAL_ACTIVITY_SCHEDULED, 1, 1, LocalActivityScheduled("tax", "d")),
        Happened(EventKind.CHILD_WORKFLOW_STARTED, 2, 2, child),
        Happened(EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED, 3, 3, spawned),
        Happened(EventKind.TIMER_STARTED, 4, 4, TimerStarted(60, EPOCH + timedelta(seconds=64))),
        Happened(EventKind.SIGNAL_RECEIVED, 5, 0, SignalReceived("approved")),
        Happened(EventKind.EXTERNAL_SIGNAL_REQUESTED, 6, 5, ExternalSignalRequested(target, "go", "d")),
        Happened(EventKind.EXTERNAL_CANCEL_REQUESTED, 7, 6, ExternalCancelRequested(Target(str(OTHER)))),
        Happened(EventKind.EXTERNAL_AWAIT_REQUESTED, 8, 7, ExternalAwaitRequested(target)),
        update,
        Happened(EventKind.WORKFLOW_EXECUTION_PAUSED, 10),
        Happened(EventKind.WORKFLOW_EXECUTION_RESUMED, 11),
        # The update was admitted by event 10; the command of that number has nothing to do with it.
        Happened(EventKind.UPDATE_COMPLETED, 12, 10, UpdateCompleted("u-1")),
        scheduled(10, 13),
        Happened(EventKind.LOCAL_ACTIVITY_FAILED, 14, 1),
        Happened(EventKind.CHILD_WORKFLOW_COMPLETED, 15, 2),
        Happened(EventKind.TIMER_FIRED, 16, 4),
        Happened(EventKind.EXTERNAL_SIGNAL_DELIVERED, 17, 5),
        Happened(EventKind.EXTERNAL_CANCEL_FAILED, 18, 6),
        Happened(EventKind.EXTERNAL_AWAIT_RESOLVED, 19, 7),
        Happened(EventKind.WORKFLOW_EXECUTION_PAUSED, 20),
    ]
    found = await drawn(shards, events)
    assert [(s.kind, s.name, s.seq, s.outcome, s.total_ms) for s in found.steps] == [
        ("local_activity", "tax", 1, "failed", 13_000),
        ("child", "ship_flow", 2, "completed", 13_000),
        ("detached_child", "mail_flow", 3, "spawned", 0),
        ("timer", "", 4, "fired", 12_000),
        ("signal", "approved", 0, "received", 0),
        ("external_signal", "go", 5, "delivered", 11_000),
        ("external_cancel", "", 6, "failed", 11_000),
        ("external_await", "other_flow", 7, "completed", 11_000),
        ("update", "reprice", 0, "completed", 3_000),
        ("pause", "", 0, "resumed", 1_000),
        ("activity", "charge", 10, None, None),
        ("pause", "", 0, None, None),
    ]
    by_kind = {step.kind: step for step in found.steps}
    assert (by_kind["child"].execution_id, by_kind["child"].workflow_id) == (CHILD, "s-1")
    assert by_kind["timer"].fires_at == EPOCH + timedelta(seconds=64)
    assert (by_kind["external_cancel"].execution_id, by_kind["external_signal"].workflow_id) == (OTHER, "x-1")
    assert (found.rollup.total_steps, found.rollup.open_steps, found.rollup.failed_steps) == (12, 2, 2)


async def test_busy_time_counts_what_overlaps_once_and_leaves_waiting_out(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run(state=State.COMPLETED))
    events = [
        scheduled(1, 0), tried(1, 10), Happened(EventKind.ACTIVITY_COMPLETED, 20, 1),
        scheduled(2, 12), tried(2, 12), Happened(EventKind.ACTIVITY_COMPLETED, 15, 2),
        scheduled(3, 18), tried(3, 18), Happened(EventKind.ACTIVITY_COMPLETED, 25, 3),
        Happened(EventKind.TIMER_STARTED, 25, 4, TimerStarted(60, EPOCH)), Happened(EventKind.TIMER_FIRED, 90, 4),
        scheduled(5, 90), tried(5, 91), Happened(EventKind.ACTIVITY_FAILED, 95, 5),
        scheduled(6, 98),
    ]  # fmt: skip
    await add_history(shards, execution_id, [BEGUN, *events])
    await shards.store(0).write.write(
        "update harvest_executions set closed_at = $2 where execution_id = $1",
        execution_id,
        EPOCH + timedelta(seconds=100),
    )
    found = (await timeline(shards, execution_id)).rollup
    assert (found.busy_ms, found.wait_ms) == (15_000 + 4_000, 100_000 - 19_000)
    # By their whole time, which the timer is not part of.
    assert [(step.seq, step.total_ms) for step in found.slowest] == [(1, 20_000), (3, 7_000), (5, 5_000), (2, 3_000)]


async def test_a_run_without_steps_has_a_timeline(shards: Shards) -> None:
    found = await drawn(shards, [])
    assert (found.steps, found.next_cursor, found.previous_cursor) == ([], None, None)
    assert (found.rollup.total_steps, found.rollup.busy_ms, found.rollup.slowest) == (0, 0, [])
    assert (found.started_at, found.state, found.as_of > found.started_at) == (EPOCH, "RUNNING", True)


async def walked(shards: Shards, execution_id: UUID, limit: int) -> list[Timeline]:
    pages = [await timeline(shards, execution_id, limit=limit)]
    while (cursor := pages[-1].next_cursor) is not None:
        pages.append(await timeline(shards, execution_id, limit=limit, after_step=cursor))
    return pages


async def test_windows_show_every_step_once_and_lead_back(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    steps = [each for n in range(1, 8) for each in (scheduled(n, n), Happened(EventKind.ACTIVITY_COMPLETED, n + 1, n))]
    await add_history(shards, execution_id, [BEGUN, *steps])
    pages = await walked(shards, execution_id, 3)
    assert [[step.seq for step in page.steps] for page in pages] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [page.steps_before for page in pages] == [0, 3, 6]
    assert {page.rollup.total_steps for page in pages} == {7}
    for earlier, later in pairwise(pages):
        back = await timeline(shards, execution_id, limit=3, before_step=later.previous_cursor)
        assert (back.steps, back.steps_before) == (earlier.steps, earlier.steps_before)
    last = await timeline(shards, execution_id, limit=3, before_step=2**31 - 1)
    assert ([step.seq for step in last.steps], last.steps_before, last.next_cursor) == ([5, 6, 7], 4, None)
    beyond = await timeline(shards, execution_id, limit=3, after_step=99)
    assert (beyond.steps, beyond.steps_before, beyond.next_cursor) == ([], 7, None)


async def test_payloads_are_not_decoded_and_sealed_ones_are_not_read(shards: Shards) -> None:
    execution_id = await add(shards, 0, Run())
    await add_history(shards, execution_id, [BEGUN, scheduled(1, 1), scheduled(2, 2), scheduled(3, 3)])
    write = shards.store(0).write.write
    change = "update harvest_events set payload = $3, codec = $4 where execution_id = $1 and event_id = $2"
    await write(change, execution_id, 2, b'{"name":"charge","input":{"nul":"\\u0000","broken', 1)
    await write(change, execution_id, 3, b"\xff\xfe sealed", 2)
    await write(change, execution_id, 4, b'{"nothing', 1)
    assert [step.name for step in (await timeline(shards, execution_id)).steps] == ["charge", "", ""]


async def test_unknown_runs_and_bounds(shards: Shards) -> None:
    with pytest.raises(ExecutionNotFoundError):
        await timeline(shards, mint_execution_id(1))
    with pytest.raises(InvalidRequestError, match="limit"):
        await timeline(shards, mint_execution_id(1), limit=501)


async def test_a_long_history_is_paired_in_the_database_and_never_comes_whole(shards: Shards) -> None:
    count = scale(5_000, 20_000)
    execution_id = await add(shards, 0, Run())
    third = count // 3
    await shards.store(0).write.write(
        "insert into harvest_events (execution_id, event_id, kind, seq, at, payload) "
        "select $1, 2 + (n - 1) * 3 + k, (array[5, 6, 7])[k + 1], n, $3::timestamptz + (n * 3 + k) * interval '1 s', "
        "convert_to('{\"name\":\"act_' || n || '\",\"input\":\"' || repeat('x', 300) || '\"}', 'UTF8') "
        "from generate_series(1, $2::int) n, generate_series(0, 2) k",
        execution_id,
        third,
        EPOCH,
    )
    began = clock.monotonic()
    found = await timeline(shards, execution_id, after_step=2 + (third - 500) * 3 - 1, limit=500)
    took = clock.monotonic() - began
    print(f"a window of {third} steps took {took * 1000:.0f} ms")
    assert (found.rollup.total_steps, found.steps_before, len(found.steps)) == (third, third - 500, 500)
    assert {(step.outcome, step.total_ms, step.name) for step in found.steps[:1]} == {
        ("completed", 2_000, f"act_{third - 499}")
    }
    assert found.rollup.busy_ms == third * 1_000
