"""The suites have teeth: each fault that is planted here is found by one of them (design 9)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from harvest.definitions.signature import signature_of
from harvest.errors import NonDeterminismError
from harvest.history import payload
from harvest.history.data import SideEffectRecorded
from harvest.history.events import Event
from harvest.history.kinds import EventKind
from harvest.replay import commands, context, guard, inspecting, ordered, resolving
from harvest.replay.context import children, handling, versioning
from harvest.replay.context.joining import Winner
from harvest.replay.loop import WorkflowTask
from harvest.replay.matching import Asked
from harvest.replay.messages import Messages
from harvest.replay.records import RecordSideEffect
from harvest.replay.run import Run
from harvest.replay.versions import Versions
from tests.replay import (
    differential,
    test_children,
    test_continuing,
    test_locals,
    test_messages,
    test_queries,
    test_run,
    test_versions,
)
from tests.replay.edits import every_edit_is_reported

PROGRAMS = 250
Plant = Callable[[pytest.MonkeyPatch], None]
PLANTS: dict[str, Plant] = {}


def plant(function: Plant) -> Plant:
    PLANTS[function.__name__] = function
    return function


@plant
def two_events_delivered_at_once(patch: pytest.MonkeyPatch) -> None:
    real_deliver, real_spin = Run.deliver, Run._spin
    more = [False]

    def deliver(self: Run, events: Iterable[Event]) -> None:
        listed = list(events)
        for number, event in enumerate(listed):
            more[0] = number < len(listed) - 1
            real_deliver(self, [event])

    patch.setattr(Run, "deliver", deliver)
    patch.setattr(Run, "_spin", lambda self: None if more[0] else real_spin(self))


@plant
def tasks_hash_by_address(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkflowTask, "__hash__", lambda self: id(self) >> 4)


@plant
def tasks_hash_by_a_bare_number(patch: pytest.MonkeyPatch) -> None:
    real = Run.on_started

    def on_started(self: Run, event: Event) -> None:
        real(self, event)
        assert self.main is not None
        self.main.number = 1  # type: ignore[attr-defined]

    patch.setitem(resolving.HANDLERS, EventKind.WORKFLOW_STARTED, on_started)


@plant
def gather_walks_by_address(patch: pytest.MonkeyPatch) -> None:
    def gather(*awaitables: Any, return_exceptions: bool = False) -> Any:
        shuffled = sorted(awaitables, key=lambda one: id(one) >> 5 & 7)
        return ordered.gather(*shuffled, return_exceptions=return_exceptions)

    patch.setattr(asyncio, "gather", gather)


@plant
def a_cancelled_timer_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "cancel_timer", lambda self, seq: None)


@plant
def commands_match_by_position(patch: pytest.MonkeyPatch) -> None:
    def match(self: Asked, event: Event) -> None:
        if not self:
            raise NonDeterminismError("recorded, but not asked for", recorded="something", asked="nothing")
        self.pop(next(iter(self)))

    patch.setattr(Asked, "match", match)


@plant
def the_digest_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commands, "_evolved", lambda signature, recorded, now: True)


@plant
def decided_through_is_off_by_one(patch: pytest.MonkeyPatch) -> None:
    real = Run.replay
    patch.setattr(Run, "replay", lambda self, events, through: real(self, events, through - 1))


@plant
def random_is_not_seeded_by_the_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(context.WorkflowContext, "random", lambda self: random.Random())


@plant
def uuids_come_from_the_system(patch: pytest.MonkeyPatch) -> None:
    real = uuid.uuid4.__wrapped__  # type: ignore[attr-defined]
    patch.setattr(context.WorkflowContext, "uuid4", lambda self: real())


@plant
def now_is_the_latest_stamp_and_not_the_largest(patch: pytest.MonkeyPatch) -> None:
    real = Run._take

    def take(self: Run, event: Event) -> None:
        if self.main is not None:
            self.now_at = event.at
        real(self, event)

    patch.setattr(Run, "_take", take)


@plant
def a_buffered_signal_is_lost_on_replay(patch: pytest.MonkeyPatch) -> None:
    real = Messages.received

    def received(self: Messages, event: Event) -> None:
        if not self._run.replaying or self.waiters.get(event.data().name):
            real(self, event)

    patch.setattr(Messages, "received", received)


@plant
def a_signal_is_skipped(patch: pytest.MonkeyPatch) -> None:
    real = Messages.received

    def received(self: Messages, event: Event) -> None:
        if event.event_id % 5:
            real(self, event)

    patch.setattr(Messages, "received", received)


@plant
def signals_are_taken_last_first(patch: pytest.MonkeyPatch) -> None:
    real = context.WorkflowContext._take

    def take(self: context.WorkflowContext, name: str, as_type: Any) -> Any:
        self._run.messages.buffers[name].reverse()
        return real(self, name, as_type)

    patch.setattr(context.WorkflowContext, "_take", take)


@plant
def carried_signals_come_after_the_first_step(patch: pytest.MonkeyPatch) -> None:
    real = Run.on_started

    def on_started(self: Run, event: Event) -> None:
        real(self, event)
        self._held = 0

    patch.setitem(resolving.HANDLERS, EventKind.WORKFLOW_STARTED, on_started)


@plant
def committed_commands_are_asked_for_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "recorded", lambda self, through: None)


@plant
def a_dropped_command_is_kept(patch: pytest.MonkeyPatch) -> None:
    real = Asked.take_back

    def take_back(self: Asked, cancel: Any) -> None:
        self.fresh.clear()
        real(self, cancel)

    patch.setattr(Asked, "take_back", take_back)


@plant
def info_counts_beyond_what_was_delivered(patch: pytest.MonkeyPatch) -> None:
    real = Run.replay
    beyond: dict[int, int] = {}

    def replay(self: Run, events: Iterable[Event], through: int) -> None:
        listed = list(events)
        beyond[id(self)] = len(listed)
        real(self, listed, through)

    info = context.WorkflowContext.info.fget
    assert info is not None

    def counted(self: context.WorkflowContext) -> Any:
        found = info(self)
        most = max(found.history_events, beyond.get(id(self._run), 0))
        return msgspec.structs.replace(found, history_events=most)

    patch.setattr(Run, "replay", replay)
    patch.setattr(context.WorkflowContext, "info", property(counted))


@plant
def logs_speak_on_replay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(context.WorkflowLogger, "isEnabledFor", lambda self, level: True)


# Children, messages, versions, what is carried over


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
def a_cancelled_child_is_not_told(patch: pytest.MonkeyPatch) -> None:
    real = Run._turn_away

    def turn_away(self: Run, waiting: Any, command: Any, cancel: Any) -> None:
        real(self, waiting, command, None if isinstance(cancel, children.CancelChild) else cancel)

    patch.setattr(Run, "_turn_away", turn_away)


@plant
def the_end_of_a_local_activity_goes_by_its_number_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(resolving, "_local_taken", lambda run, event: resolving._taken(run.locals, event))


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


QUICK: tuple[Callable[[], None], ...] = (
    test_run.test_signals_of_the_starting_transaction_come_before_the_code_runs,
    test_run.test_what_is_asked_for_and_dropped_within_one_step_vanishes,
    test_run.test_tasks_hash_by_the_seed_and_not_by_a_bare_number,
    test_queries.test_a_handler_leaves_no_mark_in_the_context_of_the_code,
    test_queries.test_the_loop_and_hooks_of_the_asker_are_its_own_again,
    test_versions.test_removing_a_patch_that_runs_have_recorded_is_reported,
    test_versions.test_what_a_side_effect_raises_is_recorded_too,
    test_messages.test_a_validator_may_change_from_build_to_build,
    test_messages.test_what_a_signal_handler_raises_fails_the_run,
    test_messages.test_a_handlers_defaults_are_its_own_runs,
    test_continuing.test_a_cancel_request_that_came_after_the_code_had_left_goes_along,
    test_continuing.test_an_update_under_way_is_answered_and_does_not_go_along,
    test_locals.test_the_end_of_another_call_that_had_the_number_is_nobodys,
    test_children.test_a_race_is_won_by_who_ended_first_and_not_by_who_stands_first,
    lambda: test_continuing.test_a_run_that_was_asked_to_end_is_not_tried_again(after_the_end=True),
)


def _suites(caplog: pytest.LogCaptureFixture) -> None:
    """What runs for each change of the engine, at a small size."""
    for quick in QUICK:
        quick()
    every_edit_is_reported(bases=2, inserted=1)
    test_run.test_logs_speak_only_when_the_code_is_live(caplog)
    for seed in range(PROGRAMS):
        differential.check(seed)


@pytest.mark.prove_main_job
@pytest.mark.prove_whole_core
@pytest.mark.parametrize("name", PLANTS)
def test_the_fault_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, proof: Callable[..., None]
) -> None:
    with monkeypatch.context() as patch:
        PLANTS[name](patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)) as found:
            _suites(caplog)
    asyncio._set_running_loop(None)
    differential.let_go_of_all()
    proof("planted fault found", fault=name.replace("_", " "), by=str(found.value).splitlines()[0][:120])


def test_without_a_fault_nothing_is_found(caplog: pytest.LogCaptureFixture) -> None:
    _suites(caplog)


def test_there_are_enough_of_them() -> None:
    assert len(PLANTS) >= 40
