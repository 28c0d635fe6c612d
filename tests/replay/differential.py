"""Warm equals cold: every other way to come to a decision gives the same as the way that was recorded (design 9)."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from zlib import crc32

import msgspec
from msgspec import Struct

from harvest.history.kinds import COMMANDS, EventKind
from harvest.replay.run import Run
from tests.replay import program
from tests.replay.oracle import Asked, Decided, Oracle, Recording, asked_by, end_of, fresh, let_go_of_all
from tests.replay.player import PLAY, Trace


class Case(Struct):
    """A recorded run, for another process to replay."""

    seed: int
    events: list[tuple[int, int, int, str, str]]
    decided_through: int


def drawn(seed: int) -> program.Block:
    """The program of this seed."""
    return program.draw(random.Random(seed))


def record(seed: int, block: program.Block | None = None) -> Recording:
    """Run the program of this seed, or a smaller one, in the world of this seed."""
    data = msgspec.json.encode(drawn(seed) if block is None else block)
    return Oracle(PLAY, data, random.Random(seed + 1)).record()


def check(seed: int, block: program.Block | None = None) -> Recording:
    """Record a program and compare; raises AssertionError naming the way that differs."""
    try:
        recording = record(seed, block)
        cold_at_every_state(recording)
        cold_at_every_decision(recording)
        resumed_in_other_batches(recording, random.Random(seed + 2))
        time_never_goes_back(recording.trace)
        signals_come_once_and_in_order(recording.trace)
    finally:
        let_go_of_all()
    return recording


def cold_at_every_state(recording: Recording) -> None:
    """A replay of a prefix has seen what the warm run had seen by then, and asks for nothing else."""
    asked_by_then = _asked_by_then(recording)
    for state in recording.states:
        run, trace = _replayed(recording, state.events, state.decided_through)
        expected = recording.trace[: bisect_right(recording.trace, state.events, key=lambda note: note[0])]
        assert trace == expected, f"cold at {state}: {_first_difference(trace, expected)}"
        asked, later = asked_by(run), asked_by_then(state.events)
        assert asked == later[: len(asked)], f"cold at {state} asks for {asked}, warm for {later}"
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
        run, _ = _replayed(recording, decision.saw, decision.decided_through)
        _same(run, decision, "cold")
        run.release()


def resumed_in_other_batches(recording: Recording, chance: random.Random) -> None:
    """A replay of a prefix, gone on with warm, gives the decisions that follow, however the events are cut."""
    state = chance.choice(recording.states)
    run, trace = _replayed(recording, state.events, state.decided_through)
    at = state.events
    for decision in recording.decisions:
        if decision.saw < state.events or decision.after <= state.decided_through:
            continue
        while at < decision.saw:
            size = chance.randint(1, 3)
            run.deliver(recording.events[at : min(at + size, decision.saw)])
            at = min(at + size, decision.saw)
        _same(run, decision, f"resumed at {state}")
        run.recorded(decision.after)
        at = decision.after
    assert trace == recording.trace[: len(trace)], _first_difference(trace, recording.trace)
    run.release()


def _replayed(recording: Recording, events: int, decided_through: int) -> tuple[Run, Trace]:
    run, trace = fresh(PLAY)
    run.replay(recording.events[:events], decided_through)
    assert run.blocked is None, f"cold at {events} of {len(recording.events)} events is blocked: {run.blocked}"
    return run, trace


def _same(run: Run, decision: Decided, way: str) -> None:
    assert run.blocked is None, f"{way} at {decision.saw} events is blocked: {run.blocked}"
    asked, outcome = asked_by(run), end_of(run)
    assert asked == decision.asked, f"{way} at {decision.saw} events asks for {asked}, not for {decision.asked}"
    assert outcome == decision.outcome, f"{way} at {decision.saw} events ends {outcome}, not {decision.outcome}"


def _first_difference(one: Trace, other: Trace) -> str:
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return f"note {number} is {left}, not {right}"
    return f"{len(one)} notes, not {len(other)}: {(one + other)[min(len(one), len(other)) :][:1]}"


def time_never_goes_back(trace: Trace) -> None:
    backwards = [value for _, what, value in trace if what == "time went back"]
    assert not backwards, f"now() went back {backwards[0]}"


def signals_come_once_and_in_order(trace: Trace) -> None:
    for name in program.SIGNALS:
        numbers = [int(value) for _, what, value in trace if what == f"signal {name}"]
        assert numbers == sorted(set(numbers)), f"signals {name} came as {numbers}"


def case_of(recording: Recording) -> Case:
    """The recording's whole history for another process."""
    through = recording.decisions[-1].after
    rows = [(e.event_id, e.kind, e.seq, e.at.isoformat(), e.payload.decode()) for e in recording.events]
    return Case(recording.seed, rows, through)


def fingerprint(run: Run, trace: Trace) -> int:
    """What one replay has come to, as a number."""
    return crc32(repr((trace, asked_by(run), end_of(run), str(run.blocked))).encode())


def fingerprint_here(recording: Recording) -> int:
    """The same for a replay in this process."""
    run, trace = fresh(PLAY)
    run.replay(recording.events, recording.decisions[-1].after)
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
    return (EventKind(event.kind) for event in recording.events if event.kind in COMMANDS)
