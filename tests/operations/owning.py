"""Workers as owners of partitions, written straight into the tables."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

from harvest.store import claims, partitions
from harvest.store.commit import Answer, Batch, commit
from harvest.store.store import Store
from tests.store.rows import decide, one

_OWNER = """
insert into harvest_workers (worker, name, host, pid, build, queues, slots, lease_until, workflow_slots, workflow_types,
                             activity_types, scanned_at)
values ($1, $2, 'h', 1, $3, $4, 10, clock_timestamp() + $5 * interval '1 second', $6, $7, $8,
        clock_timestamp() - $9 * interval '1 second')"""


async def an_owner(
    store: Store,
    name: str,
    *,
    build: str = "b1",
    queues: Sequence[str] = ("default",),
    lease: float = 3600.0,
    workflow_slots: int | None = 10,
    workflow_types: Sequence[str] = ("w/1",),
    activity_types: Sequence[str] = ("a",),
    scanned: float | None = -3600.0,
) -> UUID:
    """A worker whose owner loop was at work `scanned` seconds ago: by default it stays so for an hour. None: never."""
    worker = uuid4()
    kinds = list(workflow_types), list(activity_types)
    await store.scan.write(_OWNER, worker, name, build, list(queues), lease, workflow_slots, *kinds, scanned)
    return worker


async def switch_on(store: Store) -> None:
    """Owner mode without its guard, as far as owners look at it."""
    await store.scan.write("update harvest_meta set owner_mode = true, owner_mode_since = clock_timestamp()")


async def owning(store: Store, name: str, most: int) -> UUID:
    """An owner of so many partitions that were free."""
    worker = await an_owner(store, name)
    assert len(await partitions.acquire(store, worker, most)) == most
    return worker


async def end_lease(store: Store, worker: UUID) -> None:
    """Let the lease of a worker end now."""
    await store.scan.write(
        "update harvest_workers set lease_until = clock_timestamp() - interval '1 ms' where worker = $1", worker
    )


async def own(store: Store, worker: UUID, partition: int) -> int:
    """Make a worker the owner of one partition; answers the epoch."""
    epoch: int = await one(
        store,
        "update harvest_partitions set owner = $1, epoch = epoch + 1, acquired_at = clock_timestamp() "
        "where partition = $2 returning epoch",
        worker,
        partition,
    )
    return epoch


async def claimed(store: Store, worker: UUID, owned: dict[int, int] | None = None, generation: int = -1) -> list[UUID]:
    """Claim, as an owner with these epochs, or as anybody; generation -1 is never the present one."""
    owner = None if owned is None else claims.Owner.of(generation, owned)
    return [each.execution_id for each in await claims.claim(store, worker, ["default"], 10, owner=owner)]


async def commits(store: Store, worker: UUID, run: UUID, *, attempt: int = 1) -> bool:
    """Whether a decision of this holder passes."""
    batch = Batch()
    decide(batch, run, attempt=attempt)
    async with store.commit.connection(writes=True) as connection:
        return (await commit(store, connection, worker, batch))[run] is Answer.PASSED
