"""Faults in how events are delivered, commands are matched, and time and chance are kept."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from harvest.errors import NonDeterminismError
from harvest.history.events import Event
from harvest.history.kinds import EventKind
from harvest.replay import commands, context, ordered, resolving
from harvest.replay.loop import WorkflowTask
from harvest.replay.matching import Asked
from harvest.replay.messages import Messages
from harvest.replay.run import Run
from tests.replay.planting import plant


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
