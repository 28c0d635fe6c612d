"""What people do while runs are being erased: erasures have connections of their own, and a hold waits a little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg

from harvest.errors import RunBusyError
from harvest.history.states import State
from harvest.operations import erasing, legal_holds
from harvest.operations.actor import Actor
from harvest.operations.auditing import AuditFilter, list_audit
from harvest.shards import Shards
from harvest.store.pool import ERASE, WRITE
from tests.operations.population import Run, add
from tests.support import eventually


async def ended(shards: Shards, workflow_id: str) -> UUID:
    return await add(shards, 0, Run(workflow_id=workflow_id, state=State.COMPLETED, input=b"1"))


@asynccontextmanager
async def locked(shards: Shards, runs: Sequence[UUID]) -> AsyncIterator[None]:
    """Runs of shard 0 are locked by somebody else, as an erasure locks them."""
    connection = await asyncpg.connect(shards.store(0).url)
    try:
        async with connection.transaction():
            await connection.execute(
                "select from harvest_executions where execution_id = any($1) for update", list(runs)
            )
            yield
    finally:
        await connection.close()


async def test_any_number_of_erasures_leaves_people_their_connections(shards: Shards, actor: Actor) -> None:
    runs = [await ended(shards, f"o-{n}") for n in range(WRITE.size + ERASE.size)]
    other = await ended(shards, "other")
    store = shards.store(0)
    async with locked(shards, runs):
        erasures = [asyncio.create_task(erasing.erase_payloads(shards, actor, run, reason="asked")) for run in runs]

        async def all_taken() -> bool:
            return store.erase.in_use == ERASE.size

        await eventually(all_taken)
        assert store.write.in_use == 0
        assert (await legal_holds.hold(shards, actor, other, reason="case 7")).newly_held
        assert not any(erasure.done() for erasure in erasures)
    done = await asyncio.gather(*erasures)
    assert all(each.run.newly_erased for each in done)


async def test_a_hold_waits_only_a_little_for_an_erasure_and_is_then_refused(shards: Shards, actor: Actor) -> None:
    held, run = await ended(shards, "held"), await ended(shards, "run")
    await legal_holds.hold(shards, actor, held, reason="case 7")
    async with locked(shards, [held, run]):
        refused = await asyncio.gather(
            legal_holds.hold(shards, actor, run, reason="case 8"),
            legal_holds.release(shards, actor, held),
            return_exceptions=True,
        )
        for error, execution_id in zip(refused, (run, held), strict=True):
            assert isinstance(error, RunBusyError)
            assert (error.status, error.retryable, error.fields) == (409, True, {"execution_id": str(execution_id)})
            assert "try again" in error.message
        assert shards.store(0).write.outage is None, "that a run is busy says nothing of its shard"
        for operation, execution_id in (("legal_hold.set", run), ("legal_hold.release", held)):
            newest = (await list_audit(shards, AuditFilter(target_id=str(execution_id)))).rows.rows[0]
            assert (newest.operation, newest.status) == (operation, "failed")
            assert "being erased" in (newest.error_summary or "")
    assert (await legal_holds.hold(shards, actor, run, reason="case 8")).newly_held
    assert await legal_holds.release(shards, actor, held)
