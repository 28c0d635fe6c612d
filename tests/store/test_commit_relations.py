"""What a decision writes about other runs: all of it with what passed, nothing with what was refused (design 4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from harvest.history.deliveries import DeliveryKind
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.store.commit import PARKED, Answer, Batch, Successor, commit
from harvest.store.commit_parts import Needs, statement
from harvest.store.store import Store
from tests.store.kin import a_kinship, emptied, rows_of, state_of
from tests.store.rows import a_run, a_worker, one

ABANDON, REQUEST_CANCEL, TERMINATE = range(3)


@pytest.fixture(autouse=True)
async def nothing_there(store: Store) -> None:
    await emptied(store)


def decide(batch: Batch, run: UUID, *, state: State = State.RUNNING, expected: int = 2) -> None:
    """One decision, with one event of its own; other rows are put in beside it."""
    kind = {State.CONTINUED_AS_NEW: EventKind.WORKFLOW_CONTINUED_AS_NEW, State.FAILED: EventKind.WORKFLOW_FAILED}.get(
        state, EventKind.WORKFLOW_COMPLETED if state.value >= 10 else EventKind.MARKER_RECORDED
    )
    batch.event(run, expected, kind, 0, None, b"{}")
    if not state.is_open:
        batch.close(run, b"1", None)
    batch.decision(
        run, attempt=1, expected=expected, next_event_id=expected + 1, state=int(state), task_state=PARKED, merged=0,
        waiting=None,
    )  # fmt: skip


def a_successor(run: UUID, key: UUID, **changes: Any) -> Successor:
    settings: dict[str, Any] = {
        "execution_id": uuid4(), "business_key": key, "workflow_name": "w", "workflow_id": str(key), "version": 3,
        "partition": 7, "queue": "other", "started": b'{"carried":2}', "input": b"[1]", "priority": 5,
        "events": [(14, b'{"name":"a"}'), (14, b'{"name":"b"}')],
    }  # fmt: skip
    return Successor(**settings | changes)


async def key_of(store: Store, run: UUID) -> UUID:
    return UUID(str(await one(store, "select business_key from harvest_executions where execution_id = $1", run)))


async def committed(store: Store, worker: UUID, batch: Batch) -> dict[UUID, Answer]:
    async with store.commit.connection() as connection:
        return await commit(store, connection, worker, batch)


async def deliveries_of(store: Store) -> list[tuple[DeliveryKind, int, UUID, Any]]:
    """Kind, seq, target and decoded payload, in order."""
    rows = await rows_of(store, "harvest_deliveries")
    return [
        (DeliveryKind(r["kind"]), r["source_seq"], r["target_execution_id"], msgspec.json.decode(r["payload"]))
        for r in rows
    ]


def test_the_statement_of_runs_that_concern_no_others_has_nothing_of_it() -> None:
    for own in product((False, True), repeat=5):
        text = statement(Needs(*own))
        assert "$" in text
        for word in ("harvest_children", "harvest_deliveries", "successor", "detailed", "orphans", "heirs"):
            assert word not in text, own


async def test_children_and_deliveries_are_written_with_the_decision_and_in_its_order(store: Store) -> None:
    worker, run = await a_worker(store), None
    run = await a_run(store, worker)
    children = [uuid4() for _ in range(20)]
    batch = Batch()
    decide(batch, run)
    for seq, child in enumerate(children, 1):
        batch.child(run, seq, child, REQUEST_CANCEL, awaited=True)
        batch.delivery(run, seq, DeliveryKind.CHILD_START, child, 4, b'{"n":%d}' % seq)
    assert await committed(store, worker, batch) == {run: Answer.PASSED}
    rows = await rows_of(store, "harvest_children", order="seq")
    assert [(r["child_execution_id"], r["parent_execution_id"], r["close_policy"], r["awaited"]) for r in rows] == [
        (child, run, REQUEST_CANCEL, True) for child in children
    ]
    written = await rows_of(store, "harvest_deliveries")
    assert [(r["source_seq"], r["target_execution_id"], r["target_shard"]) for r in written] == [
        (seq, child, 4) for seq, child in enumerate(children, 1)
    ]
    assert {r["source_execution_id"] for r in written} == {run}


@pytest.mark.parametrize("expected", [2, 5])
async def test_what_is_refused_leaves_nothing_of_it_behind(store: Store, expected: int) -> None:
    worker = await a_worker(store)
    run, neighbour = [await a_run(store, worker) for _ in range(2)]
    await a_kinship(store, run, uuid4())
    batch = Batch()
    decide(batch, run, state=State.CONTINUED_AS_NEW, expected=5)
    decide(batch, neighbour, expected=expected)
    batch.child(run, 1, uuid4(), TERMINATE, awaited=True)
    batch.delivery(run, 1, DeliveryKind.CHILD_START, uuid4(), 0, b"{}")
    batch.detail(run, '{"a":1}', b"1")
    batch.successor(run, a_successor(run, await key_of(store, run)))
    batch.cascade(run)
    answers = await committed(store, worker, batch)
    assert answers == {run: Answer.MOVED, neighbour: Answer.PASSED if expected == 2 else Answer.MOVED}
    assert not await rows_of(store, "harvest_deliveries")
    assert [r["parent_execution_id"] for r in await rows_of(store, "harvest_children")] == [run]
    assert len(await rows_of(store, "harvest_executions")) == 2
    assert await one(store, "select details from harvest_execution_details where execution_id = $1", run) is None


async def test_the_end_of_a_run_makes_deliveries_of_its_close_policies(store: Store) -> None:
    worker = await a_worker(store)
    run, other = await a_run(store, worker), await a_run(store, worker)
    abandoned, cancelled, terminated, foreign = [UUID(int=(9 << 112) | n) for n in range(1, 5)]
    for seq, (child, policy) in enumerate([(abandoned, 0), (cancelled, 1), (terminated, 2)], 1):
        await a_kinship(store, run, child, seq=seq, close_policy=policy)
    await a_kinship(store, other, foreign, close_policy=2)
    batch = Batch()
    decide(batch, run, state=State.COMPLETED)
    batch.delivery(run, 0, DeliveryKind.CHILD_CLOSED, cancelled, 0, b'"first"')
    batch.cascade(run)
    assert await committed(store, worker, batch) == {run: Answer.PASSED}
    found = await deliveries_of(store)
    assert found[0][3] == "first", "what the decision says comes before the close policies"
    assert {(kind, target, data["action"]) for kind, _, target, data in found[1:]} == {
        (DeliveryKind.CLOSE_POLICY, cancelled, "request_cancel"),
        (DeliveryKind.CLOSE_POLICY, terminated, "terminate"),
    }
    assert {r["target_shard"] for r in await rows_of(store, "harvest_deliveries") if r["kind"] == 4} == {9}
    assert [r["child_execution_id"] for r in await rows_of(store, "harvest_children")] == [foreign]


async def test_a_child_that_is_started_by_the_last_decision_begins_and_is_then_dealt_with(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker)
    children = [uuid4() for _ in range(3)]
    batch = Batch()
    decide(batch, run, state=State.COMPLETED)
    for policy, child in enumerate(children):
        batch.child(run, policy, child, policy, awaited=True)
        batch.delivery(run, policy, DeliveryKind.CHILD_START, child, 0, b"{}")
    batch.cascade(run)
    assert await committed(store, worker, batch) == {run: Answer.PASSED}
    assert not await rows_of(store, "harvest_children")
    found = await deliveries_of(store)
    assert [kind for kind, *_ in found[:3]] == [DeliveryKind.CHILD_START] * 3
    assert sorted((seq, target, data["action"]) for _, seq, target, data in found[3:]) == [
        (1, children[1], "request_cancel"),
        (2, children[2], "terminate"),
    ]


async def test_a_run_that_continues_as_new_hands_its_children_on_and_applies_no_policy(store: Store) -> None:
    worker, parent = await a_worker(store), uuid4()
    run = await a_run(store, worker)
    old, new_child = uuid4(), uuid4()
    await a_kinship(store, run, old, seq=1, close_policy=TERMINATE)
    await store.scan.write(
        """update harvest_executions set parent_id = $2, root_id = $2, first_execution_id = $1, awaited = true,
                  close_policy = 2, tenant = 't' where execution_id = $1""",
        run, parent,
    )  # fmt: skip
    await store.scan.write(
        """update harvest_execution_details set memo = 'm', search_attributes = '{"a": 1, "b": 2}'
            where execution_id = $1""",
        run,
    )
    soon = datetime.now(UTC) + timedelta(hours=1)
    successor = a_successor(run, await key_of(store, run), deadline_at=soon, deadline_after=86_400.0)
    batch = Batch()
    decide(batch, run, state=State.CONTINUED_AS_NEW)
    batch.child(run, 2, new_child, TERMINATE, awaited=True)
    batch.delivery(run, 2, DeliveryKind.CHILD_START, new_child, 0, b"{}")
    batch.detail(run, '{"b": null, "c": 3}', b'"at work"')
    batch.successor(run, successor)
    batch.cascade(run)
    assert await committed(store, worker, batch) == {run: Answer.PASSED}

    assert await state_of(store, run) == State.CONTINUED_AS_NEW
    (row,) = await rows_of(store, f"harvest_executions where execution_id = '{successor.execution_id}'")
    copied = {
        "business_key": successor.business_key, "parent_id": parent, "root_id": parent, "first_execution_id": run,
        "previous_execution_id": run, "awaited": True, "close_policy": 2, "tenant": "t", "state": 0, "version": 3,
        "partition": 7, "queue": "other", "next_event_id": 4, "deadline_at": soon, "workflow_name": "w",
    }  # fmt: skip
    assert {name: row[name] for name in copied} == copied
    (details,) = await rows_of(store, f"harvest_execution_details where execution_id = '{successor.execution_id}'")
    assert (details["input"], details["memo"], details["details"]) == (b"[1]", b"m", None)
    assert msgspec.json.decode(details["search_attributes"]) == {"a": 1, "c": 3}, "with what this decision changed"
    (ended,) = await rows_of(store, f"harvest_execution_details where execution_id = '{run}'")
    assert (ended["details"], ended["result"]) == (b'"at work"', b"1")
    events = await rows_of(store, f"harvest_events where execution_id = '{successor.execution_id}'", order="event_id")
    assert [(e["event_id"], e["kind"], e["payload"]) for e in events] == [
        (1, 1, b'{"carried":2}'), (2, 14, b'{"name":"a"}'), (3, 14, b'{"name":"b"}'),
    ]  # fmt: skip
    (task,) = await rows_of(store, "harvest_workflow_tasks")
    assert (task["execution_id"], task["state"], task["queue"], task["priority"], task["version"]) == (
        successor.execution_id, 0, "other", 5, 3,
    )  # fmt: skip
    assert task["sort_at"] <= await one(store, "select clock_timestamp()"), "it goes on at once"
    kin = await rows_of(store, "harvest_children", order="seq")
    assert [(k["child_execution_id"], k["parent_execution_id"], k["close_policy"], k["awaited"]) for k in kin] == [
        (old, successor.execution_id, TERMINATE, False),
        (new_child, successor.execution_id, TERMINATE, False),
    ]
    assert [kind for kind, *_ in await deliveries_of(store)] == [DeliveryKind.CHILD_START]


async def test_a_run_that_is_tried_again_waits_and_deals_with_its_children(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker)
    child = uuid4()
    await a_kinship(store, run, child)
    retry = a_successor(run, await key_of(store, run), events=[], delay=3600.0, deadline_after=10.0, repoint=False)
    batch = Batch()
    decide(batch, run, state=State.FAILED)
    batch.successor(run, retry)
    batch.cascade(run)
    assert await committed(store, worker, batch) == {run: Answer.PASSED}
    assert [(kind, target) for kind, _, target, _ in await deliveries_of(store)] == [(DeliveryKind.CLOSE_POLICY, child)]
    assert not await rows_of(store, "harvest_children")
    (task,) = await rows_of(store, "harvest_workflow_tasks")
    (row,) = await rows_of(store, f"harvest_executions where execution_id = '{retry.execution_id}'")
    now = await one(store, "select clock_timestamp()")
    hour = timedelta(hours=1)
    assert now + hour - timedelta(minutes=1) < task["due"] <= now + hour
    assert task["due"] < row["deadline_at"] <= now + hour + timedelta(seconds=10), "its time begins with its first task"


async def test_a_mixed_batch_gives_each_run_its_own(store: Store) -> None:
    worker = await a_worker(store)
    plain, parent, ending, going_on = [await a_run(store, worker) for _ in range(4)]
    kept, left = uuid4(), uuid4()
    await a_kinship(store, ending, left, close_policy=TERMINATE)
    await a_kinship(store, going_on, kept, close_policy=TERMINATE)
    successor = a_successor(going_on, await key_of(store, going_on))
    batch = Batch()
    decide(batch, plain)
    decide(batch, parent)
    decide(batch, ending, state=State.COMPLETED)
    decide(batch, going_on, state=State.CONTINUED_AS_NEW)
    batch.child(parent, 1, uuid4(), ABANDON, awaited=True)
    batch.detail(plain, '{"x": 1}', None)
    batch.detail(ending, None, b"2")
    batch.successor(going_on, successor)
    batch.cascade(ending)
    batch.cascade(going_on)
    answers = await committed(store, worker, batch)
    assert set(answers.values()) == {Answer.PASSED}
    parents = {r["parent_execution_id"] for r in await rows_of(store, "harvest_children")}
    assert parents == {parent, successor.execution_id}
    assert [target for *_, target, _ in await deliveries_of(store)] == [left]
    details = {r["execution_id"]: r for r in await rows_of(store, "harvest_execution_details")}
    assert details[plain]["search_attributes"] == '{"x": 1}'
    assert (details[ending]["details"], details[ending]["result"]) == (b"2", b"1")
    assert details[going_on]["result"] == b"1"
    assert details[parent]["search_attributes"] is None


async def test_a_successor_of_another_type_whose_id_is_taken_is_refused_as_a_whole(store: Store) -> None:
    worker = await a_worker(store)
    run, holder = [await a_run(store, worker) for _ in range(2)]
    batch = Batch()
    decide(batch, run, state=State.CONTINUED_AS_NEW)
    batch.successor(run, a_successor(run, await key_of(store, holder)))
    with pytest.raises(asyncpg.UniqueViolationError):
        await committed(store, worker, batch)
    assert await state_of(store, run) == State.RUNNING
