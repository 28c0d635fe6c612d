"""Runs that go on as others, and answer updates, without an engine: what a worker commits, by the commit itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from harvest.history.data import (
    Failure,
    UpdateCompleted,
    UpdateFailed,
    WorkflowContinuedAsNew,
    WorkflowFailed,
    WorkflowStarted,
)
from harvest.history.events import encode_data
from harvest.history.ids import business_key, mint_execution_id, partition_of
from harvest.history.kinds import EventKind
from harvest.history.states import CLOSES_AS, State
from harvest.shards import Shards
from harvest.store.commit import PARKED, Answer, Batch, Successor, commit
from harvest.store.store import Store
from tests.store.rows import a_worker

_HOLD = """
update harvest_workflow_tasks t set state = 1, worker = $2, attempt = t.attempt + 1 from harvest_executions e
 where t.execution_id = $1 and t.state <> 4 and e.execution_id = t.execution_id
returning t.attempt, e.next_event_id, e.workflow_name, e.workflow_id"""


class Worker(Struct, frozen=True):
    """Decides what a test says on one shard."""

    store: Store
    id: UUID

    async def decide(
        self,
        execution_id: UUID,
        events: Sequence[tuple[EventKind, int, Struct]] = (),
        *,
        end: tuple[EventKind, Struct] | None = None,
        successor: Successor | None = None,
    ) -> Answer:
        """Commit events (kind, seq, data), perhaps with the run's end and the run that follows it."""
        (row,) = await self.store.scan.write(_HOLD, execution_id, self.id)
        batch = Batch()
        event_id = row["next_event_id"]
        for kind, seq, data in (*events, *([(end[0], 0, end[1])] if end else [])):
            batch.event(execution_id, event_id, int(kind), seq, None, encode_data(data))
            event_id += 1
        if end is not None:
            batch.close(execution_id, None, None)
        if successor is not None:
            batch.successor(execution_id, successor)
        batch.decision(
            execution_id,
            attempt=row["attempt"],
            expected=row["next_event_id"],
            next_event_id=event_id,
            state=int(State.RUNNING if end is None else CLOSES_AS[end[0]]),
            task_state=PARKED,
            merged=0,
            waiting=None,
        )
        async with self.store.commit.connection(writes=True) as connection:
            return (await commit(self.store, connection, self.id, batch))[execution_id]

    async def rotate(
        self, execution_id: UUID, *, failed: bool = False, carried: Sequence[tuple[EventKind, Struct]] = ()
    ) -> UUID:
        """Close a run as continued as new, or as failed to be tried again; returns the run that follows."""
        new = await self.try_to_rotate(execution_id, failed=failed, carried=carried)
        assert new is not None
        return new

    async def try_to_rotate(
        self, execution_id: UUID, *, failed: bool = False, carried: Sequence[tuple[EventKind, Struct]] = ()
    ) -> UUID | None:
        """The same; None where others have written meanwhile."""
        row = await self.store.scan.fetch_row(
            "select workflow_name, workflow_id, coalesce(first_execution_id, execution_id) as first "
            "from harvest_executions where execution_id = $1",
            execution_id,
        )
        assert row is not None
        new = UUID(int=mint_execution_id(self.store.shard_id).int)
        started = WorkflowStarted(
            workflow_name=row["workflow_name"],
            workflow_id=row["workflow_id"],
            version=1,
            seed=7,
            carried=len(carried),
            first_execution_id=str(row["first"]),
            previous_execution_id=str(execution_id),
        )
        end: tuple[EventKind, Struct] = (
            (EventKind.WORKFLOW_FAILED, WorkflowFailed(Failure(type="E", message="m"), retry_execution_id=str(new)))
            if failed
            else (EventKind.WORKFLOW_CONTINUED_AS_NEW, WorkflowContinuedAsNew(new_execution_id=str(new)))
        )
        successor = Successor(
            execution_id=new,
            business_key=business_key("default", row["workflow_name"], row["workflow_id"]),
            workflow_name=row["workflow_name"],
            workflow_id=row["workflow_id"],
            version=1,
            partition=partition_of(row["workflow_id"]),
            queue="default",
            started=encode_data(started),
            input=b"null",
            events=[(int(kind), encode_data(data)) for kind, data in carried],
            repoint=not failed,
        )
        answer = await self.decide(execution_id, end=end, successor=successor)
        return new if answer is Answer.PASSED else None

    async def answer(self, execution_id: UUID, *, admitted: int, update_id: str, output: bytes) -> None:
        """Answer an update that the run admitted with this event."""
        data = UpdateCompleted(update_id=update_id, output=Raw(output))
        assert await self.decide(execution_id, [(EventKind.UPDATE_COMPLETED, admitted, data)]) is Answer.PASSED

    async def refuse(self, execution_id: UUID, *, admitted: int, update_id: str, rejected: bool) -> None:
        """Refuse an update, or let its handler fail."""
        data = UpdateFailed(update_id=update_id, failure=Failure(type="Declined", message="no"), rejected=rejected)
        assert await self.decide(execution_id, [(EventKind.UPDATE_FAILED, admitted, data)]) is Answer.PASSED


async def worker_on(shards: Shards, shard_id: int) -> Worker:
    """A worker with a living lease on a shard."""
    store = shards.store(shard_id)
    return Worker(store, await a_worker(store))


async def events_of(shards: Shards, execution_id: UUID) -> list[tuple[EventKind, Any]]:
    """A run's history: kinds, and what they hold as plain values."""
    rows = await shards.store_of(execution_id).read.fetch(
        "select kind, payload from harvest_events where execution_id = $1 order by event_id", execution_id
    )
    return [(EventKind(row["kind"]), msgspec.json.decode(row["payload"])) for row in rows]


async def signals_of(shards: Shards, execution_ids: Sequence[UUID]) -> list[Any]:
    """The payloads of the signals in several histories, sorted as text."""
    found = []
    for execution_id in execution_ids:
        found += [
            data.get("payload")
            for kind, data in await events_of(shards, execution_id)
            if kind is EventKind.SIGNAL_RECEIVED
        ]
    return sorted(found, key=str)
