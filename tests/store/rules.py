"""Rules of the store, each a check that holds on the engine and fails on a planted fault (design 9)."""

from __future__ import annotations

from uuid import uuid4

from msgspec import Raw

from harvest.history.deliveries import ChildClosed, ClosePolicy, DeliveryKind
from harvest.history.kinds import EventKind
from harvest.shards import Shards
from harvest.store import appends
from harvest.store.audit import AuditEntry
from harvest.store.commit import Answer, Batch, Successor, commit
from harvest.store.results import ActivityEnd, end_activities
from harvest.store.store import Store
from tests.store.kin import a_chain, a_deliverer, a_delivery, a_kinship, a_member, rounds, rows_of, told
from tests.store.rows import a_run, a_worker, activities_of, decide, next_id, task_of


async def a_stale_worker_cannot_commit(store: Store) -> None:
    stale, heir = await a_worker(store), await a_worker(store)
    run = await a_run(store, heir)
    batch = Batch()
    decide(batch, run)
    async with store.commit.connection() as connection:
        assert await commit(store, connection, stale, batch) == {run: Answer.FENCED}


async def an_ended_lease_commits_nothing(store: Store) -> None:
    worker = await a_worker(store, lease=-1)
    run = await a_run(store, worker)
    batch = Batch()
    decide(batch, run)
    async with store.commit.connection() as connection:
        assert await commit(store, connection, worker, batch) == {run: Answer.FENCED}


async def a_stale_attempt_is_not_merged(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, activities={1: 2})
    batch = Batch()
    decide(batch, run, merges={1: 1})
    async with store.commit.connection() as connection:
        assert await commit(store, connection, worker, batch) == {run: Answer.MOVED}
    assert await activities_of(store, run) == {1: (1, 2)}


async def a_stale_attempt_ends_nothing(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, activities={1: 2})
    appended = await end_activities(store, [ActivityEnd(run, 1, 1, worker, 7, b'{"output":1}')])
    assert not appended.done
    assert await activities_of(store, run) == {1: (1, 2)}


async def only_the_exact_history_passes(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, next_event_id=3)
    batch = Batch()
    decide(batch, run, expected=4)
    async with store.commit.connection() as connection:
        assert await commit(store, connection, worker, batch) == {run: Answer.MOVED}


async def a_signal_key_is_used_once(store: Store) -> None:
    run = await a_run(store, None, state=2)
    for _ in range(2):
        await appends.append(store, run, EventKind.SIGNAL_RECEIVED, b'{"name":"s"}', an_entry(), key="k")
    assert await next_id(store, run) == 3


async def a_signal_wakes_a_parked_run(store: Store) -> None:
    run = await a_run(store, None, state=2)
    await appends.append(store, run, EventKind.SIGNAL_RECEIVED, b'{"name":"s"}', an_entry())
    assert await task_of(store, run) == (0, None)


async def a_result_wakes_a_parked_run(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker, activities={1: 1})
    await store.scan.write("update harvest_workflow_tasks set state = 2, worker = null where execution_id = $1", run)
    await end_activities(store, [ActivityEnd(run, 1, 1, worker, 7, b'{"output":1}')])
    assert await task_of(store, run) == (0, None)


async def news_of_a_held_run_is_marked(store: Store) -> None:
    worker = await a_worker(store)
    run = await a_run(store, worker)
    await appends.append(store, run, EventKind.SIGNAL_RECEIVED, b'{"name":"s"}', an_entry())
    assert await task_of(store, run) == (3, worker)


async def a_close_policy_finds_the_current_run(store: Store) -> None:
    source, chain = await a_member(store), await a_chain(store, 3)
    await a_delivery(store, DeliveryKind.CLOSE_POLICY, source, chain[0], ClosePolicy(action="request_cancel"))
    await rounds(a_deliverer(Shards({0: store.url}), store))
    assert len(await told(store, chain[-1])) == 1


async def only_who_waits_is_told_of_an_end(store: Store) -> None:
    parent, child = await a_member(store), await a_member(store, state=10)
    await a_kinship(store, parent, child, awaited=False)
    closed = ChildClosed(str(child), int(EventKind.CHILD_WORKFLOW_COMPLETED), Raw(b"{}"))
    await a_delivery(store, DeliveryKind.CHILD_CLOSED, child, parent, closed)
    await rounds(a_deliverer(Shards({0: store.url}), store))
    assert not await told(store, parent)


async def an_heir_takes_children_over(store: Store) -> None:
    worker, child, heir = await a_worker(store), uuid4(), uuid4()
    run = await a_run(store, worker)
    await a_kinship(store, run, child)
    batch = Batch()
    decide(batch, run, closes=True)
    batch.cascade(run)
    new = Successor(
        execution_id=heir, business_key=heir, workflow_name="w", workflow_id="w", version=1, partition=0,
        queue="default", started=b"{}", input=b"null",
    )  # fmt: skip
    batch.successor(run, new)
    async with store.commit.connection() as connection:
        assert await commit(store, connection, worker, batch) == {run: Answer.PASSED}
    rows = await rows_of(store, f"harvest_children where child_execution_id = '{child}'")
    assert [(row["parent_execution_id"], row["awaited"]) for row in rows] == [(heir, False)]


def an_entry() -> AuditEntry:
    """An audit row of a test."""
    return AuditEntry(
        id=uuid4(), actor="test", on_behalf_of=None, operation="workflow.signal", target_type="execution",
        target_id="x", route_or_command="test", request_id="r", idempotency_key=None, status="succeeded",
        error_summary=None, reason=None, source="api", shard_id=0,
    )  # fmt: skip
