"""What workers have registered: types with their schemas (answers 8). The read side."""

from __future__ import annotations

from typing import Final

from harvest.store.pool import Record
from harvest.store.store import Store

KNOWN_DAYS: Final = 7
# A definition whose writer is gone still has a worker when another of the same build has a lease.
FRESH_SECONDS: Final = 60

_REGISTERED: Final = f"""
    select d.kind, d.name, d.version, d.build, d.input_schema, d.output_schema, d.signals, d.description, d.seen_at,
           exists (
               select from harvest_workers w
               where w.lease_until > clock_timestamp() and w.status = 'active'
                 and (w.worker = d.worker
                      or w.build = d.build and d.seen_at > clock_timestamp() - interval '{FRESH_SECONDS} seconds')
           ) as live
    from harvest_definitions d
    where d.seen_at > clock_timestamp() - interval '{KNOWN_DAYS} days'
    order by d.kind, d.name, d.version desc, d.seen_at desc
"""


async def registered(store: Store) -> list[Record]:
    """Every version and build that a worker of this shard had in the last seven days, newest version first."""
    return await store.read.fetch(_REGISTERED)
