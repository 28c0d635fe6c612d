"""Changing code under open runs, values that cannot be computed again, and going on as a new run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, overload

from msgspec import Raw

from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import InvalidRequestError, NonDeterminismError, PayloadDecodeError
from harvest.history import payload
from harvest.history.data import SideEffectRecorded
from harvest.history.limits import check_text
from harvest.replay import guard
from harvest.replay.context.base import ContextBase
from harvest.replay.continuing import ContinueAsNew
from harvest.replay.failures import exception_of, failure_of
from harvest.replay.handlers import block_if_disturbed, refusing
from harvest.replay.records import RecordSideEffect
from harvest.replay.run import Run
from harvest.replay.unwinding import AbandonStep

T = TypeVar("T")


class VersioningCalls(ContextBase):
    """The part of the context that keeps old runs on their path."""

    __slots__ = ()

    def version(self, change_id: str, lowest: int, highest: int) -> int:
        """Which version of a change this run follows, for as long as it lives.

        A run that comes here for the first time takes `highest` and records it; one that was here before the change
        existed keeps `lowest`. A recorded version outside the range blocks the run.
        """
        self._run.check_may_act()
        return self._run.versions.choose(f"version:{change_id}", lowest, highest)

    def patched(self, patch_id: str) -> bool:
        """Whether this run follows the patched code: False only for a run that was here before the patch."""
        self._run.check_may_act()
        return self._run.versions.choose(f"patch:{patch_id}", 0, 1) == 1

    def deprecate_patch(self, patch_id: str) -> None:
        """In place of `patched` once the old branch is gone: runs that recorded the patch still replay."""
        self._run.check_may_act()
        self._run.versions.retired.add(f"patch:{patch_id}")

    @overload
    def side_effect(self, function: Callable[[], T], *, as_type: type[T], name: str = "") -> T: ...
    @overload
    def side_effect(self, function: Callable[[], Any], *, name: str = "") -> Any: ...
    def side_effect(self, function: Callable[[], Any], *, as_type: Any = Any, name: str = "") -> Any:
        """Call `function` once and record what it returns; a replay reads the record.

        For a quick value that is not the same twice. The value comes back as JSON holds it, as `as_type`. What it
        raises is recorded too, and comes as an ApplicationError of that type. As it is not called on a replay, it may
        only look at what the workflow knows. What waits or must not happen twice belongs in an activity.
        """
        run = self._run
        seq = run.next_sequence()
        check_text(name, what="side effect name", empty=True)
        recorded = run.versions.effects.pop(seq, None)
        if recorded is None:
            if run.replaying:
                run.block(_unrecorded(name, seq, run.position))
                raise AbandonStep
            recorded = _effect_of(run, function, name)
            run.check_usable()
        run.asked.ask(RecordSideEffect(seq, name, recorded))
        if (error := exception_of(recorded.failure)) is not None:
            raise error
        try:
            return payload.decode(bytes(recorded.value), as_type, what=f"side effect {name!r}")
        except PayloadDecodeError as unfit:
            run.block(unfit)
            raise AbandonStep from None

    def continue_as_new(self, *args: Any, workflow: WorkflowDefinition[..., Any] | None = None) -> NoReturn:
        """End this run and go on as a new one with these arguments and a history of its own.

        Of the same workflow, or of another. Unread signals and updates that have not begun go along, children stay
        and are no longer awaited. Call it from the workflow function itself, and let what it raises leave.
        """
        run = self._run
        run.check_may_act()
        if asyncio.current_task() is not run.main:
            raise InvalidRequestError("continue_as_new must be called by the workflow function itself, not by a task")
        target = workflow or run.definition
        if not isinstance(target, WorkflowDefinition):
            raise TypeError(f"continue_as_new takes a declared workflow, not {type(target).__name__}")
        raise ContinueAsNew(target.signature.encode(args, {}), workflow)


def _effect_of(run: Run, function: Callable[[], Any], name: str) -> SideEffectRecorded:
    who = f"the function of side effect {name!r}"
    try:
        with refusing(run, who):
            value = payload.encode(_unguarded(function), what=f"side effect {name!r}")
    except (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt) as error:
        block_if_disturbed(run, who)
        return SideEffectRecorded(name=name, failure=failure_of(error))
    block_if_disturbed(run, who)
    return SideEffectRecorded(Raw(value), name)


def _unguarded(function: Callable[[], Any]) -> Any:
    before = guard.pause()
    try:
        return function()
    finally:
        guard.leave(before)


def _unrecorded(name: str, seq: int, position: int) -> NonDeterminismError:
    asked = f"side effect {name!r} (number {seq})"
    return NonDeterminismError(
        f"the code asks for {asked}, which history does not have", event_id=position, recorded="nothing", asked=asked
    )
