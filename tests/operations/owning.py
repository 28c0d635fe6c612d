"""Workers as owners of partitions, written straight into the tables."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

from harvest.store import partitions
from harvest.store.store import Store

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
