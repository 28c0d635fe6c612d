"""Deliveries of one shard's runs: at once where this worker has written them, by polling where others have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.history.deliveries import ANYWHERE
from harvest.shards import Shards
from harvest.store import deliveries
from harvest.store.deliveries import BATCH_BYTES, Delivery
from harvest.store.pool import is_passing
from harvest.store.store import Store
from harvest.worker import delivering
from harvest.worker.courier import Courier, Delivered
from harvest.worker.delivering import Step
from harvest.worker.metrics import Measures
from harvest.worker.options import Counters
from harvest.worker.seeking import Ask, Seeker

_log = logging.getLogger("harvest.worker")
BATCH: Final = 200
POLL_SECONDS, HINT_SECONDS, SWEEP_SECONDS = 1.0, 0.1, 600.0
# Whoever has written a delivery makes it within milliseconds: what is younger is left to it.
GRACE_SECONDS: Final = 0.3
# What is due for longer is looked for less often: the index begins with what was taken from it until it is vacuumed.
RECENT_SECONDS, FULL_LOOK_SECONDS, ANY_AGE = 30.0, 10.0, 1e9
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.5
Make = Callable[[list[Delivery]], Awaitable[Delivered]]


class Deliverer:
    """Makes deliveries until cancelled. Another shard that does not answer holds up what is meant for it alone."""

    def __init__(self, shards: Shards, store: Store, counters: Counters, measures: Measures | None = None) -> None:
        self.courier = Courier(shards, store)
        self.seeker = Seeker(shards, store, measures or Measures(store.shard_id))
        self.courier.on_told = self.kick
        self._shards = shards
        self._store = store
        self._counters = counters
        self._sources: dict[UUID, None] = {}
        self._tries: dict[UUID, int] = {}
        self._beyond: dict[int, asyncio.Task[None]] = {}
        self._later: dict[int, set[UUID]] = {}
        self._wake = asyncio.Event()
        self._grace = GRACE_SECONDS
        self._look_at = self._full_look_at = self._sweep_at = 0.0

    def kick(self, *sources: UUID) -> None:
        """These runs have something to deliver; without names: some run of this worker."""
        if sources:
            self._sources.update(dict.fromkeys(sources))
        else:
            self._look_at, self._grace = 0.0, 0.0
        self._wake.set()

    def hint(self) -> None:
        """Somebody may have written a delivery; many hints at once are one look."""
        soon = clock.monotonic() + HINT_SECONDS
        if soon < self._look_at:
            self._look_at, self._grace = soon, min(self._grace, HINT_SECONDS / 2)
            self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        try:
            while True:
                self._wake.clear()
                try:
                    pause = await self.tick()
                except (ShardUnavailableError, asyncpg.PostgresError) as error:
                    _log.warning("shard %s: deliveries could not be made: %s", self._store.shard_id, error)
                    pause = POLL_SECONDS
                except Exception:
                    _log.exception("shard %s: deliveries could not be made", self._store.shard_id)
                    pause = POLL_SECONDS
                if pause > 0:
                    await clock.wait_event(self._wake, pause)
        finally:
            tasks = list(self._beyond.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def tick(self) -> float:
        """One round: what the runs that are known to have something deliver. Returns the seconds until the next."""
        now = clock.monotonic()
        found_most = now >= self._look_at and await self._look(now)
        sources = list(self._sources)[:BATCH]
        if not sources:
            return max(0.0, self._look_at - clock.monotonic())
        async with self._store.deliver.connection() as connection:
            rows = await deliveries.waiting(connection, sources, BATCH)
        left = {row.source_execution_id for row in rows}
        for source in sources:
            self._sources.pop(source, None)
            if source not in left:
                self._tries.pop(source, None)
        self.courier.on_step("picked")
        settled = await self._deliver(rows)
        if len(rows) >= BATCH or sum(len(row.payload) for row in rows) >= BATCH_BYTES:
            # One batch was full; where nothing of it could be made, what is behind it is found by the next look.
            self._sources.update(dict.fromkeys(sources) if settled else {})
        if settled and found_most:
            self._look_at = now
        return 0.0 if self._sources else max(0.0, self._look_at - clock.monotonic())

    async def _look(self, now: float) -> bool:
        """Find runs whose deliveries are due, whoever has written them; tells whether there are more."""
        full = now >= self._full_look_at
        async with self._store.deliver.connection() as connection:
            found = await deliveries.due_sources(
                connection, older=self._grace, newer=ANY_AGE if full else RECENT_SECONDS, most=BATCH
            )
            if now >= self._sweep_at and len(self._shards.stores) > 1:
                self._sweep_at = now + SWEEP_SECONDS
                await deliveries.sweep(connection)
        self._look_at, self._grace = now + clock.jittered(POLL_SECONDS), GRACE_SECONDS
        self._sources.update(dict.fromkeys(found))
        if full:
            self._full_look_at = now + FULL_LOOK_SECONDS
            await self._measure_age()
        return len(found) >= BATCH

    async def _measure_age(self) -> None:
        """Only a metric: what it cannot read holds up no delivery."""
        if self.seeker.is_inline:
            return
        try:
            await self.seeker.look_at_age()
        except Exception as error:
            _log.warning("shard %s: the age of waiting deliveries was not read: %s", self._store.shard_id, error)

    async def _deliver(self, rows: list[Delivery]) -> bool:
        """Make them; tells whether any was. Those to another shard, and those that any shard may have, are made beside.

        Where there is but one shard, a name is a matter of it alone.
        """
        named = [row for row in rows if row.target_shard == ANYWHERE]
        by_shard = self.courier.locate(row for row in rows if row.target_shard != ANYWHERE)
        here, targets = by_shard.pop(self._store.shard_id, []), {}
        if named and self.seeker.is_inline:
            sought = await self.seeker.seek(named)
            here, targets = here + sought.by_shard.get(self._store.shard_id, []), sought.targets
        elif named:
            self._beside(ANYWHERE, named, partial(self._seek, named))
        for shard_id, group in by_shard.items():
            self._reach(shard_id, group, partial(self._made, shard_id, {}))
        made = partial(self._made, self._store.shard_id, targets)
        return bool(here) and await self._make(self._store.shard_id, here, made)

    def _reach(self, shard_id: int, group: list[Delivery], make: Make) -> None:
        """Begin what is made beside the rest, once for each shard at a time; what comes meanwhile comes after it."""
        self._beside(shard_id, group, partial(self._make, shard_id, group, make))

    def _beside(self, place: int, group: list[Delivery], making: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        if place in self._beyond:
            self._later.setdefault(place, set()).update(each.source_execution_id for each in group)
        else:
            self._beyond[place] = asyncio.get_running_loop().create_task(self._until_made(place, group, making()))

    async def _until_made(self, place: int, group: list[Delivery], making: Coroutine[Any, Any, bool]) -> None:
        settled = False
        try:
            settled = await making
        except (ShardUnavailableError, asyncpg.PostgresError) as error:
            _log.warning("shard %s: deliveries to %s: %s", self._store.shard_id, _named(place), error)
        except Exception:
            _log.exception("shard %s: deliveries to %s", self._store.shard_id, _named(place))
        finally:
            del self._beyond[place]
            waiting = self._later.pop(place, set())
        if settled:
            waiting.update(each.source_execution_id for each in group)
        if waiting:
            self.kick(*waiting)

    async def _seek(self, named: list[Delivery]) -> bool:
        """Look at all shards for runs that are known by name, and make what can be made with what was found.

        Tells whether any of them is out of the way now.
        """
        sought = await self.seeker.seek(named)
        await self.courier.put_off(sought.put_off)
        goes_on = bool(sought.put_off or sought.answers)
        for shard_id, group in sought.by_shard.items():
            made = partial(self._made, shard_id, sought.targets)
            goes_on = await self._make_or_reach(shard_id, group, made) or goes_on
        for shard_id, asks in sought.asks.items():
            asked = {each.delivery.delivery_id: each for each in asks}
            await self._make_or_reach(shard_id, [each.delivery for each in asks], partial(self._ask, shard_id, asked))
        if sought.answers:
            answers = {step.delivery.delivery_id: step for step in sought.answers}
            group = [step.delivery for step in sought.answers]
            await self._make(self._store.shard_id, group, partial(self._answer, answers))
        for source in {each.source_execution_id for each in sought.left}:
            self._again(source, HINT_SECONDS)
        return goes_on

    async def _make_or_reach(self, shard_id: int, group: list[Delivery], make: Make) -> bool:
        if shard_id == self._store.shard_id:
            return await self._make(shard_id, group, make)
        self._reach(shard_id, group, make)
        return False

    async def _ask(self, shard_id: int, asks: Mapping[int, Ask], group: list[Delivery]) -> Delivered:
        return await self.courier.ask(self._shards.store(shard_id), [asks[each.delivery_id] for each in group])

    async def _answer(self, answers: Mapping[int, Step], group: list[Delivery]) -> Delivered:
        return await self.courier.answer([answers[each.delivery_id] for each in group])

    async def _make(self, shard_id: int, group: list[Delivery], make: Make) -> bool:
        """Make a group on that shard; tells whether anything was settled."""
        return await self._after(group, await self._tried(shard_id, group, make))

    async def _made(self, shard_id: int, targets: Mapping[int, UUID | None], group: list[Delivery]) -> Delivered:
        if shard_id == self._store.shard_id:
            return await self.courier.within(group, targets)
        return await self.courier.beyond(self._shards.store(shard_id), group, targets)

    async def _after(self, group: list[Delivery], delivered: Delivered) -> bool:
        """What was locked is tried again in a moment, and what was put off in its time."""
        await self.courier.put_off(delivered.put_off)
        self._counters.delivered += len(delivered.settled)
        delays = {each.delivery_id: each.delay for each in delivered.put_off}
        locked = set()
        for each in group:
            if each.delivery_id in delivered.settled:
                self._tries.pop(each.source_execution_id, None)
            elif each.delivery_id not in delays:
                locked.add(each.source_execution_id)
            elif delays[each.delivery_id] < POLL_SECONDS:
                self._again(each.source_execution_id, delays[each.delivery_id] + FIRST_PAUSE)
        for source in locked:
            tries = self._tries[source] = self._tries.get(source, 0) + 1
            self._again(source, clock.jittered(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(tries, 10))))
        return bool(delivered.settled)

    async def _tried(self, shard_id: int, group: list[Delivery], make: Make) -> Delivered:
        """A group that fails as a whole is made one by one; what fails alone is put off with the error."""
        try:
            return await make(group)
        except ShardUnavailableError as error:
            if error.fields.get("shard_id") == self._store.shard_id:
                raise
            return _all_put_off(group, error.message)
        except asyncpg.PostgresError as error:
            if is_passing(error):
                _log.warning("shard %s: deliveries were refused for now: %s", self._store.shard_id, error)
                return Delivered()
            problem: Exception = error
        except Exception as error:
            problem = error
        if len(group) == 1:
            _log.error("delivery %d of execution %s cannot be made", group[0].delivery_id, group[0].source_execution_id,
                       exc_info=problem)  # fmt: skip
            return _all_put_off(group, repr(problem))
        delivered = Delivered()
        failed: set[tuple[UUID, UUID]] = set()
        for each in group:
            if each.pair in failed:
                continue
            alone = await self._tried(shard_id, [each], make)
            delivered.settled |= alone.settled
            delivered.put_off += alone.put_off
            if not alone.settled and not each.is_await:
                failed.add(each.pair)
        return delivered

    def _again(self, source: UUID, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.kick, source)


def _named(place: int) -> str:
    return "runs that are known by name" if place == ANYWHERE else f"shard {place}"


def _all_put_off(group: list[Delivery], error: str) -> Delivered:
    return Delivered(put_off=[delivering.unreachable(each, error) for each in group])
