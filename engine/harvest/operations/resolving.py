"""From a business key to the execution it means: the open run, else the newest (reference 4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from harvest.errors import ExecutionNotFoundError
from harvest.history.ids import business_key
from harvest.history.limits import WORKFLOW_ID_BYTES, check_text
from harvest.history.states import FIRST_CLOSED
from harvest.shards import Shards
from harvest.store import reads
from harvest.store.store import Store


async def resolve(shards: Shards, workflow_name: str, workflow_id: str, *, tenant: str = "default") -> UUID:
    """The open run of (name, id), else the newest one. Every shard is asked.

    Raises ExecutionNotFoundError when all answered and none has it, UnknownExecutionError when a missing shard may
    have it, or may have a run that is still open.
    """
    check_text(workflow_name, what="workflow_name")
    check_text(workflow_id, what="workflow_id", most=WORKFLOW_ID_BYTES)
    key = business_key(tenant, workflow_name, workflow_id)

    async def read(store: Store) -> list[Mapping[str, Any]]:
        return list(await reads.by_key(store, key))

    answer = await shards.fan_out(read)
    best = max(
        answer.rows, key=lambda row: (row["state"] < FIRST_CLOSED, row["started_at"], row["execution_id"]), default=None
    )
    if best is None or best["state"] >= FIRST_CLOSED:
        answer.require_complete(f"an open run of {workflow_name} {workflow_id!r}")
    if best is None:
        raise ExecutionNotFoundError(
            f"there is no execution of {workflow_name} with the id {workflow_id!r}",
            workflow_name=workflow_name,
            workflow_id=workflow_id,
        )
    found: UUID = best["execution_id"]
    return found
