"""The runs of one chain, continued as new or tried again: which of them is the newest."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from harvest.store.store import Store

# The newest run that follows others in the chain of a row named `e`; null where nothing has followed the first. A
# successor is inserted by the statement that closes its predecessor, so the chain never looks ended while it goes on.
NEWEST: Final = """
    (select c.execution_id from harvest_executions c
      where c.first_execution_id = coalesce(e.first_execution_id, e.execution_id)
        and c.previous_execution_id is not null
      order by c.started_at desc limit 1)"""
_NEWEST: Final = f"select {NEWEST} as newest from harvest_executions e where e.execution_id = $1"


async def newest(store: Store, execution_id: UUID) -> UUID | None:
    """The newest run of the chain that the run belongs to; None where nothing has followed it, or it is not here."""
    rows = await store.write.fetch(_NEWEST, execution_id)
    found: UUID | None = rows[0]["newest"] if rows else None
    return found
