"""Writes how attempts ended where no decision brings it along: ends, and tries that are to come (answers 5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.store import results
from harvest.store.results import ActivityEnd, ActivityRetry
from harvest.store.store import Store
from harvest.worker.activities import Attempt, Ended
from harvest.worker.options import Counters
from harvest.worker.recovery import AWAY_PAUSE, FIRST_PAUSE, LONGEST_PAUSE, append_ends

_log = logging.getLogger("harvest.worker")
Outcome = tuple[Attempt, Ended]


class Settler:
    """One for each shard of a worker: whatever ended while the last statement was under way goes with the next.

    `unsettled` are the activities that have ended here and not yet in the database. What a foreign lock keeps from
    being written is sent again beside the others.
    """

    def __init__(
        self,
        store: Store,
        worker: UUID,
        is_lost: Callable[[], bool],
        on_retry: Callable[[Attempt, float], None],
        counters: Counters,
    ) -> None:
        self.unsettled: set[tuple[UUID, int]] = set()
        self._store = store
        self._worker = worker
        self._is_lost = is_lost
        self._on_retry = on_retry
        self._counters = counters
        self._outcomes: list[Outcome] = []
        self._flushing: asyncio.Task[None] | None = None
        self._insisting: set[asyncio.Task[None]] = set()

    def settle(self, attempt: Attempt, ended: Ended) -> None:
        """Write how an attempt ended."""
        self.unsettled.add(attempt.key)
        self._outcomes.append((attempt, ended))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def finish(self, seconds: float) -> None:
        """Let what is under way end for a while, then cut it off."""
        tasks = {*self._insisting, *([self._flushing] if self._flushing is not None else [])}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _flush(self) -> None:
        while self._outcomes:
            outcomes, self._outcomes = self._outcomes, []
            left, away = await self._send(outcomes)
            if left:
                task = asyncio.get_running_loop().create_task(self._insist(left, AWAY_PAUSE if away else FIRST_PAUSE))
                self._insisting.add(task)
                task.add_done_callback(self._insisting.discard)

    async def _insist(self, left: list[Outcome], pause: float) -> None:
        while left and not self._is_lost():
            await clock.sleep(clock.jittered(pause))
            left, _ = await self._send(left)
            pause = min(pause * 2, LONGEST_PAUSE)
        self.unsettled.difference_update(attempt.key for attempt, _ in left)

    async def _send(self, outcomes: list[Outcome]) -> tuple[list[Outcome], bool]:
        """Send everything once; returns what could not be written yet, and whether the database is away."""
        ends = [
            ActivityEnd(a.execution_id, a.seq, a.attempt, self._worker, e.kind, e.payload)
            for a, e in outcomes
            if e.delay is None
        ]
        away = False
        ends_left, retries_left = ends, [self._retry(a, e) for a, e in outcomes if e.delay is not None]
        if ends:
            ends_left, away = await append_ends(self._store, ends, self._counters)
        if retries_left and not away:
            retries_left, away = await self._put_back(retries_left)
        waiting = {(end.execution_id, end.seq) for end in ends_left}
        waiting.update((retry.execution_id, retry.seq) for retry in retries_left)
        for attempt, ended in outcomes:
            if attempt.key not in waiting:
                self.unsettled.discard(attempt.key)
                if ended.delay is not None:
                    self._on_retry(attempt, ended.delay)
        return [outcome for outcome in outcomes if outcome[0].key in waiting], away

    def _retry(self, attempt: Attempt, ended: Ended) -> ActivityRetry:
        return ActivityRetry(
            attempt.execution_id, attempt.seq, attempt.attempt, self._worker, ended.delay or 0.0, ended.failure
        )

    async def _put_back(self, retries: list[ActivityRetry]) -> tuple[list[ActivityRetry], bool]:
        left = retries
        try:
            done = await results.retry_activities(self._store, left)
            left = [retry for retry in left if (retry.execution_id, retry.seq) not in done]
            if left:
                still = await results.still_at_attempt(self._store, left)
                left = [retry for retry in left if (retry.execution_id, retry.seq) in still]
        except (ShardUnavailableError, asyncpg.PostgresError) as error:
            _log.warning("shard %s: retries could not be written yet: %s", self._store.shard_id, error)
            return left, True
        return left, False
