"""A whole history, read in pages: what an export is made of."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from harvest.store.pool import Record
from harvest.store.store import Store

PAGE: Final = 500
_HEAD: Final = """
    select e.execution_id, workflow_name, workflow_id, version, state, tenant, queue, build, parent_id, root_id,
           first_execution_id, previous_execution_id, started_at, closed_at, next_event_id, decided_through,
           (select erased_at from harvest_erasures r where r.execution_id = e.execution_id) as erased_at,
           (select coalesce(sum(octet_length(payload)), 0) from harvest_events v
             where v.execution_id = e.execution_id) as payload_bytes
      from harvest_executions e where execution_id = $1
"""
_ERASED_AT: Final = "select erased_at from harvest_erasures where execution_id = $1"
EVENTS: Final = f"""
    select event_id, kind, format, codec, seq, at, payload from harvest_events
     where execution_id = $1 and event_id > $2 and event_id < $3 order by event_id limit {PAGE}
"""


async def head(store: Store, execution_id: UUID) -> Record | None:
    """The execution's row and the size of its history. None: it is not here."""
    return await store.read.fetch_row(_HEAD, execution_id)


async def erased_at(store: Store, execution_id: UUID) -> datetime | None:
    """When the execution was erased, as of now."""
    row = await store.read.fetch_row(_ERASED_AT, execution_id)
    return None if row is None else row["erased_at"]


async def events(store: Store, execution_id: UUID, after: int, before: int) -> list[Record]:
    """The next page of events between two event ids, both exclusive."""
    rows: list[Any] = await store.read.fetch(EVENTS, execution_id, after, before)
    return rows
