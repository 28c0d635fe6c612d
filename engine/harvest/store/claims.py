"""Taking workflow tasks, and the events that a claimed run has to see (design 5, answers 4)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from harvest.history.events import Event
from harvest.history.ids import PARTITIONS
from harvest.history.kinds import EventKind
from harvest.store.marks import HANDICAP, Marks
from harvest.store.picking import PICK, PICK_MATCHING, PICK_SUSPECT, columns, note
from harvest.store.pool import Connection, Record
from harvest.store.store import Store

# Bytes: to write an array of 512 numbers costs the client's processor 90 us, more than all else of a claim.
_EPOCHS = struct.Struct(f">{PARTITIONS}i")
NO_EPOCHS = bytes(_EPOCHS.size)


class Claimed(Struct, frozen=True):
    """A workflow task that this worker now holds. `first` is its WorkflowStarted where history has nothing else.

    `owner_epoch` is the epoch of its partition where the claim was an owner's. `last_worker` had the run last, if
    that is still alive.
    """

    execution_id: UUID
    attempt: int
    partition: int
    workflow_name: str
    workflow_id: str
    version: int
    queue: str
    next_event_id: int
    decided_through: int
    deadline_at: datetime | None
    blocked_count: int
    owner_epoch: int | None
    due: datetime
    last_worker: UUID | None
    first: Event | None


class Owner(Struct, frozen=True):
    """What an owner takes from: its epoch in each partition, in four bytes each, and 0 in those that are not its own.

    `generation` is its worker's, read no later than any of the epochs: while it stands, they do.
    """

    generation: int
    epochs: bytes

    @classmethod
    def of(cls, generation: int, epochs: Mapping[int, int]) -> Owner:
        """Put together from the partitions that may be taken from."""
        return cls(generation, _EPOCHS.pack(*[epochs.get(partition, 0) for partition in range(PARTITIONS)]))

    @property
    def has_none(self) -> bool:
        """Whether there is no partition to take from."""
        return self.epochs == NO_EPOCHS


_TASKS = {
    "columns": "t.execution_id, t.due, t.sticky_worker",
    "table": "harvest_workflow_tasks",
    "ahead": "31 seconds",
}
_NOT_LACKED = "(t.workflow_name || '/' || t.version) <> all({lacks}::text[])"
_BY_PIN = "(t.sticky_until is null or t.sticky_until <= clock_timestamp() or t.sticky_worker = $2)"
_BY_PARTITION = "substring({epochs}::bytea from 4 * t.partition + 1 for 4) <> '\\x00000000'::bytea"
# Single rows are reached by `lateral … limit 1`: a plan that was made while the shard was new, and is kept, may well
# hash a whole big table for a join (decision 0007).
_TAKE = """
with picked as materialized ({pick}
),
taken as (
    update harvest_workflow_tasks t
       set state = 1, worker = $2, attempt = t.attempt + 1, sticky_worker = $2, sticky_until = null,
           owner_epoch = {epoch}, owner_generation = {generation}
     where t.execution_id = any(array(select execution_id from picked))
       and exists (select from harvest_workers w where w.worker = $2 and w.lease_until > clock_timestamp())
 returning t.execution_id, t.attempt, t.partition, t.workflow_name, t.version, t.owner_epoch
)
select now() as asked_at, p.queue, p.priority, p.sort_at, p.due, t.*, e.workflow_id, e.next_event_id,
       e.decided_through, e.deadline_at,
       (select w.worker from harvest_workers w
         where w.worker = p.sticky_worker and w.lease_until > clock_timestamp()) as last_worker,
       case when e.blocked is not null then (
           select (convert_from(x.blocked, 'UTF8')::json ->> 'count')::int
             from harvest_execution_details x where x.execution_id = t.execution_id
       ) else 0 end as blocked_count,
       v.at as first_at, v.payload as first_payload
  from (select) always
  left join picked p on true
  left join taken t on t.execution_id = p.execution_id
  left join lateral (
    select * from harvest_executions e where e.execution_id = t.execution_id limit 1
  ) e on true
  left join lateral (
    select * from harvest_events v where v.execution_id = t.execution_id and v.event_id = 1 limit 1
  ) v on e.next_event_id = 2
 order by p.priority desc, p.sort_at"""
# An owner's claim carries the epoch of the partition as its token (decision 0009). In the generation that the owner
# knows, its own account of the epochs is right; else the partition is looked at. Where that is not its own there is no
# token, and the guard keeps the task; without a guard owner mode is off, and the claim is one like any other.
_GENERATION = "(select w.generation from harvest_workers w where w.worker = $2)"
_KNOWN = " | ".join(f"(get_byte({{epochs}}, 4 * t.partition + {at}) << {24 - 8 * at})" for at in range(4))
_EPOCH = f"""case when {_GENERATION} = {{known}} then {_KNOWN} else (
               select p.epoch from harvest_partitions p where p.partition = t.partition and p.owner = $2) end"""


def _take(pick: str, first: int, *, owned: bool) -> str:
    """The statement; its parameters from `first` on are the definitions lacked and, for an owner, those of `Owner`."""
    lacks, known, epochs = (f"${first + i}" for i in range(3))
    whose = _BY_PARTITION.format(epochs=epochs) if owned else _BY_PIN
    pick = pick.format(**_TASKS, gate=f"{whose} and {_NOT_LACKED.format(lacks=lacks)}")
    epoch = _EPOCH.format(known=known, epochs=epochs) if owned else "null"
    return _TAKE.format(pick=pick, epoch=epoch, generation=_GENERATION if owned else "null")


CLAIM = _take(PICK, 9, owned=False)
CLAIM_OWNED = _take(PICK, 9, owned=True)
CLAIM_SUSPECT = _take(PICK_SUSPECT, 4, owned=False)
CLAIM_OWNED_SUSPECT = _take(PICK_SUSPECT, 4, owned=True)
CLAIM_MATCHING = _take(PICK_MATCHING, 4, owned=False)

_NEWS = "select execution_id from harvest_workflow_tasks where worker = $1 and state = 3 limit 1000"

# In the order of an Event's fields.
_EVENTS = """
select v.execution_id, v.event_id, v.kind, v.seq, v.at, v.payload
  from unnest($1::uuid[], $2::int[]) as d(execution_id, first)
 cross join lateral (
    select * from harvest_events v
     where v.execution_id = d.execution_id and v.event_id >= d.first
     order by v.event_id
 ) v"""

_LOCK = "select from harvest_executions where execution_id = $1 for no key update"

# A row that is locked may be in the hands of a commit whose answer was lost: it is left for the next call.
_RELEASE = """
with mine as materialized (
    select t.execution_id
      from harvest_workflow_tasks t
      join unnest($1::uuid[], $2::int[]) as r(execution_id, attempt)
        on r.execution_id = t.execution_id and r.attempt = t.attempt
     where t.execution_id = any($1) and t.worker = $3
       for no key update of t skip locked
),
freed as (
    update harvest_workflow_tasks
       set state = 0, worker = null, due = clock_timestamp(), sort_at = clock_timestamp()
     where execution_id = any(array(select execution_id from mine))
)
select t.execution_id
  from harvest_workflow_tasks t
  join unnest($1::uuid[], $2::int[]) as r(execution_id, attempt)
    on r.execution_id = t.execution_id and r.attempt = t.attempt
 where t.execution_id = any($1) and t.worker = $3 and t.execution_id <> all(array(select execution_id from mine))"""

_HELD = "select execution_id, attempt from harvest_workflow_tasks where worker = $1 and state in (1, 3)"


async def claim(
    store: Store,
    worker: UUID,
    queues: Sequence[str],
    most: int,
    marks: Marks | None = None,
    *,
    suspects: bool = False,
    matching: bool = False,
    lacks: Sequence[str] = (),
    owner: Owner | None = None,
) -> list[Claimed]:
    """Take up to `most` due workflow tasks a queue, in the order of answers 4.

    `marks` (of `HANDICAP`) tell where earlier claims of this loop have left off; without them everything is looked at.
    `suspects` are those that were on a lost worker twice (answers 15), and no others, `matching` those that this worker
    had last. `lacks` are the definitions, `name/version`, that this worker has no code for. An `owner` takes
    from its partitions alone, and pins do not count then.
    """
    marks = marks or Marks(HANDICAP)
    by_marks = not suspects and not matching
    where: list[object] = [*columns(marks.seeks(queues))] if by_marks else []
    where.append(list(lacks))
    if owner is None:
        statement = CLAIM_SUSPECT if suspects else CLAIM_MATCHING if matching else CLAIM
    else:
        statement = CLAIM_OWNED_SUSPECT if suspects else CLAIM_OWNED
        where += [owner.generation, owner.epochs]
    rows = await store.claim.write(statement, list(queues), worker, most, *where)
    if by_marks:
        note(marks, queues, most, rows)
    return [
        Claimed(
            execution_id=row["execution_id"],
            attempt=row["attempt"],
            partition=row["partition"],
            workflow_name=row["workflow_name"],
            workflow_id=row["workflow_id"],
            version=row["version"],
            queue=row["queue"],
            next_event_id=row["next_event_id"],
            decided_through=row["decided_through"],
            deadline_at=row["deadline_at"],
            blocked_count=row["blocked_count"] or 0,
            owner_epoch=row["owner_epoch"],
            due=row["due"],
            last_worker=row["last_worker"],
            first=None
            if row["first_payload"] is None
            else Event(1, EventKind.WORKFLOW_STARTED, 0, row["first_at"], row["first_payload"]),
        )
        for row in rows
        if row["execution_id"] is not None
    ]


async def news(store: Store, worker: UUID) -> list[UUID]:
    """The runs that this worker holds and that others have written to."""
    return [row["execution_id"] for row in await store.claim.fetch(_NEWS, worker)]


async def load_events(store: Store, wanted: dict[UUID, int]) -> dict[UUID, list[Event]]:
    """For each execution, its events from the given id on, in order."""
    events: dict[UUID, list[Event]] = {execution_id: [] for execution_id in wanted}
    for row in await store.claim.fetch(_EVENTS, list(wanted), list(wanted.values())):
        execution_id, *fields = row.values()
        events[execution_id].append(Event(*fields))
    return events


async def load_events_on(connection: Connection, execution_id: UUID, first: int) -> list[Event]:
    """As `load_events` for one execution, in the caller's transaction."""
    rows: list[Record] = await connection.fetch(_EVENTS, [execution_id], [first])
    return [Event(*[*row.values()][1:]) for row in rows]


async def lock_execution(connection: Connection, execution_id: UUID) -> None:
    """Lock an execution's row until the transaction ends; a wait of over a second raises LockNotAvailableError."""
    await connection.execute("set local lock_timeout = 1000")
    await connection.execute(_LOCK, execution_id)


async def held(store: Store, worker: UUID) -> set[tuple[UUID, int]]:
    """The workflow tasks, with their attempts, that this worker holds by the database's account. Reads the table."""
    return {(row["execution_id"], row["attempt"]) for row in await store.scan.fetch(_HELD, worker)}


async def release(store: Store, worker: UUID, tasks: Sequence[tuple[UUID, int]]) -> list[tuple[UUID, int]]:
    """Give back workflow tasks (execution, attempt) of this worker; returns those whose rows are locked elsewhere."""
    rows = await store.scan.write(_RELEASE, [task[0] for task in tasks], [task[1] for task in tasks], worker)
    locked = {row["execution_id"] for row in rows}
    return [task for task in tasks if task[0] in locked]
