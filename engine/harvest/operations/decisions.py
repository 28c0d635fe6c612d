"""How the last decisions of one execution went: when each step of them was done, from what, and why not from memory."""

from __future__ import annotations

from uuid import UUID

from msgspec import Struct

from harvest.errors import ExecutionNotFoundError
from harvest.history.ids import ExecutionId
from harvest.shards import Shards
from harvest.store import decisions as rows
from harvest.store.decisions import DecisionRecord


class DecisionAttempt(DecisionRecord, frozen=True, kw_only=True):
    """An attempt as people read it, with the worker that made it."""

    worker: UUID
    worker_name: str


class Decisions(Struct, frozen=True, kw_only=True):
    """The last attempts to decide an execution that were kept, oldest first, `most` at most.

    They are kept for a day, and not over a crash of the database server.
    """

    execution_id: UUID
    attempts: list[DecisionAttempt]
    most: int


async def decisions(shards: Shards, execution_id: UUID) -> Decisions:
    """Read the ring of one execution. Raises ExecutionNotFoundError, ShardUnavailableError."""
    store = shards.store_of(ExecutionId(int=execution_id.int))
    found = await rows.read(store, execution_id)
    if found is None:
        raise ExecutionNotFoundError(f"execution {execution_id} does not exist", execution_id=str(execution_id))
    # In the order of time, whoever numbered them.
    numbers = sorted(row["number"] for row in found)
    return Decisions(
        execution_id=execution_id,
        attempts=[
            DecisionAttempt(**{name: row[name] for name in DecisionAttempt.__struct_fields__} | {"number": number})
            for number, row in zip(numbers, found, strict=True)
        ],
        most=rows.MOST,
    )
