"""One execution's code on its loop: events go in one at a time, commands and an outcome come out (design 3).

The same object serves a cold replay and a warm resume. It holds no history: the parked loop is the state.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from typing import Any, Final

import msgspec
from msgspec import Raw

from harvest.errors import (
    DefinitionError,
    HarvestError,
    StepTooLongError,
    WorkflowBugError,
)
from harvest.history.data import WorkflowCancelRequested, WorkflowStarted
from harvest.history.events import Event
from harvest.history.kinds import COMMANDS, EventKind
from harvest.replay import guard, hushing, inspecting, unwinding
from harvest.replay.handlers import Handlers
from harvest.replay.inspecting import TaskStack
from harvest.replay.loop import WorkflowLoop
from harvest.replay.resolving import HANDLERS
from harvest.replay.state import SPARE_BEFORE_PRUNING, RunState
from harvest.replay.unwinding import ENDLESS, AbandonStep, Patience
from harvest.replay.versions import CHOICES

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
    }
)
_HOLDS: Final = frozenset({EventKind.WORKFLOW_EXECUTION_PAUSED, EventKind.WORKFLOW_EXECUTION_RESUMED})


class Run(RunState):
    """Drives one workflow function. Not thread-safe; every method returns with the loop at rest."""

    __slots__ = ()

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
            if kind in _HOLDS:
                self._note_hold(event)
            elif kind not in _SILENT:
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

    def _note_hold(self, event: Event) -> None:
        """A pause is not for the code to see; it puts off the run's deadline."""
        if event.kind == EventKind.WORKFLOW_EXECUTION_PAUSED:
            self.held_since = event.at
        elif self.held_since is not None:
            self.held += event.at - self.held_since
            self.held_since = None

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

    # Looking in, between two steps

    def query(self, name: str, arguments: bytes) -> bytes:
        """The answer of a query handler; see `inspecting.query`."""
        return inspecting.query(self, name, arguments)

    def handlers(self) -> Handlers:
        """What the run answers to now."""
        return inspecting.handlers(self)

    def stack(self) -> list[TaskStack]:
        """Where each task waits."""
        return inspecting.stack(self)

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

    def release(self, patience: Patience = ENDLESS) -> bool:
        """Let the run go: unwind its tasks under its closed loop, where every `ctx` call raises.

        Nothing gets out, in bounded time. Tells whether every task ended; one that refuses is kept out of the
        collector's reach, so that its `finally` cannot run inside somebody else's step.
        """
        if self.released:
            return True
        self.released = True
        if self.main is None:
            return True
        self.loop.closed = True
        silence, outer = hushing.begin(), asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop)
        refused: list[Any] = []
        try:
            self._prune()
            if self.tasks or self._generators:
                refused = [self]
                refused = self._unwound(patience)
            self._forget()
        except AbandonStep:
            unwinding.calm()
        finally:
            asyncio._set_running_loop(outer)
            hushing.end(silence)
        if refused:
            unwinding.keep(refused)
        return not refused

    def _unwound(self, patience: Patience) -> list[Any]:
        """Unwind, and again where that is broken into between two pieces of the run's code."""
        unwinding.begin()
        refused: list[Any] = [self]
        before = self._enter()
        try:
            try:
                patience.begin()
                for _ in range(unwinding.ROUNDS):
                    try:
                        refused = self._context.copy().run(unwinding.unwind, self.loop, self.tasks, self._generators)
                        break
                    except AbandonStep:
                        unwinding.calm()
            finally:
                # No call comes before this: from here on nobody strikes any more.
                patience.due = None
                if patience.struck:
                    unwinding.let_strike()
        except AbandonStep:
            unwinding.calm()
        finally:
            self._leave(before)
        return refused

    def _forget(self) -> None:
        """What only the run still holds ends here, and not wherever the run itself does."""
        self.loop.ready.clear()
        for held in (self.pending, self.locals, self.children, self.externals, self.timers):
            held.clear()
        self.asked.clear()
        if self._messages is not None:
            self._messages.clear()
        self._conditions.clear()
        if self.main is not None and self.main.done():
            unwinding.forget_frames(self.main)
        if self.failure is not None:
            traceback.clear_frames(self.failure.__traceback__)
        self.tasks, self._generators = [], []
        self._context = Context()
        # All these refer to the run in their turn. The circles are cut here: what is left for the collector adds up, in
        # a worker that ends thousands of runs a second, to collections that hold its loop for most of a second.
        self.main, self.loop = None, _GONE
        self._messages = self._versions = None

    def _prune(self) -> None:
        self.tasks = [task for task in self.tasks if not task.done()]
        self._generators = [generator for generator in self._generators if generator.ag_frame is not None]
        self._prune_above = 2 * (len(self.tasks) + len(self._generators)) + SPARE_BEFORE_PRUNING


_GONE: Final = WorkflowLoop(None, 0)  # type: ignore[abstract, arg-type]
unwinding.DRIVERS.update(driver.__code__ for driver in (Run._release_conditions, Run._resolve, Run.looking))
