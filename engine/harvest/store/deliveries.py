"""What one run does to another, as rows of `harvest_deliveries`: which are due, and what they find at their targets.

They are applied on the target's shard and settled on the source's: see `changes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.history.deliveries import DeliveryKind
from harvest.history.kinds import EventKind
from harvest.store.appends import ONCE_KEY
from harvest.store.pool import Connection, Record

DELIVERY_KEY: Final = 5
BATCH_BYTES: Final = 8 * 1024 * 1024
_AWAIT: Final = int(DeliveryKind.EXTERNAL_AWAIT)
_CANCEL: Final = EventKind.WORKFLOW_CANCEL_REQUESTED.word


class Delivery(Struct, frozen=True):
    """A row of `harvest_deliveries` that is due."""

    delivery_id: int
    kind: int
    source_execution_id: UUID
    source_seq: int
    target_execution_id: UUID
    target_shard: int
    attempts: int
    payload: bytes

    @property
    def pair(self) -> tuple[UUID, UUID]:
        """Deliveries of one pair are made in their order; who waits for an end holds up nobody."""
        return self.source_execution_id, self.target_execution_id

    @property
    def is_await(self) -> bool:
        """Whether it waits for the target's end."""
        return self.kind == _AWAIT

    @property
    def key(self) -> str:
        """What keeps it from being made twice on another shard, beside the source's id."""
        return f"delivery:{self.kind}/{self.source_seq}/{self.target_execution_id}"


# A delivery waits while an earlier one of its pair is put off.
_FREE: Final = f"""not exists (
           select from harvest_deliveries e
            where e.source_execution_id = d.source_execution_id and e.target_execution_id = d.target_execution_id
              and e.delivery_id < d.delivery_id and e.kind <> {_AWAIT} and {{which}})"""
# Sums that change nothing keep the plan to the index by sources: one that was made while there were few rows would else
# walk all that are due.
_OF_SOURCES = f"""
with free as materialized (
    select d.delivery_id, octet_length(d.payload) as bytes from harvest_deliveries d
     where d.source_execution_id = any($1) and d.due + interval '0' <= statement_timestamp()
       and {_FREE.format(which="e.due + interval '0' > statement_timestamp()")}
     order by d.delivery_id + 0 limit $2
),
sized as (
    select delivery_id, sum(bytes) over (order by delivery_id) - bytes as before from free
)
select d.delivery_id, d.kind, d.source_execution_id, d.source_seq, d.target_execution_id, d.target_shard, d.attempts,
       d.payload
  from harvest_deliveries d
 where d.delivery_id = any(array(select delivery_id from sized where before < {BATCH_BYTES}))
 order by d.delivery_id"""
# The first of each pair; its source leads to those that follow it.
_DUE = f"""
select distinct source_execution_id from (
    select d.source_execution_id from harvest_deliveries d
     where d.due <= statement_timestamp() - $1::float8 * interval '1 second'
       and d.due > statement_timestamp() - $2::float8 * interval '1 second'
       and {_FREE.format(which="true")}
     order by d.due limit $3
) first_ones"""

_RUNS = """
select e.execution_id, e.state, e.tenant, c.execution_id as current_id, c.state as current_state
  from harvest_executions e
  left join lateral (
      select s.execution_id, s.state from harvest_executions s
       where e.state in (11, 15) and s.first_execution_id = coalesce(e.first_execution_id, e.execution_id)
         and s.previous_execution_id is not null and s.state <> 15
       order by s.started_at desc limit 1
  ) c on true
 where e.execution_id = any($1)"""
_BY_KEYS = f"""
select k.business_key, r.execution_id, r.state, r.started_at, exists (
           select from harvest_dedupe d
            where d.execution_id = r.execution_id and d.kind = {ONCE_KEY} and d.key = '{_CANCEL}') as asked
  from unnest($1::uuid[]) as k(business_key)
 cross join lateral (
    select * from (
        (select execution_id, state, started_at from harvest_executions
          where business_key = k.business_key and state < 10)
         union all
        (select execution_id, state, started_at from harvest_executions where business_key = k.business_key
          order by started_at desc, execution_id desc limit 1)
    ) found order by state < 10 desc limit 1
 ) r"""
_OUTCOMES = """
select e.execution_id, e.state, e.workflow_name, e.workflow_id, d.result, d.failure
  from harvest_executions e join harvest_execution_details d on d.execution_id = e.execution_id
 where e.execution_id = any($1)"""
_APPLIED = f"""
select d.execution_id, d.key, d.written_to
  from unnest($1::uuid[], $2::text[]) as k(execution_id, key)
  join harvest_dedupe d on d.execution_id = k.execution_id and d.kind = {DELIVERY_KEY} and d.key = k.key"""
_DECLARED = """
select distinct on (name, version) name, version, convert_from(input_schema, 'UTF8')::json ->> 'x-options' as options
  from harvest_definitions
 where kind = 'workflow' and name = any($1) and seen_at > clock_timestamp() - interval '7 days'
 order by name, version desc, seen_at desc"""
_PUT_OFF = """
update harvest_deliveries d
   set due = clock_timestamp() + n.delay * interval '1 second', attempts = d.attempts + 1,
       last_attempt_at = clock_timestamp(), last_error = n.error,
       target_execution_id = coalesce(n.target_execution_id, d.target_execution_id),
       target_shard = coalesce(n.target_shard, d.target_shard)
  from unnest($1::bigint[], $2::float8[], $3::text[], $4::uuid[], $5::int[])
    as n(delivery_id, delay, error, target_execution_id, target_shard)
 where d.delivery_id = any($1) and d.delivery_id = n.delivery_id"""
_LEFT_BY = f"""
select d.execution_id, d.key, d.written_to from harvest_dedupe d
 where d.kind = {DELIVERY_KEY} and d.execution_id = any($1) and starts_with(d.key, $2)"""
_UNLOCATED = """
select k.kind, extract(epoch from clock_timestamp() - o.created_at)::float8 as age
  from unnest($1::smallint[]) as k(kind)
 cross join lateral (
    select created_at from harvest_deliveries
     where target_shard = -1 and kind = k.kind and last_error is not null order by created_at limit 1
 ) o"""
_SWEEP = f"""
delete from harvest_dedupe where ctid = any(array(
    select ctid from harvest_dedupe
     where kind = {DELIVERY_KEY} and created_at < clock_timestamp() - interval '30 days' limit 1000))"""


class Run(Struct, frozen=True):
    """A run as it was seen: its state and tenant, and the newest run of its chain (itself where none has followed)."""

    state: int
    tenant: str
    current_id: UUID
    current_state: int


async def waiting(connection: Connection, sources: Iterable[UUID], most: int) -> list[Delivery]:
    """What these runs have to deliver now, in order."""
    return [Delivery(*row) for row in await connection.fetch(_OF_SOURCES, list(sources), most)]


async def due_sources(connection: Connection, *, older: float, newer: float, most: int) -> list[UUID]:
    """Runs with deliveries that have been due for more than `older` and less than `newer` seconds."""
    return [row["source_execution_id"] for row in await connection.fetch(_DUE, older, newer, most)]


async def runs(connection: Connection, execution_ids: Iterable[UUID]) -> dict[UUID, Run]:
    """Those runs as they are now."""
    return {
        row["execution_id"]: Run(
            state=row["state"],
            tenant=row["tenant"],
            current_id=row["current_id"] or row["execution_id"],
            current_state=row["state"] if row["current_id"] is None else row["current_state"],
        )
        for row in await connection.fetch(_RUNS, list(execution_ids))
    }


async def by_keys(connection: Connection, keys: Iterable[UUID]) -> dict[UUID, Record]:
    """The open run of each business key, else its newest: execution_id, state, started_at, asked (to be cancelled)."""
    return {row["business_key"]: row for row in await connection.fetch(_BY_KEYS, list(keys))}


async def outcomes(connection: Connection, execution_ids: Iterable[UUID]) -> dict[UUID, Record]:
    """How those runs ended: state, workflow_name, workflow_id, result, failure."""
    return {row["execution_id"]: row for row in await connection.fetch(_OUTCOMES, list(execution_ids))}


async def applied(connection: Connection, deliveries: Sequence[Delivery]) -> dict[tuple[UUID, str], UUID | None]:
    """Which were made on this shard before, by (source, key), and on which run."""
    rows = await connection.fetch(
        _APPLIED, [each.source_execution_id for each in deliveries], [each.key for each in deliveries]
    )
    return {(row["execution_id"], row["key"]): row["written_to"] for row in rows}


async def left_by(connection: Connection, sources: Iterable[UUID], beginning: str) -> list[Record]:
    """What deliveries of these runs have left on this shard: execution_id, key (as it begins), written_to."""
    rows: list[Record] = await connection.fetch(_LEFT_BY, list(sources), beginning)
    return rows


async def unlocated(connection: Connection, kinds: Iterable[int]) -> dict[int, float]:
    """The age in seconds of the oldest delivery of each kind whose target, known by name, could not be told yet."""
    return {row["kind"]: row["age"] for row in await connection.fetch(_UNLOCATED, list(kinds))}


async def declared(connection: Connection, names: Iterable[str]) -> list[Record]:
    """What workers have registered of these workflow types, newest version first: name, version, options (JSON)."""
    rows: list[Record] = await connection.fetch(_DECLARED, list(names))
    return rows


class PutOff(Struct, frozen=True):
    """A delivery that is tried again after `delay` seconds, perhaps at a target that is known by now."""

    delivery_id: int
    delay: float
    error: str | None = None
    target_execution_id: UUID | None = None
    target_shard: int | None = None


async def put_off(connection: Connection, put: Sequence[PutOff]) -> None:
    """Try those again later."""
    await connection.execute(
        _PUT_OFF,
        [each.delivery_id for each in put],
        [each.delay for each in put],
        [each.error for each in put],
        [each.target_execution_id for each in put],
        [each.target_shard for each in put],
    )


async def sweep(connection: Connection) -> None:
    """Forget keys of deliveries that can no longer come twice."""
    await connection.execute(_SWEEP)
