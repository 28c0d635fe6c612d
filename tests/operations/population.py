"""Rows for reads to find, written straight into the tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
from msgspec import Struct

from harvest.history.data import WorkflowStarted
from harvest.history.events import encode_data
from harvest.history.ids import business_key, mint_execution_id, partition_of
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.shards import Shards

EPOCH = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


class Run(Struct, frozen=True, kw_only=True):
    """One execution as a test wants it; `age` is seconds before `EPOCH`."""

    workflow_name: str = "order_flow"
    workflow_id: str = "o-1"
    state: State = State.RUNNING
    age: float = 0
    waiting: str | None = None
    blocked: str | None = None
    blocked_details: bytes | None = None
    input: bytes = b"null"
    result: bytes | None = None
    failure: bytes | None = None
    memo: bytes | None = None
    events: int = 1
    execution_id: UUID | None = None
    parent_id: UUID | None = None
    first_execution_id: UUID | None = None
    previous_execution_id: UUID | None = None
    awaited: bool | None = None
    close_policy: int | None = None
    search_attributes: str | None = None
    details: bytes | None = None


_EXECUTION = """
    insert into harvest_executions (execution_id, business_key, started_at, closed_at, next_event_id, version,
        partition, state, workflow_name, workflow_id, waiting, blocked, parent_id, first_execution_id,
        previous_execution_id, awaited, close_policy)
    values ($1, $2, $3, case when $6 >= 10 then $3::timestamptz + interval '1 second' end, $4, 1, $5, $6, $7, $8, $9,
        $10, $11, $12, $13, $14, $15)
"""


async def add(shards: Shards, shard_id: int, run: Run) -> UUID:
    """Write one execution with its details."""
    execution_id = run.execution_id or mint_execution_id(shard_id)
    store = shards.store(shard_id)
    await store.write.write(
        _EXECUTION,
        execution_id,
        business_key("default", run.workflow_name, run.workflow_id),
        EPOCH - timedelta(seconds=run.age),
        run.events + 1,
        partition_of(run.workflow_id),
        int(run.state),
        run.workflow_name,
        run.workflow_id,
        run.waiting,
        run.blocked,
        run.parent_id,
        run.first_execution_id,
        run.previous_execution_id,
        run.awaited,
        run.close_policy,
    )
    await store.write.write(
        "insert into harvest_execution_details (execution_id, input, result, failure, memo, blocked, "
        "search_attributes, details) values ($1, $2, $3, $4, $5, $6, $7, $8)",
        execution_id,
        run.input,
        run.result,
        run.failure,
        run.memo,
        run.blocked_details,
        run.search_attributes,
        run.details,
    )
    return execution_id


async def add_events(
    shards: Shards, execution_id: UUID, events: Sequence[tuple[int, bytes]], *, first: int = 1
) -> None:
    """Write events as (kind, payload), numbered from `first`, and the row's count of them."""
    store = shards.store_of(execution_id)
    await store.write.write(
        "insert into harvest_events (execution_id, event_id, kind, payload) "
        "select $1, $2 + n - 1, kind, payload "
        "from unnest($3::smallint[], $4::bytea[]) with ordinality as e(kind, payload, n)",
        execution_id,
        first,
        [kind for kind, _ in events],
        [payload for _, payload in events],
    )
    await store.write.write(
        "update harvest_executions set next_event_id = $2 where execution_id = $1", execution_id, first + len(events)
    )


class Happened(Struct, frozen=True):
    """One event as a test wants it; `after` is seconds after `EPOCH`."""

    kind: EventKind
    after: float = 0
    seq: int = 0
    data: Struct | None = None


async def add_history(shards: Shards, execution_id: UUID, events: Sequence[Happened]) -> None:
    """Write a whole history, stamped, and the row's count of its events."""
    store = shards.store_of(execution_id)
    await store.write.write(
        "insert into harvest_events (execution_id, event_id, kind, seq, at, payload) "
        "select $1, n, kind, seq, at, payload "
        "from unnest($2::smallint[], $3::int[], $4::timestamptz[], $5::bytea[]) with ordinality "
        "as e(kind, seq, at, payload, n)",
        execution_id,
        [int(event.kind) for event in events],
        [event.seq for event in events],
        [EPOCH + timedelta(seconds=event.after) for event in events],
        [b"{}" if event.data is None else encode_data(event.data) for event in events],
    )
    await store.write.write(
        "update harvest_executions set next_event_id = $2 where execution_id = $1", execution_id, len(events) + 1
    )


def started(input: bytes = b"null") -> tuple[int, bytes]:
    """The first event of a history."""
    data = WorkflowStarted(workflow_name="order_flow", workflow_id="o-1", version=1, seed=1, input=msgspec.Raw(input))
    return int(EventKind.WORKFLOW_STARTED), encode_data(data)


# Rows by the thousand: names, states and starts in a fixed pattern, one run in twenty open.
_MANY = """
    insert into harvest_executions (execution_id, business_key, started_at, closed_at, next_event_id, version,
        partition, state, workflow_name, workflow_id)
    select (lpad(to_hex($1::int), 4, '0') || substr(md5(n::text), 5, 8) || '8' || substr(md5(n::text), 14, 3)
                || '8' || substr(md5(n::text), 18, 15))::uuid,
           md5('k' || n::text || $1::text)::uuid, $2::timestamptz - n * interval '1 second',
           case when s.state >= 10 then $2::timestamptz - n * interval '1 second' + interval '1 minute' end,
           12, 1, (n % 512)::smallint, s.state, 'type_' || (n % 7), 'w-' || n
    from generate_series(1, $3::int) as n
    cross join lateral (select (case when n % 20 = 0 then 0 when n % 11 = 0 then 11 else 10 end)::smallint as state) s
"""


async def add_many(
    shards: Shards, shard_id: int, count: int, *, newest: datetime = EPOCH, analyze: bool = True
) -> None:
    """Write `count` executions a second apart, and let the planner know of them as autovacuum would."""
    connection: Any = await asyncpg.connect(shards.store(shard_id).url)
    try:
        await connection.execute("set synchronous_commit = off")
        await connection.execute(_MANY, shard_id, newest, count)
        if analyze:
            await connection.execute("vacuum analyze")
    finally:
        await connection.close()


async def register(
    shards: Shards,
    shard_id: int,
    name: str,
    *,
    version: int = 1,
    build: str = "b1",
    seen: str = "0 s",
    live: bool = True,
    input_schema: bytes | None = None,
) -> UUID:
    """Write a workflow type as a worker of `build` registers it; it declares one signal, `approved`."""
    worker = uuid4()
    write = shards.store(shard_id).write.write
    await write(
        "insert into harvest_workers (worker, name, host, pid, build, queues, lease_until, slots) "
        "values ($1, 'w', 'h', 1, $2, '{default}', clock_timestamp() + $3::text::interval, 10)",
        worker,
        build,
        "1 hour" if live else "-1 s",
    )
    await write(
        "insert into harvest_definitions (kind, name, version, build, worker, input_schema, output_schema, signals, "
        "seen_at) values ('workflow', $1, $2, $3, $4, $5, '{}', '{\"approved\":{\"type\":\"object\"}}', "
        "clock_timestamp() - $6::text::interval)",
        name,
        version,
        build,
        worker,
        input_schema or b'{"type":"integer","x-version":%d}' % version,
        seen,
    )
    return worker
