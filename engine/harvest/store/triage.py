"""Who looks after an execution, how bad it is, and a note: what people add to a run of any state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.store.audit import AuditEntry, audit_part, audit_values
from harvest.store.pool import Record
from harvest.store.store import Store

FIELDS: Final = ("owner", "severity", "note")

# Makes the row or locks the one that is there; one that stays empty is taken away again.
_MAKE: Final = """
    insert into harvest_triage (execution_id, actor)
    select execution_id, $2 from harvest_executions where execution_id = $1
    on conflict (execution_id) do update set actor = harvest_triage.actor
"""
_BEFORE: Final = """
    select t.owner, t.severity, t.note, e.partition
      from harvest_triage t join harvest_executions e using (execution_id)
     where t.execution_id = $1
"""
_CHANGE: Final = f"""
with changed as (
    update harvest_triage
       set owner = $2, severity = $3, note = $4, actor = $5, updated_at = clock_timestamp()
     where execution_id = $1
 returning execution_id
),
{audit_part(6, "changed")}
select from changed
"""
_TAKE_AWAY: Final = """
    delete from harvest_triage where execution_id = $1 and owner is null and severity is null and note is null
"""


class Triaged(Struct, frozen=True):
    """What a run's triage is after a change, which of its fields are others than before, and the run's partition."""

    owner: str | None
    severity: str | None
    note: str | None
    changed: tuple[str, ...]
    partition: int


async def change(
    store: Store, execution_id: UUID, given: Mapping[str, str | None], actor: str, audit: AuditEntry
) -> Triaged | None:
    """Set the fields that are given, None clears one; a change is audited in its transaction. None: no such run."""
    async with store.write.connection(writes=True) as connection, connection.transaction():
        await connection.execute(_MAKE, execution_id, actor)
        before: Record | None = await connection.fetchrow(_BEFORE, execution_id)
        if before is None:
            return None
        after = {name: given.get(name, before[name]) for name in FIELDS}
        changed = tuple(name for name in FIELDS if after[name] != before[name])
        if changed:
            values = [after[name] for name in FIELDS]
            await connection.fetch(_CHANGE, execution_id, *values, actor, *audit_values(audit))
        if all(value is None for value in after.values()):
            await connection.execute(_TAKE_AWAY, execution_id)
        return Triaged(**after, changed=changed, partition=before["partition"])
