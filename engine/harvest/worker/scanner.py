"""Bounded passes over what time brings: timers, timeouts, deadlines, lost workers, heartbeats (design 1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.history.data import ActivityFailed, ActivityTimedOut, Failure, RetryPolicy
from harvest.history.events import encode_data
from harvest.history.kinds import EventKind
from harvest.history.limits import STRIKES
from harvest.history.retrying import retry_delay
from harvest.store import closings, fleet, results, timers, upkeep
from harvest.store.store import Store
from harvest.worker.activities import ActivityRunner, Attempt
from harvest.worker.claimed import UNREADABLE, scheduled_data
from harvest.worker.metrics import Measures
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.watch import Lease

_log = logging.getLogger("harvest.worker")
SWEEP_SECONDS = 30.0
FULL_PASS = 500
IDLE_SECONDS = 1.0
LOCKED_SECONDS = 0.01


class TimerLoop:
    """Fires due timers; wakes up by itself for the timers that this worker has set."""

    def __init__(self, store: Store, measures: Measures) -> None:
        self._store = store
        self._measures = measures
        self._next: datetime | None = None
        self._wake = asyncio.Event()

    def expect(self, fires_at: datetime) -> None:
        """A timer of this worker is due then."""
        if self._next is None or fires_at < self._next:
            self._next = fires_at
            self._wake.set()

    async def tick(self) -> float:
        """Fire what is due; returns the seconds until the next look."""
        self._next = None
        fired = await timers.fire_timers(self._store)
        for each in fired:
            self._store.waker.wake(each.holder)
            self._store.hints.touch(each.partition)
            self._measures.count(("timer.fired", each.workflow_name), each.timers)
        if len(fired) >= FULL_PASS:
            return 0.0
        answer = await timers.next_timer(self._store)
        # What was set while the database was asked is not in its answer.
        self._next = min((at for at in (self._next, answer) if at is not None), default=None)
        if self._next is None:
            return IDLE_SECONDS
        # A due timer that was not fired belongs to a run that is locked at this moment.
        least = 0.001 if fired else LOCKED_SECONDS
        return min(IDLE_SECONDS, max(least, (self._next - self._store.clock.now()).total_seconds() + 0.001))

    async def run(self) -> None:
        """Fire timers until cancelled."""
        while True:
            self._wake.clear()
            try:
                pause = await self.tick()
            except (ShardUnavailableError, asyncpg.PostgresError) as error:
                _log.warning("shard %s: timers could not be fired: %s", self._store.shard_id, error)
                pause = 1.0
            except Exception:
                _log.exception("shard %s: timers could not be fired", self._store.shard_id)
                pause = IDLE_SECONDS
            await clock.wait_event(self._wake, pause)


class Scanner:
    """The other passes, each at its own pace."""

    def __init__(
        self,
        store: Store,
        worker: UUID,
        lease: Lease,
        runner: ActivityRunner,
        options: WorkerOptions,
        counters: Counters,
        measures: Measures,
    ) -> None:
        self._measures = measures
        self._store = store
        self._worker = worker
        self._lease = lease
        self._runner = runner
        self._options = options
        self._counters = counters
        self.on_tick: Callable[[str, float], None] = lambda _, __: None
        runner.beat_writers[store.shard_id] = self.write_beats

    async def run(self) -> None:
        """Run every pass until cancelled."""
        await asyncio.gather(
            self._every(self._options.scan_interval, "overdue_activities", self.overdue_activities),
            self._every(self._options.scan_interval, "deadlines", self.deadlines),
            self._every(1.0, "lost_workers", self.lost_workers),
            self._every(1.0, "heartbeats", self.heartbeats),
            self._every(SWEEP_SECONDS, "sweep", lambda: upkeep.sweep(self._store)),
        )

    async def _every(self, seconds: float, name: str, one_pass: Callable[[], Awaitable[None]]) -> None:
        while True:
            await clock.sleep(clock.jittered(seconds))
            began = clock.monotonic()
            try:
                await one_pass()
            except (ShardUnavailableError, asyncpg.PostgresError) as error:
                _log.warning("shard %s: a scan failed: %s", self._store.shard_id, error)
            except Exception:
                # One bad row must not end the passes over all others.
                _log.exception("shard %s: a scan failed", self._store.shard_id)
            finally:
                self.on_tick(name, clock.monotonic() - began)

    async def deadlines(self) -> None:
        """End runs past their deadline."""
        for each in await closings.close_overdue(self._store):
            self._measures.count(("workflow.timeout", each.workflow_name))
            self._runner.cancel(each.execution_id, None)
            self._store.hints.touch(each.partition)
            if each.holder is not None and each.holder != self._worker:
                self._store.waker.wake(each.holder)

    async def lost_workers(self) -> None:
        """Free what dead workers held; an activity that was there for the third time ends as WorkerKilled."""
        lost = await fleet.free_lost(self._store)
        if lost.workers:
            _log.warning("shard %s: freed what %d lost workers held", self._store.shard_id, len(lost.workers))
            self._store.waker.wake(None)
        for kind, struck in (("workflow", lost.quarantined), ("activity", lost.struck_out)):
            if struck:
                self._measures.count(("task.quarantined", kind), len(struck))
        await self._append([_worker_killed(*struck_out) for struck_out in lost.struck_out])

    async def heartbeats(self) -> None:
        """Write this process's heartbeats, and learn which running attempts nobody waits for any more."""
        await self.write_beats()
        old = clock.monotonic() - 1.0
        running = [
            (a.execution_id, a.seq, a.attempt)
            for a in self._runner.running.values()
            if a.shard_id == self._store.shard_id and a.began < old and not a.cancelled
        ]
        if running:
            for execution_id, seq, attempt, gone in await upkeep.asked_to_stop(self._store, self._worker, running):
                if gone:
                    self._dismiss([self._runner.overrule(execution_id, seq, attempt)])
                else:
                    self._runner.cancel(execution_id, [seq])

    async def write_beats(self) -> None:
        """Write what the activities of this process have said since the last time, in one statement."""
        # A copy: activities in threads add to it meanwhile.
        mine = [(key, beat) for key, beat in self._runner.beats.copy().items() if beat[0] == self._store.shard_id]
        if mine:
            await upkeep.beat(self._store, [(key[0], key[1], beat[1], beat[2]) for key, beat in mine])
        for key, beat in mine:
            if self._runner.beats.get(key) is beat:
                del self._runner.beats[key]

    async def overdue_activities(self) -> None:
        """End or retry activities whose timeout has come (reference 2.15)."""
        retries, ends, overruled = [], [], []
        found = await upkeep.overdue_activities(self._store)
        if any(each.worker == self._worker and (each.execution_id, each.seq) in self._runner.beats for each in found):
            await self.write_beats()
            found = await upkeep.overdue_activities(self._store)
        for overdue in found:
            if overdue.is_alive:
                await upkeep.postpone(self._store, overdue.execution_id, overdue.seq, overdue.attempt)
                continue
            verdict = self._verdict(overdue)
            if isinstance(verdict, results.ActivityRetry):
                retries.append(verdict)
            else:
                ends.append(verdict)
            if overdue.worker == self._worker:
                overruled.append(self._runner.overrule(overdue.execution_id, overdue.seq, overdue.attempt))
        try:
            done = await results.retry_activities(self._store, retries) if retries else set()
            done |= await self._append(ends)
        finally:
            self._dismiss(overruled)
        for overdue in found:
            if (overdue.execution_id, overdue.seq) in done and not _is_struck_out(overdue):
                self._measures.activity_timed_out(overdue.name, _timeout_type(overdue))

    def _dismiss(self, overruled: Iterable[Attempt | None]) -> None:
        for attempt in overruled:
            if attempt is not None:
                self._runner.dismiss(attempt)

    def _verdict(self, overdue: upkeep.Overdue) -> results.ActivityEnd | results.ActivityRetry:
        if _is_struck_out(overdue):
            return _worker_killed(overdue.execution_id, overdue.seq, overdue.attempt)
        timeout = _timeout_type(overdue)
        last = msgspec.json.decode(overdue.last_failure, type=Failure) if overdue.last_failure else None
        policy = _policy(overdue)
        if timeout in ("start_to_close", "heartbeat") and policy is not None:
            failure = Failure(type="TimeoutError", message=f"the attempt ran into its {timeout} timeout")
            tries = max(1, overdue.attempt - overdue.strikes)
            delay = retry_delay(policy, failure, tries, f"{overdue.execution_id}/{overdue.seq}")
            if delay is not None:
                return results.ActivityRetry(
                    overdue.execution_id, overdue.seq, overdue.attempt, overdue.worker, delay, encode_data(failure)
                )
        data = ActivityTimedOut(timeout_type=timeout, attempt=overdue.attempt, last_failure=last)
        return results.ActivityEnd(
            overdue.execution_id,
            overdue.seq,
            overdue.attempt,
            overdue.worker,
            EventKind.ACTIVITY_TIMED_OUT,
            encode_data(data),
        )

    async def _append(self, ends: list[results.ActivityEnd]) -> set[tuple[UUID, int]]:
        if not ends:
            return set()
        appended = await results.end_activities(self._store, ends)
        for holder in set(appended.woken.values()):
            self._store.waker.wake(holder)
        return appended.done


def _worker_killed(execution_id: UUID, seq: int, attempt: int) -> results.ActivityEnd:
    failure = Failure(
        type="WorkerKilled",
        message=f"the worker died {STRIKES} times while it ran this activity",
        non_retryable=True,
    )
    data = encode_data(ActivityFailed(failure=failure, attempt=attempt))
    return results.ActivityEnd(execution_id, seq, attempt, None, EventKind.ACTIVITY_FAILED, data)


def _policy(overdue: upkeep.Overdue) -> RetryPolicy | None:
    """How the activity is retried; not at all if what history says of it cannot be read."""
    try:
        return scheduled_data(overdue.scheduled).retry
    except UNREADABLE:
        return None


def _is_struck_out(overdue: upkeep.Overdue) -> bool:
    """Whether it died with its workers, and whoever freed it died before it was ended."""
    return not overdue.running and overdue.strikes >= STRIKES


def _timeout_type(overdue: upkeep.Overdue) -> str:
    if overdue.closed_over:
        return "schedule_to_close"
    if not overdue.running:
        return "schedule_to_start"
    return "start_to_close" if overdue.started_over else "heartbeat"
