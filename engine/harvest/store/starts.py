"""Runs that begin: the rows of a new execution, idempotency keys of starts, and what a business key stands for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec import Raw, Struct

from harvest import clock
from harvest.history.data import RetryPolicy, WorkflowStarted
from harvest.history.events import encode_data
from harvest.history.ids import business_key, mint_execution_id, partition_of
from harvest.history.kinds import EventKind
from harvest.store.audit import AuditEntry, audit_part, audit_values
from harvest.store.pool import Connection, Record
from harvest.store.store import Store


class NewExecution(Struct, frozen=True, kw_only=True):
    """A run to be inserted. `started` is the encoded WorkflowStarted; timeouts in seconds.

    `carried` is an event, kind and encoded data, that is written with the start. `awaited` and `close_policy` are those
    of a child whose end is told to its parent.
    """

    execution_id: UUID
    business_key: UUID
    workflow_name: str
    workflow_id: str
    version: int
    partition: int
    queue: str
    started: bytes
    input: bytes
    tenant: str = "default"
    priority: int = 0
    memo: bytes | None = None
    search_attributes: str | None = None
    execution_timeout: float | None = None
    chain_deadline: datetime | None = None
    carried: tuple[int, bytes] | None = None
    parent_id: UUID | None = None
    root_id: UUID | None = None
    awaited: bool | None = None
    close_policy: int | None = None


def new_execution(
    shard_id: int,
    *,
    workflow_name: str,
    workflow_id: str,
    version: int,
    input: bytes,
    execution_id: UUID | None = None,
    queue: str = "default",
    tenant: str = "default",
    priority: int = 0,
    memo: bytes | None = None,
    search_attributes: str | None = None,
    execution_timeout: float | None = None,
    chain_deadline: datetime | None = None,
    retry: RetryPolicy | None = None,
    carried: tuple[EventKind, Struct] | None = None,
    parent_id: UUID | None = None,
    root_id: UUID | None = None,
    reports: bool = False,
    awaited: bool | None = None,
    close_policy: int | None = None,
) -> NewExecution:
    """A run to insert, with a fresh seed, and a fresh id where none is given."""
    started = WorkflowStarted(
        workflow_name=workflow_name,
        workflow_id=workflow_id,
        version=version,
        seed=int.from_bytes(clock.random_bytes(8)) >> 3,
        input=Raw(input),
        queue=queue,
        carried=0 if carried is None else 1,
        execution_timeout_seconds=execution_timeout,
        tenant=tenant,
        priority=priority,
        parent_id="" if parent_id is None else str(parent_id),
        root_id="" if root_id is None else str(root_id),
        reports=reports,
        retry=retry,
        chain_deadline=chain_deadline,
    )
    return NewExecution(
        execution_id=execution_id or UUID(int=mint_execution_id(shard_id).int),
        business_key=business_key(tenant, workflow_name, workflow_id),
        workflow_name=workflow_name,
        workflow_id=workflow_id,
        version=version,
        partition=partition_of(workflow_id),
        queue=queue,
        started=encode_data(started),
        input=input,
        tenant=tenant,
        priority=priority,
        memo=memo,
        search_attributes=search_attributes,
        execution_timeout=execution_timeout,
        chain_deadline=chain_deadline,
        carried=None if carried is None else (int(carried[0]), encode_data(carried[1])),
        parent_id=parent_id,
        root_id=root_id,
        awaited=awaited,
        close_policy=close_policy,
    )


_START = """
with n as materialized (
    select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::int[], $6::smallint[], $7::text[],
                         $8::bytea[], $9::bytea[], $10::text[], $11::smallint[], $12::bytea[], $13::jsonb[],
                         $14::float8[], $15::timestamptz[], $16::smallint[], $17::bytea[], $18::uuid[], $19::uuid[],
                         $20::boolean[], $21::smallint[])
      as n(execution_id, business_key, workflow_name, workflow_id, version, partition, queue, started, input, tenant,
           priority, memo, search_attributes, execution_timeout, chain_deadline, carried_kind, carried, parent_id,
           root_id, awaited, close_policy)
     order by business_key
),
created as (
    insert into harvest_executions
      (execution_id, business_key, root_id, first_execution_id, next_event_id, version, partition, tenant,
       workflow_name, workflow_id, queue, deadline_at, parent_id, awaited, close_policy)
    select execution_id, business_key, coalesce(root_id, execution_id), execution_id,
           case when carried_kind is null then 2 else 3 end, version, partition, tenant, workflow_name, workflow_id,
           queue, least(clock_timestamp() + execution_timeout * interval '1 second', chain_deadline), parent_id,
           awaited, close_policy
      from n
        on conflict do nothing
 returning execution_id
),
details as (
    insert into harvest_execution_details (execution_id, input, memo, search_attributes)
    select n.execution_id, n.input, n.memo, n.search_attributes
      from n join created c on c.execution_id = n.execution_id
),
first as (
    insert into harvest_events (execution_id, event_id, kind, payload)
    select n.execution_id, e.event_id, e.kind, e.payload
      from n join created c on c.execution_id = n.execution_id
     cross join lateral (values (1, 1::smallint, n.started), (2, n.carried_kind, n.carried)) e(event_id, kind, payload)
     where e.kind is not null
),
task as (
    insert into harvest_workflow_tasks
      (execution_id, partition, priority, queue, workflow_name, version, sort_at)
    select n.execution_id, n.partition, n.priority, n.queue, n.workflow_name, n.version,
           clock_timestamp() + case when n.parent_id is null then interval '30 seconds' else interval '0' end
      from n join created c on c.execution_id = n.execution_id
)"""
_CREATED = "\nselect execution_id from created"
_START_AUDITED = _START + ",\n" + audit_part(22, "created") + _CREATED
_START_MANY = _START + _CREATED

# Many keys at once are taken in their order, so that two such statements never wait for each other.
_TAKE_KEYS = """
with k as materialized (select * from unnest($1::uuid[], $2::text[]) as k(execution_id, key) order by key)
insert into harvest_dedupe (execution_id, kind, key) select execution_id, 1, key from k
    on conflict (key) where kind = 1 do update set execution_id = excluded.execution_id, created_at = clock_timestamp()
    where harvest_dedupe.created_at < clock_timestamp() - interval '24 hours'
returning execution_id, key"""
_KEY_HOLDERS = "select execution_id, key from harvest_dedupe where kind = 1 and key = any($1)"
_HOLDER_OF_KEY = """
select e.execution_id, e.state, e.started_at
  from harvest_dedupe d join harvest_executions e on e.execution_id = d.execution_id
 where d.kind = 1 and d.key = $1 and d.created_at >= clock_timestamp() - interval '24 hours'"""
_POINT_KEY = "update harvest_dedupe set execution_id = $1 where kind = 1 and key = $2"

_LATEST = """
select execution_id, state, workflow_name, workflow_id from harvest_executions
 where business_key = $1 order by started_at desc, execution_id desc limit 1"""
_BY_ID = "select state, workflow_name, workflow_id from harvest_executions where execution_id = $1"


async def start(connection: Connection, new: NewExecution, audit: AuditEntry) -> bool:
    """Insert one run with its audit row; False when an open run has the business key already."""
    rows = await connection.fetch(_START_AUDITED, *_columns([new]), *audit_values(audit))
    return bool(rows)


async def start_many(store: Store, new: Sequence[NewExecution]) -> int:
    """Insert many runs in one statement; those whose business key is taken are left out. Returns how many began."""
    rows = await store.write.write(_START_MANY, *_columns(new), limit=30)
    return len(rows)


async def start_many_on(connection: Connection, new: Sequence[NewExecution]) -> set[UUID]:
    """As `start_many` in the caller's transaction; returns which began. One whose id is taken is left out too."""
    return {row["execution_id"] for row in await connection.fetch(_START_MANY, *_columns(new))}


def _columns(new: Sequence[NewExecution]) -> list[list[Any]]:
    return [
        [n.execution_id for n in new],
        [n.business_key for n in new],
        [n.workflow_name for n in new],
        [n.workflow_id for n in new],
        [n.version for n in new],
        [n.partition for n in new],
        [n.queue for n in new],
        [n.started for n in new],
        [n.input for n in new],
        [n.tenant for n in new],
        [n.priority for n in new],
        [n.memo for n in new],
        [n.search_attributes for n in new],
        [n.execution_timeout for n in new],
        [n.chain_deadline for n in new],
        [n.carried[0] if n.carried else None for n in new],
        [n.carried[1] if n.carried else None for n in new],
        [n.parent_id for n in new],
        [n.root_id for n in new],
        [n.awaited for n in new],
        [n.close_policy for n in new],
    ]


async def take_start_keys(connection: Connection, wanted: Sequence[tuple[UUID, str]]) -> dict[str, UUID]:
    """Claim idempotency keys of starts for 24 hours: (execution, key), each key once.

    Returns the execution that holds each key: the one that was given where the key was free.
    """
    ids, keys = [each[0] for each in wanted], [each[1] for each in wanted]
    holders = {row["key"]: row["execution_id"] for row in await connection.fetch(_TAKE_KEYS, ids, keys)}
    taken = [key for key in keys if key not in holders]
    if taken:
        holders |= {row["key"]: row["execution_id"] for row in await connection.fetch(_KEY_HOLDERS, taken)}
    return {key: holders.get(key, execution_id) for execution_id, key in wanted}


async def point_start_key(connection: Connection, execution_id: UUID, key: str) -> None:
    """The key stands for a run that was there before."""
    await connection.execute(_POINT_KEY, execution_id, key)


async def holder_of_key(store: Store, key: str) -> Record | None:
    """The run that an idempotency key of a start stands for on this shard: execution_id, state, started_at."""
    row: Record | None = await store.read.fetch_row(_HOLDER_OF_KEY, key)
    return row


async def latest(connection: Connection, business_key: UUID) -> Record | None:
    """The newest run of a business key: execution_id, state, workflow_name, workflow_id."""
    row: Record | None = await connection.fetchrow(_LATEST, business_key)
    return row


async def by_id(connection: Connection, execution_id: UUID) -> Record | None:
    """State and business key of one run."""
    row: Record | None = await connection.fetchrow(_BY_ID, execution_id)
    return row


async def open_workflow_name(store: Store, execution_id: UUID) -> str | None:
    """The workflow type of an open run, or None where there is none."""
    row = await store.read.fetch_row(_BY_ID, execution_id)
    return row["workflow_name"] if row is not None and row["state"] < 10 else None


async def instant_in(store: Store, seconds: float) -> datetime:
    """The instant `seconds` from now by the database's clock, of which a process that only writes has no estimate."""
    (row,) = await store.write.fetch("select clock_timestamp() as now")
    store.clock.observe(row["now"])
    return store.clock.now() + timedelta(seconds=seconds)


async def now_on(connection: Connection) -> datetime:
    """The time by the clock of this connection's database."""
    now: datetime = await connection.fetchval("select clock_timestamp()")
    return now
