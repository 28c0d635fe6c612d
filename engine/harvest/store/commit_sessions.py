"""The parts of a commit's statement that concern worker sessions. Every write is joined on what passed."""

from __future__ import annotations

from typing import Final

SESSIONS, ENDS, PINS = 6, 1, 4
OPENED: Final = """,
new_sessions as (
    insert into harvest_worker_sessions (session_id, execution_id, seq, queue, expires_at, execution_timeout)
    select n.session_id, n.execution_id, n.seq, n.queue,
           clock_timestamp() + n.creation_timeout * interval '1 second', n.execution_timeout
      from unnest({0}::uuid[], {1}::uuid[], {2}::int[], {3}::text[], {4}::float8[], {5}::float8[])
        as n(session_id, execution_id, seq, queue, creation_timeout, execution_timeout)
      join written w on w.execution_id = n.execution_id and w.state < 10
)"""
ENDED: Final = """,
closed_sessions as (
    update harvest_worker_sessions s set status = 'closed', ended_at = clock_timestamp()
     where s.session_id = any({0}::uuid[]) and s.execution_id = any(array(select execution_id from written))
)"""
PIN_COLUMNS: Final = ", session_id, session_worker"
PIN_VALUES: Final = ", p.session_id, p.session_worker"
PINNED: Final = """
      left join unnest({0}::uuid[], {1}::int[], {2}::uuid[], {3}::uuid[])
        as p(execution_id, seq, session_id, session_worker) on p.execution_id = n.execution_id and p.seq = n.seq"""
