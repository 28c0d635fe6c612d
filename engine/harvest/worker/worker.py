"""The composition root of a worker process: one incarnation over all its shards (design 1)."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import uuid
from datetime import datetime

import asyncpg
import msgspec

from harvest import clock
from harvest.definitions.registry import Registry
from harvest.errors import HarvestError, ShardUnavailableError
from harvest.replay import guard, ordered
from harvest.shards import Shards
from harvest.shards.connections import warn_of_room
from harvest.shards.presence import Presence
from harvest.store import fleet, migrate
from harvest.store.fleet import DefinitionRow, Orders, WorkerRow
from harvest.store.pool import LOST
from harvest.worker.activities import ActivityRunner, Attempt, Ended
from harvest.worker.assigning import assigned, uncovered
from harvest.worker.effective import effective
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.report import Ending, Now, WorkerReport, report_of, telling
from harvest.worker.rollups import ProcessFigures
from harvest.worker.sessions import Places
from harvest.worker.shard import ShardWorker
from harvest.worker.stranded import StrandedSampler
from harvest.worker.trial import Trial
from harvest.worker.watch import StepWatch, WatchThread
from harvest.worker.work import Residents

_log = logging.getLogger("harvest.worker")
DEFINITIONS_SECONDS = 60.0
OLD_GENERATION = 200
EVICT_AT_ONCE = 50
AWAY = (ShardUnavailableError, *LOST, asyncpg.PostgresError)


class Worker:
    """One incarnation: a random identity, a lease on each shard, and the loops that work under it.

    `lost` is set when a shard has declared this incarnation dead, or when a loop of it has died; it must then be
    stopped, and another one started. `drain_asked` is set when people want it to end: it must be stopped, and no other
    one started. `report` is how it went, once it has stopped.
    """

    def __init__(self, registry: Registry, shards: Shards, options: WorkerOptions | None = None) -> None:
        self.id = uuid.UUID(bytes=clock.random_bytes(16), version=4)
        self.options = options or WorkerOptions()
        self.counters = Counters()
        self.lost = asyncio.Event()
        self.drain_asked = asyncio.Event()
        self.report: WorkerReport | None = None
        self.assigned = assigned(self.options.shard_assignments, shards.router, shards.stores)
        self._drain_deadline: float | None = None
        self._evicted: dict[int, datetime] = {}
        self._began = clock.monotonic()
        self._asking: set[asyncio.Task[None]] = set()
        self._registry = registry
        self._shards = shards
        self._started = False
        self._steps = StepWatch(self.counters)
        caches = self.options.lease_ttl > 0
        self.residents = Residents(
            self.options.workflow_cache_size,
            self.options.workflow_cache_bytes,
            self.counters,
            self._steps,
            keeps_code=caches and self.options.resident_workflows,
            keeps_history=caches and not self.options.resident_workflows,
        )
        self._runner = ActivityRunner(registry, self.options, self.counters)
        self._runner.on_end = self._ended
        places = Places(self.options.max_concurrent_sessions)
        trial = Trial(self._runner)
        self._parts = {
            shard_id: ShardWorker(
                shards,
                store,
                self.id,
                registry,
                self._runner,
                self._steps,
                self.residents,
                self.options,
                self.counters,
                self.lost.set,
                places,
                trial,
            )
            for shard_id, store in shards.stores.items()
            if shard_id in self.assigned
        }
        self._stranded = StrandedSampler(shards, self.options.queues, self.assigned)
        figures = ProcessFigures(
            self.counters, self.residents, self._runner, self.options, self._held, self._stranded.gauges
        )
        for part in self._parts.values():
            part.on_order = self._look_at_orders
            part.rollups.process = figures
        self._presence = Presence(
            shards,
            self.id,
            "worker",
            through=lambda store: store.scan,
            name=self.options.display_name,
            build=self.options.build,
            assigned=self.assigned,
        )
        self._watch: WatchThread | None = None
        self._joined: list[ShardWorker] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Join every shard that answers and begin; the others are joined when they do.

        Raises SchemaLevelError for a shard that this release cannot work with, WrongShardError for a database that is
        another shard, and the first shard's error when none answers.
        """
        guard.install()
        ordered.install()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], OLD_GENERATION)
        loop = asyncio.get_running_loop()

        def lost() -> None:
            loop.call_soon_threadsafe(self.lost.set)

        def wanted(shard_id: int, orders: Orders) -> None:
            if orders != Orders():
                loop.call_soon_threadsafe(self._obey, shard_id, orders)

        parts = list(self._parts.values())
        refusals = await asyncio.gather(*(self._join(part) for part in parts), return_exceptions=True)
        errors = [error for error in refusals if error is not None]
        fatal = [error for error in errors if not isinstance(error, AWAY)]
        if fatal or len(errors) == len(parts):
            await asyncio.gather(*(self._leave(part) for part in self._joined))
            raise (fatal or errors)[0]
        self._watch = WatchThread(
            self.id,
            [part.lease for part in self._parts.values()],
            self._steps,
            self.counters,
            lost,
            self._tell,
            wanted,
        )
        self._watch.start()
        for part in self._joined:
            part.start()
        absent = [part for part in parts if part not in self._joined]
        self._tasks = [loop.create_task(self._join_later(part)) for part in absent]
        self._tasks.append(loop.create_task(self._keep_publishing()))
        self._tasks.append(loop.create_task(warn_of_room(self._shards, "worker", self.id, lambda store: store.scan)))
        self._presence.start()
        self._stranded.start()
        self._started = True
        _log.info("worker %s (%s) has started", self.options.display_name, self.id)
        if left := uncovered(self.assigned, self._shards.router):
            _log.warning(
                "worker %s does not cover the writable shards %s: they need another worker",
                self.options.display_name,
                ", ".join(map(str, left)),
            )

    async def stop(self) -> None:
        """Drain: claim nothing, let what runs finish for a while, hand back the rest, end the leases."""
        if not self._started:
            return
        self._started = False
        grace = self._grace()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._drain(part) for part in self._joined))
        patience = 0.0 if self.lost.is_set() else min(grace, self.options.drain_timeout)
        await asyncio.gather(*(part.ownership.hand_over(patience) for part in self._joined))
        began = clock.monotonic()
        await asyncio.gather(*(part.drain_sessions(grace) for part in self._joined))
        for part in self._joined:
            part.stop_claiming()
        await self._runner.stop(max(0.0, grace - (clock.monotonic() - began)))
        await asyncio.gather(*(part.stop() for part in self._joined))
        self.report = self._reported()
        if self._watch is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._watch.end_leases)
        await self._stranded.stop()
        await asyncio.gather(self._presence.stop(), *(self._leave(part) for part in self._joined))
        self.let_go_residents()
        if self._watch is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._watch.stop)
        _log.info("worker %s has stopped: %s", self.options.display_name, self.counters.summary())
        _log.info("worker %s: report %s", self.options.display_name, msgspec.json.encode(self.report).decode())

    def let_go_residents(self) -> None:
        """Forget every parked run: the next decision of each is cold."""
        self.residents.clear()
        for part in self._parts.values():
            part.committer.let_go_idle()

    async def _evict(self) -> None:
        """The same, a few at a time: unwinding their code holds the loop."""
        for number, work in enumerate(self.residents.works(), 1):
            if self.residents.find(work.execution_id) is work:
                self.residents.take(work.execution_id)
                self.residents.let_go(work)
            if number % EVICT_AT_ONCE == 0:
                await clock.sleep(0)
        self.let_go_residents()

    def _grace(self) -> float:
        """Seconds that what runs is given at the end."""
        if self.lost.is_set():
            return 0.0
        if self._drain_deadline is None:
            return self.options.drain_timeout
        return max(0.0, self._drain_deadline - clock.monotonic())

    def _reported(self) -> WorkerReport:
        ending: Ending = "lost" if self.lost.is_set() else "drained" if self.drain_asked.is_set() else "stopped"
        return report_of(
            self.counters,
            worker=self.id,
            name=self.options.display_name,
            build=self.options.build,
            ended=ending,
            seconds=clock.monotonic() - self._began,
            active_cycles=self._active_cycles(),
        )

    def _active_cycles(self) -> int:
        return len(self._runner.running) + sum(len(part.committer.held) for part in self._parts.values())

    def _tell(self) -> bytes:
        """What goes with each renewal of a lease. Called by the thread that keeps the leases."""
        now = Now(
            runs_held=sum(len(part.committer.held) for part in self._parts.values()),
            activities_running=len(self._runner.running),
            residents=len(self.residents),
            resident_bytes=self.residents.bytes,
            lacks=sorted({name for part in self._parts.values() for name in part.claimer.lacking.definitions}),
        )
        return telling(self.counters, now)

    def _look_at_orders(self, part: ShardWorker) -> None:
        """People want something of this worker: ask what. Where that fails, the next renewal brings it."""
        task = asyncio.get_running_loop().create_task(self._ask(part))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, part: ShardWorker) -> None:
        try:
            self._obey(part.store.shard_id, await fleet.orders(part.store, self.id))
        except AWAY as error:
            _log.warning("shard %s: what is wanted could not be read: %s", part.store.shard_id, error)

    def _obey(self, shard_id: int, orders: Orders) -> None:
        asked_at = orders.evict_requested_at
        if asked_at is not None and self._evicted.get(shard_id) != asked_at:
            self._evicted[shard_id] = asked_at
            # Each shard passes the order on, and the first has done it for all.
            if len(self.residents):
                _log.info("worker %s lets go of %d parked runs", self.options.display_name, len(self.residents))
            task = asyncio.get_running_loop().create_task(self._evict())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        if not orders.drains:
            return
        if orders.drain_seconds is not None and self._started:
            self._drain_deadline = clock.monotonic() + orders.drain_seconds
        if not self.drain_asked.is_set():
            _log.info("worker %s is asked to drain", self.options.display_name)
            self.drain_asked.set()

    async def _join(self, part: ShardWorker) -> None:
        """Introduce this worker to a shard: its lease there begins."""
        await migrate.check(part.store.url, part.store.shard_id)
        sent = clock.monotonic()
        await fleet.register(part.store, self._row())
        part.lease.renewed(sent)
        self._joined.append(part)
        await self._publish(part)
        await fleet.retry_blocked(part.store, self.options.build, self.options.queues)

    async def _join_later(self, part: ShardWorker) -> None:
        """One bad shard must not keep this worker from the others: try it until it answers."""
        delay = 0.5
        while True:
            _log.warning("shard %s does not answer yet", part.store.shard_id)
            await clock.sleep(clock.jittered(delay))
            delay = min(delay * 2, 5.0)
            try:
                await self._join(part)
            except AWAY as error:
                _log.warning("shard %s cannot be joined: %s", part.store.shard_id, error)
                if part in self._joined:
                    break
                continue
            except HarvestError as error:
                _log.error("shard %s: %s", part.store.shard_id, error)
                continue
            break
        part.start()

    async def _drain(self, part: ShardWorker) -> None:
        try:
            async with asyncio.timeout(1.0):
                await fleet.drain(part.store, self.id)
        except Exception as error:
            _log.warning("shard %s was not told of the coming end: %s", part.store.shard_id, error)

    async def _leave(self, part: ShardWorker) -> None:
        try:
            async with asyncio.timeout(3.0):
                await fleet.stop(part.store, self.id, msgspec.json.encode(self.report) if self.report else None)
                await part.sessions.leave()
                part.store.waker.wake(None)
        except Exception as error:
            _log.warning("shard %s was not told of the end: %s", part.store.shard_id, error)

    def _held(self) -> int:
        return sum(len(part.committer.held) for part in self._parts.values())

    def _ended(self, attempt: Attempt, ended: Ended) -> None:
        self._parts[attempt.shard_id].ended(attempt, ended)

    def _row(self) -> WorkerRow:
        return WorkerRow(
            worker=self.id,
            name=self.options.display_name,
            host=socket.gethostname(),
            pid=os.getpid(),
            build=self.options.build,
            queues=self.options.queues,
            slots=self.options.activity_slots,
            lease=self.options.owner_lease_ttl,
            workflow_slots=self.options.workflow_slots,
            workflow_types=tuple(sorted(f"{name}/{version}" for name, version in self._registry.workflows)),
            activity_types=tuple(sorted(self._registry.activities)),
            config=msgspec.json.encode(effective(self.options, self.assigned)),
            sticky_ttl=self.options.lease_ttl,
        )

    async def _publish(self, part: ShardWorker) -> None:
        await fleet.register_definitions(part.store, self.id, definition_rows(self._registry, self.options.build))

    async def _keep_publishing(self) -> None:
        while True:
            await clock.sleep(clock.jittered(DEFINITIONS_SECONDS))
            for part in self._joined:
                try:
                    await self._publish(part)
                except Exception as error:
                    _log.warning("shard %s: definitions were not refreshed: %s", part.store.shard_id, error)


def definition_rows(registry: Registry, build: str) -> list[DefinitionRow]:
    """What a registry has, as `harvest_definitions` keeps it (answers 8)."""
    rows = [
        DefinitionRow(
            kind="workflow",
            name=workflow.name,
            version=workflow.version,
            build=build,
            input_schema=msgspec.json.encode(
                # The console starts workflows without their code: what the code declares travels with the schema.
                {
                    **workflow.signature.input_schema(),
                    "x-options": workflow.options.published(),
                    "x-updates": workflow.updates,
                }
            ),
            output_schema=msgspec.json.encode(workflow.signature.output_schema()),
            signals=msgspec.json.encode(workflow.signals),
            description=workflow.description,
        )
        for workflow in registry.workflows.values()
    ]
    rows += [
        DefinitionRow(
            kind="activity",
            name=activity.name,
            version=1,
            build=build,
            input_schema=msgspec.json.encode(activity.signature.input_schema()),
            output_schema=msgspec.json.encode(activity.signature.output_schema()),
            signals=b"{}",
            description=(activity.__doc__ or "").strip(),
        )
        for activity in registry.activities.values()
    ]
    return sorted(rows, key=lambda row: (row.kind, row.name, row.version))
