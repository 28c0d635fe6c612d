"""Liveness probes: every queue of every writable shard, cells included, is probed by a real run each 30 seconds.

A queue is probed where a living worker decides its runs, and `default` where none decides any. What was begun on a
shard that takes nothing new by now is still settled there.

A probe is inserted and woken as every start is, decided by whichever worker claims it, and removed once it has
completed: it is in no report and, but for some seconds, in no list. It is an act of nobody, so the audit log has none.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.history import payload
from harvest.history.built_in import CANARY
from harvest.history.ids import mint_execution_id
from harvest.shards import Partial, Placement, Shards
from harvest.shards.rounds import LAST_SECONDS, Rounds, failure_of_visit, why
from harvest.store import canary as rows
from harvest.store.canary import INTERVAL_SECONDS, CanaryRow
from harvest.store.starts import NewExecution, new_execution
from harvest.store.store import Store

TICK_SECONDS: Final = 2.0
SOON_SECONDS: Final = 0.5
"""After a probe has begun: it has most likely ended by then, and is in no list any more."""
STALE_SECONDS: Final = 3 * INTERVAL_SECONDS
_log = logging.getLogger("harvest.canary")


class Probe(Struct, frozen=True, kw_only=True):
    """How the probes of one queue on one shard have gone.

    `open_since` is when the one under way was started, and `open_execution_id` its run. `stale` says that no probe has
    completed within three intervals; ages are in seconds, the round trip from the start to the end of its run in
    milliseconds. `last_error` is why the last one failed.
    """

    shard_id: int
    queue: str
    last_success_at: datetime | None
    age_of_last_success_secs: float | None
    last_roundtrip_ms: float | None
    success_count: int
    failure_count: int
    stale: bool
    open_since: datetime | None
    open_execution_id: UUID | None
    last_error: str | None


class Canary:
    """The loop of one process that probes: begins what is due, settles what has ended. One a process.

    A shard that does not answer holds up no other, and is looked at again with the next tick.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._prober = UUID(bytes=clock.random_bytes(16), version=4)
        self._began = False
        self._rounds = Rounds("canary", shards, self._visit, self._trouble)

    def start(self) -> None:
        """Probe from now on."""
        self._rounds.start(lambda: SOON_SECONDS if self._has_begun() else TICK_SECONDS)

    async def stop(self) -> None:
        """Probe no more, and settle what has ended where that can be done within a second."""
        if await self._rounds.stop():
            await self._rounds.each(self._settle_at_last)

    async def tick(self) -> bool:
        """Look at each shard once; takes five seconds at most. Tells whether a probe has begun."""
        await self._rounds.tick()
        return self._has_begun()

    def _has_begun(self) -> bool:
        """Whether a probe has begun since this was asked."""
        began, self._began = self._began, False
        return began

    async def _visit(self, store: Store) -> None:
        if await self.probe(store):
            self._began = True

    def _trouble(self, shard_id: int, reason: str, error: Exception | None) -> None:
        if shard_id in self._shards.router.writable:
            _log.warning("shard %s is not probed: %s", shard_id, reason, exc_info=error)
        else:
            # It may not be there by now, or not be migrated yet.
            _log.info("shard %s: its probes are not settled: %s", shard_id, reason)

    async def probe(self, store: Store) -> bool:
        """Do what is to be done on one shard now, begin probes only where it is writable; whether one has begun.

        Raises ShardUnavailableError.
        """
        found = await rows.look(store)
        if found.ended:
            await rows.settle(store)
        if found.late:
            _log.warning("shard %s: no worker completes a run of queue %s", store.shard_id, ", ".join(found.late))
            await rows.note_late(store, found.late)
        if found.gone:
            await rows.forget(store, found.gone)
        if store.shard_id not in self._shards.router.writable:
            return False
        begun = [
            queue for queue in found.due if await rows.begin(store, self._prober, self._new(store.shard_id, queue))
        ]
        if begun:
            store.waker.wake(None)
        return bool(begun)

    def _new(self, shard_id: int, queue: str) -> NewExecution:
        """A run that is pinned to the shard as a person's would be. Raises PlacementError where that is refused."""
        workflow_id = f"canary-{mint_execution_id(0)}"
        shard = self._shards.router.place(CANARY, workflow_id, Placement(shard_id=shard_id))
        return new_execution(
            shard, workflow_name=CANARY, workflow_id=workflow_id, version=1, input=payload.NULL, queue=queue
        )

    async def _settle_at_last(self, store: Store) -> None:
        error = await failure_of_visit(rows.settle(store), LAST_SECONDS)
        if error is not None:
            _log.info("shard %s: probes were left to others: %s", store.shard_id, why(error))


async def probes(shards: Shards) -> Partial[Probe]:
    """How the probes go on every writable shard, by shard and queue; shards that do not answer are named."""

    async def read(store: Store) -> list[Probe]:
        return [probe_of(store.shard_id, row) for row in await rows.read(store)]

    found = await shards.fan_out(read, over=sorted(shards.router.writable))
    return msgspec.structs.replace(found, rows=sorted(found.rows, key=lambda each: (each.shard_id, each.queue)))


def probe_of(shard_id: int, row: CanaryRow) -> Probe:
    """The probes of one queue, with the ages that they have by the database's clock."""
    last = row.last_success_at
    age = None if last is None else max(0.0, (row.now - last).total_seconds())
    waited = (row.now - row.asked_at).total_seconds()
    return Probe(
        shard_id=shard_id,
        queue=row.queue,
        last_success_at=last,
        age_of_last_success_secs=age,
        last_roundtrip_ms=row.last_roundtrip_ms,
        success_count=row.success_count,
        failure_count=row.failure_count,
        stale=(waited if age is None else age) > STALE_SECONDS,
        open_since=row.asked_at if row.execution_id else None,
        open_execution_id=row.execution_id,
        last_error=row.last_error,
    )
