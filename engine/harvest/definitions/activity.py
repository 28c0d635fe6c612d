"""An activity as declared, and the context that its code may ask for."""

from __future__ import annotations

import inspect
import itertools
import typing
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec
from msgspec import Struct

from harvest.definitions.llm_usage import MOST_REPORTS, LlmUsage, llm_usage
from harvest.definitions.options import ActivityOptions, Retry, activity_options
from harvest.definitions.signature import Signature, signature_of
from harvest.definitions.step import current as step
from harvest.errors import DefinitionError, ForbiddenInWorkflowError, LimitError
from harvest.history import payload
from harvest.history.ids import ExecutionId

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ActivityInfo(Struct, frozen=True):
    """Which attempt of which activity is running."""

    execution_id: ExecutionId
    workflow_name: str
    workflow_id: str
    name: str
    seq: int
    attempt: int


class ActivityContext:
    """Given to an activity whose first parameter is annotated with it. Safe to use from the activity's thread."""

    def __init__(
        self,
        info: ActivityInfo,
        *,
        heartbeat: Callable[[bytes], None],
        cancelled: Callable[[], bool],
        last_details: bytes | None,
        report: Callable[[int, LlmUsage], None],
    ) -> None:
        self.info = info
        self._heartbeat = heartbeat
        self._cancelled = cancelled
        self._last_details = last_details
        self._report = report
        self._reports = itertools.count(1)

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self.info.attempt

    def idempotency_key(self, part: str = "") -> str:
        """The same for every attempt of this activity, and for no other: hand it to the service you call."""
        key = f"{self.info.execution_id}/{self.info.seq}"
        return f"{key}/{part}" if part else key

    def heartbeat(self, details: Any = None) -> None:
        """Say that the attempt is alive, with details that the next attempt can read."""
        self._heartbeat(payload.encode(details, what="heartbeat details"))

    def heartbeat_details(self, as_type: type[T] | Any = Any) -> T | Any | None:
        """What an earlier attempt's last heartbeat said, or None."""
        return None if self._last_details is None else payload.decode(self._last_details, as_type)

    def report_llm_usage(
        self,
        *,
        model: str,
        input_tokens: int,
        output_tokens: int,
        latency_ms: float,
        cost_usd_micros: int | None = None,
    ) -> None:
        """Have one call of a language model counted in the usage report, where it is spent with the run's group.

        The cost is in millionths of a US dollar; without one the call counts as unpriced. Call it for each call of a
        model, up to 10,000 times an attempt: what an attempt that fails has spent counts, too. All of it is kept before
        the end of the attempt is. Raises InvalidRequestError and LimitError.
        """
        usage = llm_usage(
            model=model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cost_usd_micros=cost_usd_micros,
            latency_ms=latency_ms,
        )
        number = next(self._reports)
        if number > MOST_REPORTS:
            raise LimitError(f"an attempt reports at most {MOST_REPORTS:,} calls of language models")
        self._report(number, usage)

    @property
    def is_cancelled(self) -> bool:
        """Whether the workflow no longer waits for this activity, or has ended."""
        return self._cancelled()


class ActivityDefinition(Generic[P, R]):
    """A declared activity. Calling it calls the function itself, so that it can be tested as one."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        options: ActivityOptions,
        wants_context: bool,
        signature: Signature,
    ) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.wants_context = wants_context
        self.signature = signature
        self.is_async = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function here and now, outside any workflow; raises ForbiddenInWorkflowError inside one."""
        if step.active:
            called = getattr(self.function, "__name__", self.name)
            raise ForbiddenInWorkflowError(
                f"workflow code called activity {self.name!r} itself, which would run again with every replay: "
                f"use ctx.execute_activity({called}, …)",
                call=self.name,
            )
        return self.function(*args, **kwargs)

    def with_options(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        schedule_to_start: timedelta | None = None,
        start_to_close: timedelta | None = None,
        schedule_to_close: timedelta | None = None,
        heartbeat_timeout: timedelta | None = None,
        retry: Retry | None = None,
    ) -> ActivityDefinition[P, R]:
        """The same activity with other options for one call; what is left out stays as declared."""
        mine = self.options
        changed = activity_options(
            queue=queue or mine.queue,
            priority=mine.priority if priority is None else priority,
            schedule_to_start=schedule_to_start or _delta(mine.schedule_to_start),
            start_to_close=start_to_close or _delta(mine.start_to_close),
            schedule_to_close=schedule_to_close or _delta(mine.schedule_to_close),
            heartbeat_timeout=heartbeat_timeout or _delta(mine.heartbeat),
            retry=retry,
        )
        if retry is None:
            changed = _with_policy(changed, mine)
        return ActivityDefinition(
            self.function,
            name=self.name,
            options=changed,
            wants_context=self.wants_context,
            signature=self.signature,
        )


def define_activity(
    function: Callable[..., Any], *, name: str, options: ActivityOptions
) -> ActivityDefinition[..., Any]:
    """Check a function and make an activity of it; raises DefinitionError."""
    what = f"activity {name!r}"
    if not callable(function):
        raise DefinitionError(f"{what} must be a function")
    wants_context = _wants_context(function)
    signature = signature_of(function, skip=1 if wants_context else 0, what=what)
    return ActivityDefinition(function, name=name, options=options, wants_context=wants_context, signature=signature)


def _wants_context(function: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return False
    try:
        hint = typing.get_type_hints(function).get(parameters[0].name)
    except (NameError, TypeError):
        hint = None
    return hint is ActivityContext


def _delta(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _with_policy(options: ActivityOptions, source: ActivityOptions) -> ActivityOptions:
    return msgspec.structs.replace(options, retry=source.retry, explicit_retry=source.explicit_retry)
