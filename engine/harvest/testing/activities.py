"""Runs activities on virtual time: the declared functions, or what stands in for them (reference 2.15)."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec
from msgspec import Raw

from harvest.definitions.activity import ActivityContext, ActivityDefinition, ActivityInfo
from harvest.definitions.llm_usage import LlmUsage
from harvest.definitions.registry import Registry
from harvest.errors import PayloadError
from harvest.history import payload
from harvest.history.data import (
    ActivityCompleted,
    ActivityFailed,
    ActivityStarted,
    ActivityTimedOut,
    Failure,
    LocalActivityCompleted,
    LocalActivityFailed,
)
from harvest.history.ids import ExecutionId
from harvest.history.kinds import EventKind
from harvest.history.retrying import retry_delay
from harvest.history.states import State
from harvest.replay.commands import ScheduleActivity
from harvest.replay.failures import failure_of
from harvest.testing import virtual
from harvest.testing.attempts import Activity, Attempt
from harvest.testing.clock import Due, VirtualClock
from harvest.testing.execution import Execution
from harvest.testing.mocking import Call, Mock, carry_out, never, real

WORKER: Final = "test"
CLEANUP_SECONDS: Final = 1.0


class Teller(Protocol):
    """Who hears of what the activities come to."""

    clock: VirtualClock

    def append(self, execution: Execution, kind: EventKind, seq: int, data: msgspec.Struct) -> object:
        """An event of a run."""

    def changed(self) -> None:
        """Something has happened in real time."""

    def run(self) -> None:
        """Decide what there is to decide."""


class Activities:
    """Everything that runs, or is to run again, in one environment."""

    def __init__(self, world: Teller, registry: Registry, mocks: dict[str, Mock]) -> None:
        self.running: set[Attempt] = set()
        self.tasks: set[asyncio.Task[bytes | Failure]] = set()
        self.calls: dict[str, list[Call]] = {}
        self.llm_usage: list[tuple[UUID, LlmUsage]] = []
        self._world = world
        self._registry = registry
        self._mocks = mocks
        self._threads: ThreadPoolExecutor | None = None

    # What the decider asks

    def reserve(self, command: ScheduleActivity) -> bool:
        """Whether there is anybody to run it."""
        mock = self._mocks.get(command.name)
        if mock is None or mock.outcome is real:
            return command.name in self._registry.activities
        return not mock.is_unclaimed

    def give_back(self, command: ScheduleActivity) -> None:
        """Nothing to do: there is room for all."""

    # What a committed decision says

    def schedule(self, execution: Execution, command: ScheduleActivity) -> None:
        """A run has asked for an activity; it begins at once if there is anybody to run it."""
        activity = execution.activities[command.seq] = Activity(execution, command)
        options = command.options
        if options.schedule_to_close is not None:
            activity.closing = self._limit(activity, options.schedule_to_close, "schedule_to_close")
        if self.reserve(command):
            self._begin(activity)
        elif options.schedule_to_start is not None:
            activity.starting = self._limit(activity, options.schedule_to_start, "schedule_to_start")

    def sync_locals(self, execution: Execution) -> None:
        """Run the local activities that a run waits for, and stop those that it has turned away from."""
        run = execution.work.run
        wanted = {} if run is None else run.locals
        for activity in [a for a in execution.activities.values() if a.is_local]:
            if activity.command.seq not in wanted:
                self._stop(activity)
        for seq, (_, command) in wanted.items():
            if seq not in execution.activities:
                activity = execution.activities[seq] = Activity(execution, command)
                self._begin(activity)

    def cancel(self, execution: Execution, seq: int) -> None:
        """The run no longer waits for it. An attempt that runs is asked to stop; how it ends is recorded."""
        activity = execution.activities.get(seq)
        if activity is None:
            return
        if activity.attempt is None:
            self._stop(activity)
        elif not activity.attempt.cancelled:
            activity.attempt.cancelled = True
            if activity.attempt.task is not None:
                activity.attempt.task.cancel()

    def fail(self, activity: Activity, failed: ActivityFailed) -> None:
        """It ends as failed, whatever it is doing."""
        self._finish(activity, EventKind.ACTIVITY_FAILED, failed)

    def forget(self, execution: Execution) -> None:
        """The run has ended: what runs of it is stopped and tells nobody."""
        for activity in list(execution.activities.values()):
            self._stop(activity)

    def pause(self, execution: Execution) -> None:
        """What waits to begin waits until the resume, and no limit of it comes."""
        for activity in execution.activities.values():
            if activity.attempt is None:
                for due in (activity.starting, activity.closing):
                    if due is not None:
                        due.hold()

    def resume(self, execution: Execution, seconds: float) -> None:
        """A pause of so many seconds is over: what was to begin meanwhile begins."""
        for activity in list(execution.activities.values()):
            if activity.attempt is None:
                activity.postpone(self._world.clock, seconds)
            if activity.held:
                activity.held = False
                self._begin(activity)

    async def close(self) -> None:
        """Stop what runs, and let it clean up for a moment."""
        for attempt in list(self.running):
            self._stop(attempt.activity)
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=CLEANUP_SECONDS)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _limit(self, activity: Activity, seconds: float, timeout: str) -> Due:
        return self._world.clock.after(seconds, lambda: self._time_out(activity, timeout))

    def _stop(self, activity: Activity) -> None:
        activity.execution.activities.pop(activity.command.seq, None)
        activity.stand_still()
        for due in (activity.starting, activity.closing):
            if due is not None:
                due.cancel()
        attempt, activity.attempt = activity.attempt, None
        if attempt is not None:
            self._overrule(attempt)

    def _overrule(self, attempt: Attempt) -> None:
        """What this attempt still says counts for nothing."""
        attempt.cancelled = True
        self.running.discard(attempt)
        if attempt.task is not None:
            attempt.task.cancel()

    # Attempts

    def _begin(self, activity: Activity) -> None:
        if activity.execution.state is State.PAUSED:
            activity.held = True
            return
        activity.stand_still()
        if activity.starting is not None:
            activity.starting.cancel()
        activity.attempts += 1
        command = activity.command
        if activity.attempts > 1 and not activity.is_local:
            started = ActivityStarted(activity.attempts, WORKER, activity.last_failure)
            self._world.append(activity.execution, EventKind.ACTIVITY_STARTED, command.seq, started)
        attempt = activity.attempt = Attempt(activity, self._world.clock, self._world.changed)
        limit = command.options.start_to_close if isinstance(command, ScheduleActivity) else command.start_to_close
        if limit is not None:
            activity.of_attempt.append(self._limit(activity, limit, "start_to_close"))
        self._expect_beat(activity)
        self.running.add(attempt)
        context = contextvars.copy_context()
        context.run(virtual.time_here.set, attempt)
        attempt.task = asyncio.get_running_loop().create_task(self._run(attempt), context=context)
        self.tasks.add(attempt.task)
        attempt.task.add_done_callback(lambda task: self._done(attempt, task))

    def _expect_beat(self, activity: Activity) -> None:
        command = activity.command
        if isinstance(command, ScheduleActivity) and command.options.heartbeat is not None:
            activity.of_attempt.append(self._limit(activity, command.options.heartbeat, "heartbeat"))

    def _beat(self, attempt: Attempt, details: bytes) -> None:
        activity = attempt.activity
        if activity.attempt is not attempt:
            return
        activity.last_details = details
        if isinstance(activity.command, ScheduleActivity) and activity.command.options.heartbeat is not None:
            activity.of_attempt.pop().cancel()
            self._expect_beat(activity)

    async def _run(self, attempt: Attempt) -> bytes | Failure:
        try:
            return await self._value(attempt)
        except PayloadError as error:
            return msgspec.structs.replace(failure_of(error), non_retryable=True)
        except asyncio.CancelledError as error:
            return _cancelled(attempt, failure_of(error).traceback)
        except BaseException as error:
            # SystemExit and KeyboardInterrupt of user code fail the activity, not the test.
            return failure_of(error)

    def _done(self, attempt: Attempt, task: asyncio.Task[bytes | Failure]) -> None:
        activity = attempt.activity
        self.tasks.discard(task)
        self.running.discard(attempt)
        if activity.attempt is attempt:
            activity.attempt = None
            activity.stand_still()
            self._ended(activity, _cancelled(attempt) if task.cancelled() else task.result(), attempt.cancelled)
            self._world.run()
        self._world.changed()

    async def _value(self, attempt: Attempt) -> bytes:
        """Call the function, or what stands in for it; its result, encoded."""
        command, mock = attempt.activity.command, self._mocks.get(attempt.activity.command.name)
        definition = command.definition or self._registry.activities.get(command.name)
        outcome = real if mock is None else mock.next()
        attempt.is_idle = outcome is never
        arguments = (
            [payload.decode(command.input)] if definition is None else definition.signature.decode(command.input)
        )
        call = Call(tuple(arguments), attempt.number)
        self.calls.setdefault(command.name, []).append(call)
        if mock is not None:
            mock.calls.append(call)
        context = self._context(attempt)
        if outcome is real:
            # A decision reserves only what is declared, and a name of an activity never reserves itself.
            value = await self._call(attempt, self._registry.activities[command.name], arguments, context)
        else:
            value = await carry_out(outcome, arguments, context)
        if definition is None:
            return payload.encode(value, what=f"the result of activity {command.name!r}")
        return definition.signature.encode_result(value)

    async def _call(
        self, attempt: Attempt, definition: ActivityDefinition[..., Any], arguments: list[Any], context: ActivityContext
    ) -> Any:
        if definition.wants_context:
            arguments = [context, *arguments]
        if definition.is_async:
            return await definition.function(*arguments)
        attempt.in_thread = True
        if self._threads is None:
            self._threads = ThreadPoolExecutor(8, thread_name_prefix="harvest-activity")
        inside = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, inside.run, _called, definition.function, *arguments)

    def _context(self, attempt: Attempt) -> ActivityContext:
        execution, command = attempt.activity.execution, attempt.activity.command
        loop = asyncio.get_running_loop()

        def beat(details: bytes) -> None:
            if attempt.in_thread:
                loop.call_soon_threadsafe(self._beat, attempt, details)
            else:
                self._beat(attempt, details)

        info = ActivityInfo(
            execution_id=ExecutionId(int=execution.execution_id.int),
            workflow_name=execution.started.workflow_name,
            workflow_id=execution.started.workflow_id,
            name=command.name,
            seq=command.seq,
            attempt=attempt.number,
        )
        return ActivityContext(
            info,
            heartbeat=beat,
            cancelled=lambda: attempt.cancelled,
            last_details=attempt.activity.last_details,
            report=lambda _, usage: self.llm_usage.append((execution.execution_id, usage)),
        )

    # How attempts end

    def _time_out(self, activity: Activity, timeout: str) -> None:
        attempt, activity.attempt = activity.attempt, None
        activity.stand_still()
        given_up = attempt is not None and attempt.cancelled
        if attempt is not None:
            self._overrule(attempt)
        if timeout in ("start_to_close", "heartbeat"):
            failure = Failure("TimeoutError", f"the attempt ran into its {timeout} timeout")
            if activity.is_local:
                self._ended(activity, failure, given_up)
                return
            if not given_up and self._tries_again(activity, failure):
                return
        timed_out = ActivityTimedOut(timeout, max(1, activity.attempts), activity.last_failure)
        self._finish(activity, EventKind.ACTIVITY_TIMED_OUT, timed_out)

    def _ended(self, activity: Activity, ended: bytes | Failure, given_up: bool) -> None:
        number, is_local = activity.attempts, activity.is_local
        if isinstance(ended, bytes):
            output = Raw(ended)
            if is_local:
                self._finish(activity, EventKind.LOCAL_ACTIVITY_COMPLETED, LocalActivityCompleted(output, number))
            else:
                self._finish(activity, EventKind.ACTIVITY_COMPLETED, ActivityCompleted(output, number))
        elif given_up or not self._tries_again(activity, ended):
            if is_local:
                self._finish(activity, EventKind.LOCAL_ACTIVITY_FAILED, LocalActivityFailed(ended, number))
            else:
                self._finish(activity, EventKind.ACTIVITY_FAILED, ActivityFailed(ended, number))

    def _tries_again(self, activity: Activity, failure: Failure) -> bool:
        """Have another attempt when the policy allows one; tells whether it does."""
        command = activity.command
        policy = command.options.retry if isinstance(command, ScheduleActivity) else command.retry
        key = f"{activity.execution.execution_id}/{command.seq}"
        delay = retry_delay(policy, failure, activity.attempts, key)
        if delay is None:
            return False
        activity.last_failure = failure
        activity.of_attempt.append(self._world.clock.after(delay, lambda: self._begin(activity)))
        return True

    def _finish(self, activity: Activity, kind: EventKind, data: msgspec.Struct) -> None:
        self._stop(activity)
        self._world.append(activity.execution, kind, activity.command.seq, data)


def _cancelled(attempt: Attempt, traceback: str = "") -> Failure:
    message = "the activity was cancelled" if attempt.cancelled else "the activity raised CancelledError"
    return Failure("Cancelled", message, traceback, non_retryable=True)


def _called(function: Callable[..., object], *arguments: object) -> object:
    """Call a plain function as a coroutine would be: a StopIteration cannot travel through a future."""
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError("the activity raised StopIteration") from error
