"""Finds what this worker holds by the database's account and does not know of: an answer was lost (design 4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.store import activity_claims, claims
from harvest.store.activity_claims import ClaimedActivity
from harvest.store.store import Store

_log = logging.getLogger("harvest.worker")
# A server that has lost its client notices within ten seconds; until then the lost statement may still pass.
PAUSES: Final = (0.3, 0.7, 1.0, 3.0, 5.0, 5.0)


class Doubts:
    """Looks a few times after each doubt. What is an orphan in two looks in a row, a pause apart, is one.

    One look is not enough: between the reading of a row and its arrival here, its activity may have run and ended.
    """

    def __init__(
        self,
        store: Store,
        worker: UUID,
        *,
        is_held: Callable[[UUID], bool],
        is_running: Callable[[UUID, int], bool],
        give_back: Callable[[list[tuple[UUID, int]]], None],
        adopt: Callable[[ClaimedActivity], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._is_held = is_held
        self._is_running = is_running
        self._give_back = give_back
        self._adopt = adopt
        self._doubt = asyncio.Event()

    def arise(self) -> None:
        """An answer was lost."""
        self._doubt.set()

    async def run(self) -> None:
        """Look after each doubt, until cancelled."""
        while True:
            await self._doubt.wait()
            tasks: set[tuple[UUID, int]] = set()
            activities: set[tuple[UUID, int, int]] = set()
            self._doubt.clear()
            looks = iter(PAUSES)
            while (pause := next(looks, PAUSES[-1] if tasks or activities else None)) is not None:
                await clock.sleep(pause)
                if self._doubt.is_set():
                    self._doubt.clear()
                    looks = iter(PAUSES)
                try:
                    tasks, activities = await self._look(tasks, activities)
                except (ShardUnavailableError, asyncpg.PostgresError) as error:
                    _log.warning("shard %s: what is held here could not be read: %s", self._store.shard_id, error)
                    self._doubt.set()

    async def _look(
        self, tasks: set[tuple[UUID, int]], activities: set[tuple[UUID, int, int]]
    ) -> tuple[set[tuple[UUID, int]], set[tuple[UUID, int, int]]]:
        """Act on what was an orphan before and is one now; returns what is one now for the first time."""
        held = await claims.held(self._store, self._worker)
        orphans = {task for task in held if not self._is_held(task[0])}
        if tasks & orphans:
            _log.warning("shard %s: giving back %d tasks of lost claims", self._store.shard_id, len(tasks & orphans))
            self._give_back(sorted(tasks & orphans))
        running = {
            (each.execution_id, each.seq, each.attempt): each
            for each in await activity_claims.held_activities(self._store, self._worker)
            if not self._is_running(each.execution_id, each.seq)
        }
        for attempt in activities & running.keys():
            _log.warning("running activity %s/%d, whose answer was lost", attempt[0], attempt[1])
            self._adopt(running[attempt])
        return orphans - tasks, running.keys() - activities
