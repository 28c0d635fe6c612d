"""Appending results that no decision carries any more, until the database has taken or refused them."""

from __future__ import annotations

import logging
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.store import results
from harvest.store.store import Store
from harvest.worker.options import Counters
from harvest.worker.work import Result

_log = logging.getLogger("harvest.worker")
PATIENCE_SECONDS = 300.0


async def append_results(
    store: Store, worker: UUID, execution_id: UUID, left: list[Result], counters: Counters
) -> None:
    """Append each result by itself, or learn that its attempt is over (design 4)."""
    await append_ends(
        store,
        [
            results.ActivityEnd(execution_id, result.seq, result.attempt, worker, result.kind, result.payload)
            for result in left
        ],
        counters,
    )


async def append_ends(store: Store, ends: list[results.ActivityEnd], counters: Counters) -> None:
    """Append ends; one whose rows are locked is sent again, one whose attempt is over is dropped and counted."""
    give_up = clock.monotonic() + PATIENCE_SECONDS
    delay = 0.005
    while ends and clock.monotonic() < give_up:
        try:
            appended = await results.end_activities(store, ends)
            for holder in set(appended.woken.values()):
                store.waker.wake(holder)
            ends = [end for end in ends if (end.execution_id, end.seq) not in appended.done]
            if ends:
                still = await results.still_at_attempt(
                    store, [(end.execution_id, end.seq, end.attempt) for end in ends]
                )
                counters.activities_stale += sum((end.execution_id, end.seq) not in still for end in ends)
                ends = [end for end in ends if (end.execution_id, end.seq) in still]
        except (ShardUnavailableError, asyncpg.PostgresError) as error:
            _log.warning("%d results could not be appended yet: %s", len(ends), error)
            delay = max(delay, 0.1)
        if ends:
            await clock.sleep(clock.jittered(delay))
            delay = min(delay * 2, 5.0)
