"""Executions by the hundred thousand with attributes that many, few or only old ones have."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import asyncpg

from harvest.shards import Shards
from tests.operations.population import EPOCH

# Ids as they are minted: the shard, the milliseconds of the start, the rest random.
_ID: Final = """
    (lpad(to_hex($1::int), 4, '0') || substr(m.hex, 1, 8) || '8' || substr(m.hex, 9, 3) || '8'
        || substr(md5(n::text), 1, 15))::uuid
"""
_EXECUTIONS: Final = f"""
    insert into harvest_executions (execution_id, business_key, started_at, closed_at, next_event_id, version,
        partition, state, workflow_name, workflow_id)
    select {_ID}, md5('k' || n::text || $1::text)::uuid, m.at,
           case when s.state >= 10 then m.at + interval '1 minute' end, 12, 1, (n % 512)::smallint, s.state,
           case when n % 100 = 0 then 'type_' || (n / 100 % 7) else 'order_flow' end, 'w-' || n
    from generate_series($3::int, 1, -1) as n
    cross join lateral (
        select at, lpad(to_hex((extract(epoch from at) * 1000)::bigint), 11, '0') as hex
          from (select $2::timestamptz - n * interval '1 second' as at) a) m
    cross join lateral (select (case when n % 20 = 0 then 0 when n % 11 = 0 then 11 else 10 end)::smallint as state) s
"""
# One in four is of acme, one in ten thousand is vip, each has an order of its own; the oldest quarter is a campaign's.
_DETAILS: Final = f"""
    insert into harvest_execution_details (execution_id, input, search_attributes)
    select {_ID}, 'null', case when n % 5 <> 4 then
           jsonb_build_object('tenant', case when n % 4 = 0 then 'acme' else 't-' || n % 997 end,
                              'amount', n % 100000, 'order', 'o-' || n, 'paid', n % 3 = 0)
           || case when n % 10000 = 1 then '{{"vip": true}}' else '{{}}' end::jsonb
           || case when n > $3 / 4 * 3 then '{{"campaign": "spring"}}' else '{{}}' end::jsonb end
    from generate_series($3::int, 1, -1) as n
    cross join lateral (
        select lpad(to_hex((extract(epoch from $2::timestamptz - n * interval '1 second') * 1000)::bigint), 11, '0')
            as hex) m
"""
_TRIAGE: Final = """
    insert into harvest_triage (execution_id, owner, severity, actor)
    select execution_id, 'team_' || (row_number() over (order by execution_id) % 5), 'sev' || partition % 4 + 1, 'a'
      from harvest_executions where state = 11 and partition < 10
"""


async def add_searchable(shards: Shards, shard_id: int, count: int, *, newest: datetime = EPOCH) -> None:
    """Write `count` executions a second apart, the oldest first, and let the planner know of them."""
    connection: Any = await asyncpg.connect(shards.store(shard_id).url)
    try:
        await connection.execute("set synchronous_commit = off")
        for statement in (_EXECUTIONS, _DETAILS):
            await connection.execute(statement, shard_id, newest, count)
        await connection.execute(_TRIAGE)
        # The index takes new entries into a list of its own first, which each look would read from end to end.
        await connection.execute("select gin_clean_pending_list('harvest_execution_details_search')")
        await connection.execute("vacuum analyze")
    finally:
        await connection.close()
