"""Windows of a history by kinds of event, with the events that belong to those shown, and counts of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.store.pool import Record
from harvest.store.store import Store

BESIDE_SHOWN: Final = 4_000
_BEYOND_ALL: Final = 2**31 - 1
_COLUMNS: Final = (
    "event_id, kind, seq, at, codec, octet_length(payload) as bytes, "
    "case when octet_length(payload) <= $2 then payload else substring(payload for $2) end as payload"
)
_WINDOW: Final = f"""
    select {_COLUMNS} from harvest_events
     where execution_id = $1 and event_id > $3 and event_id < $4 and (kind = any($5::smallint[])) = $6
     order by event_id {{direction}} limit $7
"""
_FORWARD: Final = _WINDOW.format(direction="asc")
_BACKWARD: Final = _WINDOW.format(direction="desc")
_STANDING: Final = "select state, next_event_id - 1 as last_event_id from harvest_executions where execution_id = $1"
_COUNTS: Final = "select kind, count(*) as events from harvest_events where execution_id = $1 group by kind"
# Of the attempts of an activity, the last.
_BESIDE: Final = f"""
    select distinct on (kind, seq, by_id) * from (
        select {_COLUMNS}, case when event_id = any($7::int[]) then event_id end as by_id from harvest_events
         where execution_id = $1 and (
               (kind = any($3::smallint[]) and seq = any($4::int[]))
            or (kind = any($5::smallint[]) and seq = any($6::int[]))
            or event_id = any($7::int[]))
    ) each order by kind, seq, by_id, event_id desc limit {BESIDE_SHOWN}
"""


class WindowRows(Struct, frozen=True):
    """Events of a window, the run's state, the number of the last event of all, and how many are of each kind."""

    events: list[Record]
    state: int
    last_event_id: int
    counts: dict[int, int]


class Beside(Struct, frozen=True, kw_only=True):
    """Which events belong to those of a window: by the number of a command, by that of an update, by their own id."""

    kinds: Sequence[int]
    seqs: Sequence[int]
    update_kinds: Sequence[int] = ()
    update_seqs: Sequence[int] = ()
    event_ids: Sequence[int] = ()


async def window(
    store: Store,
    execution_id: UUID,
    *,
    kinds: Sequence[int],
    others: bool,
    after: int,
    before: int | None,
    limit: int,
    newest_first: bool,
    head: int,
) -> WindowRows | None:
    """Up to `limit` events between two ids, both exclusive, each cut to `head` bytes. None: the execution is not here.

    They are those of `kinds`, or with `others` those of all other kinds, of which this release need not know each.
    """
    async with store.read.connection() as connection:
        run = await connection.fetchrow(_STANDING, execution_id)
        if run is None:
            return None
        counted = await connection.fetch(_COUNTS, execution_id)
        sql = _BACKWARD if newest_first else _FORWARD
        end = _BEYOND_ALL if before is None else before
        events = await connection.fetch(sql, execution_id, head, after, end, list(kinds), not others, limit)
    return WindowRows(events, run["state"], run["last_event_id"], {row["kind"]: row["events"] for row in counted})


async def beside(store: Store, execution_id: UUID, wanted: Beside, *, head: int) -> list[Record]:
    """The events that belong to others; of several of a kind and number, the last."""
    rows: list[Record] = await store.read.fetch(
        _BESIDE,
        execution_id,
        head,
        list(wanted.kinds),
        list(wanted.seqs),
        list(wanted.update_kinds),
        list(wanted.update_seqs),
        list(wanted.event_ids),
    )
    return rows
