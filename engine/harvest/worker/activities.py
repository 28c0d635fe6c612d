"""Runs activities: those started with their decision and those claimed, by one code path (design 4, reference 7.3)."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import UUID

import msgspec
from msgspec import Raw

from harvest import clock
from harvest.definitions.activity import ActivityContext, ActivityDefinition, ActivityInfo
from harvest.definitions.llm_usage import LlmUsage
from harvest.definitions.registry import Registry
from harvest.errors import PayloadError
from harvest.history.data import (
    ActivityCompleted,
    ActivityFailed,
    ActivityTimedOut,
    Failure,
    RetryPolicy,
)
from harvest.history.events import encode_data
from harvest.history.ids import ExecutionId
from harvest.history.kinds import EventKind
from harvest.history.retrying import retry_delay
from harvest.replay.commands import ScheduleActivity
from harvest.replay.failures import failure_of
from harvest.worker.costs import CostLedger
from harvest.worker.options import Counters, WorkerOptions
from harvest.worker.slots import Slots

_log = logging.getLogger("harvest.activity")
# A longer start_to_close is watched by the scanner alone: half a second is precise enough for it, and a timer for each
# activity is not free.
SHORT_LIMIT = 5.0


class Attempt(msgspec.Struct):
    """One attempt to run one activity. `strikes` attempts before it ended with their worker and do not count.

    Once `is_over`, its code has ended, and what it has reported of language models is being written.
    """

    shard_id: int
    execution_id: UUID
    seq: int
    attempt: int
    workflow_name: str
    workflow_id: str
    name: str
    input: bytes
    start_to_close: float | None
    heartbeat: float | None
    retry: RetryPolicy
    eager: bool
    strikes: int = 0
    last_details: bytes | None = None
    task: asyncio.Task[None] | None = None
    cancelled: bool = False
    abandoned: bool = False
    begun: bool = False
    overruled: asyncio.Event | None = None
    began: float = 0.0
    thread: Future[object] | None = None
    is_local: bool = False
    has_reported: bool = False
    is_over: bool = False

    @property
    def key(self) -> tuple[UUID, int]:
        """The activity of this attempt."""
        return (self.execution_id, self.seq)


class Ended(msgspec.Struct, frozen=True):
    """How an attempt ended: an event for history, or, where `delay` is set, another attempt after it.

    An overruled attempt ends with a delay too: whoever overruled it has written what follows, so that putting it back
    finds nothing to do.
    """

    kind: int
    payload: bytes
    delay: float | None = None
    failure: bytes | None = None


class ActivityRunner:
    """The slots of a worker process and what runs in them.

    With `only_sessions`, as its worker drains, nothing begins but what belongs to a session that is open there.
    """

    def __init__(self, registry: Registry, options: WorkerOptions, counters: Counters) -> None:
        self.running: dict[tuple[UUID, int], Attempt] = {}
        self.beats: dict[tuple[UUID, int], tuple[int, int, bytes]] = {}
        self.on_end: Callable[[Attempt, Ended], None] = lambda attempt, ended: None
        self.beat_writers: dict[int, Callable[[], Awaitable[None]]] = {}
        self.ledgers: dict[int, CostLedger] = {}
        self._registry = registry
        self._queues = frozenset(options.queues)
        self._slots = Slots(options.activity_slots)
        self._thread_slots = Slots(options.threads)
        self._threads = ThreadPoolExecutor(options.threads, thread_name_prefix="harvest-activity")
        self._counters = counters
        self._accepting = True
        self.only_sessions = False

    @property
    def free(self) -> int:
        """Slots that are free, threads aside."""
        return self._slots.free if self._accepting else 0

    def takeable(self, shard_id: int, wake: Callable[[], None]) -> tuple[list[str], int]:
        """The activities that a shard may claim now and how many; those that need a thread only while one is free.

        Where slots or threads are wanting, `wake` is called when the shard may have some.
        """
        if not self._accepting:
            return [], 0
        most = self._slots.room(shard_id)
        if most <= 0:
            self._slots.wait(shard_id, wake)
        threads = self._thread_slots.room(shard_id) > 0
        names = [name for name, each in self._registry.activities.items() if each.is_async or threads]
        if len(names) < len(self._registry.activities):
            self._thread_slots.wait(shard_id, wake)
        return names, most

    def content(self, shard_id: int, names: Sequence[str] | None = None) -> None:
        """A shard has claimed what it found of these activities, or cannot claim: no slot is kept for it.

        Where what needs a thread was not among them, it still waits for one.
        """
        self._slots.content(shard_id)
        if names is None or len(names) == len(self._registry.activities):
            self._thread_slots.content(shard_id)

    def reserve(self, shard_id: int, command: ScheduleActivity) -> bool:
        """Take a slot for an activity that its decision starts here, or leave it to whoever claims it."""
        definition = self._registry.activities.get(command.name)
        if definition is None or not self._accepting or command.queue not in self._queues:
            return False
        if self.only_sessions and command.session is None:
            return False
        return self._take(shard_id, definition)

    def give_back(self, shard_id: int, command: ScheduleActivity) -> None:
        """The decision was refused; its slot is free again."""
        self._leave(shard_id, self._registry.activities[command.name])

    def take_claimed(self, shard_id: int, name: str) -> bool:
        """Take a slot for a claimed activity."""
        return self._take(shard_id, self._registry.activities[name])

    def _take(self, shard_id: int, definition: ActivityDefinition[..., object]) -> bool:
        if self._slots.room(shard_id) <= 0 or (not definition.is_async and self._thread_slots.room(shard_id) <= 0):
            return False
        self._slots.take(shard_id)
        if not definition.is_async:
            self._thread_slots.take(shard_id)
        return True

    def _leave(self, shard_id: int, definition: ActivityDefinition[..., object]) -> None:
        self._slots.leave(shard_id)
        if not definition.is_async:
            self._thread_slots.leave(shard_id)

    def _leave_after(self, attempt: Attempt, definition: ActivityDefinition[..., object]) -> None:
        """A thread that outlives its timeout keeps its slot until it is done."""
        if attempt.thread is None or attempt.thread.done():
            self._leave(attempt.shard_id, definition)
            return
        loop = asyncio.get_running_loop()
        attempt.thread.add_done_callback(lambda _: loop.call_soon_threadsafe(self._leave, attempt.shard_id, definition))

    def start(self, attempt: Attempt) -> None:
        """Run an attempt whose slot was taken; `on_end` hears how it ended."""
        attempt.began = clock.monotonic()
        self.running[attempt.key] = attempt
        attempt.task = asyncio.get_running_loop().create_task(self._run(attempt))

    def cancel(self, execution_id: UUID, seqs: Iterable[int] | None) -> None:
        """Ask attempts of a run to stop: these, or all."""
        keys = (
            [(execution_id, seq) for seq in seqs]
            if seqs is not None
            else [key for key in self.running if key[0] == execution_id]
        )
        for key in keys:
            attempt = self.running.get(key)
            if attempt is not None and not attempt.cancelled:
                _stop(attempt)

    def overrule(self, execution_id: UUID, seq: int, attempt: int) -> Attempt | None:
        """What this attempt still says counts for nothing: its timeout has come, or its task is gone.

        Returns the attempt if it runs here. Its slot and its run are let go once `dismiss` was called with it.
        """
        found = self.running.get((execution_id, seq))
        if found is None or found.attempt != attempt or found.overruled is not None:
            return None
        found.overruled = asyncio.Event()
        return found

    def dismiss(self, attempt: Attempt) -> None:
        """What follows an overruled attempt is written: stop it."""
        assert attempt.overruled is not None
        attempt.overruled.set()
        if self.running.get(attempt.key) is attempt:
            _stop(attempt)

    async def stop(self, seconds: float) -> None:
        """Take nothing more, let what runs finish for `seconds`, then cancel it."""
        self._accepting = False
        tasks = [a.task for a in self.running.values() if a.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
            late = list(self.running.values())
            for attempt in late:
                attempt.abandoned = True
                _stop(attempt)
            if late:
                await asyncio.wait([a.task for a in late if a.task is not None], timeout=1)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, attempt: Attempt) -> None:
        definition = self._registry.activities[attempt.name]
        try:
            ended = await self._outcome(attempt, definition)
            if attempt.has_reported:
                attempt.is_over = True
                await self.reports_written(attempt)
        finally:
            self._leave_after(attempt, definition)
            if self.running.get(attempt.key) is attempt:
                del self.running[attempt.key]
        if attempt.overruled is not None:
            await attempt.overruled.wait()
            self.on_end(attempt, Ended(ended.kind, b"", 0.0))
            return
        if attempt.abandoned and ended.kind != EventKind.ACTIVITY_COMPLETED:
            # Cut short by the end of this worker, not by the activity: whoever takes it over runs it again.
            return
        if ended.delay is not None and attempt.key in self.beats:
            await self._write_last_beat(attempt)
        self._count(ended)
        self.on_end(attempt, ended)

    async def _write_last_beat(self, attempt: Attempt) -> None:
        """The next attempt must find what this one said last."""
        try:
            await self.beat_writers[attempt.shard_id]()
        except Exception as error:
            _log.warning("the last heartbeat of activity %r is not written yet: %s", attempt.name, error)

    async def reports_written(self, attempt: Attempt) -> None:
        """Wait until what an attempt has reported of language models is kept: its end must not be known before."""
        if attempt.has_reported:
            await self.ledgers[attempt.shard_id].written()

    async def value_of(self, attempt: Attempt, definition: ActivityDefinition[..., object]) -> bytes:
        """Call the function of an attempt, without limits or bookkeeping, for its encoded result."""
        arguments = definition.signature.decode(attempt.input)
        if definition.wants_context:
            arguments.insert(0, self._context(attempt))
        value = await self._call(attempt, definition, arguments)
        return definition.signature.encode_result(value)

    async def _outcome(self, attempt: Attempt, definition: ActivityDefinition[..., object]) -> Ended:
        limit: asyncio.Timeout | None = None
        attempt.begun = True
        try:
            if attempt.cancelled:
                raise asyncio.CancelledError
            if attempt.start_to_close is None or attempt.start_to_close > SHORT_LIMIT:
                output = await self.value_of(attempt, definition)
            else:
                async with asyncio.timeout(attempt.start_to_close) as limit:
                    output = await self.value_of(attempt, definition)
            return Ended(
                EventKind.ACTIVITY_COMPLETED,
                encode_data(ActivityCompleted(output=Raw(output), attempt=attempt.attempt)),
            )
        except PayloadError as error:
            return self._failed(attempt, msgspec.structs.replace(failure_of(error), non_retryable=True))
        except TimeoutError as error:
            if limit is not None and limit.expired():
                return self._timed_out(attempt)
            return self._failed(attempt, failure_of(error))
        except asyncio.CancelledError as error:
            failure = failure_of(error)
            message = "the activity was cancelled" if attempt.cancelled else "the activity raised CancelledError"
            return self._failed(
                attempt, Failure(type="Cancelled", message=message, traceback=failure.traceback, non_retryable=True)
            )
        except BaseException as error:
            # SystemExit and KeyboardInterrupt of user code fail the activity, not the worker.
            return self._failed(attempt, failure_of(error))

    async def _call(
        self, attempt: Attempt, definition: ActivityDefinition[..., object], arguments: list[object]
    ) -> object:
        if definition.is_async:
            return await definition.function(*arguments)
        context = contextvars.copy_context()
        attempt.thread = self._threads.submit(context.run, _called, definition.function, *arguments)
        return await asyncio.wrap_future(attempt.thread)

    def _context(self, attempt: Attempt) -> ActivityContext:
        info = ActivityInfo(
            execution_id=ExecutionId(int=attempt.execution_id.int),
            workflow_name=attempt.workflow_name,
            workflow_id=attempt.workflow_id,
            name=attempt.name,
            seq=attempt.seq,
            attempt=attempt.attempt,
        )

        def beat(details: bytes) -> None:
            self.beats[attempt.key] = (attempt.shard_id, attempt.attempt, details)

        loop = asyncio.get_running_loop()
        first = _anywhere() if attempt.is_local else 0

        def report(number: int, usage: LlmUsage) -> None:
            attempt.has_reported = True
            ledger = self.ledgers[attempt.shard_id]
            ledger.note(loop, attempt.execution_id, attempt.seq, attempt.attempt, first + number, usage)

        return ActivityContext(
            info,
            heartbeat=beat,
            cancelled=lambda: attempt.cancelled,
            last_details=attempt.last_details,
            report=report,
        )

    def _failed(self, attempt: Attempt, failure: Failure) -> Ended:
        delay = self._delay(attempt, failure)
        data = encode_data(failure)
        if delay is not None:
            return Ended(EventKind.ACTIVITY_FAILED, b"", delay, data)
        return Ended(
            EventKind.ACTIVITY_FAILED, encode_data(ActivityFailed(failure=failure, attempt=attempt.attempt)), None, data
        )

    def _timed_out(self, attempt: Attempt) -> Ended:
        failure = Failure(type="TimeoutError", message=f"the attempt took longer than {attempt.start_to_close:g} s")
        delay = self._delay(attempt, failure)
        if delay is not None:
            return Ended(EventKind.ACTIVITY_TIMED_OUT, b"", delay, encode_data(failure))
        return Ended(
            EventKind.ACTIVITY_TIMED_OUT,
            encode_data(ActivityTimedOut(timeout_type="start_to_close", attempt=attempt.attempt)),
        )

    def _delay(self, attempt: Attempt, failure: Failure) -> float | None:
        if attempt.cancelled:
            return None
        tries = max(1, attempt.attempt - attempt.strikes)
        return retry_delay(attempt.retry, failure, tries, f"{attempt.execution_id}/{attempt.seq}")

    def _count(self, ended: Ended) -> None:
        if ended.delay is not None:
            self._counters.activities_retried += 1
        elif ended.kind == EventKind.ACTIVITY_COMPLETED:
            self._counters.activities_completed += 1
        else:
            self._counters.activities_failed += 1


def _stop(attempt: Attempt) -> None:
    """Cancel an attempt. A task that is cancelled before its first step never takes it: that one stops as it begins."""
    attempt.cancelled = True
    if attempt.begun and not attempt.is_over and attempt.task is not None:
        attempt.task.cancel()


def _anywhere() -> int:
    """Where the reports of a local activity's attempt are numbered from.

    A run that is taken up again counts its attempts anew: what they report then is none of the reports of before.
    """
    return int.from_bytes(clock.random_bytes(4)) >> 2


def _called(function: Callable[..., object], *arguments: object) -> object:
    """Call a plain function as a coroutine would be: a StopIteration cannot travel through a future."""
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError("the activity raised StopIteration") from error
