"""Families of runs, and histories, as rows for pages to show."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import msgspec
from litestar.testing import AsyncTestClient

from harvest.history.data import ActivityScheduled, ActivityStarted, WorkflowStarted
from harvest.history.kinds import EventKind
from harvest.history.states import State
from harvest.shards import Shards
from harvest_console.app import create_app
from tests.console.conftest import ADDRESS, DEAD, Client, settings
from tests.operations.population import Happened, Run, add, add_history

BEGUN = Happened(EventKind.WORKFLOW_STARTED, data=WorkflowStarted("order_flow", "o-1", 1, 1))


def activity(seq: int, at: float, *, name: str = "charge", took: float | None = 1.0) -> list[Happened]:
    """An activity that is asked for, tried a tenth of a second later, and completed after `took` seconds if at all."""
    events = [
        Happened(EventKind.ACTIVITY_SCHEDULED, at, seq, ActivityScheduled(name, "d")),
        Happened(EventKind.ACTIVITY_STARTED, at + 0.1, seq, ActivityStarted(1, "worker b")),
    ]
    return events if took is None else [*events, Happened(EventKind.ACTIVITY_COMPLETED, at + took, seq)]


async def run_with(shards: Shards, events: Sequence[Happened], run: Run | None = None, *, shard_id: int = 0) -> UUID:
    """A run with these events after its start, and a workflow id of its own unless it has one."""
    run = run or Run()
    if run.workflow_id == Run().workflow_id:
        run = msgspec.structs.replace(run, workflow_id=f"o-{uuid4()}")
    execution_id = await add(shards, shard_id, run)
    await add_history(shards, execution_id, [BEGUN, *events])
    return execution_id


async def child_of(
    shards: Shards, parent_id: UUID, root_id: UUID, workflow_id: str, *, shard_id: int = 0, **more: object
) -> UUID:
    """A child that its parent waits for."""
    run = Run(workflow_name="ship_flow", workflow_id=workflow_id, parent_id=parent_id, awaited=True, close_policy=1)
    child = await add(shards, shard_id, msgspec.structs.replace(run, **more))
    await shards.store(shard_id).write.write(
        "update harvest_executions set root_id = $2 where execution_id = $1", child, root_id
    )
    return child


async def many_children(shards: Shards, parent_id: UUID, root_id: UUID, count: int, *, state: State) -> None:
    """Children by the hundred, half of them on each shard."""
    for shard_id in shards.stores:
        await shards.store(shard_id).write.write(
            """
            insert into harvest_executions (execution_id, business_key, started_at, closed_at, next_event_id, version,
                partition, state, workflow_name, workflow_id, parent_id, root_id, awaited, close_policy)
            select (lpad(to_hex($1::int), 4, '0') || substr(mixed, 5, 8) || '8' || substr(mixed, 14, 3) || '8'
                    || substr(mixed, 18, 15))::uuid, md5('c' || mixed)::uuid,
                   timestamptz '2026-05-01 12:00Z' + n * interval '1 second',
                   case when $5 >= 10 then timestamptz '2026-05-01 13:00Z' end, 2, 1, 1, $5, 'ship_flow',
                   'child-' || n, $2::uuid, $3::uuid, true, 1
              from generate_series(1, $4::int) n cross join lateral (select md5($2::uuid::text || n) as mixed) m
             where n % 2 = $1""",
            shard_id,
            parent_id,
            root_id,
            count,
            int(state),
        )


@asynccontextmanager
async def without_shard_1(shards: Shards) -> AsyncIterator[Client]:
    """A console that cannot reach the database of shard 1, signed in to."""
    app = create_app(settings({0: shards.store(0).url, 1: DEAD}))
    async with AsyncTestClient(app, base_url=ADDRESS) as inner:
        client = Client(inner)
        half = await Shards.open({0: shards.store(0).url})
        try:
            await client.sign_in(half)
        finally:
            await half.close()
        yield client
