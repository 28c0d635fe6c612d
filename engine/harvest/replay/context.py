"""What workflow code is given: the only door to the world, and the same on every replay."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, ParamSpec, TypeVar, overload

from msgspec import Struct

from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.options import ActivityOptions
from harvest.errors import InvalidRequestError
from harvest.history import payload
from harvest.history.data import RetryPolicy
from harvest.history.ids import ExecutionId
from harvest.history.limits import check_text
from harvest.replay.commands import ScheduleActivity
from harvest.replay.loop import WorkflowFuture, WorkflowTimer
from harvest.replay.run import Run

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_log = logging.getLogger("harvest.workflow")


class WorkflowInfo(Struct, frozen=True):
    """Facts of the run. `history_events` counts up to the event delivered, so that it replays alike."""

    execution_id: ExecutionId
    workflow_name: str
    workflow_id: str
    version: int
    queue: str
    started_at: datetime
    history_events: int


class WorkflowLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that is silent while history is replayed."""

    def __init__(self, run: Run) -> None:
        identity = run.identity
        super().__init__(
            _log,
            {
                "execution_id": str(identity.execution_id),
                "workflow_name": identity.workflow_name,
                "workflow_id": identity.workflow_id,
            },
        )
        self._run = run

    def isEnabledFor(self, level: int) -> bool:
        return not self._run.replaying and not self._run.released and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class WorkflowContext:
    """Handed to a workflow as its first parameter. Plain asyncio works beside it, deterministically."""

    __slots__ = ("_log", "_random", "_run", "_uuids")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._random: random.Random | None = None
        self._uuids: random.Random | None = None
        self._log: WorkflowLogger | None = None

    # Activities

    @overload
    async def execute_activity(self, activity: ActivityDefinition[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def execute_activity(self, activity: str, *args: Any) -> Any: ...
    async def execute_activity(self, activity: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an activity and return its result.

        Raises ActivityError when it failed for good (its cause is the failure), and ActivityTimeoutError, which is a
        TimeoutError too. An activity may be named by text when its code is elsewhere. `activity.with_options(...)`
        changes options for one call.
        """
        return await self._schedule(activity, args, kwargs)

    def _schedule(self, activity: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WorkflowFuture:
        run = self._run
        if isinstance(activity, str):
            if kwargs:
                raise TypeError("an activity that is named by text takes positional arguments only")
            data = payload.encode(args[0] if len(args) == 1 else (args or None), what=f"the input of {activity!r}")
            definition, options = None, _BY_NAME
            name = check_text(activity, what="activity name")
        elif isinstance(activity, ActivityDefinition):
            data = activity.signature.encode(args, kwargs)
            definition, options, name = activity, activity.options, activity.name
        else:
            raise TypeError(f"execute_activity takes a declared activity or its name, not {type(activity).__name__}")
        return run.schedule(
            ScheduleActivity(
                seq=run.next_sequence(),
                name=name,
                input=data,
                digest=payload.digest(data if _is_plain(args, kwargs) else _canonical(activity, args, kwargs)),
                queue=options.queue or run.identity.queue,
                options=options,
                definition=definition,
            )
        )

    # Signals and conditions

    @overload
    async def wait_for_signal(self, name: str, as_type: type[T], *, timeout: timedelta | float | None = None) -> T: ...
    @overload
    async def wait_for_signal(self, name: str, *, timeout: timedelta | float | None = None) -> Any: ...
    async def wait_for_signal(self, name: str, as_type: Any = Any, *, timeout: timedelta | float | None = None) -> Any:
        """The next signal of that name, in the order of arrival. Raises TimeoutError after `timeout`."""
        buffer = self._run.buffers.get(name)
        self._run.check_usable()
        if buffer:
            return self._take(name, as_type)
        future = self._run.wait_signal(name, as_type)
        if timeout is None:
            return await future
        async with asyncio.timeout(_seconds(timeout)):
            return await future

    def try_receive_signal(self, name: str, as_type: Any = Any) -> Any | None:
        """A signal that has already come, or None."""
        self._run.check_usable()
        return self._take(name, as_type) if self._run.buffers.get(name) else None

    def drain_signals(self, name: str, as_type: Any = Any) -> list[Any]:
        """All signals of that name that have come, oldest first."""
        self._run.check_usable()
        return [self._take(name, as_type) for _ in range(len(self._run.buffers.get(name) or ()))]

    def _take(self, name: str, as_type: Any) -> Any:
        buffer = self._run.buffers[name]
        value = self._run.decode_signal(name, buffer.popleft(), as_type)
        if not buffer:
            del self._run.buffers[name]
        self._run.check_usable()
        return value

    async def wait_condition(self, condition: Callable[[], bool], *, timeout: timedelta | float | None = None) -> None:
        """Wait until `condition()` holds; it is looked at whenever the workflow comes to rest. Raises TimeoutError."""
        self._run.check_usable()
        if condition():
            return
        future = self._run.wait_for(condition)
        if timeout is None:
            await future
            return
        async with asyncio.timeout(_seconds(timeout)):
            await future

    # Time and chance

    async def sleep(self, delay: timedelta | float) -> None:
        """Sleep durably for a timedelta or seconds."""
        await asyncio.sleep(_seconds(delay))

    async def sleep_until(self, instant: datetime) -> None:
        """Sleep durably until an instant, which must have a zone. One that has passed returns at once."""
        if instant.tzinfo is None:
            raise InvalidRequestError(f"{instant!r} has no time zone; give it one, such as UTC")
        run = self._run
        instant = instant.astimezone(UTC)
        left = (instant - self.now()).total_seconds()
        if left <= 0:
            return
        future = run.loop.create_future()
        timer = WorkflowTimer(run.elapsed() + left, _wake, (future,), run.loop)
        timer.seq = run.start_timer(left, timer, until=instant)
        try:
            await future
        finally:
            timer.cancel()

    def now(self) -> datetime:
        """The time of the latest event delivered, in UTC. It never goes back, and stands still within a step."""
        self._run.check_usable()
        return self._run.now_at

    def random(self) -> random.Random:
        """A generator seeded by the run."""
        self._run.check_usable()
        if self._random is None:
            self._random = random.Random(self._run.seed)
        return self._random

    def uuid4(self) -> uuid.UUID:
        """A UUID that is the same on every replay."""
        self._run.check_usable()
        if self._uuids is None:
            self._uuids = random.Random(f"uuid:{self._run.seed}")
        return uuid.UUID(int=self._uuids.getrandbits(128), version=4)

    # Facts

    @property
    def log(self) -> WorkflowLogger:
        """A logger that speaks only when the code is live, with the run's ids in `extra`."""
        if self._log is None:
            self._log = WorkflowLogger(self._run)
        return self._log

    def is_cancelled(self) -> bool:
        """Whether cancellation was requested."""
        self._run.check_usable()
        return self._run.cancel_reason is not None

    @property
    def info(self) -> WorkflowInfo:
        """Facts of the run, up to the event delivered."""
        run = self._run
        run.check_usable()
        return WorkflowInfo(
            execution_id=run.identity.execution_id,
            workflow_name=run.identity.workflow_name,
            workflow_id=run.identity.workflow_id,
            version=run.definition.version,
            queue=run.identity.queue,
            started_at=run.started_at,
            history_events=run.position,
        )


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def _is_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments have one encoding only: sets and dicts, which may hold sets, have several."""
    return not kwargs and _PLAIN.issuperset(map(type, args))


def _canonical(activity: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The encoding that commands are matched by, with sets in one order."""
    values = args if isinstance(activity, str) else activity.signature.fill(args, kwargs)
    return payload.encode_canonical(values[0] if len(values) == 1 else (values or None))


_BY_NAME = ActivityOptions(start_to_close=600.0, retry=RetryPolicy())


def _wake(future: WorkflowFuture) -> None:
    if not future.done():
        future.set_result(None)


def _seconds(value: timedelta | float) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
