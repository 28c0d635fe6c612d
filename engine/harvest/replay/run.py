"""One execution's code on its loop: events go in one at a time, commands and an outcome come out (design 3).

The same object serves a cold replay and a warm resume. It holds no history: the parked loop is the state.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import (
    DefinitionError,
    ForbiddenInWorkflowError,
    HarvestError,
    LimitError,
    StepTooLongError,
    WorkflowBugError,
)
from harvest.history.data import WorkflowCancelRequested, WorkflowStarted
from harvest.history.events import Event
from harvest.history.ids import ExecutionId
from harvest.history.kinds import COMMANDS, EventKind
from harvest.history.limits import PENDING_OF_A_KIND
from harvest.replay import guard, inspecting, unwinding
from harvest.replay.commands import CancelTimer, Command, StartTimer
from harvest.replay.continuing import ContinueAsNew, leaving_with
from harvest.replay.handlers import Handlers
from harvest.replay.inspecting import TaskStack
from harvest.replay.loop import WorkflowFuture, WorkflowLoop, WorkflowTimer
from harvest.replay.matching import Asked
from harvest.replay.messages import Messages
from harvest.replay.resolving import HANDLERS, Waiting
from harvest.replay.unwinding import AbandonStep
from harvest.replay.versions import CHOICES, Versions

SPARE_BEFORE_PRUNING: Final = 16
LONGEST_TIMER_SECONDS: Final = 100 * 366 * 86_400
_NO_INPUT: Final = Raw(b"null")
_SILENT: Final = frozenset(
    {
        EventKind.ACTIVITY_STARTED,
        EventKind.WORKFLOW_COMPLETED,
        EventKind.WORKFLOW_FAILED,
        EventKind.WORKFLOW_CANCELLED,
        EventKind.WORKFLOW_TERMINATED,
        EventKind.WORKFLOW_EXECUTION_TIMED_OUT,
        EventKind.WORKFLOW_CONTINUED_AS_NEW,
        EventKind.WORKFLOW_EXECUTION_PAUSED,
        EventKind.WORKFLOW_EXECUTION_RESUMED,
    }
)


class Identity(Struct, frozen=True):
    """Which execution a run belongs to."""

    execution_id: ExecutionId
    workflow_name: str
    workflow_id: str
    queue: str


class Run:
    """Drives one workflow function. Not thread-safe; every method returns with the loop at rest.

    `pending`, `locals`, `children`, `externals` and `timers` are what was asked for and has not ended, by number.
    """

    __slots__ = (
        "_abandoned", "_conditions", "_context", "_generators", "_held", "_main_context", "_messages", "_prune_above",
        "_versions", "asked", "blocked", "cancel_reason", "children", "decided_through", "definition", "details",
        "disturbed", "externals", "failure", "had_children", "identity", "locals", "loop", "main", "now_at",
        "only_looks", "pending", "position", "progress", "released", "replaying", "seed", "seen_through", "sequence",
        "started", "started_at", "tasks", "timers", "upserts",
    )  # fmt: skip

    def __init__(
        self, definition: WorkflowDefinition[..., Any], identity: Identity, make_context: Callable[[Run], Any]
    ) -> None:
        self.definition = definition
        self.identity = identity
        self.main: asyncio.Task[Any] | None = None
        self.asked = Asked()
        self._messages: Messages | None = None
        self._versions: Versions | None = None
        self.pending: Waiting = {}
        self.locals: Waiting = {}
        self.children: Waiting = {}
        self.externals: Waiting = {}
        self.timers: dict[int, WorkflowTimer] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.blocked: HarvestError | None = None
        self.failure: BaseException | None = None
        self.cancel_reason: str | None = None
        self.only_looks = ""
        self.replaying = False
        self.released = False
        self.disturbed = False
        self.had_children = False
        self.position = 0
        self.seen_through = 0
        self.decided_through = 0
        self.sequence = 0
        self.seed = 0
        self.details: bytes | None = None
        self.upserts: dict[str, Any] = {}
        self.progress: list[bytes] = []
        self._conditions: list[tuple[Callable[[], bool], WorkflowFuture]] = []
        self._generators: list[Any] = []
        self._held = 0
        self._abandoned = 0
        self._prune_above = SPARE_BEFORE_PRUNING
        self._context = Context()
        self._main_context = make_context

    # Most runs have neither: a parked one is small.

    @property
    def messages(self) -> Messages:
        """Signals, updates and handlers."""
        if self._messages is None:
            self._messages = Messages(self)
        return self._messages

    @property
    def versions(self) -> Versions:
        """Versions of changes, and side effects."""
        if self._versions is None:
            self._versions = Versions(self)
        return self._versions

    # Delivering events

    def replay(self, events: Sequence[Event], decided_through: int) -> None:
        """Drive the code over its history; beyond `decided_through` it is live. Sets `blocked` on a mismatch."""
        self.decided_through = decided_through
        before = self._enter()
        try:
            if not CHOICES.isdisjoint({event.kind for event in events}):
                self.versions.read(events)
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
            if kind != EventKind.MARKER_RECORDED or not self.versions.lets_stand(event):
                self.asked.match(event)
            return
        handler = HANDLERS.get(kind)
        if handler is None:
            if kind not in _SILENT:
                event.data()
            return
        self.seen_through = event.event_id
        if self.main is None:
            self.now_at = self.started_at = event.at
            handler(self, event)
            self._context.run(self._go_on)
            return
        if event.at > self.now_at:
            self.now_at = event.at
        self._context.run(self._resolve, handler, event)

    def _resolve(self, handler: Callable[[Run, Event], None], event: Event) -> None:
        try:
            handler(self, event)
        except AbandonStep:
            unwinding.calm()
        self._go_on()

    def _go_on(self) -> None:
        """Run to rest, unless events that belong to the start are still to come."""
        if self.blocked is not None:
            return
        if self._held:
            self._held -= 1
            if self._held:
                return
        self._spin()
        if self.blocked is None and self.is_done:
            self._block_on_bug()
        if self.blocked is None and self._messages is not None and self._messages.admitted:
            self._messages.at_rest()
        self.asked.fresh.clear()

    def _block_on_bug(self) -> None:
        """Some exceptions are a bug to be mended, and no way for the workflow to end."""
        bugs = self.definition.options.block_on
        if not bugs or self.main is None or (self.main.done() and self.main.cancelled()):
            return
        error = self.failure if self.failure is not None else self.main.exception()
        if isinstance(error, bugs):
            self.block(
                WorkflowBugError(
                    f"the workflow raised {type(error).__name__}: {error}; it blocks on such errors until its code is "
                    "mended, and goes on from here then",
                    type=type(error).__name__,
                )
            )

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
        """This run's loop becomes the running one, and what cannot be replayed is refused, until `_leave`."""
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

    def looking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the author's as the run's own code sees the world, between two steps."""
        before = self._enter()
        try:
            try:
                return self._context.copy().run(function, *arguments)
            finally:
                unwinding.calm()
        except AbandonStep:
            unwinding.calm()
            raise
        finally:
            self._leave(before)

    def on_started(self, event: Event) -> None:
        """Make the code's coroutine; it runs once everything that came with the start is there."""
        data: WorkflowStarted = event.data()
        arguments = self.definition.signature.decode(bytes(data.input))
        # Only another attempt needs the input again.
        self.started = data if data.retry is not None else msgspec.structs.replace(data, input=_NO_INPUT)
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

    def on_cancel_requested(self, event: Event) -> None:
        """Cancel the code, once. A run that goes on as another hands over what came when its function had ended."""
        data: WorkflowCancelRequested = event.data()
        if self.is_done:
            self.messages.late_cancel = event
        elif self.cancel_reason is None and self.main is not None:
            self.cancel_reason = data.reason
            self.main.cancel()

    # What the context asks for

    def next_sequence(self) -> int:
        """The number of the next command."""
        self.check_may_act()
        self.sequence += 1
        return self.sequence

    def check_usable(self) -> None:
        """Unwind code that goes on after its run was let go or blocked."""
        if self.released or self.blocked is not None:
            self._abandoned += 1
            if self._abandoned > unwinding.PATIENCE:
                unwinding.insist()
            raise AbandonStep

    def check_may_act(self) -> None:
        """As `check_usable`; and a query handler or a validator may only look."""
        self.check_usable()
        if self.only_looks:
            raise ForbiddenInWorkflowError(
                f"{self.only_looks} may only look at what the workflow knows: it runs at moments that no history "
                "records, so it can neither ask for anything nor change what a replay sees"
            )

    def block(self, error: HarvestError) -> None:
        """Stop this step: what it did is discarded, and the run waits for a repair."""
        self.blocked = self.blocked or error

    def fail(self, error: BaseException) -> None:
        """A handler's exception ends the run, as if the workflow had raised it."""
        if not self.released and self.blocked is None and not self.is_done:
            self.failure = error

    def ask(self, waiting: Waiting, command: Any, cancel: Command | None = None) -> WorkflowFuture:
        """Ask for something whose end is awaited. Turning away from it takes it back, or asks for `cancel`."""
        self.check_room(waiting, command.kind.word)
        future = self.loop.create_future()
        future.on_cancel = lambda: self._turn_away(waiting, command, cancel)
        self.asked.ask(command)
        waiting[command.seq] = (future, command)
        return future

    def check_room(self, waiting: dict[int, Any], kind: str) -> None:
        """Raise LimitError when too much of one kind is under way."""
        if len(waiting) >= PENDING_OF_A_KIND:
            raise LimitError(f"{PENDING_OF_A_KIND:,} of {kind} are pending; wait for some before asking for more")

    def _turn_away(self, waiting: Waiting, command: Command, cancel: Command | None) -> None:
        if waiting.pop(command.seq, None) is None or self.released:
            return
        if cancel is not None:
            self.asked.take_back(cancel)
        else:
            self.asked.vanish(command.key)

    def start_timer(self, duration: float, handle: WorkflowTimer, until: datetime | None = None) -> int:
        """Ask for a durable timer that runs `handle`; returns its number."""
        seq = self.next_sequence()
        if not duration <= LONGEST_TIMER_SECONDS:
            raise LimitError(f"a timer of {duration:g} s is too long; at most 100 years are allowed")
        self.check_room(self.timers, EventKind.TIMER_STARTED.word)
        self.asked.ask(StartTimer(seq, round(duration, 6), until))
        self.timers[seq] = handle
        return seq

    def cancel_timer(self, seq: int) -> None:
        """Drop a timer that has not fired."""
        if self.only_looks:
            self.check_may_act()
        if self.timers.pop(seq, None) is not None and not self.released:
            self.asked.take_back(CancelTimer(seq))

    def wait_for(self, condition: Callable[[], bool]) -> WorkflowFuture:
        """A future that ends when `condition` holds at rest."""
        self.check_usable()
        future = self.loop.create_future()
        self._conditions.append((condition, future))
        return future

    # Facts

    def elapsed(self) -> float:
        """Seconds from the start of the run to the latest event delivered: the loop's time."""
        return (self.now_at - self.started_at).total_seconds()

    @property
    def deadline(self) -> datetime | None:
        """When the run is ended, by its own timeout or its chain's."""
        own = self.started.execution_timeout_seconds
        ends = [self.started.chain_deadline, self.started_at + timedelta(seconds=own) if own is not None else None]
        return min((end for end in ends if end is not None), default=None)

    @property
    def is_done(self) -> bool:
        """Whether the workflow function has ended, or a handler has failed it."""
        return self.failure is not None or (self.main is not None and self.main.done())

    @property
    def continued(self) -> ContinueAsNew | None:
        """What the run goes on as, when its function ended by saying so."""
        if self.failure is not None or self.main is None or not self.main.done() or self.main.cancelled():
            return None
        return leaving_with(self.main.exception())

    def query(self, name: str, arguments: bytes) -> bytes:
        """The answer of a query handler; see `inspecting.query`."""
        return inspecting.query(self, name, arguments)

    def handlers(self) -> Handlers:
        """What the run answers to now."""
        return inspecting.handlers(self)

    def stack(self) -> list[TaskStack]:
        """Where each task waits."""
        return inspecting.stack(self)

    def waiting_for(self) -> str | None:
        """What the code waits for beside activities and timers: a signal, a child, a condition (answers 13)."""
        if self._messages is not None and (names := self._messages.waiting_for()):
            return "signal " + ", ".join(sorted(names))
        if self.children:
            names = sorted({command.workflow_name for _, command in self.children.values()})
            return f"child workflow {', '.join(names[:3])}" + (", …" if len(names) > 3 else "")
        if self.externals:
            words: str = next(command.describe() for _, command in self.externals.values())
            return words
        return "condition" if any(not future.done() for _, future in self._conditions) else None

    def weight(self) -> int:
        """Rough bytes of memory that the parked run takes."""
        waiting = sum(map(len, (self.pending, self.locals, self.children, self.externals)))
        messages = self._messages.weight() if self._messages is not None else 0
        return 4_000 + 700 * len(self.tasks) + 600 * waiting + messages

    # After a step

    def interrupted(self, error: StepTooLongError) -> None:
        """The watchdog broke into the step."""
        self.block(error)

    def recorded(self, decided_through: int) -> None:
        """The decision was committed: what was asked for is in history up to this event."""
        self.asked.clear()
        self.decided_through = decided_through
        self.details = None
        if self.upserts:
            self.upserts = {}
        if self.progress:
            self.progress = []
        if len(self.tasks) + len(self._generators) > self._prune_above:
            self._prune()

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
            refused = self.looking(unwinding.unwind, self.loop, self.tasks, self._generators)
        self.loop.closed = True
        self.loop.ready.clear()
        for held in (self.pending, self.locals, self.children, self.externals, self.timers):
            held.clear()
        self.asked.clear()
        if self._messages is not None:
            self._messages.clear()
        self._conditions.clear()
        unwinding.keep(refused)
        return not refused

    def _prune(self) -> None:
        self.tasks = [task for task in self.tasks if not task.done()]
        self._generators = [generator for generator in self._generators if generator.ag_frame is not None]
        self._prune_above = 2 * (len(self.tasks) + len(self._generators)) + SPARE_BEFORE_PRUNING


unwinding.DRIVERS.update(driver.__code__ for driver in (Run._release_conditions, Run._resolve, Run.looking))
