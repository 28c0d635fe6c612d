"""Faults in queries, versions, updates, signals, children, and in what is carried over."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from harvest.definitions.signature import signature_of
from harvest.history import payload
from harvest.history.data import SideEffectRecorded
from harvest.history.events import Event
from harvest.history.kinds import EventKind
from harvest.replay import context, guard, inspecting, resolving
from harvest.replay.context import children, handling, versioning
from harvest.replay.context.joining import Winner
from harvest.replay.matching import Asked
from harvest.replay.messages import Messages
from harvest.replay.records import RecordSideEffect
from harvest.replay.run import Run
from harvest.replay.versions import Versions
from tests.replay.planting import plant


@plant
def a_query_handler_may_act(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inspecting, "refusing", lambda run, who: contextlib.nullcontext())


@plant
def a_query_runs_in_the_context_of_the_code(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "looking", lambda self, function, *args: self._context.run(function, *args))


@plant
def the_loop_of_the_caller_is_not_restored(patch: pytest.MonkeyPatch) -> None:
    def leave(self: Run, before: tuple[bool, Any, Any]) -> None:
        guard.leave(before[0])
        sys.set_asyncgen_hooks(*before[2])

    patch.setattr(Run, "_leave", leave)


@plant
def what_is_known_counts_the_commands_too(patch: pytest.MonkeyPatch) -> None:
    real = Run._take

    def take(self: Run, event: Event) -> None:
        self.seen_through = event.event_id
        real(self, event)

    patch.setattr(Run, "_take", take)


@plant
def a_marker_is_looked_up_only_behind_the_position(patch: pytest.MonkeyPatch) -> None:
    real_match = Asked.match

    def match(self: Asked, event: Event) -> None:
        if event.kind != EventKind.MARKER_RECORDED:
            real_match(self, event)

    patch.setattr(Versions, "_first", lambda self, name, lowest, highest: lowest if self._run.replaying else highest)
    patch.setattr(Asked, "match", match)


@plant
def a_patch_is_live_on_replay(patch: pytest.MonkeyPatch) -> None:
    real = Versions._first

    def first(self: Versions, name: str, lowest: int, highest: int) -> int:
        before, self._run.replaying = self._run.replaying, False
        try:
            return real(self, name, lowest, highest)
        finally:
            self._run.replaying = before

    patch.setattr(Versions, "_first", first)


@plant
def a_retired_marker_is_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Versions, "lets_stand", lambda self, marker: False)


@plant
def a_side_effect_runs_again_on_replay(patch: pytest.MonkeyPatch) -> None:
    def side_effect(self: Any, function: Callable[[], Any], *, as_type: Any = Any, name: str = "") -> Any:
        seq = self._run.next_sequence()
        value = payload.encode(function())
        self._run.asked.ask(RecordSideEffect(seq, name, SideEffectRecorded(msgspec.Raw(value), name)))
        return payload.decode(value, as_type)

    patch.setattr(versioning.VersioningCalls, "side_effect", side_effect)


@plant
def what_a_side_effect_raises_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    def effect_of(function: Callable[[], Any], name: str) -> SideEffectRecorded:
        return SideEffectRecorded(msgspec.Raw(payload.encode(function())), name)

    patch.setattr(versioning, "_effect_of", effect_of)


@plant
def an_update_is_answered_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Messages, "_reply", lambda self, answer: self._run.asked.ask(answer))


@plant
def a_refused_update_is_not_answered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Messages, "_reject", lambda self, update, failure: self.admitted.pop(update.event_id))


@plant
def an_update_without_a_handler_waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Messages, "at_rest", lambda self: None)


@plant
def a_validator_judges_again_on_replay(patch: pytest.MonkeyPatch) -> None:
    real = Messages._answer

    def answer(self: Messages, update: Any, handler: Any) -> None:
        before, self._run.replaying = self._run.replaying, False
        try:
            real(self, update, handler)
        finally:
            self._run.replaying = before

    patch.setattr(Messages, "_answer", answer)


@plant
def a_validator_may_act(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("harvest.replay.messages.refusing", lambda run, who: contextlib.nullcontext())


@plant
def a_handler_gets_what_was_taken_already(patch: pytest.MonkeyPatch) -> None:
    def take(self: Messages, name: str, as_type: Any) -> Any:
        buffer = self.buffers[name]
        value = self.decode(name, buffer[0].payload, as_type)
        if len(buffer) > 1:
            buffer.popleft()
        return value

    patch.setattr(Messages, "take", take)


@plant
def a_handler_gets_only_what_comes_later(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Messages, "on_signal", lambda self, handler: self.signals.update({handler.name: handler}))


@plant
def what_a_handler_raises_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "fail", lambda self, error: None)


@plant
def runs_share_what_their_handlers_have_bound(patch: pytest.MonkeyPatch) -> None:
    known: dict[object, Any] = {}

    def shared(name: str, function: Any, kind: str) -> Any:
        key = (getattr(function, "__code__", function), kind, name)
        return known.setdefault(key, signature_of(function, skip=0, what=name))

    patch.setattr(handling, "signature_of_handler", shared)


@plant
def a_broken_session_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(resolving.HANDLERS, EventKind.SESSION_BROKEN, lambda run, event: None)


@plant
def unread_signals_are_not_carried(patch: pytest.MonkeyPatch) -> None:
    _carry_only(patch, lambda kind: kind != EventKind.SIGNAL_RECEIVED)


@plant
def unstarted_updates_are_not_carried(patch: pytest.MonkeyPatch) -> None:
    _carry_only(patch, lambda kind: kind != EventKind.UPDATE_ADMITTED)


@plant
def a_late_cancel_request_is_lost(patch: pytest.MonkeyPatch) -> None:
    _carry_only(patch, lambda kind: kind != EventKind.WORKFLOW_CANCEL_REQUESTED)


def _carry_only(patch: pytest.MonkeyPatch, keeps: Callable[[int], bool]) -> None:
    real = Messages.unread
    patch.setattr(Messages, "unread", lambda self: [each for each in real(self) if keeps(each[1])])


@plant
def what_is_carried_loses_its_order(patch: pytest.MonkeyPatch) -> None:
    real = Messages.unread
    patch.setattr(Messages, "unread", lambda self: real(self)[::-1])


@plant
def a_begun_update_goes_along(patch: pytest.MonkeyPatch) -> None:
    real = Messages.at_rest

    def at_rest(self: Messages) -> None:
        if self._run.continued is None:
            real(self)
        else:
            for update in self.admitted.values():
                update.begun = False

    patch.setattr(Messages, "at_rest", at_rest)


@plant
def a_run_that_was_asked_to_end_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    real = Run.on_cancel_requested

    def on_cancel_requested(self: Run, event: Event) -> None:
        if not self.is_done:
            real(self, event)

    patch.setitem(resolving.HANDLERS, EventKind.WORKFLOW_CANCEL_REQUESTED, on_cancel_requested)


@plant
def the_result_of_a_child_goes_by_position(patch: pytest.MonkeyPatch) -> None:
    def completed(run: Run, event: Event) -> None:
        if run.children:
            future, _ = run.children.pop(next(iter(run.children)))
            future.set_result(payload.decode(bytes(event.data().output)))

    patch.setitem(resolving.HANDLERS, EventKind.CHILD_WORKFLOW_COMPLETED, completed)


@plant
def the_id_of_a_child_hangs_on_the_time_of_the_replay(patch: pytest.MonkeyPatch) -> None:
    real = children.derive_execution_id
    tick = iter(range(10**9))
    patch.setattr(children, "derive_execution_id", lambda shard, parent, seq, ms: real(shard, parent, seq, next(tick)))


@plant
def a_child_is_placed_again_on_replay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "recorded_child", lambda self, seq: None)


@plant
def a_placed_child_that_is_taken_back_was_never_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Asked, "stand", lambda self, key: None)


@plant
def a_cancelled_child_is_not_told(patch: pytest.MonkeyPatch) -> None:
    real = Run._turn_away

    def turn_away(self: Run, waiting: Any, command: Any, cancel: Any) -> None:
        real(self, waiting, command, None if isinstance(cancel, children.CancelChild) else cancel)

    patch.setattr(Run, "_turn_away", turn_away)


@plant
def the_end_of_a_local_activity_goes_by_its_number_alone(patch: pytest.MonkeyPatch) -> None:
    def taken(run: Run, event: Event) -> Any:
        found = resolving._taken(run.locals, event)
        return found and (*found, event.data())

    patch.setattr(resolving, "_local_taken", taken)


@plant
def a_race_is_won_by_who_stands_first(patch: pytest.MonkeyPatch) -> None:
    async def race(self: Any, *branches: Any) -> Any:
        tasks = [asyncio.ensure_future(branch) for branch in branches]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = [index for index, task in enumerate(tasks) if task.done()]
            losers = [task for task in tasks if not task.done()]
            for task in losers:
                task.cancel()
            if losers:
                await asyncio.wait(losers)
        return Winner(ended[0], tasks[ended[0]].result())

    patch.setattr(context.WorkflowContext, "race", race)


@plant
def what_is_shown_is_shown_again_on_replay(patch: pytest.MonkeyPatch) -> None:
    def show(self: Any, details: Any) -> None:
        self._run.details = payload.encode(details)

    patch.setattr(context.WorkflowContext, "set_current_details", show)
