"""Where updates are admitted, and how they were answered. An update is an event like a signal; so is its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.history.states import FIRST_CLOSED, State
from harvest.store.appends import UPDATE_KEY
from harvest.store.store import Store

_ANSWERS: Final = f"{EventKind.UPDATE_COMPLETED}, {EventKind.UPDATE_FAILED}"


class Admitted(Struct, frozen=True):
    """The event that admitted an update: its run and its id. `after` is the last event known to be no answer."""

    execution_id: UUID
    event_id: int
    after: int


class Look(Struct, frozen=True):
    """What a look for an answer found: the answer's event, or that there is none up to `through`.

    `closed` tells that the run has ended, so that none will come there.
    """

    kind: int | None
    event_id: int
    payload: bytes
    through: int
    closed: bool


_FIND: Final = f"""
select d.written_to, d.event_id
  from harvest_executions e
  join harvest_dedupe d on d.execution_id = coalesce(e.first_execution_id, e.execution_id)
 where e.execution_id = $1 and d.kind = {UPDATE_KEY} and d.key = $2"""

# The answer has the id of the admitting event as its seq. It is looked for beyond what was seen before alone, in one
# snapshot with the count of events.
_LOOK: Final = f"""
select w.nth, e.next_event_id - 1 as through, e.state, a.kind, a.event_id, a.payload
  from unnest($1::uuid[], $2::int[], $3::int[]) with ordinality as w(execution_id, admitted, after, nth)
  join harvest_executions e on e.execution_id = w.execution_id
  left join lateral (
    select v.kind, v.event_id, v.payload from harvest_events v
     where v.execution_id = w.execution_id and v.event_id > w.after and v.kind in ({_ANSWERS}) and v.seq = w.admitted
     order by v.event_id limit 1
  ) a on true"""

# What a run carries over to the next is written with the start of that one, right behind its first event.
_CARRIED: Final = f"""
select c.execution_id, c.event_id
  from harvest_executions e
  join harvest_events l on l.execution_id = e.execution_id and l.event_id = e.next_event_id - 1
 cross join lateral (select convert_from(l.payload, 'UTF8')::json as link) d
  join harvest_events f
    on f.execution_id = coalesce(d.link ->> 'new_execution_id', d.link ->> 'retry_execution_id')::uuid
   and f.event_id = 1
  join harvest_events c
    on c.execution_id = f.execution_id and c.kind = {EventKind.UPDATE_ADMITTED}
   and c.event_id between 2 and 1 + coalesce((convert_from(f.payload, 'UTF8')::json ->> 'carried')::int, 0)
   and convert_from(c.payload, 'UTF8')::json ->> 'update_id' = $2
 where e.execution_id = $1 and e.state in ({State.FAILED}, {State.CONTINUED_AS_NEW})"""


async def find(store: Store, execution_id: UUID, update_id: str) -> Admitted | None:
    """The event that admitted an update into a run or another of its chain; None where there is none."""
    rows = await store.read.fetch(_FIND, execution_id, update_id)
    if not rows:
        return None
    return Admitted(rows[0]["written_to"], rows[0]["event_id"], rows[0]["event_id"])


async def carried(store: Store, execution_id: UUID, update_id: str) -> Admitted | None:
    """The event by which the run that follows a closed one was given an update that was not begun; None: it was not."""
    rows = await store.read.fetch(_CARRIED, execution_id, update_id)
    return Admitted(rows[0]["execution_id"], rows[0]["event_id"], rows[0]["event_id"]) if rows else None


async def look(store: Store, wanted: Sequence[Admitted]) -> list[Look | None]:
    """Look for the answers of updates, in their order; None for one whose run is not here (any more)."""
    rows = await store.read.fetch(
        _LOOK,
        [each.execution_id for each in wanted],
        [each.event_id for each in wanted],
        [each.after for each in wanted],
    )
    found: list[Look | None] = [None] * len(wanted)
    for row in rows:
        found[row["nth"] - 1] = Look(
            kind=row["kind"],
            event_id=row["event_id"] or 0,
            payload=row["payload"] or b"",
            through=row["through"],
            closed=row["state"] >= FIRST_CLOSED,
        )
    return found
