"""Reads of one execution: the row, its payloads, what it has under way, its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.history.states import FIRST_CLOSED, State
from harvest.store.appends import ONCE_KEY
from harvest.store.chains import NEWEST
from harvest.store.pool import Record
from harvest.store.store import Store
from harvest.store.workers import SERVES_WORKFLOW

PENDING_SHOWN: Final = 200

EXECUTION_COLUMNS: Final = (
    "execution_id, workflow_name, workflow_id, version, state, partition, queue, build, parent_id, root_id, "
    "first_execution_id, previous_execution_id, started_at, closed_at, deadline_at, next_event_id, waiting, blocked, "
    "awaited, close_policy"
)


def _capped(column: str, name: str = "") -> str:
    """The column up to $2 bytes, else its first $3, and its size: a large value never leaves the database whole."""
    name = name or column
    return (
        f"case when octet_length(d.{column}) <= $2 then d.{column} else substring(d.{column} for $3) end as {name}, "
        f"octet_length(d.{column}) as {name}_bytes"
    )


def _served(queue: str) -> str:
    """Whether a living worker takes work from a queue; there are a handful of workers."""
    return (
        "exists (select from harvest_workers w where w.lease_until > clock_timestamp() and w.status = 'active' "
        f"and {queue} = any(w.queues))"
    )


_DETAIL: Final = f"""
    select {", ".join("e." + name.strip() for name in EXECUTION_COLUMNS.split(","))},
           d.blocked as blocked_details, d.failure, d.codec, d.search_attributes, t.owner, t.severity, t.note,
           (select state from harvest_workflow_tasks t where t.execution_id = e.execution_id) as task_state,
           {_served("e.queue")} as queue_served,
           {SERVES_WORKFLOW.format(name="e.workflow_name", version="e.version")} as definition_served,
           (select created_at from harvest_dedupe x where x.execution_id = e.execution_id and x.kind = {ONCE_KEY}
              and x.key = '{EventKind.WORKFLOW_CANCEL_REQUESTED.word}') as cancel_requested_at,
           case when e.state >= {FIRST_CLOSED} then (
               select execution_id from harvest_executions n
                where n.first_execution_id = coalesce(e.first_execution_id, e.execution_id)
                  and n.previous_execution_id = e.execution_id and n.started_at >= e.started_at
                order by n.started_at limit 1) end as next_execution_id,
           {_capped("input")}, {_capped("result")}, {_capped("memo")}, {_capped("details", "current_details")}
    from harvest_executions e left join harvest_execution_details d using (execution_id)
    left join harvest_triage t using (execution_id)
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
_CHILDREN: Final = f"""
    select c.seq, c.child_execution_id, c.awaited, c.close_policy, e.workflow_name, e.workflow_id
    from harvest_children c
    left join harvest_executions e on e.execution_id = c.child_execution_id
    where c.parent_execution_id = $1 order by c.seq limit {PENDING_SHOWN + 1}
"""
# What a child was asked to be, from its parent's history: its own row may be on another shard, or nowhere yet.
_CHILDREN_TOLD: Final = f"""
    select event_id, kind, seq, at, codec, octet_length(payload) as bytes, substring(payload for $3) as payload
    from harvest_events
    where execution_id = $1 and seq = any($2::integer[])
      and kind in ({int(EventKind.CHILD_WORKFLOW_STARTED)}, {int(EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED)})
"""
_PAUSED: Final = f"""
    select at, payload from harvest_events
    where execution_id = $1 and kind = {int(EventKind.WORKFLOW_EXECUTION_PAUSED)} order by event_id desc limit 1
"""


class DetailRows(Struct, frozen=True):
    """One execution's row with its payloads, the rows of what is under way, and of a paused run the event of that.

    `children_told` are the events that asked for those children whose own rows are not on this shard.
    """

    execution: Record
    activities: list[Record] = []
    timers: list[Record] = []
    children: list[Record] = []
    paused: Record | None = None
    children_told: list[Record] = []


async def detail(store: Store, execution_id: UUID, *, inline: int, head: int, event_head: int) -> DetailRows | None:
    """One execution with what it has under way; payloads over `inline` bytes are cut to `head`. None: not here.

    Of the events of its children there are the first `event_head` bytes.
    """
    async with store.read.connection() as connection:
        row = await connection.fetchrow(_DETAIL, execution_id, inline, head)
        if row is None:
            return None
        if row["state"] >= FIRST_CLOSED:
            return DetailRows(row)
        activities = await connection.fetch(_ACTIVITIES, execution_id, head)
        timers = await connection.fetch(_TIMERS, execution_id)
        children = await connection.fetch(_CHILDREN, execution_id)
        paused = await connection.fetchrow(_PAUSED, execution_id) if row["state"] == State.PAUSED else None
        elsewhere = [child["seq"] for child in children if child["workflow_name"] is None]
        told = await connection.fetch(_CHILDREN_TOLD, execution_id, elsewhere, event_head) if elsewhere else []
        return DetailRows(row, activities, timers, children, paused, told)


# What the rows of a page have beside the hot row: search attributes, triage, what blocks them, and what open ones wait
# for (answers 13): at most five activities, the next timer, at most five children whose end they wait for.
BESIDE: Final = """
    select e.execution_id, a.names, t.fires_at, c.children, d.blocked, d.search_attributes, r.owner, r.severity
    from unnest($1::uuid[]) as e(execution_id)
    cross join lateral (
        select array_agg(name order by seq) as names from (
            select name, seq from harvest_activity_tasks x where x.execution_id = e.execution_id order by seq limit 5
        ) first_ones) a
    cross join lateral (
        select min(fires_at) as fires_at from (
            select fires_at from harvest_timers x where x.execution_id = e.execution_id limit 2000) under_way) t
    cross join lateral (
        select array_agg(y.workflow_name) as children from (
            select child_execution_id from harvest_children x
             where x.parent_execution_id = e.execution_id and x.awaited limit 5) awaited
        left join harvest_executions y on y.execution_id = awaited.child_execution_id) c
    left join lateral (
        select blocked, search_attributes from harvest_execution_details x
         where x.execution_id = e.execution_id) d on true
    left join harvest_triage r on r.execution_id = e.execution_id
"""


async def beside(store: Store, execution_ids: Sequence[UUID]) -> dict[UUID, Any]:
    """For each run of a page: its activities, next timer and children, what blocks it, its attributes and triage."""
    rows: list[Any] = await store.read.fetch(BESIDE, list(execution_ids))
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
    name: f"select {column} as payload, codec from harvest_execution_details where execution_id = $1"
    for name, column in (
        ("input", "input"),
        ("result", "result"),
        ("memo", "memo"),
        ("current_details", "details"),
    )
}
DETAIL_PAYLOADS: Final = tuple(_DETAIL_PAYLOAD)


async def detail_payload(store: Store, execution_id: UUID, name: str) -> Record | None:
    """`payload` (may be null) and `codec` of an input, result, memo or current details. None: it is not here."""
    return await store.read.fetch_row(_DETAIL_PAYLOAD[name], execution_id)


_OUTCOME: Final = f"""
    select e.state, e.closed_at, d.result, d.codec, d.failure,
           (select payload from harvest_events v
            where v.execution_id = e.execution_id and v.event_id = e.next_event_id - 1
              and e.state = {State.CONTINUED_AS_NEW}) as continued,
           case when e.state in ({State.CONTINUED_AS_NEW}, {State.FAILED}) then {NEWEST} end as newest
    from harvest_executions e left join harvest_execution_details d using (execution_id)
    where e.execution_id = $1
"""


async def outcome(store: Store, execution_id: UUID) -> Record | None:
    """State, result and failure; of a run that continued as new its last event, `continued`. None: it is not here.

    `newest` is the newest run of the chain where this one may have gone on as another.
    """
    return await store.read.fetch_row(_OUTCOME, execution_id)


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


_RUNS_OF_KEY: Final = f"""
    select * from (
        (select execution_id, state, started_at, closed_at from harvest_executions
          where business_key = $1 and state < {FIRST_CLOSED})
        union all
        (select execution_id, state, started_at, closed_at from harvest_executions
          where business_key = $1 and state >= {FIRST_CLOSED}
          order by started_at desc, execution_id desc limit $2)
    ) found order by state < {FIRST_CLOSED} desc, started_at desc, execution_id desc limit $2
"""


async def runs_of_key(store: Store, business_key: UUID, most: int) -> list[Record]:
    """The open run of a business key and the newest others: execution_id, state, started_at, closed_at."""
    rows: list[Any] = await store.read.fetch(_RUNS_OF_KEY, business_key, most)
    return rows
