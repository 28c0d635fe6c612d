"""Requests to running code: a question is a row, its answer another column of it (design 8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from msgspec import Raw, Struct

from harvest.history.events import Event
from harvest.history.kinds import RESOLVING, EventKind
from harvest.history.states import FIRST_CLOSED, State
from harvest.store.definitions import HAS_CODE
from harvest.store.store import Store

QUERY, HANDLERS, STACK = "query", "handlers", "stack"
# After so long, any worker of the type may answer in place of the one that has the run.
OTHERS_AFTER: Final = 0.3

_RESOLVING: Final = sorted(int(kind) for kind in RESOLVING)
# Commands whose end code waits for; what cancels one has its number too.
_COMMANDS: Final = sorted(
    int(kind)
    for kind in (
        EventKind.ACTIVITY_SCHEDULED,
        EventKind.LOCAL_ACTIVITY_SCHEDULED,
        EventKind.TIMER_STARTED,
        EventKind.CHILD_WORKFLOW_STARTED,
        EventKind.EXTERNAL_SIGNAL_REQUESTED,
        EventKind.EXTERNAL_CANCEL_REQUESTED,
        EventKind.EXTERNAL_AWAIT_REQUESTED,
        EventKind.SESSION_REQUESTED,
    )
)
_ALIVE: Final = "w.status = 'active' and w.lease_until > clock_timestamp()"

_ASK: Final = f"""
with run as materialized (
    select e.execution_id, e.state, e.workflow_name, e.version, coalesce(t.worker, t.sticky_worker) as last_worker
      from harvest_executions e left join harvest_workflow_tasks t on t.execution_id = e.execution_id
     where e.execution_id = $2
),
known as materialized (
    select r.*,
           (select w.worker from harvest_workers w where w.worker = r.last_worker and {_ALIVE}) as worker,
           exists (
               select from harvest_definitions d
                 join harvest_workers w on {HAS_CODE}
                where d.kind = 'workflow' and d.name = r.workflow_name and d.version = r.version and {_ALIVE}
           ) as has_worker
      from run r
),
asked as (
    insert into harvest_requests (request_id, execution_id, kind, name, payload, deadline_at, worker)
    select $1, execution_id, $3, $4, $5, clock_timestamp() + $6::float8 * interval '1 second', worker
      from known where state < {FIRST_CLOSED} and has_worker
)
select state, workflow_name, version, worker, has_worker from known"""

# Workers ask and answer on the connections of their scanner: those of decisions are left alone.
# Read-only work may be done twice, but a question whose answer holds a worker up must not go round them all: what a
# living worker has taken is left to it.
_TAKE: Final = f"""
with open as materialized (
    select r.request_id
      from harvest_requests r
     cross join lateral (
        select e.workflow_name, e.version from harvest_executions e where e.execution_id = r.execution_id limit 1
     ) e
     where r.answered_at is null and r.deadline_at > clock_timestamp()
       and (r.worker is null or r.worker = $1
            or r.created_at < clock_timestamp() - interval '{OTHERS_AFTER} seconds')
       and (r.taken_by is null or not exists (
            select from harvest_workers w
             where w.worker = r.taken_by and w.status <> 'stopped' and w.lease_until > clock_timestamp()))
       and exists (
            select from unnest($2::text[], $3::int[]) as d(name, version)
             where d.name = e.workflow_name and d.version = e.version)
     order by r.created_at
     limit $4
       for update of r skip locked
)
update harvest_requests r
   set taken_by = $1, taken_at = clock_timestamp()
 where r.request_id = any(array(select request_id from open))
returning r.request_id, r.execution_id, r.kind, r.name, r.payload,
          extract(epoch from r.deadline_at - clock_timestamp())::float8 as seconds"""

_LOOK: Final = """
select e.execution_id, e.workflow_name, e.workflow_id, e.version, e.queue, e.state, e.next_event_id,
       e.decided_through, e.blocked is not null as blocked,
       coalesce((
           select max(v.event_id) from harvest_events v
            where v.execution_id = e.execution_id and v.event_id > e.decided_through and v.kind = any($2::smallint[])
       ), 0) as news_at,
       coalesce(t.strikes > 0, false) as struck,
       coalesce(t.state in (1, 3) or t.state = 0 and t.due <= clock_timestamp(), false) as under_way
  from harvest_executions e
  left join lateral (
    select * from harvest_workflow_tasks t where t.execution_id = e.execution_id limit 1
  ) t on true
 where e.execution_id = any($1::uuid[])"""

_HISTORY: Final = """
select event_id, kind, seq, at, payload from harvest_events
 where execution_id = $1 and event_id < $2 order by event_id"""

_ANSWER: Final = """
update harvest_requests r
   set answered_at = clock_timestamp(), answer = a.answer
  from unnest($1::uuid[], $2::bytea[]) as a(request_id, answer)
 where r.request_id = any($1::uuid[]) and r.request_id = a.request_id and r.answered_at is null"""

_ANSWERS: Final = """
select request_id, answer from harvest_requests where request_id = any($1::uuid[]) and answered_at is not null"""

_FORGET: Final = "delete from harvest_requests where request_id = any($1::uuid[])"

# When the commands of these numbers, and the events of these ids, were written.
_SINCE: Final = """
select kind, seq, event_id, at from harvest_events
 where execution_id = $1 and (kind = any($2::smallint[]) and seq = any($3::int[]) or event_id = any($4::int[]))"""

# Of askers that are gone; the others delete what they have read.
SWEEP: Final = """
delete from harvest_requests where request_id = any(array(
    select request_id from harvest_requests
     where deadline_at < clock_timestamp() - interval '10 seconds' limit 1000))"""


class Refusal(Struct, frozen=True):
    """A question that could not be answered: the slug of a typed error, its message and fields."""

    slug: str
    message: str
    fields: dict[str, Any] = {}


class Answer(Struct, frozen=True, omit_defaults=True):
    """What a worker writes: a JSON text, or why there is none."""

    result: Raw = Raw(b"null")
    refusal: Refusal | None = None


class Placed(Struct, frozen=True):
    """What became of a question: it waits for `worker` (None: anybody) if the run is open and a worker has its type."""

    state: State | None
    workflow_name: str
    version: int
    worker: UUID | None
    has_worker: bool


class Taken(Struct, frozen=True):
    """A question that this worker answers; `seconds` are left for it."""

    request_id: UUID
    execution_id: UUID
    kind: str
    name: str
    payload: bytes
    seconds: float


class Standing(Struct, frozen=True):
    """Where a run stands in the database.

    `news_at` is the latest event that wakes code and that no decision has consumed, 0 for none; `struck` says that a
    worker was lost while it had the run, `under_way` whether a worker has it or could take it now.
    """

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    version: int
    queue: str
    state: int
    next_event_id: int
    decided_through: int
    blocked: bool
    news_at: int
    struck: bool
    under_way: bool

    @property
    def stands_still(self) -> bool:
        """Whether what has come is not for the code to see: the run is paused or blocked."""
        return self.blocked or self.state == State.PAUSED

    @property
    def known_good(self) -> int:
        """The event through which code may run for a question: no further than it is known to come without harm."""
        return self.decided_through if self.stands_still or self.struck else self.next_event_id - 1

    @property
    def seen_through(self) -> int:
        """The event up to which code must have come, to know all that was written before this look."""
        return self.decided_through if self.stands_still else max(self.decided_through, self.news_at)


async def place(
    store: Store, request_id: UUID, execution_id: UUID, kind: str, name: str, payload: bytes, seconds: float
) -> Placed:
    """Ask a question of a run's code; it is dropped after `seconds`. The caller wakes the worker."""
    rows = await store.write.write(_ASK, request_id, execution_id, kind, name, payload, seconds)
    if not rows:
        return Placed(None, "", 0, None, False)
    row = rows[0]
    return Placed(State(row["state"]), row["workflow_name"], row["version"], row["worker"], row["has_worker"])


async def take(store: Store, worker: UUID, types: Iterable[tuple[str, int]], most: int) -> list[Taken]:
    """Questions to runs of these types (name and version) that this worker shall answer, oldest first."""
    names, versions = zip(*types, strict=True)
    rows = await store.scan.write(_TAKE, worker, list(names), list(versions), most)
    return [Taken(**dict(row)) for row in rows]


async def standing(store: Store, execution_ids: Sequence[UUID]) -> dict[UUID, Standing]:
    """Where these runs stand; one that is not here has no entry."""
    rows = await store.scan.fetch(_LOOK, list(execution_ids), _RESOLVING)
    return {row["execution_id"]: Standing(**dict(row)) for row in rows}


async def history(store: Store, execution_id: UUID, before: int) -> list[Event]:
    """A run's events before an event id, in order."""
    rows = await store.scan.fetch(_HISTORY, execution_id, before)
    return [Event(row["event_id"], row["kind"], row["seq"], row["at"], row["payload"]) for row in rows]


async def answer(store: Store, answers: Sequence[tuple[UUID, bytes]]) -> None:
    """Answer questions by their ids; one that was answered keeps its first answer."""
    await store.scan.write(_ANSWER, [each[0] for each in answers], [each[1] for each in answers])


async def answers(store: Store, request_ids: Sequence[UUID]) -> dict[UUID, bytes]:
    """The answers that have come."""
    rows = await store.read.fetch(_ANSWERS, list(request_ids))
    return {row["request_id"]: row["answer"] for row in rows}


async def forget(store: Store, request_ids: Sequence[UUID]) -> None:
    """Delete questions that nobody waits for any more."""
    await store.write.write(_FORGET, list(request_ids))


async def begun_at(
    store: Store, execution_id: UUID, seqs: Sequence[int], event_ids: Sequence[int]
) -> tuple[dict[int, datetime], dict[int, datetime]]:
    """When commands were written, by number, and when other events were, by id. Reads the history's keys."""
    rows = await store.read.fetch(_SINCE, execution_id, _COMMANDS, list(seqs), list(event_ids))
    wanted = set(event_ids)
    commands = {row["seq"]: row["at"] for row in rows if row["event_id"] not in wanted}
    return commands, {row["event_id"]: row["at"] for row in rows if row["event_id"] in wanted}
