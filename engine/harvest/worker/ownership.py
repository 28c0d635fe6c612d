"""The owner loop: which partitions of a shard this worker owns, takes, offers and hands over (design 5, decision 0009).

A look each second, and at once when somebody has something to say. It runs in claim mode too, where it only says that
it could own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator
from datetime import timedelta
from typing import Final
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.history.ids import PARTITIONS, ExecutionId, shard_of
from harvest.store import partitions
from harvest.store.claims import Owner
from harvest.store.partitions import Owned, Scan
from harvest.store.store import Store
from harvest.worker.committer import Committer
from harvest.worker.options import Counters
from harvest.worker.warming import Warmer
from harvest.worker.watch import Lease
from harvest.worker.work import Work

_log = logging.getLogger("harvest.worker")
SCAN_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 0.25
OFFER_SECONDS: Final = 3.0
LOOK_SECONDS: Final = 0.2
ANSWER_SECONDS: Final = 0.02
LAST_SECONDS: Final = 2.0
ACCEPT_AT_ONCE: Final = 64
WARM_AT_ONCE: Final = 200
ACCEPT_SECONDS: Final = 1.0
LET_GO_AT_ONCE: Final = 50
AWAY: Final = (ShardUnavailableError, asyncpg.PostgresError)


class Ownership:
    """One for each shard of a worker. `owned` are its partitions with their epochs."""

    def __init__(
        self, store: Store, worker: UUID, lease: Lease, committer: Committer, warmer: Warmer, counters: Counters
    ) -> None:
        self.owner_mode = False
        self.owned: dict[int, int] = {}
        self._generation = -1
        self.on_change: Callable[[], None] = lambda: None
        self.on_expired: Callable[[], Awaitable[None]] | None = None
        self._store = store
        self._worker = worker
        self._lease = lease
        self._committer = committer
        self._warmer = warmer
        self._counters = counters
        self._leaving: set[int] = set()
        self._offered: dict[int, float] = {}
        self._fenced: Counter[tuple[int, int]] = Counter()
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        self._draining = False
        committer.on_fenced = self._note_fenced

    def takeable(self) -> Owner | None:
        """The partitions whose tasks this worker takes; None where tasks are claimed by whoever comes first."""
        if not self.owner_mode:
            return None
        leaving = self._leaving
        return Owner.of(self._generation, {each: epoch for each, epoch in self.owned.items() if each not in leaving})

    def kick(self) -> None:
        """Somebody has something to say: an offer, an answer to one, the switch."""
        self._wake.set()

    async def run(self) -> None:
        """Look until cancelled; a database that is away is asked again with the next look."""
        pause = 0.0
        while True:
            await clock.wait_event(self._wake, pause)
            self._wake.clear()
            pause = clock.jittered(SCAN_SECONDS)
            if not self._lease.alive:
                continue
            try:
                pause = min(pause, await self.tick())
            except AWAY as error:
                _log.warning("shard %s: the owner loop could not look: %s", self._store.shard_id, error)
            self._looked.set()

    async def tick(self) -> float:
        """One look, and what follows from it; returns the seconds after which the next has something to find."""
        scan = await partitions.scan(self._store, self._worker)
        if not scan.owner_mode:
            self._switched_off()
            return SCAN_SECONDS
        self._follow(scan)
        await self._write_fenced()
        if any(each.heir == self._worker and not each.accepted for each in scan.partitions):
            await self._accept()
        accepted = [each.partition for each in scan.partitions if each.owner == self._worker and each.accepted]
        if accepted:
            await self._hand_over(accepted)
        await self._balance(scan)
        return self._until_an_end(scan)

    async def hand_over(self, seconds: float) -> None:
        """Give every partition to the other owners, warm as far as the time goes; what is left becomes free."""
        self._draining = True
        deadline = clock.monotonic() + seconds
        while self.owned and self._lease.alive and clock.monotonic() < deadline:
            self._looked.clear()
            self._wake.set()
            await clock.wait_event(self._looked, LOOK_SECONDS)
            if self.owned:
                await clock.sleep(ANSWER_SECONDS)
        try:
            async with asyncio.timeout(LAST_SECONDS):
                if self.owned and self._lease.alive:
                    await self._release(list(self.owned), "the worker has stopped")
        except (*AWAY, TimeoutError) as error:
            _log.warning("shard %s: partitions were not given back: %s", self._store.shard_id, error)

    async def finish(self) -> None:
        """Tell of the commits that were refused since the last look: there is no look after the last commit."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._write_fenced()
        except (*AWAY, TimeoutError) as error:
            _log.warning("shard %s: refused commits were not told of: %s", self._store.shard_id, error)

    # What a look shows

    def _switched_off(self) -> None:
        if self.owner_mode:
            self.owner_mode = False
            self._counters.partitions_owned -= len(self.owned)
            self.owned = {}
            self._leaving.clear()
            self._offered.clear()
            self.on_change()

    def _follow(self, scan: Scan) -> None:
        mine = {each.partition: each.epoch for each in scan.partitions if each.owner == self._worker}
        changed = not self.owner_mode or mine != self.owned
        lost = self.owned.keys() - mine.keys()
        self.owner_mode = True
        self._generation = -1 if scan.generation is None else scan.generation
        self._counters.partitions_owned += len(mine) - len(self.owned)
        self.owned = mine
        self._leaving &= mine.keys()
        # Who has no time to wait for an heir that has gone offers anew.
        heirs = {each.heir for each in scan.partitions} - {None}
        heirs = heirs & set(scan.live) if self._draining else heirs
        offered = {each.partition for each in scan.partitions if each.owner == self._worker and each.heir in heirs}
        now = clock.monotonic()
        self._offered = {partition: self._offered.get(partition, now) for partition in offered}
        if lost:
            _log.warning("shard %s: lost %d partitions", self._store.shard_id, len(lost))
        if changed:
            self.on_change()

    def _until_an_end(self, scan: Scan) -> float:
        """When the lease of an owner that is no longer live ends, its partitions are for the others."""
        ends = [
            each.lease_until - scan.at
            for each in scan.partitions
            if each.owner is not None and each.owner not in scan.live and each.lease_until is not None
        ]
        soon = min((end for end in ends if end > timedelta(0)), default=timedelta(seconds=SCAN_SECONDS))
        return max(0.005, soon.total_seconds() + 0.005)

    def _note_fenced(self, work: Work) -> None:
        if work.owner_epoch is not None:
            self._fenced[work.partition, work.owner_epoch] += 1

    async def _write_fenced(self) -> None:
        if self._fenced:
            fenced, self._fenced = self._fenced, Counter()
            try:
                await partitions.note_fenced(self._store, self._worker, fenced)
            except AWAY:
                self._fenced += fenced
                raise

    # Taking and giving

    async def _balance(self, scan: Scan) -> None:
        can_own = self._worker in scan.live and not self._draining
        target = -(-PARTITIONS // len(scan.live)) if can_own else 0
        if can_own and len(self.owned) < target:
            await self._acquire(scan, target - len(self.owned))
        staying = len(self.owned) - len(self._offered)
        if staying > (target + 1 if can_own else 0):
            await self._offer(scan, staying - target)
        await self._release_unanswered()

    async def _acquire(self, scan: Scan, most: int) -> None:
        gone = {each.owner for each in scan.partitions if each.owner is not None and each.lease_until is None}
        late = {each.owner for each in scan.partitions if each.lease_until is not None and each.lease_until <= scan.at}
        free = [each for each in scan.partitions if each.owner is None or each.owner in gone | late]
        if not free:
            return
        taken = await partitions.acquire(self._store, self._worker, most)
        if not taken:
            return
        self._counters.partitions_owned += len(taken.keys() - self.owned.keys())
        self.owned |= taken
        self._counters.partitions_acquired += len(taken)
        _log.info("shard %s: owns %d partitions", self._store.shard_id, len(self.owned))
        self.on_change()
        if late and self.on_expired is not None:
            await self.on_expired()

    async def _offer(self, scan: Scan, count: int) -> None:
        """Offer partitions to those who own least; each is told which runs are resident here."""
        heirs = _heirs(scan.partitions, [each for each in scan.live if each != self._worker], count)
        chosen = [partition for partition in sorted(self.owned) if partition not in self._offered][: len(heirs)]
        if not chosen:
            if self._draining:
                await self._release([each for each in self.owned if each not in self._offered], "nobody to give it to")
            return
        runs: dict[int, list[UUID]] = defaultdict(list)
        for work in self._works(set(chosen)):
            runs[work.partition].append(work.execution_id)
        offers = {partition: (heir, runs[partition]) for partition, heir in zip(chosen, heirs, strict=False)}
        await partitions.offer(self._store, self._worker, offers)
        self._offered |= dict.fromkeys(chosen, clock.monotonic())
        for heir in set(heirs):
            self._store.waker.tell_owner(heir)

    async def _release_unanswered(self) -> None:
        """An heir that does not answer: stop taking what it was offered, and free it one look later."""
        if self._draining:
            return
        waited = {partition: clock.monotonic() - since for partition, since in self._offered.items()}
        late = [
            partition
            for partition, seconds in waited.items()
            if partition in self._leaving and seconds > OFFER_SECONDS + SCAN_SECONDS
        ]
        self._leaving |= {partition for partition, seconds in waited.items() if seconds > OFFER_SECONDS}
        if late:
            await self._release(late, "given up for balance")

    async def _release(self, chosen: list[int], why: str) -> None:
        freed = await partitions.release(self._store, self._worker, chosen, why)
        self._gone(freed)
        await self._let_go(set(freed))
        self._store.waker.tell_owner(None)

    async def _accept(self) -> None:
        """Warm what is offered, a few partitions at a time, so that the owner can begin to let go.

        After a second this worker looks again before it goes on: who does not look is no live owner.
        """
        until = clock.monotonic() + ACCEPT_SECONDS
        for chunk, runs in _chunks(await partitions.offered(self._store, self._worker)):
            if self._draining:
                return
            if clock.monotonic() > until:
                self.kick()
                return
            await self._warmer.warm(runs)
            for owner in await partitions.accept(self._store, self._worker, chunk):
                self._store.waker.tell_owner(owner)

    async def _hand_over(self, accepted: list[int]) -> None:
        """Take nothing more from them, let what is under way end, and write the new owners."""
        chosen = set(accepted) & self.owned.keys()
        self._leaving |= chosen
        await self._settled(chosen)
        works = self._works(chosen)
        # What has results that are not written yet is given back by itself, with them.
        held = [work.execution_id for work in works if work.rests and work.execution_id in self._committer.held]
        given = await partitions.transfer(self._store, self._worker, sorted(chosen), held)
        self._counters.partitions_handed_over += len(given)
        self._gone(given)
        if given:
            # They are at it: whoever is not done yet has his time from now.
            since = clock.monotonic()
            self._offered |= {each: since for each in self._offered if each not in self._leaving}
        for heir in set(given.values()):
            self._store.waker.tell_owner(heir)
        await self._let_go(set(given))

    async def _settled(self, chosen: set[int]) -> None:
        """Wait for the commits under way, but not for activities."""
        deadline = clock.monotonic() + SETTLE_SECONDS
        while clock.monotonic() < deadline:
            held = self._committer.held.values()
            if not any(work.partition in chosen and (work.busy or work.queued) for work in held):
                return
            await clock.sleep(0.002)

    def _works(self, chosen: set[int]) -> list[Work]:
        """The runs of some partitions that are held or resident here."""
        here = [*self._committer.held.values(), *self._committer.residents.works()]
        shard_id = self._store.shard_id
        return [
            work
            for work in here
            if work.partition in chosen and shard_of(ExecutionId(int=work.execution_id.int)) == shard_id
        ]

    def _gone(self, chosen: Collection[int]) -> None:
        for partition in chosen:
            if self.owned.pop(partition, None) is not None:
                self._counters.partitions_owned -= 1
            self._offered.pop(partition, None)
            self._leaving.discard(partition)
        self.on_change()

    async def _let_go(self, gone: set[int]) -> None:
        """Forget runs that are another's now, a few at a time: unwinding them holds the loop."""
        for number, work in enumerate(self._works(gone), 1):
            self._committer.hand_back(work)
            if number % LET_GO_AT_ONCE == 0:
                await clock.sleep(0)


def _chunks(offers: dict[int, list[UUID]]) -> Iterator[tuple[list[int], list[UUID]]]:
    """Offers to be warmed and accepted together: neither many partitions nor many runs."""
    chunk: list[int] = []
    runs: list[UUID] = []
    for partition, residents in offers.items():
        chunk.append(partition)
        runs += residents
        if len(chunk) >= ACCEPT_AT_ONCE or len(runs) >= WARM_AT_ONCE:
            yield chunk, runs
            chunk, runs = [], []
    if chunk:
        yield chunk, runs


def _heirs(owned: list[Owned], others: list[UUID], count: int) -> list[UUID]:
    """Who gets the next partitions: each goes to the worker that has, or was offered, the fewest then."""
    if not others:
        return []
    having = Counter(dict.fromkeys(others, 0))
    for partition in owned:
        holder = partition.heir or partition.owner
        if holder is not None and holder in having:
            having[holder] += 1
    heirs = []
    for _ in range(count):
        heir = min(having, key=lambda each: (having[each], each))
        having[heir] += 1
        heirs.append(heir)
    return heirs
