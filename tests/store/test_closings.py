"""Ends from outside: what is told to parents and children, and that nothing of a run is left behind (design 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from harvest.history.data import ChildWorkflowFailed, WorkflowTerminated
from harvest.history.deliveries import ChildClosed, DeliveryKind
from harvest.history.events import encode_data
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.store import closings
from harvest.store.appends import Appending
from harvest.store.store import Store
from tests.store.kin import a_kinship, a_member, emptied, rows_of, state_of
from tests.store.rows import a_run
from tests.store.rules import an_entry
from tests.support import eventually

PARENT = UUID(int=(3 << 112) | 99)
PAYLOAD = encode_data(WorkflowTerminated(reason="enough"))


@pytest.fixture(autouse=True)
async def nothing_there(store: Store) -> None:
    await emptied(store)


async def terminated(store: Store, run: UUID) -> Appending:
    return await closings.close(store, run, EventKind.WORKFLOW_TERMINATED, PAYLOAD, State.TERMINATED, an_entry())


async def overdue(store: Store, run: UUID) -> None:
    await store.scan.write("update harvest_executions set deadline_at = clock_timestamp() where execution_id = $1", run)
    assert [each.execution_id for each in await closings.close_overdue(store)] == [run]


async def the_report(store: Store) -> tuple[dict[str, Any], ChildClosed, ChildWorkflowFailed]:
    (row,) = await rows_of(store, "harvest_deliveries")
    closed = msgspec.json.decode(row["payload"], type=ChildClosed)
    return row, closed, msgspec.json.decode(closed.data, type=ChildWorkflowFailed)


@pytest.mark.parametrize("awaited", [True, False])
async def test_the_parent_of_a_terminated_child_is_told(store: Store, awaited: bool) -> None:
    first = UUID(int=77)
    run = await a_member(store, parent=PARENT, first=first, awaited=awaited)
    assert (await terminated(store, run)).written
    row, closed, data = await the_report(store)
    assert (row["kind"], row["source_execution_id"]) == (DeliveryKind.CHILD_CLOSED, run)
    assert (row["target_execution_id"], row["target_shard"]) == (PARENT, 3)
    assert (closed.first_execution_id, closed.kind) == (str(first), EventKind.CHILD_WORKFLOW_FAILED)
    assert (data.state, data.failure.type) == ("TERMINATED", "WorkflowTerminated")
    assert "enough" in data.failure.message


async def test_the_parent_of_a_child_that_ran_out_of_time_is_told(store: Store) -> None:
    run = await a_member(store, parent=PARENT, awaited=True)
    await overdue(store, run)
    _, closed, data = await the_report(store)
    assert (closed.first_execution_id, data.state) == (str(run), "TIMED_OUT")
    assert data.failure.type == "WorkflowTimedOut"


@pytest.mark.parametrize("end", [terminated, overdue], ids=["terminated", "overdue"])
async def test_a_child_that_does_not_report_tells_nobody(store: Store, end: Callable[..., Any]) -> None:
    await end(store, await a_member(store, parent=PARENT, awaited=None))
    assert not await rows_of(store, "harvest_deliveries")


@pytest.mark.parametrize("end", [terminated, overdue], ids=["terminated", "overdue"])
async def test_close_policies_are_applied(store: Store, end: Callable[..., Any]) -> None:
    run, other = await a_member(store), await a_member(store)
    children = [UUID(int=(5 << 112) | n) for n in range(3)]
    for policy, child in enumerate(children):
        await a_kinship(store, run, child, seq=policy, close_policy=policy)
    await a_kinship(store, other, UUID(int=50))
    await end(store, run)
    rows = await rows_of(store, "harvest_deliveries", order="source_seq")
    assert [(r["target_execution_id"], msgspec.json.decode(r["payload"])) for r in rows] == [
        (children[1], {"action": "request_cancel"}),
        (children[2], {"action": "terminate"}),
    ]
    assert {(r["kind"], r["target_shard"], r["source_execution_id"]) for r in rows} == {
        (DeliveryKind.CLOSE_POLICY, 5, run)
    }
    assert [r["parent_execution_id"] for r in await rows_of(store, "harvest_children")] == [other]


async def test_a_run_that_has_ended_is_not_ended_again(store: Store) -> None:
    run = await a_member(store, parent=PARENT, awaited=True)
    assert (await terminated(store, run)).written
    again = await terminated(store, run)
    assert (again.written, again.state) == (False, State.TERMINATED)
    assert (await terminated(store, UUID(int=1))).state is None
    assert len(await rows_of(store, "harvest_deliveries")) == 1


async def test_a_decision_that_commits_while_an_end_waits_leaves_nothing_behind(store: Store) -> None:
    """The end has to see what the decision that it waited for has written: its activity, its timer, its child."""
    run, child = await a_run(store, None, state=2), UUID(int=60)
    other: Any = await asyncpg.connect(store.url)
    try:
        async with other.transaction():
            await other.execute(
                "update harvest_executions set next_event_id = next_event_id + 1 where execution_id = $1", run
            )
            ending = asyncio.create_task(terminated(store, run))

            async def waits() -> Any:
                return await store.scan.fetch(
                    """select from pg_stat_activity where wait_event_type = 'Lock'
                          and datname = current_database() and application_name = 'harvest-write'"""
                )

            await eventually(waits)
            await other.execute(
                """insert into harvest_activity_tasks (execution_id, seq, scheduled_event_id, queue, name)
                   values ($1, 1, 2, 'default', 'a')""",
                run,
            )
            await other.execute("insert into harvest_timers values ($1, 2, clock_timestamp())", run)
            await other.execute("insert into harvest_children values ($1, $2, 3, 2, true)", child, run)
            await other.execute(
                "insert into harvest_events (execution_id, event_id, kind, payload) values ($1, 2, 5, '{}')", run
            )
        assert (await ending).written
    finally:
        await other.close()
    for table in ("harvest_activity_tasks", "harvest_timers", "harvest_children", "harvest_workflow_tasks"):
        assert not await rows_of(store, table), table
    assert [r["target_execution_id"] for r in await rows_of(store, "harvest_deliveries")] == [child]
    assert await state_of(store, run) == State.TERMINATED


async def test_what_moves_between_the_look_and_the_lock_is_left_to_the_next_scan(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that has its snapshot, and no lock yet, would not see what a decision commits in that moment."""
    run, child = await a_run(store, None, state=2), UUID(int=61)
    await store.scan.write("update harvest_executions set deadline_at = clock_timestamp()")
    first, lock = "with n as materialized (", "where execution_id = any($1) and closed_at is null"
    assert closings._END_MANY.count(first) == closings._END_MANY.count(lock) == 1
    gate = "with gate as materialized (select pg_advisory_xact_lock_shared(4712)), n as materialized ("
    gated = closings._END_MANY.replace(first, gate).replace(
        lock, f"where (select count(*) from gate) = 1 and {lock[6:]}"
    )
    other: Any = await asyncpg.connect(store.url)
    try:
        await other.execute("select pg_advisory_lock(4712)")
        with monkeypatch.context() as patched:
            patched.setattr(closings, "_END_MANY", gated)
            scanning = asyncio.create_task(closings.close_overdue(store))

            async def has_its_snapshot() -> Any:
                return await other.fetch(
                    """select from pg_stat_activity where wait_event = 'advisory'
                          and datname = current_database() and application_name = 'harvest-scan'"""
                )

            await eventually(has_its_snapshot)
            async with other.transaction():
                await other.execute(
                    "update harvest_executions set next_event_id = next_event_id + 1 where execution_id = $1", run
                )
                await other.execute("insert into harvest_children values ($1, $2, 3, 2, true)", child, run)
                await other.execute(
                    "insert into harvest_events (execution_id, event_id, kind, payload) values ($1, 2, 15, '{}')", run
                )
            await other.execute("select pg_advisory_unlock(4712)")
            assert await scanning == []
    finally:
        await other.close()
    assert [each.execution_id for each in await closings.close_overdue(store)] == [run]
    assert [r["target_execution_id"] for r in await rows_of(store, "harvest_deliveries")] == [child]


async def test_a_locked_run_is_left_to_the_next_scan(store: Store) -> None:
    runs = [await a_member(store) for _ in range(3)]
    await store.scan.write("update harvest_executions set deadline_at = clock_timestamp()")
    other: Any = await asyncpg.connect(store.url)
    try:
        async with other.transaction():
            await other.execute("select from harvest_executions where execution_id = $1 for update", runs[1])
            async with asyncio.timeout(20):
                assert {each.execution_id for each in await closings.close_overdue(store)} == {runs[0], runs[2]}
    finally:
        await other.close()
    assert {each.execution_id for each in await closings.close_overdue(store)} == {runs[1]}
