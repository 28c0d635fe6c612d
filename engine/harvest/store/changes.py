"""What deliveries write on one shard, in one statement. It waits for no lock.

On the source's shard it takes the deliveries' rows away; on another it leaves a key for what must not be written twice.
A delivery whose row or whose runs are locked elsewhere is left out, and so is all that goes with it from one source to
one target. Lock order: deliveries, executions, workflow tasks, children.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.store.appends import ONCE_KEY
from harvest.store.deliveries import DELIVERY_KEY, Delivery
from harvest.store.pool import Connection
from harvest.store.wakes import WAKE_TASKS

_ONCE: Final = EventKind.WORKFLOW_CANCEL_REQUESTED

_DELIVERIES = """
with d as materialized (
    select * from unnest($1::bigint[], $2::int[], $3::uuid[], $4::text[], $5::uuid[])
      as d(delivery_id, pair, source_execution_id, key, written_to)
),
v as materialized (
    select * from unnest($6::bigint[], $7::uuid[], $8::smallint[], $9::int[], $10::bytea[], $11::boolean[], $12::int[])
      as v(delivery_id, execution_id, kind, seq, payload, once, nth)
),"""
_MINE_HERE = """
mine as materialized (
    select delivery_id from harvest_deliveries where delivery_id = any($1) for update skip locked
),"""
_MINE_THERE = """
mine as materialized (select delivery_id from d),"""
_READY = """
ends as materialized (
    select n.*, c.parent_execution_id
      from unnest($13::bigint[], $14::uuid[], $15::smallint[], $16::bytea[], $17::int[])
        as n(delivery_id, child_execution_id, kind, payload, nth)
      left join harvest_children c
        on c.child_execution_id = n.child_execution_id and c.child_execution_id = any($14)
),
locked as materialized (
    select e.execution_id, e.next_event_id, e.state from harvest_executions e
     where e.execution_id = any(array(
         select execution_id from v union select parent_execution_id from ends where parent_execution_id is not null))
     order by e.execution_id
       for no key update of e skip locked
),
open as materialized (
    select t.execution_id from harvest_workflow_tasks t
     where t.execution_id = any(array(select execution_id from locked where state < 10))
       for no key update of t skip locked
),
kin as materialized (
    select c.child_execution_id, c.parent_execution_id, c.seq, c.awaited from harvest_children c
     where c.child_execution_id = any($14) and c.parent_execution_id = any(array(select execution_id from locked))
       for update of c skip locked
),
blocked as materialized (
    select delivery_id from d where delivery_id <> all(array(select delivery_id from mine))
     union all
    select delivery_id from v where execution_id <> all(array(select execution_id from open))
     union all
    select n.delivery_id
      from ends n left join kin k on k.child_execution_id = n.child_execution_id
      left join locked l on l.execution_id = k.parent_execution_id
     where n.parent_execution_id is not null
       and (k.child_execution_id is null
            or k.awaited and l.state < 10 and l.execution_id <> all(array(select execution_id from open)))
),
free as materialized (
    select * from d
     where pair <> all(array(select b.pair from d b where b.delivery_id = any(array(select delivery_id from blocked))))
),"""
_PASSED_HERE = """
passed as materialized (select delivery_id from free),
settled as (delete from harvest_deliveries where delivery_id = any(array(select delivery_id from passed))),"""
_PASSED_THERE = f"""
keyed as (
    insert into harvest_dedupe (execution_id, kind, key, written_to)
    select source_execution_id, {DELIVERY_KEY}, key, written_to from free where key is not null
     order by source_execution_id, key
        on conflict do nothing
 returning execution_id, key
),
passed as materialized (
    select f.delivery_id from free f left join keyed k on k.execution_id = f.source_execution_id and k.key = f.key
     where f.key is null or k.key is not null
),"""
_WRITTEN = (
    f"""
once as (
    insert into harvest_dedupe (execution_id, kind, key)
    select distinct v.execution_id, {ONCE_KEY}, '{_ONCE.word}'
      from v join passed p on p.delivery_id = v.delivery_id where v.once
        on conflict do nothing
 returning execution_id
),
told as materialized (
    select v.execution_id, v.kind, v.seq, v.payload, v.nth
      from v join passed p on p.delivery_id = v.delivery_id where not v.once
     union all
    (select distinct on (v.execution_id) v.execution_id, v.kind, v.seq, v.payload, v.nth
      from v join passed p on p.delivery_id = v.delivery_id join once o on o.execution_id = v.execution_id
     where v.once order by v.execution_id, v.nth)
     union all
    (select distinct on (k.child_execution_id) k.parent_execution_id, n.kind, k.seq, n.payload, n.nth
      from ends n join passed p on p.delivery_id = n.delivery_id
      join kin k on k.child_execution_id = n.child_execution_id and k.awaited
      join open o on o.execution_id = k.parent_execution_id
     order by k.child_execution_id, n.nth)
),
numbered as materialized (
    select t.*, l.next_event_id + row_number() over (partition by t.execution_id order by t.nth) - 1 as event_id
      from told t join locked l on l.execution_id = t.execution_id
),
advanced as (
    update harvest_executions e set next_event_id = e.next_event_id + n.added
      from (select execution_id, count(*)::int as added from numbered group by execution_id) n
     where e.execution_id = n.execution_id and e.execution_id = any(array(select execution_id from numbered))
 returning e.execution_id, e.partition
),
appended as (
    insert into harvest_events (execution_id, event_id, kind, seq, payload)
    select execution_id, event_id, kind, seq, payload from numbered
),
children_gone as (
    delete from harvest_children c
     where c.child_execution_id = any(array(
         select n.child_execution_id from ends n join passed p on p.delivery_id = n.delivery_id
           join kin k on k.child_execution_id = n.child_execution_id))
),
woken as ("""
    + WAKE_TASKS.format(condition="t.execution_id = any(array(select execution_id from advanced))")
    + """
)
select p.delivery_id, null::uuid as execution_id, null::int as partition, null::uuid as holder from passed p
 union all
select null, a.execution_id, a.partition, w.holder
  from advanced a left join woken w on w.execution_id = a.execution_id"""
)
_HERE = "".join([_DELIVERIES, _MINE_HERE, _READY, _PASSED_HERE, _WRITTEN])
_THERE = "".join([_DELIVERIES, _MINE_THERE, _READY, _PASSED_THERE, _WRITTEN])


class Woken(Struct, frozen=True):
    """A run that was written to, and the worker to wake (None: anybody)."""

    execution_id: UUID
    partition: int
    holder: UUID | None


class Made(Struct, frozen=True):
    """The deliveries that passed, and the runs that were written to."""

    passed: set[int]
    woken: list[Woken]


class ChildEnd(Struct, frozen=True):
    """The end of the child whose chain began with that run: kind and data of the event for its parent."""

    child_execution_id: UUID
    kind: int
    payload: bytes


class Change:
    """What some deliveries write on one shard, filled one after the other in their order."""

    def __init__(self) -> None:
        self._deliveries: list[tuple[Any, ...]] = []
        self._events: list[tuple[Any, ...]] = []
        self._ends: list[tuple[Any, ...]] = []
        self._nth = 0

    def __len__(self) -> int:
        return len(self._deliveries)

    def delivery(self, delivery: Delivery, pair: int, *, key: str | None = None, run: UUID | None = None) -> None:
        """One delivery; those with the same `pair` pass together.

        On another shard `key` and the run that is written to are kept, so that it is not made twice.
        """
        self._deliveries.append((delivery.delivery_id, pair, delivery.source_execution_id, key, run))

    def event(
        self, delivery: Delivery, execution_id: UUID, kind: int, seq: int, payload: bytes, *, once: bool = False
    ) -> None:
        """An event of a run that must be open; `once`: a request to cancel, of which a run takes one."""
        self._events.append((delivery.delivery_id, execution_id, kind, seq, payload, once, self._next()))

    def end(self, delivery: Delivery, end: ChildEnd) -> None:
        """The end of a child, for the parent that it has now, if that waits."""
        self._ends.append((delivery.delivery_id, end.child_execution_id, end.kind, end.payload, self._next()))

    def _next(self) -> int:
        self._nth += 1
        return self._nth

    async def make(self, connection: Connection, *, settles: bool) -> Made:
        """Write it. `settles`: this is the shard of the sources."""
        values = [*_columns(self._deliveries, 5), *_columns(self._events, 7), *_columns(self._ends, 5)]
        rows = await connection.fetch(_HERE if settles else _THERE, *values)
        return Made(
            passed={row["delivery_id"] for row in rows if row["delivery_id"] is not None},
            woken=[
                Woken(row["execution_id"], row["partition"], row["holder"])
                for row in rows
                if row["execution_id"] is not None
            ],
        )


def _columns(rows: list[tuple[Any, ...]], width: int) -> list[tuple[Any, ...]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width
