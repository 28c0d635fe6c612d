"""One execution's code on its loop: events go in one at a time, commands and an outcome come out (design 3).

The same object serves a cold replay and a warm resume. It holds no history: the parked loop is the state.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import (
    ActivityError,
    ActivityTimeoutError,
    DefinitionError,
    HarvestError,
    LimitError,
    PayloadDecodeError,
    StepTooLongError,
)
from harvest.history import payload
from harvest.history.data import (
    ActivityFailed,
    ActivityTimedOut,
    SignalReceived,
    WorkflowCancelRequested,
    WorkflowStarted,
)
from harvest.history.events import Event
from harvest.history.ids import ExecutionId
from harvest.history.kinds import COMMANDS, EventKind
from harvest.history.limits import PENDING_OF_A_KIND
from harvest.replay import guard, unwinding
from harvest.replay.commands import (
    CancelActivity,
    CancelTimer,
    ScheduleActivity,
    StartTimer,
)
from harvest.replay.failures import exception_of
from harvest.replay.loop import WorkflowFuture, WorkflowLoop, WorkflowTimer
from harvest.replay.matching import Asked
from harvest.replay.unwinding import AbandonStep

SPARE_BEFORE_PRUNING: Final = 16
LONGEST_TIMER_SECONDS: Final = 100 * 366 * 86_400


class Identity(Struct, frozen=True):
    """Which execution a run belongs to."""

    execution_id: ExecutionId
    workflow_name: str
    workflow_id: str
    queue: str


class Run:
    """Drives one workflow function. Not thread-safe; every method returns with the loop at rest."""

    __slots__ = (
        "_abandoned", "_conditions", "_context", "_generators", "_held", "_main_context", "_prune_above",
        "asked", "blocked", "buffers", "cancel_reason", "decided_through", "definition", "identity", "loop", "main",
        "now_at", "pending", "position", "released", "replaying", "seed", "sequence", "started_at", "tasks", "timers",
        "waiters",
    )  # fmt: skip

    def __init__(
        self, definition: WorkflowDefinition[..., Any], identity: Identity, make_context: Callable[[Run], Any]
    ) -> None:
        self.definition = definition
        self.identity = identity
        self.main: asyncio.Task[Any] | None = None
        self.asked = Asked()
        self.pending: dict[int, tuple[WorkflowFuture, ScheduleActivity]] = {}
        self.timers: dict[int, WorkflowTimer] = {}
        self.buffers: dict[str, deque[bytes]] = {}
        self.waiters: dict[str, deque[tuple[WorkflowFuture, Any]]] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.blocked: HarvestError | None = None
        self.cancel_reason: str | None = None
        self.replaying = False
        self.released = False
        self.position = 0
        self.decided_through = 0
        self.sequence = 0
        self.seed = 0
        self._conditions: list[tuple[Callable[[], bool], WorkflowFuture]] = []
        self._generators: list[Any] = []
        self._held = 0
        self._abandoned = 0
        self._prune_above = SPARE_BEFORE_PRUNING
        self._context = Context()
        self._main_context = make_context

    # Delivering events

    def replay(self, events: Iterable[Event], decided_through: int) -> None:
        """Drive the code over its history; beyond `decided_through` it is live. Sets `blocked` on a mismatch."""
        self.decided_through = decided_through
        before = self._enter()
        try:
            for event in events:
                if self.replaying and event.event_id > decided_through:
                    self.asked.require_none(decided_through)
                self.replaying = event.event_id <= decided_through
                if self.blocked is not None:
                    return
                self._take(event)
            if self.replaying:
                self.asked.require_none(decided_through)
        except HarvestError as error:
            self.blocked = self.blocked or error
        finally:
            self.replaying = False
            self._leave(before)

    def deliver(self, events: Iterable[Event]) -> None:
        """Resume the parked code with new events, in history order."""
        before = self._enter()
        try:
            for event in events:
                self._take(event)
                if self.blocked is not None:
                    return
        except HarvestError as error:
            self.blocked = self.blocked or error
        finally:
            self._leave(before)

    def _take(self, event: Event) -> None:
        kind = event.kind
        self.position = event.event_id
        if kind in COMMANDS:
            self.asked.match(event)
            return
        handler = _HANDLERS.get(kind)
        if handler is None:
            if kind not in _SILENT:
                event.data()
            return
        if self.main is None:
            self.now_at = self.started_at = event.at
        elif event.at > self.now_at:
            self.now_at = event.at
        handler(self, event)
        if self.blocked is not None:
            return
        if self._held:
            self._held -= 1
            if self._held:
                return
        self._context.run(self._spin)

    def _spin(self) -> None:
        """Run everything that is ready, then what the conditions let go on, until all is at rest."""
        ready = self.loop.ready
        try:
            try:
                while True:
                    while ready and self.blocked is None:
                        handle = ready.popleft()
                        if not handle._cancelled:
                            try:
                                handle._run()
                            except (SystemExit, KeyboardInterrupt):
                                # The task keeps it as its exception: it fails the run, not the worker.
                                continue
                    if self.blocked is not None or not self._conditions or not self._release_conditions():
                        break
            finally:
                unwinding.calm()
        except AbandonStep:
            unwinding.calm()
        self.asked.fresh.clear()

    def _release_conditions(self) -> bool:
        released = False
        for entry in list(self._conditions):
            condition, future = entry
            if future.done():
                self._conditions.remove(entry)
                continue
            try:
                holds = condition()
            except AbandonStep:
                return False
            except BaseException as error:
                self._conditions.remove(entry)
                future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
                released = True
                continue
            if holds:
                self._conditions.remove(entry)
                future.set_result(None)
                released = True
        return released

    def _enter(self) -> tuple[bool, Any, Any]:
        outer = asyncio._get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        if self.main is not None:
            asyncio._set_running_loop(self.loop)
        sys.set_asyncgen_hooks(firstiter=self._generators.append, finalizer=None)
        return guard.enter(), outer, hooks

    def _leave(self, before: tuple[bool, Any, Any]) -> None:
        active, outer, hooks = before
        guard.leave(active)
        sys.set_asyncgen_hooks(*hooks)
        asyncio._set_running_loop(outer)

    # One handler for each kind that wakes code

    def _on_started(self, event: Event) -> None:
        data: WorkflowStarted = event.data()
        arguments = self.definition.signature.decode(bytes(data.input))
        self.seed = data.seed
        self.loop = WorkflowLoop(self, data.seed)  # type: ignore[abstract]
        self._held = data.carried + 1 if data.carried else 0
        asyncio._set_running_loop(self.loop)
        context = self._main_context(self)
        try:
            coroutine = self.definition.function(context, *arguments)
        except Exception as error:
            raise DefinitionError(f"{self.definition.signature.what} cannot be called: {error}") from error
        self.main = self._context.run(self._create_main, coroutine)

    def _create_main(self, coroutine: Any) -> asyncio.Task[Any]:
        return self.loop.create_task(coroutine, name="main")

    def _on_activity_completed(self, event: Event) -> None:
        waiting = self.pending.pop(event.seq, None)
        if waiting is None or waiting[0].done():
            return
        future, command = waiting
        output = bytes(event.data().output)
        try:
            decoder = command.definition.signature.result_decoder if command.definition else None
            future.set_result(decoder.decode(output) if decoder else payload.decode(output))
        except Exception as error:
            self.block(
                PayloadDecodeError(
                    f"the recorded result of activity {command.name!r} does not fit its declared type: {error}",
                    event_id=event.event_id,
                )
            )

    def _on_activity_failed(self, event: Event) -> None:
        waiting = self.pending.pop(event.seq, None)
        if waiting is None or waiting[0].done():
            return
        data: ActivityFailed = event.data()
        failure = data.failure
        error = ActivityError(
            f"activity {waiting[1].name!r} failed: {failure.type}: {failure.message}",
            activity=waiting[1].name,
            type=failure.type,
            attempt=data.attempt,
        )
        error.__cause__ = exception_of(failure)
        waiting[0].set_exception(error)

    def _on_activity_timed_out(self, event: Event) -> None:
        waiting = self.pending.pop(event.seq, None)
        if waiting is None or waiting[0].done():
            return
        data: ActivityTimedOut = event.data()
        error = ActivityTimeoutError(
            f"activity {waiting[1].name!r} ran into its {data.timeout_type} timeout",
            activity=waiting[1].name,
            timeout_type=data.timeout_type,
            attempt=data.attempt,
        )
        error.__cause__ = exception_of(data.last_failure)
        waiting[0].set_exception(error)

    def _on_timer_fired(self, event: Event) -> None:
        timer = self.timers.pop(event.seq, None)
        if timer is not None:
            self.loop.ready.append(timer)

    def _on_signal(self, event: Event) -> None:
        data: SignalReceived = event.data()
        waiters = self.waiters.get(data.name)
        while waiters:
            future, as_type = waiters.popleft()
            if not future.done():
                value = self.decode_signal(data.name, bytes(data.payload), as_type)
                if self.blocked is None:
                    future.set_result(value)
                return
        self.buffers.setdefault(data.name, deque()).append(bytes(data.payload))

    def _on_cancel_requested(self, event: Event) -> None:
        data: WorkflowCancelRequested = event.data()
        if self.cancel_reason is None and self.main is not None:
            self.cancel_reason = data.reason
            self.main.cancel()

    # What the context asks for

    def next_sequence(self) -> int:
        """The number of the next command."""
        self.check_usable()
        self.sequence += 1
        return self.sequence

    def check_usable(self) -> None:
        """Unwind code that goes on after its run was let go or blocked."""
        if self.released or self.blocked is not None:
            self._abandoned += 1
            if self._abandoned > unwinding.PATIENCE:
                unwinding.insist()
            raise AbandonStep

    def block(self, error: HarvestError) -> None:
        """Stop this step: what it did is discarded, and the run waits for a repair."""
        self.blocked = self.blocked or error

    def schedule(self, command: ScheduleActivity) -> WorkflowFuture:
        """Ask for an activity."""
        if len(self.pending) >= PENDING_OF_A_KIND:
            raise LimitError(f"{PENDING_OF_A_KIND:,} activities are pending; wait for some before asking for more")
        future = self.loop.create_future()
        future.on_cancel = lambda: self._cancel_activity(command.seq)
        self.asked.ask(command)
        self.pending[command.seq] = (future, command)
        return future

    def _cancel_activity(self, seq: int) -> None:
        if self.pending.pop(seq, None) is not None and not self.released:
            self.asked.take_back(CancelActivity(seq))

    def start_timer(self, duration: float, handle: WorkflowTimer, until: datetime | None = None) -> int:
        """Ask for a durable timer that runs `handle`; returns its number."""
        seq = self.next_sequence()
        if not duration <= LONGEST_TIMER_SECONDS:
            raise LimitError(f"a timer of {duration:g} s is too long; at most 100 years are allowed")
        if len(self.timers) >= PENDING_OF_A_KIND:
            raise LimitError(f"{PENDING_OF_A_KIND:,} timers are pending; wait for some before starting more")
        self.asked.ask(StartTimer(seq, round(duration, 6), until))
        self.timers[seq] = handle
        return seq

    def cancel_timer(self, seq: int) -> None:
        """Drop a timer that has not fired."""
        if self.timers.pop(seq, None) is not None and not self.released:
            self.asked.take_back(CancelTimer(seq))

    def wait_for(self, condition: Callable[[], bool]) -> WorkflowFuture:
        """A future that ends when `condition` holds at rest."""
        self.check_usable()
        future = self.loop.create_future()
        self._conditions.append((condition, future))
        return future

    def wait_signal(self, name: str, as_type: Any) -> WorkflowFuture:
        """A future of the next signal of that name that nobody else waits for."""
        self.check_usable()
        future = self.loop.create_future()
        self.waiters.setdefault(name, deque()).append((future, as_type))
        return future

    def decode_signal(self, name: str, data: bytes, as_type: Any) -> Any:
        """A signal's payload as the code declares it; one that does not fit blocks the run."""
        try:
            return payload.decode(data, as_type, what=f"signal {name!r}")
        except PayloadDecodeError as error:
            self.block(error)
            return None

    def elapsed(self) -> float:
        """Seconds from the start of the run to the latest event delivered: the loop's time."""
        return (self.now_at - self.started_at).total_seconds()

    # After a step

    @property
    def is_done(self) -> bool:
        """Whether the workflow function has ended."""
        return self.main is not None and self.main.done()

    def interrupted(self, error: StepTooLongError) -> None:
        """The watchdog broke into the step."""
        self.block(error)

    def recorded(self, decided_through: int) -> None:
        """The decision was committed: what was asked for is in history up to this event."""
        self.asked.clear()
        self.decided_through = decided_through
        if len(self.tasks) + len(self._generators) > self._prune_above:
            self._prune()

    def unhandled_signals(self) -> int:
        """How many signals nobody took."""
        return sum(len(buffer) for buffer in self.buffers.values())

    def waiting_for(self) -> str | None:
        """What the code waits for beside activities and timers: a signal's name, a condition (answers 13)."""
        names = [name for name, waiters in self.waiters.items() if any(not f.done() for f, _ in waiters)]
        if names:
            return "signal " + ", ".join(sorted(names))
        return "condition" if any(not future.done() for _, future in self._conditions) else None

    def weight(self) -> int:
        """Rough bytes of memory that the parked run takes."""
        buffered = sum(len(data) for buffer in self.buffers.values() for data in buffer)
        return 3_000 + 700 * len(self.tasks) + 600 * len(self.pending) + buffered

    def release(self) -> bool:
        """Let the run go: unwind its tasks under a closed loop where every `ctx` call raises.

        Nothing gets out, in bounded time. Tells whether every task ended; one that refuses is kept out of the
        collector's reach, so that its `finally` cannot run inside somebody else's step.
        """
        if self.released:
            return True
        self.released = True
        if self.main is None:
            return True
        self._prune()
        refused: list[Any] = []
        if self.tasks or self._generators:
            before = self._enter()
            try:
                refused = self._context.run(unwinding.unwind, self.loop, self.tasks, self._generators)
            finally:
                self._leave(before)
        self.loop.closed = True
        self.loop.ready.clear()
        for held in (self.asked, self.pending, self.timers, self.buffers, self.waiters, self._conditions):
            held.clear()
        unwinding.keep(refused)
        return not refused

    def _prune(self) -> None:
        self.tasks = [task for task in self.tasks if not task.done()]
        self._generators = [generator for generator in self._generators if generator.ag_frame is not None]
        self._prune_above = 2 * (len(self.tasks) + len(self._generators)) + SPARE_BEFORE_PRUNING


unwinding.DRIVERS.add(Run._release_conditions.__code__)
_HANDLERS: Final[dict[int, Callable[[Run, Event], None]]] = {
    EventKind.WORKFLOW_STARTED: Run._on_started,
    EventKind.ACTIVITY_COMPLETED: Run._on_activity_completed,
    EventKind.ACTIVITY_FAILED: Run._on_activity_failed,
    EventKind.ACTIVITY_TIMED_OUT: Run._on_activity_timed_out,
    EventKind.TIMER_FIRED: Run._on_timer_fired,
    EventKind.SIGNAL_RECEIVED: Run._on_signal,
    EventKind.WORKFLOW_CANCEL_REQUESTED: Run._on_cancel_requested,
}
_SILENT: Final = frozenset(
    {
        EventKind.ACTIVITY_STARTED,
        EventKind.WORKFLOW_COMPLETED,
        EventKind.WORKFLOW_FAILED,
        EventKind.WORKFLOW_CANCELLED,
        EventKind.WORKFLOW_TERMINATED,
        EventKind.WORKFLOW_EXECUTION_TIMED_OUT,
        EventKind.WORKFLOW_CONTINUED_AS_NEW,
    }
)
