"""The worker's own thread: renews the leases and watches over the steps of workflow code (design 3 and 5).

It has its own loop and connections, so that neither a busy event loop nor a full pool can cost a lease.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import itertools
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import StepTooLongError
from harvest.replay.guard import is_standard_library
from harvest.replay.unwinding import let_strike
from harvest.store.fleet import Orders, renew
from harvest.store.pool import LOST, Connection, connect
from harvest.store.store import Store
from harvest.worker.hurrying import Hurry
from harvest.worker.options import Counters

_log = logging.getLogger("harvest.worker")
SLOW_STEP = 0.05
LONG_STEP = 5.0
LAST_WORD = 10.0
STACK_FRAMES = 20
EXIT_HUNG = 70


class StepInterrupted(BaseException):  # raised by the watchdog: it must pass `except Exception`
    """Breaks into a step that holds the loop too long."""


class StepWatch:
    """Which step is running on the main thread, and since when."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._name = ""
        self._began: float | None = None
        self._interrupted_at: float | None = None
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self.stack = ""
        self._logged: dict[str, list[tuple[str, str]]] = {}
        self.hurry = Hurry()

    def begin(self, name: str) -> None:
        """A step of this workflow type begins."""
        self._name = name
        self._began = clock.monotonic()

    def end(self) -> StepTooLongError | None:
        """The step is over; an error if the watchdog had to break in."""
        with self._lock:
            began, self._began = self._began, None
            interrupted, self._interrupted_at = self._interrupted_at, None
            if interrupted is not None:
                let_strike()
        took = clock.monotonic() - (began or 0)
        if took > SLOW_STEP:
            self._counters.slow_steps += 1
            _log.warning("a step of workflow %r took %.0f ms", self._name, took * 1000)
        if interrupted is None:
            return None
        return StepTooLongError(
            f"a step of workflow {self._name!r} held the worker for more than {LONG_STEP:g} s:\n{self.stack}",
            workflow_name=self._name,
        )

    def look(self) -> None:
        """Called twice a second by the watching thread."""
        with self._lock:
            if self._began is None:
                return
            now = clock.monotonic()
            if self._interrupted_at is None and now - self._began > LONG_STEP:
                self._interrupted_at = now
                frame = sys._current_frames().get(self._thread)
                self._note_stack(frame)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(StepInterrupted)
                )
            elif self._interrupted_at is not None and now - self._interrupted_at > LAST_WORD:
                _log.critical("workflow %r does not let go of the worker; ending the process", self._name)
                faulthandler.dump_traceback(file=sys.stderr)
                os._exit(EXIT_HUNG)

    def _note_stack(self, frame: FrameType | None) -> None:
        """Keep where the step is, and log it unless it was logged when this type was last broken into."""
        found = _stack_of_users(frame)
        self.stack = "".join(found.format())
        where = [(each.filename, each.name) for each in found]
        known = self._logged.get(self._name) == where
        self._logged[self._name] = where
        seen = ", where it was broken into before" if known else f"\n{self.stack}"
        _log.error("breaking into a step of workflow %r after %g s%s", self._name, LONG_STEP, seen)


def _stack_of_users(frame: FrameType | None) -> traceback.StackSummary:
    """The user's own frames within the step, innermost last; all that led to it where there is none."""
    frames = list(traceback.walk_stack(frame)) if frame is not None else []
    step = itertools.takewhile(lambda each: not _is_drivers(each[0]), frames)
    users = [each for each in step if _is_users(each[0])]
    return traceback.StackSummary.extract(reversed((users or frames)[:STACK_FRAMES]))


def _is_drivers(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("harvest.worker.")


def _is_users(frame: FrameType) -> bool:
    is_ours = str(frame.f_globals.get("__name__")).startswith("harvest.")
    return not is_ours and not is_standard_library(frame.f_code.co_filename)


class Lease:
    """This worker's lease on one shard as far as it knows: alive until a local deadline, or lost for good.

    It is `seconds` long and renewed every `every`. It begins with the first `renewed`, when the shard has registered
    the worker.
    """

    def __init__(self, store: Store, seconds: float, every: float) -> None:
        self.store = store
        self.seconds = seconds
        self.every = every
        self.lost = False
        self.begun = False
        self._alive_until = float("-inf")

    @property
    def alive(self) -> bool:
        """Whether work may still be taken: local time can only end a lease earlier than the database does."""
        return not self.lost and clock.monotonic() < self._alive_until

    def renewed(self, sent: float) -> None:
        """The database has confirmed; the lease counts from when the request was sent."""
        self.begun = True
        self._alive_until = sent + self.seconds


class WatchThread:
    """Renews every lease in its time and looks at the step twice a second, until it is stopped.

    With each renewal it tells what `tell` says (JSON), and passes on what people want of the worker, by shard.
    """

    def __init__(
        self,
        worker: UUID,
        leases: list[Lease],
        steps: StepWatch,
        counters: Counters,
        on_lost: Callable[[], None],
        tell: Callable[[], bytes],
        on_orders: Callable[[int, Orders], None],
    ) -> None:
        self._worker = worker
        self._leases = leases
        self._steps = steps
        self._counters = counters
        self._on_lost = on_lost
        self._tell = tell
        self._on_orders = on_orders
        self._leases_over = threading.Event()
        self._leases_ended = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="harvest-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end_leases(self) -> None:
        """Renew no more, but go on watching; returns when no renewal is under way or two seconds have passed."""
        self._leases_over.set()
        self._leases_ended.wait(2)

    def stop(self) -> None:
        """End; returns when the thread is gone or two seconds have passed."""
        self._stop.set()
        self._thread.join(2)

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except BaseException:
            # Without this thread the leases end unseen: the worker must not go on.
            _log.critical("the thread that keeps the leases has died", exc_info=True)
            self._on_lost()
            raise

    async def _watch(self) -> None:
        renewing = [asyncio.create_task(self._keep(lease)) for lease in self._leases]
        while not self._stop.is_set():
            self._steps.look()
            for task in renewing:
                if task.done() and (error := task.exception()) is not None:
                    raise error
            if self._leases_over.is_set() and renewing:
                await _cancelled(renewing)
                renewing = []
                self._leases_ended.set()
            await clock.sleep(0.2)
        await _cancelled(renewing)

    async def _keep(self, lease: Lease) -> None:
        connection: Connection | None = None
        try:
            while not lease.lost:
                if not lease.begun:
                    await clock.sleep(0.2)
                    continue
                try:
                    if connection is None or connection.is_closed():
                        connection = await connect(
                            lease.store.address, lease.every, name="harvest-lease", jit="off", timezone="UTC"
                        )
                    await self._renew(lease, connection)
                except (*LOST, asyncpg.PostgresError) as error:
                    _log.warning("shard %s: the lease could not be renewed: %s", lease.store.shard_id, error)
                    if connection is not None:
                        connection.terminate()
                        connection = None
                await clock.sleep(lease.every if connection is not None else min(0.5, lease.every))
        finally:
            if connection is not None:
                connection.terminate()

    async def _renew(self, lease: Lease, connection: Connection) -> None:
        sent = clock.monotonic()
        async with asyncio.timeout(lease.every):
            renewal = await renew(connection, self._worker, self._tell(), lease.seconds)
        if renewal is None:
            lease.lost = True
            self._counters.leases_lost += 1
            self._on_lost()
            return
        lease.renewed(sent)
        lease.store.hints.watched = renewal.watched
        self._on_orders(lease.store.shard_id, renewal.orders)


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
