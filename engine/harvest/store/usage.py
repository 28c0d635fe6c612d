"""What runs have used in a window of time, by group: from durable rows alone, each counted where it happened.

One statement a shard. No payload is read. Starts are of the rows of executions, outcomes and activities of events,
language models of the ledger; which run belongs to which group is asked at the end, once for each run.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final

from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.store.store import Store

UNATTRIBUTED: Final = "(unattributed)"
# A server that takes the connection and never answers is found out by a question that costs nothing.
_ASK_SECONDS: Final = 2.0
_SCHEDULED, _STARTED = int(EventKind.ACTIVITY_SCHEDULED), int(EventKind.ACTIVITY_STARTED)
_COMPLETED, _FAILED, _TIMED_OUT = (
    int(kind) for kind in (EventKind.ACTIVITY_COMPLETED, EventKind.ACTIVITY_FAILED, EventKind.ACTIVITY_TIMED_OUT)
)
_ENDED: Final = f"({_COMPLETED}, {_FAILED}, {_TIMED_OUT})"
_OUTCOMES: Final = {
    "completed": int(EventKind.WORKFLOW_COMPLETED),
    "failed": int(EventKind.WORKFLOW_FAILED),
    "cancelled": int(EventKind.WORKFLOW_CANCELLED),
    "timed_out": int(EventKind.WORKFLOW_EXECUTION_TIMED_OUT),
}
_KINDS: Final = f"({', '.join(map(str, (*_OUTCOMES.values(), _STARTED, _COMPLETED, _FAILED, _TIMED_OUT)))})"
_LEDGER: Final = ("input_tokens", "output_tokens", "cost_usd_micros", "latency_ms")

# The last start of an activity that ended in the window is mostly in the window too, and else found by walking back in
# its history as far as to where it was scheduled. Two clocks have stamped it: what took nothing may seem to take less.
_STEPS: Final = f"""
with steps as (
    select execution_id, seq,
           {", ".join(f"count(*) filter (where kind = {kind}) as {name}" for name, kind in _OUTCOMES.items())},
           count(*) filter (where kind = {_STARTED}) as begun,
           max(at) filter (where kind = {_STARTED}) as begun_at,
           max(at) filter (where kind in {_ENDED}) as ended_at,
           max(event_id) filter (where kind in {_ENDED}) as end_id,
           bool_or(kind in ({_FAILED}, {_TIMED_OUT})) as without_result
      from harvest_events
     where at >= $1 and at <= $2 and kind in {_KINDS}
     group by execution_id, seq
),
spans as (
    select s.*, case when s.end_id is not null then coalesce(s.begun_at, b.at) end as last_begun_at
      from steps s
      left join lateral (
        select v.kind, v.at from harvest_events v
         where s.end_id is not null and s.begun_at is null
           and v.execution_id = s.execution_id and v.event_id < s.end_id
           and v.seq = s.seq and v.kind in ({_SCHEDULED}, {_STARTED})
         order by v.event_id desc limit 1
      ) b on b.kind = {_STARTED}
),
used as (
    select execution_id, 0 as starts, {", ".join(f"sum({name}) as {name}" for name in _OUTCOMES)},
           sum(begun) as begun,
           count(*) filter (where without_result and last_begun_at is not null) as failures,
           sum(greatest(extract(epoch from ended_at - last_begun_at), 0)) as seconds,
           0 as calls, 0 as input_tokens, 0 as output_tokens, 0 as cost_usd_micros, 0 as unpriced, 0 as latency_ms
      from spans group by execution_id
     union all
    select execution_id, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
      from harvest_executions where started_at >= $1 and started_at <= $2
     union all
    select execution_id, 0, 0, 0, 0, 0, 0, 0, 0, count(*), sum(input_tokens), sum(output_tokens), sum(cost_usd_micros),
           count(*) - count(cost_usd_micros), sum(latency_ms)
      from harvest_cost_ledger where recorded_at >= $1 and recorded_at <= $2 group by execution_id
)
select {{name}} as name, sum(starts)::bigint as workflow_starts,
       {", ".join(f"coalesce(sum(u.{name}), 0)::bigint as {name}" for name in _OUTCOMES)},
       sum(begun)::bigint as activity_executions, sum(failures)::bigint as activity_executions_failed,
       (coalesce(sum(seconds), 0) * 1000000)::bigint as activity_compute_micros,
       sum(calls)::bigint as llm_calls, sum(unpriced)::bigint as llm_unpriced_calls,
       {", ".join(f"coalesce(sum({name}), 0)::bigint as llm_{name}" for name in _LEDGER)}
  from used u {{of_group}}
 group by 1
 limit {{most}}"""
_BY_TYPE: Final = ("e.workflow_name", "left join harvest_executions e on e.execution_id = u.execution_id")
_BY_ATTRIBUTE: Final = (
    "d.search_attributes ->> $3",
    "left join harvest_execution_details d on d.execution_id = u.execution_id",
)


class Used(Struct, frozen=True, kw_only=True):
    """What the runs of one group have used on one shard. Sums can be added; compute time is in microseconds."""

    name: str
    workflow_starts: int
    completed: int
    failed: int
    cancelled: int
    timed_out: int
    activity_executions: int
    activity_executions_failed: int
    activity_compute_micros: int
    llm_calls: int
    llm_input_tokens: int
    llm_output_tokens: int
    llm_cost_usd_micros: int
    llm_unpriced_calls: int
    llm_latency_ms: int


def statement(attribute: str | None, most: int) -> str:
    """The report's SQL. Its parameters are the first and the last instant, and the name of the attribute if any."""
    name, of_group = _BY_TYPE if attribute is None else _BY_ATTRIBUTE
    return _STEPS.format(name=f"coalesce({name}, '{UNATTRIBUTED}')", of_group=of_group, most=most)


async def used(store: Store, since: datetime, until: datetime, attribute: str | None, most: int) -> list[Used]:
    """What happened from `since` to `until`, both included, by workflow type or by a search attribute's text.

    Groups in no order, `most` of them at most. Raises ShardUnavailableError, also where it takes too long.
    """
    values = [since, until] if attribute is None else [since, until, attribute]
    async with store.report.connection() as connection:
        async with asyncio.timeout(_ASK_SECONDS):
            await connection.fetchval("select 1")
        rows = await connection.fetch(statement(attribute, most), *values)
    return [Used(**dict(row)) for row in rows]
