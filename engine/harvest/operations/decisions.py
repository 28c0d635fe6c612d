"""How the last decisions of one execution went: when each step of them was done, from what, and why not from memory."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import Struct

from harvest.errors import ExecutionNotFoundError
from harvest.history.ids import ExecutionId
from harvest.shards import Shards
from harvest.store import decisions as rows


class DecisionAttempt(Struct, frozen=True, kw_only=True):
    """One attempt to decide. A refused one that was tried again is one attempt, with the times of its last try.

    `number` counts the attempts of the run that were kept: under load not all are. `outcome`, `reason`, `source` and
    `answer` are words of DecisionOutcome, ColdReason, DecisionSource and DecisionAnswer; `reason` is empty for a hit.
    `events_loaded` and `bytes_loaded` are what was read of the history. `epoch` is the owner's, null in claim
    mode. Times are the database's, in the order of the fields: the run was woken, this worker heard of it, it took
    the run, had its events, had run its code, had sent the commit that checks the fence, and had its answer. The first
    two are null where nobody knows them.
    """

    number: int
    worker: UUID
    worker_name: str
    epoch: int | None
    outcome: str
    reason: str
    source: str
    answer: str
    events_loaded: int
    bytes_loaded: int
    woken_at: datetime | None
    notified_at: datetime | None
    taken_at: datetime
    loaded_at: datetime
    driven_at: datetime
    fence_checked_at: datetime
    committed_at: datetime


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
