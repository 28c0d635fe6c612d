"""What follows when a run cannot go on here: its results are appended by themselves, its task goes back (design 4).

All of it happens in the background: one run whose rows are locked holds up no batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import HarvestError, ShardUnavailableError
from harvest.store import claims, results, upkeep
from harvest.store.results import ActivityEnd, LocalEnd
from harvest.store.store import Store
from harvest.worker.deciding import block_code, blocked_delay
from harvest.worker.options import Counters
from harvest.worker.work import Result, Work

_log = logging.getLogger("harvest.worker")
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 2.0
AWAY_PAUSE = 0.1

Task = tuple[UUID, int]


class Recovery:
    """One for each shard of a worker. `recovering` are the runs that it has not yet handed back."""

    def __init__(self, store: Store, worker: UUID, is_lost: Callable[[], bool], counters: Counters) -> None:
        self.recovering: set[UUID] = set()
        self.on_doubt: Callable[[], None] = lambda: None
        self._store = store
        self._worker = worker
        self._is_lost = is_lost
        self._counters = counters
        self._tasks: set[asyncio.Task[None]] = set()

    def drop(self, work: Work, left: list[Result], *, is_anothers: bool = False) -> None:
        """Hand a run back; whoever takes it replays. One that is another worker's now is for that one to hear of."""
        tasks = [(work.execution_id, work.attempt)]
        ends, locals_ended = self._ends(work, left), self._locals(work, left)
        self._begin([work.execution_id], self._drop(tasks, ends, locals_ended, is_anothers=is_anothers))

    def doubt(self, dropped: Sequence[tuple[Work, list[Result]]]) -> None:
        """Whether the commit of these passed is unknown: go on from what the database says."""
        tasks = [(work.execution_id, work.attempt) for work, _ in dropped]
        ends = [end for work, left in dropped for end in self._ends(work, left)]
        locals_ended = [end for work, left in dropped for end in self._locals(work, left)]
        self._begin([task[0] for task in tasks], self._doubt(tasks, ends, locals_ended))

    def block(self, work: Work, left: list[Result], error: HarvestError) -> None:
        """Put a run aside with its reason; what is not its fault must not end it (issue, build 5)."""
        self._begin([work.execution_id], self._block(work, self._ends(work, left), error))

    def give_back(self, tasks: list[Task]) -> None:
        """Hand back tasks that nobody works on here."""
        self._begin([task[0] for task in tasks], self._release(tasks))

    async def finish(self, seconds: float) -> None:
        """Let what is under way end for a while, then cut it off: the end of the worker frees the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, ids: list[UUID], what: Coroutine[Any, Any, None]) -> None:
        self.recovering.update(ids)
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, ids))

    def _ended(self, task: asyncio.Task[None], ids: list[UUID]) -> None:
        self._tasks.discard(task)
        self.recovering.difference_update(ids)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("shard %s: handing back runs failed", self._store.shard_id, exc_info=error)
            self.on_doubt()

    def _ends(self, work: Work, left: list[Result]) -> list[ActivityEnd]:
        return [
            ActivityEnd(work.execution_id, result.seq, result.attempt, self._worker, result.kind, result.payload)
            for result in left
            if not result.is_local
        ]

    def _locals(self, work: Work, left: list[Result]) -> list[LocalEnd]:
        return [
            LocalEnd(work.execution_id, work.attempt, result.seq, result.kind, result.payload)
            for result in left
            if result.is_local
        ]

    async def _drop(
        self, tasks: list[Task], ends: list[ActivityEnd], locals_ended: list[LocalEnd], *, is_anothers: bool = False
    ) -> None:
        if locals_ended:
            await self._append_locals(locals_ended)
        await self._append(ends)
        await self._release(tasks)
        if is_anothers:
            self._store.waker.wake(None)

    async def _append_locals(self, ends: list[LocalEnd]) -> None:
        """What cannot be appended now runs again with the next replay."""
        try:
            await results.end_locals(self._store, self._worker, ends)
        except (ShardUnavailableError, asyncpg.PostgresError) as error:
            _log.warning("%d results of local activities were not kept: %s", len(ends), error)

    async def _doubt(self, tasks: list[Task], ends: list[ActivityEnd], locals_ended: list[LocalEnd]) -> None:
        await self._drop(tasks, ends, locals_ended)
        # Only now is the lost commit over for certain: it held a lock on each of these tasks.
        self.on_doubt()

    async def _block(self, work: Work, ends: list[ActivityEnd], error: HarvestError) -> None:
        await self._append(ends)
        try:
            await upkeep.block(
                self._store,
                work.execution_id,
                self._worker,
                work.attempt,
                code=block_code(error),
                message=error.message[:4_000].replace("\x00", "\\0"),
                count=work.blocked_count,
                delay=blocked_delay(work.blocked_count),
            )
        except (ShardUnavailableError, asyncpg.PostgresError) as lost:
            _log.warning("execution %s could not be marked as blocked: %s", work.execution_id, lost)
            await self._release([(work.execution_id, work.attempt)])
        self._store.hints.touch(work.partition)

    async def _append(self, ends: list[ActivityEnd]) -> None:
        pause = FIRST_PAUSE
        while ends and not self._is_lost():
            ends, away = await append_ends(self._store, ends, self._counters)
            if ends:
                pause = max(pause, AWAY_PAUSE) if away else pause
                await clock.sleep(clock.jittered(pause))
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _release(self, tasks: list[Task]) -> None:
        pause = FIRST_PAUSE
        while tasks and not self._is_lost():
            try:
                tasks = await claims.release(self._store, self._worker, tasks)
            except (ShardUnavailableError, asyncpg.PostgresError):
                pause = max(pause, AWAY_PAUSE)
            if tasks:
                await clock.sleep(clock.jittered(pause))
                pause = min(pause * 2, LONGEST_PAUSE)
        self._store.waker.wake(self._worker)


async def append_ends(store: Store, ends: list[ActivityEnd], counters: Counters) -> tuple[list[ActivityEnd], bool]:
    """Append ends once. Returns those whose rows are locked, to be sent again, and whether the database is away.

    One whose attempt is over is dropped and counted.
    """
    try:
        appended = await results.end_activities(store, ends)
        for holder in set(appended.woken.values()):
            store.waker.wake(holder)
        ends = [end for end in ends if (end.execution_id, end.seq) not in appended.done]
        if ends:
            still = await results.still_at_attempt(store, ends)
            counters.activities_stale += sum((end.execution_id, end.seq) not in still for end in ends)
            ends = [end for end in ends if (end.execution_id, end.seq) in still]
    except (ShardUnavailableError, asyncpg.PostgresError) as error:
        _log.warning("%d results could not be appended yet: %s", len(ends), error)
        return ends, True
    return ends, False
