"""Who owns the partitions of a shard: taking, offering and handing them over, and the journal of it (decision 0009).

A partition is its owner's while that worker's lease lives: one row is renewed for all partitions of a process. Whoever
takes a partition raises its epoch; commits under an earlier one are refused. Whatever takes partitions from a worker
also raises that worker's generation (a trigger does), so that a commit of tasks which were all taken in the present one
need not look at their partitions.

Lock order: partitions by number, workflow tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.store.store import Store

LIVE_SECONDS: Final = 3.0
"""A worker counts as a live owner if its owner loop has scanned so lately."""
_ID_BYTES: Final = 16


class Owned(Struct, frozen=True):
    """One partition. `lease_until` is the end of the lease of its owner, None when it has none."""

    partition: int
    owner: UUID | None
    epoch: int
    heir: UUID | None
    accepted: bool
    lease_until: datetime | None


class Scan(Struct, frozen=True):
    """What one look showed; `live` are the live owners in the order of their ids, `at` the database's time.

    `generation` is the looking worker's, from before the map was read; None where it has stopped.
    """

    owner_mode: bool
    generation: int | None
    at: datetime
    live: list[UUID]
    partitions: list[Owned]


class Warmable(Struct, frozen=True):
    """A run that is to be made resident before its partition is taken over."""

    execution_id: UUID
    partition: int
    workflow_name: str
    workflow_id: str
    version: int
    queue: str
    deadline_at: datetime | None
    decided_through: int


# What makes a worker a live owner; to be formatted with the row's name.
LIVE: Final = f"""({{0}}.status = 'active' and {{0}}.lease_until > clock_timestamp()
           and {{0}}.scanned_at > clock_timestamp() - interval '{LIVE_SECONDS} seconds'
           and coalesce({{0}}.workflow_slots, 1) > 0 and cardinality({{0}}.workflow_types) > 0)"""
_SEEN: Final = f"""
with mine as (
    update harvest_workers set scanned_at = clock_timestamp() where worker = $1 and status <> 'stopped'
 returning worker, generation, status = 'active' and coalesce(workflow_slots, 1) > 0
           and cardinality(workflow_types) > 0 as can_own
)
select m.owner_mode, (select generation from mine) as generation, clock_timestamp() as at,
       array(select worker from (
           select w.worker from harvest_workers w where w.worker <> $1 and {LIVE.format("w")}
            union all
           select worker from mine where can_own
       ) live order by worker) as live
  from harvest_meta m"""
_PARTITIONS: Final = """
select p.partition, p.owner, p.epoch, p.heir, p.accepted,
       case when w.status <> 'stopped' then w.lease_until end as lease_until
  from harvest_partitions p left join harvest_workers w on w.worker = p.owner
 order by p.partition"""

# Free partitions, and those of owners whose lease has ended: spread over the map by a hash, so that two who take at
# once rarely want the same.
_ACQUIRE: Final = """
with mode as (select owner_mode from harvest_meta for share),
me as (select worker, name from harvest_workers
        where worker = $1 and status = 'active' and lease_until > clock_timestamp()),
free as materialized (
    select p.partition, p.owner, p.epoch
      from harvest_partitions p
     where exists (select from me) and (select owner_mode from mode) and (p.owner is null or not exists (
               select from harvest_workers w
                where w.worker = p.owner and w.status <> 'stopped' and w.lease_until > clock_timestamp()))
     order by hashtext($1::text || p.partition::text)
     limit $2
       for update of p skip locked
),
taken as (
    update harvest_partitions p
       set owner = $1, epoch = p.epoch + 1, acquired_at = clock_timestamp(), heir = null, offered_at = null,
           accepted = false, residents = null
      from free f where p.partition = f.partition
 returning p.partition, p.epoch
),
told as (
    insert into harvest_partition_journal (partition, event, worker, worker_name, epoch, detail)
    select f.partition, 'expired', f.owner, coalesce(w.name, ''), f.epoch, 'the lease of its owner has ended'
      from free f left join harvest_workers w on w.worker = f.owner where f.owner is not null
     union all
    select t.partition, 'acquired', $1, me.name, t.epoch, '' from taken t cross join me
)
select partition, epoch from taken order by partition"""

_RELEASE: Final = """
with mine as materialized (
    select partition, epoch from harvest_partitions
     where owner = $1 and partition = any($2::smallint[])
     order by partition
       for update
),
freed as (
    update harvest_partitions p
       set owner = null, epoch = p.epoch + 1, acquired_at = null, heir = null, offered_at = null, accepted = false,
           residents = null
      from mine m where p.partition = m.partition
)
insert into harvest_partition_journal (partition, event, worker, worker_name, epoch, detail)
select m.partition, 'released', $1, coalesce(w.name, ''), m.epoch, $3
  from mine m left join harvest_workers w on w.worker = $1
returning partition"""

# An offer changes no key: commits go on beside it.
_OFFER: Final = """
with mine as materialized (
    select p.partition, o.heir, o.residents
      from unnest($2::smallint[], $3::uuid[], $4::bytea[]) as o(partition, heir, residents)
      join harvest_partitions p on p.partition = o.partition
     where p.owner = $1
     order by p.partition
       for no key update of p
)
update harvest_partitions p
   set heir = m.heir, residents = m.residents, offered_at = clock_timestamp(), accepted = false
  from mine m where p.partition = m.partition
returning p.partition"""
_OFFERED: Final = """
select partition, residents from harvest_partitions where heir = $1 and not accepted order by partition"""
_ACCEPT: Final = """
with offered as materialized (
    select partition from harvest_partitions
     where heir = $1 and partition = any($2::smallint[])
     order by partition
       for no key update
)
update harvest_partitions p set accepted = true, residents = null
  from offered o where p.partition = o.partition
returning p.owner"""

# The tasks that the old owner still holds are pending, whatever it has decided until now: a run may have begun a local
# activity since they were listed. Its other activities go on, and report by themselves.
_TRANSFER: Final = """
with mine as materialized (
    select partition, epoch, heir from harvest_partitions
     where owner = $1 and partition = any($2::smallint[]) and heir is not null and accepted
       and exists (select from harvest_workers w
                    where w.worker = heir and w.status = 'active' and w.lease_until > clock_timestamp())
     order by partition
       for update
),
given as (
    update harvest_partitions p
       set owner = m.heir, epoch = p.epoch + 1, acquired_at = clock_timestamp(), heir = null, offered_at = null,
           accepted = false, residents = null
      from mine m where p.partition = m.partition
 returning p.partition, p.owner, p.epoch
),
held as materialized (
    select execution_id from harvest_workflow_tasks
     where execution_id = any($3::uuid[]) and worker = $1 and partition = any(array(select partition from mine))
       for no key update skip locked
),
tasks as (
    update harvest_workflow_tasks t
       set state = 0, worker = null, due = clock_timestamp(), sort_at = clock_timestamp()
     where t.execution_id = any(array(select execution_id from held))
),
told as (
    insert into harvest_partition_journal (partition, event, worker, worker_name, epoch, detail)
    select m.partition, 'released', $1, coalesce(w.name, ''), m.epoch, 'handed over'
      from mine m left join harvest_workers w on w.worker = $1
     union all
    select g.partition, 'acquired', g.owner, coalesce(w.name, ''), g.epoch, 'handed over'
      from given g left join harvest_workers w on w.worker = g.owner
)
select partition, owner from given"""

# What was refused because the run had ended or was paused meanwhile is no matter of its partition.
_FENCED: Final = """
insert into harvest_partition_journal (partition, event, worker, worker_name, epoch, detail)
select f.partition, 'fenced', $1, coalesce(w.name, ''), f.epoch, f.count || ' late commits were refused'
  from unnest($2::smallint[], $3::int[], $4::int[]) as f(partition, epoch, count)
  join harvest_partitions p
    on p.partition = f.partition and (p.owner is distinct from $1 or p.epoch <> f.epoch)
  left join harvest_workers w on w.worker = $1"""

_WARMABLE: Final = """
select execution_id, partition, workflow_name, workflow_id, version, queue, deadline_at, decided_through
  from harvest_executions
 where execution_id = any($1) and state is not distinct from 0 and decided_through > 0"""


async def scan(store: Store, worker: UUID) -> Scan:
    """Say that this worker's owner loop is live, and look at the switch, the live owners and, if it is on, the map."""
    (row,) = await store.scan.write(_SEEN, worker)
    rows = await store.scan.fetch(_PARTITIONS) if row["owner_mode"] else []
    owned = [Owned(*each.values()) for each in rows]
    return Scan(row["owner_mode"], row["generation"], row["at"], list(row["live"]), owned)


async def acquire(store: Store, worker: UUID, most: int) -> dict[int, int]:
    """Take up to `most` partitions that nobody owns; returns their epochs."""
    return {row["partition"]: row["epoch"] for row in await store.scan.write(_ACQUIRE, worker, most)}


async def release(store: Store, worker: UUID, partitions: Sequence[int], why: str) -> list[int]:
    """Give up partitions in one statement; returns those that were this worker's."""
    rows = await store.scan.write(_RELEASE, worker, list(partitions), why)
    return [row["partition"] for row in rows]


async def offer(store: Store, worker: UUID, offers: Mapping[int, tuple[UUID | None, Sequence[UUID]]]) -> None:
    """Offer partitions to the heirs named, with the runs that these are to warm; an heir of None takes it back."""
    heirs = [heir for heir, _ in offers.values()]
    residents = [b"".join(each.bytes for each in runs) for _, runs in offers.values()]
    await store.scan.write(_OFFER, worker, list(offers), heirs, residents)


async def offered(store: Store, worker: UUID) -> dict[int, list[UUID]]:
    """The partitions that this worker was offered and has not accepted, with the runs to warm."""
    found = {}
    for row in await store.scan.fetch(_OFFERED, worker):
        packed = row["residents"] or b""
        found[row["partition"]] = [UUID(bytes=packed[at : at + _ID_BYTES]) for at in range(0, len(packed), _ID_BYTES)]
    return found


async def accept(store: Store, worker: UUID, partitions: Sequence[int]) -> set[UUID]:
    """Say that what was offered is warm; returns the owners who wait for that."""
    rows = await store.scan.write(_ACCEPT, worker, list(partitions))
    return {row["owner"] for row in rows if row["owner"] is not None}


async def transfer(store: Store, worker: UUID, partitions: Sequence[int], held: Sequence[UUID]) -> dict[int, UUID]:
    """Hand accepted partitions to their heirs, with the tasks of `held` in them; returns the new owners."""
    rows = await store.scan.write(_TRANSFER, worker, list(partitions), list(held))
    return {row["partition"]: row["owner"] for row in rows}


async def note_fenced(store: Store, worker: UUID, fenced: Mapping[tuple[int, int], int]) -> None:
    """Write to the journal how many commits were refused, by partition and the epoch they were made under."""
    keys = list(fenced)
    counts = list(fenced.values())
    await store.scan.write(_FENCED, worker, [key[0] for key in keys], [key[1] for key in keys], counts)


async def warmable(store: Store, execution_ids: Sequence[UUID]) -> list[Warmable]:
    """Those of the runs that are open and have been decided."""
    rows = await store.claim.fetch(_WARMABLE, list(execution_ids))
    return [Warmable(*row.values()) for row in rows]
