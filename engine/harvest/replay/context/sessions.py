"""Worker sessions: a series of activities that runs on one worker, which may keep files or memory between them."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, overload

from harvest.definitions.activity import ActivityDefinition
from harvest.errors import ForbiddenInWorkflowError, InvalidRequestError
from harvest.history.limits import check_text
from harvest.replay.context.activities import ActivityCalls
from harvest.replay.context.base import seconds
from harvest.replay.sessions import CloseSession, OpenSession

P = ParamSpec("P")
R = TypeVar("R")
CREATION_TIMEOUT: Final = timedelta(minutes=1)


class Session:
    """One session, open inside its `async with` block. Made by `ctx.create_session`."""

    __slots__ = ("_calls", "_command", "_options")

    def __init__(self, calls: ActivityCalls, queue: str, creation_timeout: float, execution_timeout: float | None):
        self._calls = calls
        self._options = (queue, creation_timeout, execution_timeout)
        self._command: OpenSession | None = None

    async def __aenter__(self) -> Session:
        """Wait until a worker has opened the session. Raises SessionTimeoutError, which is a TimeoutError too."""
        run = self._calls._run
        if self._command is not None:
            raise RuntimeError("a session is entered once; make another with ctx.create_session")
        seq = run.next_sequence()
        command = self._command = OpenSession(seq, *self._options)
        await run.ask(run.sessions, command, CloseSession(seq))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the session. Activities of it that are still under way are cancelled."""
        if self._command is not None:
            self._calls._run.close_session(self._command)

    @property
    def worker(self) -> str:
        """What people know the worker by that runs the session."""
        self._calls._run.check_usable()
        return self._opened().worker_name

    @property
    def is_broken(self) -> bool:
        """Whether the session has ended before this block."""
        self._calls._run.check_usable()
        return bool(self._opened().broken)

    @overload
    async def execute_activity(self, activity: ActivityDefinition[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def execute_activity(self, activity: str, *args: Any) -> Any: ...
    async def execute_activity(self, activity: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an activity on the session's worker; see `ctx.execute_activity`. Its attempts all run there.

        Raises SessionBrokenError when the session is broken, or breaks before the activity has ended.
        """
        command = self._opened()
        run = self._calls._run
        if command.broken:
            run.check_may_act()
            raise command.error()
        if run.sessions.get(command.seq) is None:
            raise ForbiddenInWorkflowError("the session has ended with its block; make another with ctx.create_session")
        return await self._calls._schedule(activity, args, kwargs, command)

    def _opened(self) -> OpenSession:
        if self._command is None:
            raise RuntimeError("the session is not open; use it as `async with ctx.create_session() as session:`")
        return self._command


class SessionCalls(ActivityCalls):
    """The part of the context that makes sessions."""

    __slots__ = ()

    def create_session(
        self,
        *,
        queue: str | None = None,
        creation_timeout: timedelta | float = CREATION_TIMEOUT,
        execution_timeout: timedelta | float | None = None,
    ) -> Session:
        """A session for `async with`: its activities run on the one worker of `queue` that opens it.

        `creation_timeout` bounds the wait for a worker with room, `execution_timeout` how long the session may last
        once it is open; times in seconds or as timedelta. A session breaks when its worker dies or stops.
        """
        run = self._run
        run.check_usable()
        lasts = None if execution_timeout is None else round(seconds(execution_timeout), 6)
        opens = round(seconds(creation_timeout), 6)
        for field, value in (("creation_timeout", opens), ("execution_timeout", lasts)):
            if value is not None and not 0 < value <= _LONGEST:
                message = f"{field} is {value:g} s; it must be above 0 and at most 100 years"
                raise InvalidRequestError(message, field=field)
        name = run.identity.queue if queue is None else check_text(queue, what="queue")
        return Session(self, name, opens, lasts)


_LONGEST: Final = 100 * 366 * 86_400.0
