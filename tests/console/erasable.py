"""Runs with personal data in them, as rows."""

from __future__ import annotations

from uuid import UUID

from msgspec import Raw

from harvest.history.data import WorkflowCompleted, WorkflowStarted
from harvest.history.ids import mint_execution_id
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.shards import Shards
from tests.operations.population import Happened, Run, add, add_history

SECRET = "ann@example.com"
_TEXT = f'"{SECRET}"'.encode()


async def ended(shards: Shards, shard_id: int = 0, *, parent: UUID | None = None, workflow_id: str = "o-1") -> UUID:
    """A run that has ended, with a secret in its input, its result and its memo."""
    run = Run(
        workflow_id=workflow_id,
        state=State.COMPLETED,
        input=_TEXT,
        result=_TEXT,
        memo=_TEXT,
        events=2,
        parent_id=parent,
    )
    execution_id = await add(shards, shard_id, run)
    begun = WorkflowStarted(workflow_name="order_flow", workflow_id=workflow_id, version=1, seed=1, input=Raw(_TEXT))
    history = [
        Happened(EventKind.WORKFLOW_STARTED, 0, data=begun),
        Happened(EventKind.WORKFLOW_COMPLETED, 1, data=WorkflowCompleted(output=Raw(_TEXT))),
    ]
    await add_history(shards, execution_id, history)
    return execution_id


async def under_way(shards: Shards, execution_id: UUID) -> None:
    """Let the run have something to tell another that has not arrived."""
    await shards.store_of(execution_id).write.write(
        "insert into harvest_deliveries (kind, source_execution_id, source_seq, target_execution_id, target_shard, "
        "payload) values (1, $1, 1, $2, 0, '{}')",
        execution_id,
        mint_execution_id(0),
    )


async def tamper(shards: Shards, execution_id: UUID) -> None:
    """Write a value back into the first event of a run."""
    await shards.store_of(execution_id).write.write(
        "update harvest_events set payload = $2 where execution_id = $1 and event_id = 1", execution_id, _TEXT
    )
