"""What a run's views say beside its hot row: attributes, details, its pause, its children, and what it waits for."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from harvest.history.data import ChildWorkflowStarted, WorkflowExecutionPaused
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.operations import reading
from harvest.operations.listing import ListFilter, list_executions
from harvest.operations.views import INLINE_BYTES, Pause, Truncated
from harvest.operations.waiting import OWN_CODE, waiting_text
from harvest.shards import Shards
from tests.operations.population import EPOCH, Happened, Run, add, add_history


async def adopt(shards: Shards, parent: UUID, seq: int, child: UUID, *, awaited: bool = True) -> None:
    """The parent is told of the child's end."""
    await shards.store(0).write.write(
        "insert into harvest_children (child_execution_id, parent_execution_id, seq, close_policy, awaited) "
        "values ($1, $2, $3, 2, $4)",
        child,
        parent,
        seq,
        awaited,
    )


async def waiting(shards: Shards, execution_id: UUID) -> tuple[str | None, str | None]:
    """What the detail and the list say that a run waits for."""
    page = await list_executions(shards, ListFilter())
    [row] = [row for row in page.executions.rows if row.execution_id == execution_id]
    return (await reading.get(shards, execution_id)).waiting, row.waiting


async def test_children_under_way_are_listed_and_say_how_they_hang_on_it(shards: Shards) -> None:
    parent = await add(shards, 0, Run())
    here = await add(shards, 0, Run(workflow_name="ship_flow", workflow_id="s-1", parent_id=parent))
    elsewhere = mint_execution_id(1)
    await adopt(shards, parent, 2, elsewhere, awaited=False)
    await adopt(shards, parent, 1, here)
    pending = (await reading.get(shards, parent)).pending
    assert [(c.seq, c.execution_id, c.workflow_name, c.workflow_id, c.await_mode) for c in pending.children] == [
        (1, here, "ship_flow", "s-1", "awaited"),
        (2, elsewhere, None, None, "detached"),
    ]
    assert (pending.children[0].parent_close_policy, pending.truncated) == ("terminate", False)


async def test_a_child_elsewhere_is_told_by_the_event_that_asked_for_it(shards: Shards) -> None:
    parent, one, other = await add(shards, 0, Run()), mint_execution_id(1), mint_execution_id(1)
    asked = ChildWorkflowStarted(str(one), "ship_flow", "s-1", "", input=msgspec.Raw(b'"%s"' % (b"x" * 9_000)))
    await add_history(
        shards,
        parent,
        [Happened(EventKind.WORKFLOW_STARTED), Happened(EventKind.CHILD_WORKFLOW_STARTED, 1, 1, asked)],
    )
    await adopt(shards, parent, 1, one)
    # Of an earlier run of the chain: the number is that run's.
    await adopt(shards, parent, 1, other, awaited=False)
    pending = (await reading.get(shards, parent)).pending
    found = {c.execution_id: (c.shard_id, c.workflow_name, c.workflow_id) for c in pending.children}
    assert found == {one: (1, "ship_flow", "s-1"), other: (1, None, None)}


async def test_an_event_of_a_child_that_cannot_be_read_tells_nothing(shards: Shards) -> None:
    parent, child = await add(shards, 0, Run()), mint_execution_id(1)
    await add_history(shards, parent, [Happened(EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED, 1, 1)])
    await adopt(shards, parent, 1, child)
    for payload in (b"{", b"[]", b"\xff", b'{"child_id": 1}'):
        await shards.store(0).write.write("update harvest_events set payload = $1", payload)
        (pending,) = (await reading.get(shards, parent)).pending.children
        assert (pending.workflow_name, pending.workflow_id) == (None, None)


async def test_a_run_that_waits_for_its_child_says_so_in_list_and_detail(shards: Shards) -> None:
    parent = await add(shards, 0, Run())
    child = await add(shards, 0, Run(workflow_name="ship_flow", workflow_id="s-1", parent_id=parent))
    await adopt(shards, parent, 1, child, awaited=False)
    assert await waiting(shards, parent) == (None, None)
    await shards.store(0).write.write("update harvest_children set awaited = true")
    assert await waiting(shards, parent) == ("child ship_flow", "child ship_flow")


@pytest.mark.parametrize(
    ("activities", "children", "said"),
    [
        (["charge"], ["ship"], "activity charge"),
        ([], ["ship"], "child ship"),
        ([], ["ship", "ship"], "children ship"),
        ([], ["ship", None], "children ship, …"),
        ([], ["a", "b", "c", "d"], "children a, b, c, …"),
        ([], [None], "a child"),
        ([], [None, None], "children"),
    ],
)
def test_what_is_waited_for_in_one_line(activities: list[str], children: list[str | None], said: str) -> None:
    assert waiting_text(activities, EPOCH, children) == said


async def test_a_paused_run_says_since_when_why_and_by_whom(shards: Shards) -> None:
    run = await add(shards, 0, Run(state=State.PAUSED))
    pauses = [
        Happened(EventKind.WORKFLOW_EXECUTION_PAUSED, 1, 0, WorkflowExecutionPaused("first", "a")),
        Happened(EventKind.WORKFLOW_EXECUTION_RESUMED, 2),
        Happened(EventKind.WORKFLOW_EXECUTION_PAUSED, 3, 0, WorkflowExecutionPaused("a look", "token:admin")),
        Happened(EventKind.SIGNAL_RECEIVED, 4),
    ]
    await add_history(shards, run, [Happened(EventKind.WORKFLOW_STARTED), *pauses])
    paused = (await reading.get(shards, run)).paused
    assert paused is not None
    assert (paused.reason, paused.actor, (paused.paused_at - EPOCH).total_seconds()) == ("a look", "token:admin", 3)
    await shards.store(0).write.write("update harvest_events set payload = '{' where kind = 40")
    assert (await reading.get(shards, run)).paused == Pause(paused_at=paused.paused_at)
    await shards.store(0).write.write("update harvest_executions set state = 0")
    assert (await reading.get(shards, run)).paused is None


async def test_details_and_attributes_are_shown_as_they_were_stored(shards: Shards) -> None:
    run = await add(shards, 1, Run(search_attributes='{"city": "Köln", "n": 7}', details=b'{"done":  1.0}'))
    detail = await reading.get(shards, run)
    assert detail.search_attributes == {"city": msgspec.Raw('"Köln"'.encode()), "n": msgspec.Raw(b"7")}
    assert detail.current_details == msgspec.Raw(b'{"done":  1.0}')
    assert await reading.detail_payload(shards, run, "current_details") == b'{"done":  1.0}'
    page = await list_executions(shards, ListFilter())
    assert page.executions.rows[0].search_attributes == detail.search_attributes
    bare = await reading.get(shards, await add(shards, 1, Run(workflow_id="o-2")))
    assert (bare.search_attributes, bare.current_details) == (None, None)


async def test_large_details_become_a_reference(shards: Shards) -> None:
    run = await add(shards, 0, Run(details=b'"' + b"x" * INLINE_BYTES + b'"'))
    shown = (await reading.get(shards, run)).current_details
    assert isinstance(shown, Truncated)
    assert shown.href.endswith(f"/workflows/{run}/payload/current_details")


async def test_closed_runs_have_their_attributes_and_wait_for_nothing(shards: Shards) -> None:
    run = await add(shards, 0, Run(state=State.COMPLETED, search_attributes='{"a": 1}'))
    await adopt(shards, run, 1, mint_execution_id(0))
    page = await list_executions(shards, ListFilter())
    [row] = page.executions.rows
    assert (row.waiting, row.search_attributes) == (None, {"a": msgspec.Raw(b"1")})
    assert (await reading.get(shards, run)).waiting is None


async def test_a_parked_run_with_nothing_recorded_waits_in_its_own_code(shards: Shards) -> None:
    run = await add(shards, 0, Run())
    await shards.store(0).write.write(
        "insert into harvest_workflow_tasks (execution_id, partition, state, queue, workflow_name, version) "
        "values ($1, 0, 2, 'default', 'order_flow', 1)",
        run,
    )
    assert (await reading.get(shards, run)).waiting == OWN_CODE
