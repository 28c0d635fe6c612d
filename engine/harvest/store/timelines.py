"""The steps of a history, paired in the database: a long one never leaves it whole, and no payload is decoded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.history.steps import ATTEMPT, STEP_KINDS
from harvest.store.pool import Record
from harvest.store.store import Store

SLOWEST: Final = 5
# Enough to hold the names in an event's leading fields, a workflow id of full length too.
_HEAD: Final = 4096


def _among(kinds: Iterable[EventKind]) -> str:
    return "(" + ", ".join(str(int(kind)) for kind in sorted(kinds)) + ")"


_BEGINS: Final = _among(kind.begins for kind in STEP_KINDS)
_ENDS: Final = _among(end for kind in STEP_KINDS for end in kind.ends)
_ALL: Final = _among([ATTEMPT, *(each for kind in STEP_KINDS for each in (kind.begins, *kind.ends))])
_WORKS: Final = _among(kind.begins for kind in STEP_KINDS if kind.works)
_INSTANTS: Final = _among(kind.begins for kind in STEP_KINDS if not kind.ends)
_BY_EVENT: Final = _among(kind.begins for kind in STEP_KINDS if kind.by_event)
_ANSWERS: Final = _among((EventKind.UPDATE_COMPLETED, EventKind.UPDATE_FAILED))
_FAILED: Final = _among(
    end for kind in STEP_KINDS for end, word in kind.ends.items() if word in ("failed", "timed_out", "broken")
)
_PAUSED, _RESUMED = int(EventKind.WORKFLOW_EXECUTION_PAUSED), int(EventKind.WORKFLOW_EXECUTION_RESUMED)

# A step is known by the id of the event that begins it. Events that belong together share a key: the number of a
# command, or the negative id of an event that no command wrote. Attempts are in one group with their activity; busy
# time is the length of what is covered by work, however much of it overlaps.
TIMELINE: Final = f"""
    with run as materialized (
        select state, workflow_name, workflow_id, started_at, closed_at, clock_timestamp() as as_of,
               coalesce(closed_at, clock_timestamp()) as until
          from harvest_executions where execution_id = $1
    ),
    events as materialized (
        select event_id, kind, at,
               case when kind in {_BY_EVENT} then -event_id
                    when kind in {_ANSWERS} then -seq
                    when kind = {_RESUMED} then -(
                        select max(p.event_id) from harvest_events p
                         where p.execution_id = $1 and p.event_id < v.event_id and p.kind = {_PAUSED})
                    else seq end as key
          from harvest_events v where execution_id = $1 and kind in {_ALL}
    ),
    grouped as (
        select key, min(event_id) filter (where kind in {_BEGINS}) as step,
               min(event_id) filter (where kind in {_ENDS}) as ending,
               min(at) filter (where kind = {int(ATTEMPT)}) as tried_at,
               count(*) filter (where kind = {int(ATTEMPT)}) as attempts
          from events group by key
    ),
    steps as materialized (
        select g.step, b.kind, g.key, b.at as started_at, c.at as ended_at, c.kind as ended_by, g.tried_at, g.attempts
          from grouped g
          join events b on b.event_id = g.step
          left join events c on c.event_id = g.ending
    ),
    work as (
        select begun, ended, max(ended) over (
                   order by begun, ended rows between unbounded preceding and 1 preceding) as covered
          from (select case when s.kind = {int(EventKind.ACTIVITY_SCHEDULED)} then s.tried_at else s.started_at end
                           as begun,
                       coalesce(s.ended_at, r.until) as ended
                  from steps s cross join run r where s.kind in {_WORKS}) each
         where begun is not null
    ),
    totals as (
        select count(*) as total,
               count(*) filter (where ended_at is null and kind not in {_INSTANTS}) as open,
               count(*) filter (where ended_by in {_FAILED}) as failed,
               (select extract(epoch from sum(greatest(ended - greatest(begun, covered), interval '0')))
                  from work)::float8 as busy_seconds
          from steps
    ),
    shown as materialized (
        select * from steps where step > $2 and step < $3 order by step {{direction}} limit $4
    ),
    slowest as (
        select * from steps where ended_at is not null and kind in {_WORKS}
         order by ended_at - started_at desc, step limit {SLOWEST}
    )
    select r.state, r.workflow_name, r.workflow_id, r.started_at as run_started_at, r.closed_at, r.as_of, r.until,
           t.*, (select count(*) from steps
                       where step < coalesce((select min(step) from shown), $3) and step < $3) as steps_before,
           s.*, e.codec, e.head
      from run r cross join totals t
      left join (select *, false as slow from shown union all select *, true as slow from slowest) s on true
      left join lateral (
          select codec, substring(payload for {_HEAD}) as head from harvest_events v
           where v.execution_id = $1 and v.event_id = s.step limit 1) e on true
"""
_FORWARD: Final = TIMELINE.format(direction="asc")
_BACKWARD: Final = TIMELINE.format(direction="desc")
_BEYOND_ALL: Final = 2**31 - 1


class TimelineRows(Struct, frozen=True):
    """A window of steps in order, the slowest of all, and the figures of the whole in `run`."""

    run: Record
    steps: list[Record]
    slowest: list[Record]


async def timeline(
    store: Store, execution_id: UUID, *, after: int, before: int | None, limit: int
) -> TimelineRows | None:
    """Up to `limit` steps whose ids lie between two, both exclusive; with `before`, those next to it.

    None: the execution is not here.
    """
    sql = _FORWARD if before is None else _BACKWARD
    rows = await store.read.fetch(sql, execution_id, after, before or _BEYOND_ALL, limit)
    if not rows:
        return None
    found = [row for row in rows if row["step"] is not None]
    return TimelineRows(
        rows[0],
        sorted((row for row in found if not row["slow"]), key=lambda row: int(row["step"])),
        [row for row in found if row["slow"]],
    )
