"""Warm equals cold: every other way to come to a decision gives the same as the way that was recorded (design 9)."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from uuid import UUID
from zlib import crc32

import msgspec
from msgspec import Struct

from harvest.history.events import Event
from harvest.history.kinds import COMMANDS, EventKind
from harvest.replay.run import Run
from harvest.replay.state import Identity
from tests.replay import program
from tests.replay.noting import NEW_BUILD
from tests.replay.oracle import Oracle
from tests.replay.player import PLAY, PLAY_ON, Trace
from tests.replay.recording import (
    NOTHING_SHOWN,
    Asked,
    Decided,
    Recording,
    State,
    answer_of,
    asked_by,
    end_of,
    fresh,
    let_go_of_all,
    shown_by,
)

TYPES = {definition.name: definition for definition in (PLAY, PLAY_ON)}


class Case(Struct):
    """A recorded run, for another process to replay."""

    seed: int
    execution_id: UUID
    workflow_name: str
    events: list[tuple[int, int, int, str, str]]
    decided_through: int
    fingerprint: int


def drawn(seed: int) -> program.Block:
    """The program of this seed."""
    return program.draw(random.Random(seed))


def record(seed: int, block: program.Block | None = None) -> Recording:
    """Run the program of this seed, or a smaller one, in the world of this seed."""
    data = msgspec.json.encode(drawn(seed) if block is None else block)
    return Oracle(PLAY, data, random.Random(seed + 1), [PLAY_ON]).record()


def check(seed: int, block: program.Block | None = None) -> Recording:
    """Record a program and compare; raises AssertionError naming the way that differs."""
    try:
        first = record(seed, block)
        for recording in first.chain:
            cold_at_every_state(recording, random.Random(seed + 3))
            cold_at_every_decision(recording)
            resumed_in_other_batches(recording, random.Random(seed + 2))
            nothing_is_wrong(recording.trace)
        signals_come_once_and_in_order([note for recording in first.chain for note in recording.trace])
    finally:
        let_go_of_all()
    return first


def cold_at_every_state(recording: Recording, chance: random.Random) -> None:
    """A replay of a prefix has seen what the warm run had seen by then, answers as it did, and asks for nothing else.

    What was decided is replayed by either build of the code.
    """
    asked_by_then = _asked_by_then(recording)
    for state in dict.fromkeys(recording.states):
        build = chance.choice((state.build, NEW_BUILD)) if state.events == state.decided_through else state.build
        run, trace = _replayed(recording, state.events, state.decided_through, build)
        if state.answer is not None:
            found = answer_of(run)
            assert found == state.answer, f"cold at {state} answers {found}"
        expected = recording.trace[: bisect_right(recording.trace, state.events, key=lambda note: note[0])]
        assert trace == expected, f"cold at {state}: {_first_difference(trace, expected)}"
        asked, later = asked_by(run), asked_by_then(state.events)
        assert asked == later[: len(asked)], f"cold at {state} asks for {asked}, warm for {later}"
        if state.events == state.decided_through:
            assert shown_by(run) == NOTHING_SHOWN, f"cold at {state} shows {shown_by(run)} once more"
        run.release()


def _asked_by_then(recording: Recording) -> Callable[[int], Asked]:
    """What the decision that follows a state has asked for."""
    saw = [decision.saw for decision in recording.decisions]

    def following(events: int) -> Asked:
        for decision, number in zip(recording.decisions, saw, strict=True):
            if number >= events:
                return decision.asked
        return []

    return following


def cold_at_every_decision(recording: Recording) -> None:
    """A replay of exactly what a decision saw gives that decision."""
    for decision in recording.decisions:
        run, _ = _replayed(recording, decision.saw, decision.decided_through, decision.build)
        _same(run, decision, "cold")
        run.release()


def resumed_in_other_batches(recording: Recording, chance: random.Random) -> None:
    """A replay of a prefix, gone on with warm, gives the decisions that follow, however the events are cut."""
    state: State = chance.choice(recording.states)
    run, trace = _replayed(recording, state.events, state.decided_through, state.build)
    at = state.events
    for decision in recording.decisions:
        if decision.saw < state.events or decision.after <= state.decided_through:
            continue
        if decision.build != state.build:
            break
        while at < decision.saw:
            size = chance.randint(1, 3)
            run.deliver(recording.events[at : min(at + size, decision.saw)])
            at = min(at + size, decision.saw)
        _same(run, decision, f"resumed at {state}")
        run.recorded(decision.after)
        at = decision.after
    assert trace == recording.trace[: len(trace)], _first_difference(trace, recording.trace)
    run.release()


def _replayed(recording: Recording, events: int, decided_through: int, build: int) -> tuple[Run, Trace]:
    run, trace = fresh(recording.workflow, recording.identity, build)
    run.replay(recording.events[:events], decided_through)
    assert run.blocked is None, f"cold at {events} of {len(recording.events)} events is blocked: {run.blocked}"
    return run, trace


def _same(run: Run, decision: Decided, way: str) -> None:
    assert run.blocked is None, f"{way} at {decision.saw} events is blocked: {run.blocked}"
    asked, outcome, shown = asked_by(run), end_of(run), shown_by(run)
    assert asked == decision.asked, f"{way} at {decision.saw} events asks for {asked}, not for {decision.asked}"
    assert outcome == decision.outcome, f"{way} at {decision.saw} events ends {outcome}, not {decision.outcome}"
    assert shown == decision.shown, f"{way} at {decision.saw} events shows {shown}, not {decision.shown}"


def _first_difference(one: Trace, other: Trace) -> str:
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return f"note {number} is {left}, not {right}"
    return f"{len(one)} notes, not {len(other)}: {(one + other)[min(len(one), len(other)) :][:1]}"


def nothing_is_wrong(trace: Trace) -> None:
    """No time that goes back, no answer that is another's, no winner that was not first."""
    wrong = [note for note in trace if note[1].startswith("wrong: ")]
    assert not wrong, f"{wrong[0][1]} {wrong[0][2]}"


def signals_come_once_and_in_order(trace: Trace) -> None:
    """Over a whole chain of runs."""
    for name in program.SIGNALS:
        numbers = [int(value) for _, what, value in trace if what == f"signal {name}"]
        assert numbers == sorted(set(numbers)), f"signals {name} came as {numbers}"


def cases_of(seed: int, first: Recording) -> Iterator[Case]:
    """The whole histories of a recording and its successors, and what they come to here, for another process."""
    for recording in first.chain:
        rows = [(e.event_id, e.kind, e.seq, e.at.isoformat(), e.payload.decode()) for e in recording.events]
        identity, through = recording.identity, recording.decisions[-1].after
        found = fingerprint_of(identity.workflow_name, identity, recording.events, through)
        yield Case(seed, identity.execution_id, identity.workflow_name, rows, through, found)


def fingerprint(run: Run, trace: Trace) -> int:
    """What one replay has come to, as a number."""
    return crc32(repr((trace, asked_by(run), end_of(run), answer_of(run), str(run.blocked))).encode())


def fingerprint_of(name: str, identity: Identity, events: list[Event], decided_through: int) -> int:
    """The same of a replay in this process."""
    run, trace = fresh(TYPES[name], identity)
    run.replay(events, decided_through)
    found = fingerprint(run, trace)
    run.release()
    return found


def shrink(seed: int, fails: Callable[[program.Block], bool]) -> program.Block:
    """The smallest program found that still fails."""
    block = drawn(seed)
    improved = True
    while improved:
        improved = False
        for less in program.smaller(block):
            if less and fails(less):
                block, improved = less, True
                break
    return block


def commands_of(recording: Recording) -> Iterator[EventKind]:
    """Kinds of the commands in a history."""
    return (EventKind(e.kind) for each in recording.chain for e in each.events if e.kind in COMMANDS)
