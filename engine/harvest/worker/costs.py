"""Brings what activities report of language models to the ledger: in batches, and before an attempt's end is told."""

from __future__ import annotations

import asyncio
import logging
from threading import Lock
from typing import Final
from uuid import UUID

import asyncpg
from msgspec import Struct

from harvest import clock
from harvest.definitions.llm_usage import LlmUsage
from harvest.errors import ShardUnavailableError
from harvest.store import costs
from harvest.store.costs import CostRow
from harvest.store.pool import is_passing
from harvest.store.store import Store

_log = logging.getLogger("harvest.activity")
WRITE_SECONDS: Final = 1.0
MOST_ROWS: Final = 1_000
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0


class _Report(Struct, frozen=True):
    """One call of a model, and when it was reported, by this process's monotonic clock."""

    execution_id: UUID
    seq: int
    attempt: int
    number: int
    at: float
    usage: LlmUsage


class CostLedger:
    """One for each shard of a worker. Nothing runs and nothing is written while nobody reports.

    A report is written within a second, or as soon as its attempt ends; a database that is away is tried until it
    answers. Each has a key of its own, so that writing it again changes nothing.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._reports: list[_Report] = []
        self._noted = 0
        self._written = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def note(
        self,
        loop: asyncio.AbstractEventLoop,
        execution_id: UUID,
        seq: int,
        attempt: int,
        number: int,
        usage: LlmUsage,
    ) -> None:
        """Take a report, from whatever thread; `loop` is the worker's."""
        report = _Report(execution_id, seq, attempt, number, clock.monotonic(), usage)
        with self._lock:
            self._reports.append(report)
            self._noted += 1
            is_first = len(self._reports) == 1
        if is_first:
            loop.call_soon_threadsafe(self._expect, loop)

    async def written(self) -> None:
        """Wait until all that was reported so far is in the database."""
        with self._lock:
            upto = self._noted
        if self._written >= upto:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((upto, waiter))
        self._begin()
        await waiter

    async def finish(self, seconds: float) -> None:
        """Write what there is, for a while; who still waits then is cancelled, and does not tell how it ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reports:
            self._begin()
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=seconds)
            self._writing.cancel()
        for _, waiter in self._waiting:
            waiter.cancel()

    def _expect(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(WRITE_SECONDS, self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        pause = FIRST_PAUSE
        while self._reports:
            reports = self._reports[:MOST_ROWS]
            try:
                await self._send(reports)
            except (ShardUnavailableError, asyncpg.PostgresError) as error:
                _log.warning("shard %s: what activities spent is not written yet: %s", self._store.shard_id, error)
                await clock.sleep(clock.jittered(pause))
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            with self._lock:
                del self._reports[: len(reports)]
            self._written += len(reports)
            self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for upto, waiter in waiting:
            if upto > self._written:
                self._waiting.append((upto, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    async def _send(self, reports: list[_Report]) -> None:
        """Write reports; one that the database refuses for good is left out, and holds up no other."""
        try:
            await costs.record(self._store, [_row(report) for report in reports])
        except asyncpg.PostgresError as error:
            if is_passing(error):
                raise
            if len(reports) == 1:
                _log.error("the database refuses what an activity spent, %s: %s", reports[0], error)
                return
            for report in reports:
                await self._send([report])


def _row(report: _Report) -> CostRow:
    usage = report.usage
    return CostRow(
        execution_id=report.execution_id,
        seq=report.seq,
        attempt=report.attempt,
        number=report.number,
        age=clock.monotonic() - report.at,
        model=usage.model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_usd_micros=usage.cost_usd_micros,
        latency_ms=usage.latency_ms,
    )
