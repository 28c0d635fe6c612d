"""Runs as the tables hold them, written without an engine: what a statement finds is exactly what a test says."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.store.commit import PARKED, Batch
from harvest.store.store import Store

_WORKER = """
insert into harvest_workers (worker, name, host, pid, queues, slots, lease_until)
values ($1, 'w', 'h', 1, '{default}', 10, clock_timestamp() + $2 * interval '1 second')"""
_RUN = f"""
with e as (
    insert into harvest_executions
      (execution_id, business_key, next_event_id, version, partition, workflow_name, workflow_id)
    values ($1, $2::uuid, $3::int, 1, 0, 'w', $2::uuid::text)
),
x as (insert into harvest_execution_details (execution_id, input) values ($1, 'null')),
v as (
    insert into harvest_events (execution_id, event_id, kind, payload)
    select $1, n, case n when 1 then 1 else {int(EventKind.SIGNAL_RECEIVED)} end, '{{"name":"s"}}'
      from generate_series(1, $3::int - 1) n
)
insert into harvest_workflow_tasks
  (execution_id, worker, sticky_worker, state, attempt, partition, queue, workflow_name, version)
values ($1, $4::uuid, $6::uuid, $5, 1, 0, 'default', 'w', 1)"""
_ACTIVITY = """
insert into harvest_activity_tasks (execution_id, seq, worker, attempt, state, scheduled_event_id, queue, name)
values ($1, $2, $3::uuid, $4, case when $3::uuid is null then 0 else 1 end, 1, 'default', 'a')"""
_TIMER = """
insert into harvest_timers (execution_id, seq, fires_at)
values ($1, $2, clock_timestamp() + $3 * interval '1 second')"""


async def a_worker(store: Store, *, lease: float = 3600.0) -> UUID:
    """A worker whose lease ends in so many seconds."""
    worker = uuid4()
    await store.scan.write(_WORKER, worker, lease)
    return worker


async def a_run(
    store: Store,
    holder: UUID | None,
    *,
    next_event_id: int = 2,
    state: int = 1,
    sticky: UUID | None = None,
    activities: dict[int, int] | None = None,
    pending: dict[int, int] | None = None,
    timers: dict[int, float] | None = None,
) -> UUID:
    """An open run whose task has this holder; its activities (seq: attempt) run there or are pending."""
    execution_id = mint_execution_id(store.shard_id)
    await store.scan.write(_RUN, execution_id, uuid4(), next_event_id, holder, state, sticky)
    for seq, attempt in (activities or {}).items():
        await store.scan.write(_ACTIVITY, execution_id, seq, holder, attempt)
    for seq, attempt in (pending or {}).items():
        await store.scan.write(_ACTIVITY, execution_id, seq, None, attempt)
    for seq, after in (timers or {}).items():
        await store.scan.write(_TIMER, execution_id, seq, after)
    return execution_id


def decide(
    batch: Batch,
    execution_id: UUID,
    *,
    expected: int = 2,
    attempt: int = 1,
    merges: dict[int, int] | None = None,
    cancels: tuple[int, ...] = (),
    closes: bool = False,
) -> None:
    """Put a decision into a batch: a marker, the results it merges (seq: attempt), what it cancels, perhaps the end."""
    event_id = expected
    for seq, of_attempt in (merges or {}).items():
        batch.event(execution_id, event_id, EventKind.ACTIVITY_COMPLETED, seq, None, b'{"output":1}')
        batch.merge(execution_id, seq, of_attempt)
        event_id += 1
    batch.event(execution_id, event_id, EventKind.MARKER_RECORDED, 0, None, b'{"name":"m"}')
    event_id += 1
    for seq in cancels:
        batch.cancel(execution_id, seq)
    if closes:
        batch.event(execution_id, event_id, EventKind.WORKFLOW_COMPLETED, 0, None, b"{}")
        batch.close(execution_id, b"1", None)
        event_id += 1
    batch.decision(
        execution_id,
        attempt=attempt,
        expected=expected,
        next_event_id=event_id,
        state=10 if closes else 0,
        task_state=PARKED,
        merged=len(merges or {}),
        waiting=None,
    )


async def one(store: Store, sql: str, *values: Any) -> Any:
    """The first column of a query's only row, or None."""
    rows = await store.scan.fetch(sql, *values)
    assert len(rows) <= 1, rows
    return rows[0][0] if rows else None


async def next_id(store: Store, execution_id: UUID) -> int:
    return int(await one(store, "select next_event_id from harvest_executions where execution_id = $1", execution_id))


async def task_of(store: Store, execution_id: UUID) -> tuple[int, UUID | None]:
    rows = await store.scan.fetch(
        "select state, worker from harvest_workflow_tasks where execution_id = $1", execution_id
    )
    return (rows[0]["state"], rows[0]["worker"]) if rows else (-1, None)


async def activities_of(store: Store, execution_id: UUID) -> dict[int, tuple[int, int]]:
    """seq: (state, attempt)."""
    rows = await store.scan.fetch(
        "select seq, state, attempt from harvest_activity_tasks where execution_id = $1", execution_id
    )
    return {row["seq"]: (row["state"], row["attempt"]) for row in rows}
