"""What workers have registered: types with their schemas (answers 8). The read side."""

from __future__ import annotations

from typing import Final

from harvest.store.pool import Record
from harvest.store.store import Store

KNOWN_DAYS: Final = 7
HAS_CODE: Final = """(w.worker = d.worker or w.build = d.build and case d.kind
               when 'workflow' then d.name || '/' || d.version = any(w.workflow_types)
               else d.name = any(w.activity_types) end)"""
"""Whether worker `w` has the code of definition `d`, which another of its build may have written last."""

_REGISTERED: Final = f"""
    select d.kind, d.name, d.version, d.build, d.input_schema, d.output_schema, d.signals, d.description, d.seen_at,
           exists (
               select from harvest_workers w
               where w.lease_until > clock_timestamp() and w.status = 'active' and {HAS_CODE}
           ) as live
    from harvest_definitions d
    where d.seen_at > clock_timestamp() - interval '{KNOWN_DAYS} days'
    order by d.kind, d.name, d.version desc, d.seen_at desc
"""


async def registered(store: Store) -> list[Record]:
    """Every version and build that a worker of this shard had in the last seven days, newest version first."""
    return await store.read.fetch(_REGISTERED)
