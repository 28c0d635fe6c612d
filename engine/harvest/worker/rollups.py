"""Writes what a worker has measured: its attempts to decide each second, its totals every five."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol
from uuid import UUID

import asyncpg
import msgspec

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.history.kinds import EventKind
from harvest.store import decisions, rollups
from harvest.store.activity_claims import ClaimedActivity
from harvest.store.measures import Key, Totals
from harvest.store.pool import Connections
from harvest.store.rollups import COARSE_SECONDS, LEAST_COARSE
from harvest.store.store import Store
from harvest.worker.activities import Attempt, Ended
from harvest.worker.metrics import PROCESS, SITES
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.tracing import Tracer

_log = logging.getLogger("harvest.worker")
RING_SECONDS: Final = 1.0
ROLLUP_SECONDS: Final = 5.0
SWEEP_SECONDS: Final = 60.0
NUMBERING_TRIES: Final = 3
MOST_NUMBERED: Final = 20_000
LAST_SECONDS: Final = 1.0
_AWAY: Final = (ShardUnavailableError, asyncpg.PostgresError)
# Where the plain totals of a worker are metrics: the counter's key for each field.
_COUNTED: Final = {
    "commits": ("commit.statements",),
    "passed": ("commit.answers", "passed"),
    "moved": ("commit.answers", "moved"),
    "busy": ("commit.answers", "busy"),
    "fenced": ("commit.answers", "fenced"),
    "unknown": ("commit.answers", "unknown"),
    "leases_lost": ("worker.lease_lost",),
    "definitions_unavailable": ("worker.definition_unavailable",),
    "slow_steps": ("worker.slow_steps",),
    "evicted": ("worker.evicted",),
    "idle_polls": ("worker.waits", "idle"),
    "backoffs": ("worker.waits", "backoff"),
    "infrastructure_errors": ("worker.failures",),
    "requests_warm": ("query.resident", "hit"),
    "requests_cold": ("query.resident", "cold"),
}
_STATUS: Final[dict[int, str]] = {EventKind.ACTIVITY_COMPLETED: "completed", EventKind.ACTIVITY_TIMED_OUT: "timed_out"}


class Memory(Protocol):
    """What the parked runs of a process take."""

    def __len__(self) -> int:
        """How many there are."""

    @property
    def bytes(self) -> int:
        """Rough bytes of memory in use."""


class Slots(Protocol):
    """What activities take of a process."""

    @property
    def free(self) -> int:
        """Slots that are free."""


class ProcessFigures:
    """What is counted for a process, whatever shard it was for. What has grown is told once, to whoever asks first.

    `seen` are gauges that another loop of the process keeps.
    """

    def __init__(
        self,
        counters: Counters,
        memory: Memory,
        slots: Slots,
        options: WorkerOptions,
        held: Callable[[], int],
        seen: Mapping[Key, float],
    ) -> None:
        self._counters = counters
        self._options = options
        self._held = held
        self._memory = memory
        self._slots = slots
        self._seen = seen
        self._told = msgspec.structs.replace(counters)

    def take(self, totals: Totals) -> None:
        """Put what has grown since the last call, and the gauges of now, into `totals`."""
        now = msgspec.structs.replace(self._counters)
        for field, key in _COUNTED.items():
            grown = getattr(now, field) - getattr(self._told, field)
            if grown:
                totals.count(key, grown)
        self._told = now
        free, held = self._slots.free, self._held()
        totals.gauges[("worker.slots_available", "activity")] = free
        totals.gauges[("worker.slots_in_use", "activity")] = self._options.activity_slots - free
        totals.gauges[("worker.slots_available", "workflow")] = max(0, self._options.workflow_slots - held)
        totals.gauges[("worker.slots_in_use", "workflow")] = held
        totals.gauges[("worker.residents",)] = len(self._memory)
        totals.gauges[("worker.resident_bytes",)] = self._memory.bytes
        totals.gauges.update(self._seen)


class Rollups:
    """One for each shard of a worker: a loop beside the others, with nothing to lose but figures.

    `of_shard` tells gauges that every worker of the shard would tell alike.
    """

    def __init__(self, store: Store, worker: UUID, tracer: Tracer) -> None:
        self.process: ProcessFigures | None = None
        self.of_shard: Callable[[], Iterable[tuple[Key, float]]] = tuple
        self._store = store
        self._worker = worker
        self._tracer = tracer
        self._numbers: OrderedDict[UUID, int] = OrderedDict()
        self._unwritten = Totals()
        self._coarse = Totals()
        measures = tracer.measures
        for name, pool in self._pools().items():
            pool.on_wait = partial(measures.observe, ("db.pool.wait_duration", name))
            pool.on_use = partial(measures.observe, ("db.query.duration", name))
            if name in SITES:
                pool.on_passing = partial(measures.refused, SITES[name])
        self._wrote_at = self._coarse_at = self._swept_at = self._looked_at = clock.monotonic()

    async def run(self) -> None:
        """Write until cancelled."""
        PROCESS.join(self._tracer.measures)
        try:
            while True:
                await clock.sleep(RING_SECONDS)
                await self.tick()
        finally:
            PROCESS.leave(self._tracer.measures)

    async def tick(self) -> None:
        """What is due now. Nothing that fails here concerns anybody's work."""
        try:
            await self.write_ring()
            now = clock.monotonic()
            if now - self._wrote_at >= ROLLUP_SECONDS:
                await self.write_rollup()
            if now - self._swept_at >= SWEEP_SECONDS:
                self._swept_at = now
                await decisions.sweep(self._store)
                await rollups.sweep(self._store)
        except _AWAY as error:
            _log.info("shard %s: figures could not be written: %s", self._store.shard_id, error)
        except Exception:
            _log.exception("shard %s: figures could not be written", self._store.shard_id)

    async def finish(self) -> None:
        """Write what is left, in a second at most."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self.write_ring()
                await self.write_rollup(last=True)
        except (*_AWAY, TimeoutError) as error:
            _log.info("shard %s: the last figures could not be written: %s", self._store.shard_id, error)

    def scanned(self, name: str, seconds: float) -> None:
        """A pass of the scanner is over."""
        self._tracer.measures.observe(("scanner.tick", name), seconds)

    def activity_taken(self, claimed: ClaimedActivity) -> None:
        """An activity was claimed."""
        if claimed.due is not None:
            waited = (self._store.clock.now() - claimed.due).total_seconds()
            self._tracer.measures.activity_taken(claimed.queue, max(0.0, waited))

    def activity_ended(self, attempt: Attempt, ended: Ended) -> None:
        """An attempt is over here."""
        if attempt.overruled is not None:
            status = "overruled"
        elif ended.delay is not None:
            status = "retried"
        else:
            status = _STATUS.get(ended.kind, "failed")
        if ended.kind == EventKind.ACTIVITY_TIMED_OUT and attempt.overruled is None:
            self._tracer.measures.activity_timed_out(attempt.name, "start_to_close")
        self._tracer.measures.activity_ended(attempt.name, status, max(0.0, clock.monotonic() - attempt.began))

    async def write_ring(self) -> None:
        """Write the attempts that have ended since the last time."""
        now = clock.monotonic()
        self._tracer.refill(now - self._looked_at)
        self._looked_at = now
        ended, self._tracer.ended = self._tracer.ended, []
        strangers, self._tracer.strangers = self._tracer.strangers, set()
        for execution_id in strangers:
            # Others may have numbered its attempts since.
            self._numbers.pop(execution_id, None)
        if not ended:
            return
        for _ in range(NUMBERING_TRIES):
            unknown = {each.execution_id for each in ended} - self._numbers.keys()
            if unknown:
                self._numbers.update(await decisions.last_numbers(self._store, list(unknown)))
            rows = self._tracer.rows(ended, self._numbers)
            taken = await decisions.write(self._store, self._worker, rows)
            if not taken:
                break
            for execution_id, _ in taken:
                self._numbers.pop(execution_id, None)
            ended = [each for each, row in zip(ended, rows, strict=True) if (row.execution_id, row.number) in taken]
        while len(self._numbers) > MOST_NUMBERED:
            self._numbers.popitem(last=False)

    async def write_rollup(self, *, last: bool = False) -> None:
        """Write what was measured since the last row; every five minutes, and at the end, also a coarse one."""
        now = clock.monotonic()
        self._gauge()
        self._unwritten.add(self._tracer.measures.flush())
        await rollups.write(self._store, self._worker, now - self._wrote_at, self._unwritten)
        self._wrote_at = now
        self._coarse.add(self._unwritten)
        self._unwritten = Totals()
        if now - self._coarse_at >= (LEAST_COARSE if last else COARSE_SECONDS):
            await rollups.write(self._store, self._worker, now - self._coarse_at, self._coarse)
            self._coarse, self._coarse_at = Totals(), now

    def _pools(self) -> dict[str, Connections]:
        store = self._store
        return {pool.role.name: pool for pool in (store.commit, store.claim, store.scan, store.deliver, store.write)}

    def _gauge(self) -> None:
        fresh = self._tracer.measures.fresh
        if self.process is not None:
            self.process.take(fresh)
        fresh.gauges.update(self.of_shard())
        for name, pool in self._pools().items():
            fresh.gauges[("db.pool.in_use", name)] = pool.in_use
            fresh.gauges[("db.pool.idle", name)] = pool.idle
