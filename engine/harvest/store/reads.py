"""Reads of one execution: the row, its payloads, what it has under way, its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.history.states import FIRST_CLOSED
from harvest.store.appends import ONCE_KEY
from harvest.store.pool import Record
from harvest.store.store import Store

PENDING_SHOWN: Final = 200

EXECUTION_COLUMNS: Final = (
    "execution_id, workflow_name, workflow_id, version, state, partition, queue, build, parent_id, root_id, "
    "first_execution_id, previous_execution_id, started_at, closed_at, deadline_at, next_event_id, waiting, blocked"
)


def _capped(column: str) -> str:
    """The column up to $2 bytes, else its first $3, and its size: a large value never leaves the database whole."""
    return (
        f"case when octet_length(d.{column}) <= $2 then d.{column} else substring(d.{column} for $3) end as {column}, "
        f"octet_length(d.{column}) as {column}_bytes"
    )


def _served(queue: str) -> str:
    """Whether a living worker takes work from a queue; there are a handful of workers."""
    return (
        "exists (select from harvest_workers w where w.lease_until > clock_timestamp() and w.status = 'active' "
        f"and {queue} = any(w.queues))"
    )


_DETAIL: Final = f"""
    select {", ".join("e." + name.strip() for name in EXECUTION_COLUMNS.split(","))},
           d.blocked as blocked_details, d.failure, d.codec,
           (select state from harvest_workflow_tasks t where t.execution_id = e.execution_id) as task_state,
           {_served("e.queue")} as queue_served,
           (select created_at from harvest_dedupe x where x.execution_id = e.execution_id and x.kind = {ONCE_KEY}
              and x.key = '{EventKind.WORKFLOW_CANCEL_REQUESTED.word}') as cancel_requested_at,
           {_capped("input")}, {_capped("result")}, {_capped("memo")}
    from harvest_executions e left join harvest_execution_details d using (execution_id)
    where e.execution_id = $1
"""
_ACTIVITIES: Final = f"""
    select a.seq, a.name, a.queue, a.attempt, a.state, a.scheduled_at, a.started_at, a.due, a.cancel_requested,
           a.last_failure, case when a.state = 1 and h.attempt = a.attempt then h.at end as heartbeat_at,
           substring(h.details for $2) as heartbeat_head,
           {_served("a.queue")} as queue_served,
           case when a.state = 1 then least(
               a.schedule_to_close_at, a.started_at + a.start_to_close * interval '1 second',
               coalesce(case when h.attempt = a.attempt then h.at end, a.started_at)
                   + a.heartbeat * interval '1 second')
           else a.timeout_at end as timeout_at
    from harvest_activity_tasks a left join harvest_heartbeats h using (execution_id, seq)
    where a.execution_id = $1 order by a.seq limit {PENDING_SHOWN + 1}
"""
_TIMERS: Final = f"""
    select seq, fires_at from harvest_timers where execution_id = $1 order by seq limit {PENDING_SHOWN + 1}
"""


class DetailRows(Struct, frozen=True):
    """One execution's row with its payloads, and the rows of its open activities and timers."""

    execution: Record
    activities: list[Record]
    timers: list[Record]


async def detail(store: Store, execution_id: UUID, *, inline: int, head: int) -> DetailRows | None:
    """One execution with what it has under way; payloads over `inline` bytes are cut to `head`. None: not here."""
    async with store.read.connection() as connection:
        row = await connection.fetchrow(_DETAIL, execution_id, inline, head)
        if row is None:
            return None
        if row["state"] >= FIRST_CLOSED:
            return DetailRows(row, [], [])
        activities = await connection.fetch(_ACTIVITIES, execution_id, head)
        timers = await connection.fetch(_TIMERS, execution_id)
        return DetailRows(row, activities, timers)


# What the open runs of a page wait for, at most five activities and the next timer of each; only those whose hot row
# does not say are asked for (answers 13).
_WAITING: Final = """
    select e.execution_id, a.names, t.fires_at, d.blocked
    from unnest($1::uuid[]) as e(execution_id)
    cross join lateral (
        select array_agg(name order by seq) as names from (
            select name, seq from harvest_activity_tasks x where x.execution_id = e.execution_id order by seq limit 5
        ) first_ones) a
    cross join lateral (
        select min(fires_at) as fires_at from (
            select fires_at from harvest_timers x where x.execution_id = e.execution_id limit 2000) under_way) t
    left join lateral (
        select blocked from harvest_execution_details x where x.execution_id = e.execution_id) d on true
"""


async def waiting(store: Store, execution_ids: Sequence[UUID]) -> dict[UUID, Any]:
    """For each of a page's open runs: names of its activities, its next timer and what blocks it. One statement."""
    rows: list[Any] = await store.read.fetch(_WAITING, list(execution_ids))
    return {row["execution_id"]: row for row in rows}


_HISTORY: Final = """
    select event_id, kind, seq, at, codec, octet_length(payload) as bytes,
           case when octet_length(payload) <= $5 then payload else substring(payload for $6) end as payload
    from harvest_events
    where execution_id = $1 and event_id > $2 and event_id < $3
    order by event_id {direction} limit $4
"""
_FORWARD: Final = _HISTORY.format(direction="asc")
_BACKWARD: Final = _HISTORY.format(direction="desc")
_LAST_EVENT: Final = "select next_event_id - 1 from harvest_executions where execution_id = $1"
_BEYOND_ALL: Final = 2**31 - 1


class HistoryRows(Struct, frozen=True):
    """A window of a history, and the number of its last event."""

    events: list[Record]
    last_event_id: int


async def history(
    store: Store,
    execution_id: UUID,
    *,
    after: int,
    before: int | None,
    limit: int,
    newest_first: bool,
    inline: int,
    head: int,
) -> HistoryRows | None:
    """Up to `limit` events between two event ids, both exclusive. None: the execution is not here."""
    async with store.read.connection() as connection:
        last = await connection.fetchval(_LAST_EVENT, execution_id)
        if last is None:
            return None
        rows = await connection.fetch(
            _BACKWARD if newest_first else _FORWARD, execution_id, after, before or _BEYOND_ALL, limit, inline, head
        )
        return HistoryRows(rows, last)


async def event_payload(store: Store, execution_id: UUID, event_id: int) -> Record | None:
    """`payload` and `codec` of one event, whole. None: there is no such event here."""
    return await store.read.fetch_row(
        "select payload, codec from harvest_events where execution_id = $1 and event_id = $2", execution_id, event_id
    )


_DETAIL_PAYLOAD: Final = {
    name: f"select {name} as payload, codec from harvest_execution_details where execution_id = $1"
    for name in ("input", "result", "memo")
}
DETAIL_PAYLOADS: Final = tuple(_DETAIL_PAYLOAD)


async def detail_payload(store: Store, execution_id: UUID, name: str) -> Record | None:
    """`payload` (may be null) and `codec` of an execution's input, result or memo. None: it is not here."""
    return await store.read.fetch_row(_DETAIL_PAYLOAD[name], execution_id)


_OUTCOME: Final = """
    select e.state, e.closed_at, d.result, d.codec, d.failure,
           (select payload from harvest_events v
            where v.execution_id = e.execution_id and v.event_id = e.next_event_id - 1 and e.state = $2) as last_event
    from harvest_executions e left join harvest_execution_details d using (execution_id)
    where e.execution_id = $1
"""


async def outcome(store: Store, execution_id: UUID, continued: int) -> Record | None:
    """State, result and failure; the last event too when the state is `continued`. None: it is not here."""
    return await store.read.fetch_row(_OUTCOME, execution_id, continued)


async def closed_among(store: Store, execution_ids: Sequence[UUID]) -> list[UUID]:
    """Which of the executions have ended or are not here (any more): those whose waiters must look again."""
    rows: list[Any] = await store.read.fetch(
        "select execution_id from harvest_executions where execution_id = any($1) and state < $2",
        list(execution_ids),
        FIRST_CLOSED,
    )
    still_open = {row["execution_id"] for row in rows}
    return [execution_id for execution_id in execution_ids if execution_id not in still_open]


_BY_KEY: Final = """
    (select execution_id, state, started_at from harvest_executions where business_key = $1 and state < $2 limit 1)
    union all
    (select execution_id, state, started_at from harvest_executions where business_key = $1
     order by started_at desc, execution_id desc limit 1)
"""


async def by_key(store: Store, business_key: UUID) -> list[Record]:
    """The open run of a business key, if there is one, and the newest run: execution_id, state, started_at."""
    rows: list[Any] = await store.read.fetch(_BY_KEY, business_key, FIRST_CLOSED)
    return rows
