"""Which rows of a claim index a claim picks: by what its marks say, and in the exact order of answers 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from harvest.store.marks import Marks, Picked, Seek
from harvest.store.pool import Record

# Up to $3 rows a queue; to be formatted with a table, the columns of its key, and what else must hold of a row. Each
# seek is a range of the index; they are read one after the other, and none once there are enough rows (decision 0007).
# `ahead` is how far beyond now a due row may be sorted: what is put off for longer is not walked. Boundaries are of
# now(), which an index can use; what has become due meanwhile is for the next claim.
PICK: Final = """
    select p.*
      from unnest($1::text[]) as q(queue)
     cross join lateral (
        select x.*
          from unnest($4::text[], $5::int[], $6::int[], $7::timestamptz[], $8::boolean[]) with ordinality
               as s(queue, top, bottom, since, later, nth)
         cross join lateral (
            select * from (
                select {columns}, t.queue, t.priority, t.sort_at from {table} t
                 where s.since is not null and t.queue = s.queue and t.state = 0 and t.priority = s.top
                   and t.sort_at >= case when s.later then greatest(s.since, now()) else s.since end
                   and t.sort_at < case when s.later then now() + interval '{ahead}' else now() end
                   and t.due <= clock_timestamp() and t.strikes < 2 and {gate}
                 order by t.sort_at
                 limit $3
                   for update of t skip locked
            ) known
             union all
            select * from (
                select {columns}, t.queue, t.priority, t.sort_at from {table} t
                 where s.since is null and t.queue = s.queue and t.state = 0
                   and t.priority < s.top and t.priority > s.bottom and t.sort_at < now() + interval '{ahead}'
                   and t.due <= clock_timestamp() and t.strikes < 2 and {gate}
                 order by t.priority desc, t.sort_at
                 limit $3
                   for update of t skip locked
            ) unknown
         ) x
         where s.queue = q.queue
         order by s.nth
         limit $3
     ) p"""
# Work that was on a lost worker twice is taken alone, so that at the third time nobody else is struck.
PICK_SUSPECT: Final = """
    select {columns}, t.queue, t.priority, t.sort_at from {table} t
     where t.queue = any($1::text[]) and t.state = 0 and t.strikes = 2 and t.due <= clock_timestamp() and {gate}
     order by t.priority desc, t.sort_at
     limit $3
       for update of t skip locked"""
# What this worker had last, out of turn: 500 of them at most are looked at, whatever their order.
PICK_MATCHING: Final = """
    select {columns}, t.queue, t.priority, t.sort_at from {table} t
     where t.execution_id = any(array(
               select m.execution_id from {table} m where m.sticky_worker = $2 and m.state = 0 limit 500))
       and t.sticky_worker = $2 and t.queue = any($1::text[]) and t.state = 0 and t.strikes < 2
       and t.due <= clock_timestamp() and {gate}
     order by t.priority desc, t.sort_at
     limit $3
       for update of t skip locked"""
# By the worker of their session: a draining worker takes nothing else, and walks no queue for it.
PICK_OF_SESSIONS: Final = """
    select {columns}, t.queue, t.priority, t.sort_at from {table} t
     where t.session_worker = $2 and t.queue = any($1::text[]) and t.state = 0 and t.due <= clock_timestamp()
       and {gate}
     order by t.priority desc, t.sort_at
     limit $3
       for update of t skip locked"""


def columns(seeks: Sequence[Seek]) -> list[list[object]]:
    """The seeks as the arrays that a statement takes."""
    return [[getattr(seek, field) for seek in seeks] for field in Seek.__struct_fields__]


def note(marks: Marks, queues: Sequence[str], most: int, rows: Sequence[Record]) -> None:
    """Move the marks by the rows of a claim: each has `asked_at`, and the picked ones their place in the index."""
    picked = [
        Picked(row["queue"], row["priority"], row["sort_at"], taken=row["execution_id"] is not None)
        for row in rows
        if row["queue"] is not None
    ]
    marks.note(queues, most, rows[0]["asked_at"], picked)
