"""Calling activities, in a worker of their own or inside this one."""

from __future__ import annotations

from typing import Any, Final, ParamSpec, TypeVar, overload

from harvest.definitions.activity import ActivityDefinition
from harvest.definitions.options import ActivityOptions
from harvest.definitions.signature import Signature
from harvest.history import payload
from harvest.history.data import RetryPolicy
from harvest.history.limits import check_text
from harvest.replay.commands import CancelActivity, ScheduleActivity
from harvest.replay.context.base import ContextBase
from harvest.replay.loop import WorkflowFuture
from harvest.replay.records import RunLocal
from harvest.replay.sessions import OpenSession

P = ParamSpec("P")
R = TypeVar("R")
LONGEST_LOCAL_SECONDS: Final = 60.0
_BY_NAME: Final = ActivityOptions(start_to_close=600.0, retry=RetryPolicy())
_ONCE: Final = RetryPolicy(max_attempts=1)


class ActivityCalls(ContextBase):
    """The part of the context that runs activities."""

    __slots__ = ()

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

    def _schedule(
        self, activity: Any, args: tuple[Any, ...], kwargs: dict[str, Any], session: OpenSession | None = None
    ) -> WorkflowFuture:
        run = self._run
        if isinstance(activity, str):
            data, digest = encoded(None, args, kwargs, f"activity {activity!r}")
            definition, options = None, _BY_NAME
            name = check_text(activity, what="activity name")
        elif isinstance(activity, ActivityDefinition):
            data, digest = encoded(activity.signature, args, kwargs, activity.name)
            definition, options, name = activity, activity.options, activity.name
        else:
            raise TypeError(f"execute_activity takes a declared activity or its name, not {type(activity).__name__}")
        seq = run.next_sequence()
        command = ScheduleActivity(
            seq=seq,
            name=name,
            input=data,
            digest=digest,
            queue=session.queue if session is not None else options.queue or run.identity.queue,
            options=options,
            definition=definition,
            session=session,
        )
        return run.ask(run.pending, command, CancelActivity(seq))

    async def execute_local_activity(self, activity: ActivityDefinition[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a short activity inside this worker, without a task of its own: for what takes milliseconds.

        It may be broken off and run again (after a crash or a pause, and when others write to the run before its result
        is committed), has at most 60 seconds an attempt, and is tried once unless `with_options(retry=...)` says
        otherwise. Raises ActivityError.
        """
        if not isinstance(activity, ActivityDefinition):
            raise TypeError(f"execute_local_activity takes a declared activity, not {type(activity).__name__}")
        run, options = self._run, activity.options
        data, digest = encoded(activity.signature, args, kwargs, activity.name)
        command = RunLocal(
            seq=run.next_sequence(),
            name=activity.name,
            input=data,
            digest=digest,
            definition=activity,
            start_to_close=min(options.start_to_close or LONGEST_LOCAL_SECONDS, LONGEST_LOCAL_SECONDS),
            retry=options.retry if options.explicit_retry else _ONCE,
        )
        result: R = await run.ask(run.locals, command)
        return result


def encoded(signature: Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> tuple[bytes, str]:
    """Arguments as history keeps them, and the digest that they are matched by. Without a signature: by place only."""
    if signature is not None:
        data = signature.encode(args, kwargs)
    elif kwargs:
        raise TypeError(f"{what} is named by text and takes positional arguments only")
    else:
        data = payload.encode(args[0] if len(args) == 1 else (args or None), what=f"the input of {what}")
    if _is_plain(args, kwargs):
        return data, payload.digest(data)
    values = args if signature is None else signature.fill(args, kwargs)
    return data, payload.digest(payload.encode_canonical(values[0] if len(values) == 1 else (values or None)))


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def _is_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments have one encoding only: sets and dicts, which may hold sets, have several."""
    return not kwargs and _PLAIN.issuperset(map(type, args))
