"""What the overview says of one shard; every figure ends at a cap and comes from an index."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from harvest.history.states import FIRST_CLOSED, State
from harvest.store.pool import Record
from harvest.store.store import Store

CAP: Final = 10_000
_OLDEST: Final = " union all ".join(
    f"(select execution_id, workflow_name, started_at from harvest_executions where state = {int(state)} "
    "order by started_at, execution_id limit 1)"
    for state in State
    if state.is_open
)
FIGURES: Final = f"""
    select open.count as open, paused.count as paused, blocked.count as blocked, failed.count as failed,
           oldest.execution_id as oldest_id, oldest.workflow_name as oldest_name, oldest.started_at as oldest_at
    from (select count(*)
          from (select from harvest_executions where state < {FIRST_CLOSED} limit {CAP + 1}) o) open
    cross join (select count(*)
          from (select from harvest_executions where state = {int(State.PAUSED)} limit {CAP + 1}) p) paused
    cross join (select count(*)
          from (select from harvest_executions where blocked is not null limit {CAP + 1}) b) blocked
    cross join (select count(*)
          from (select from harvest_executions where state in ({int(State.FAILED)}, {int(State.TIMED_OUT)})
                and closed_at > clock_timestamp() - interval '24 hours' limit {CAP + 1}) f) failed
    left join lateral (select * from ({_OLDEST}) each_state order by started_at, execution_id limit 1) oldest on true
"""
_WORKERS: Final = """
    select worker, name, host, pid, build, queues, status, started_at, seen_at, slots, counters,
           lease_until > clock_timestamp() as alive
    from harvest_workers
    where lease_until > clock_timestamp() - interval '1 hour'
    order by lease_until desc limit 200
"""


class OverviewRows(Struct, frozen=True):
    """The figures of one shard and the workers that had a lease in the last hour."""

    figures: Record
    workers: list[Record]


async def overview(store: Store) -> OverviewRows:
    """Read the figures and the workers on one connection."""
    async with store.read.connection() as connection:
        return OverviewRows(await connection.fetchrow(FIGURES), await connection.fetch(_WORKERS))
