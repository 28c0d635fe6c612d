"""Claims that seek from marks take what claims without them would take, and what they pass over is seen again soon."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import msgspec
import pytest

from harvest import clock
from harvest.store.marks import FULL_LOOK_SECONDS, HANDICAP, Marks, Picked, Seek
from tests.scale import scale

QUEUE = ["q"]
START = datetime(2026, 1, 1, tzinfo=UTC)
AHEAD = timedelta(seconds=31)
LATEST = 0.8
"""Seconds after which a row may come into sight and still is no late one."""


class Row(msgspec.Struct):
    """A pending task as the claim index has it; times in seconds of the simulation."""

    number: int
    priority: int
    sort_at: float
    due: float
    visible: float
    pinned_until: float = 0.0
    locked_until: float = 0.0
    passed_over: bool = False

    def in_sight(self, now: float) -> bool:
        return self.visible <= now and self.due <= now

    def free(self, now: float) -> bool:
        return self.in_sight(now) and max(self.pinned_until, self.locked_until) <= now

    @property
    def free_since(self) -> float:
        return max(self.visible, self.due, self.pinned_until, self.locked_until)


class Index:
    """The claim index and the clock: what claims find by the ranges that they seek."""

    def __init__(self, chance: random.Random, handicap: float) -> None:
        self.chance = chance
        self.handicap = handicap
        self.now = 0.0
        self.rows: list[Row] = []
        self.count = 0

    def at(self, seconds: float) -> datetime:
        return START + timedelta(seconds=seconds)

    def add(self) -> None:
        """A first task, one that goes on, a retry or one that is delayed; some pinned, locked or late in sight."""
        chance, now = self.chance, self.now
        self.count += 1
        due = now if chance.random() < 0.8 else now + chance.uniform(0, 40)
        sort_at = due + (self.handicap if chance.random() < 0.5 else 0.0)
        row = Row(self.count, chance.choice((9, 1, 0, 0, 0, -4)), sort_at, due, now)
        trouble = chance.random()
        if trouble < 0.1:
            row.pinned_until = now + 5
        elif trouble < 0.2:
            row.locked_until = now + chance.uniform(0, 3)
        elif trouble < 0.4:
            row.visible = now + chance.uniform(0, LATEST if trouble < 0.3 else 3)
        row.passed_over = trouble < 0.2 or row.visible > now + LATEST
        self.rows.append(row)

    def best(self, most: int) -> list[Row]:
        """What a claim that looks at everything takes."""
        return sorted((row for row in self.rows if row.free(self.now)), key=lambda r: (-r.priority, r.sort_at))[:most]

    def claim(self, marks: Marks, most: int) -> list[Row]:
        taken: list[Row] = []
        for seek in marks.seeks(QUEUE):
            found = [row for row in self.best(len(self.rows)) if self._covers(seek, row)]
            taken += found[: most - len(taken)]
        marks.note(QUEUE, most, self.at(self.now), [Picked("q", r.priority, self.at(r.sort_at)) for r in taken])
        self.rows = [row for row in self.rows if row not in taken]
        return taken

    def _covers(self, seek: Seek, row: Row) -> bool:
        now, sort_at = self.at(self.now), self.at(row.sort_at)
        if seek.since is None:
            return seek.bottom < row.priority < seek.top and sort_at < now + AHEAD
        since, until = (max(seek.since, now), now + AHEAD) if seek.later else (seek.since, now)
        return row.priority == seek.top and since <= sort_at < until


@pytest.mark.parametrize("handicap", [HANDICAP, timedelta(0)], ids=["workflow tasks", "activities"])
def test_marks_overlook_nothing_that_came_in_time_and_the_rest_for_a_second(handicap: timedelta) -> None:
    for seed in range(scale(60, 2_000)):
        index = Index(random.Random(seed), handicap.total_seconds())
        with patch.object(clock, "monotonic", lambda index=index: index.now):
            _simulate(index, Marks(handicap), seed)


def _simulate(index: Index, marks: Marks, seed: int) -> None:
    chance = index.chance
    most = chance.choice((1, 3, 20))
    burst, calm = chance.choice((1, 5)), chance.choice((0.02, 0.3))
    for step in range(150):
        index.now += chance.uniform(0, calm)
        for _ in range(chance.randint(0, burst) if step < 100 else 0):
            index.add()
        index.now += 0.001  # what a claim sees was written before it
        best = index.best(most)
        taken = index.claim(marks, most)
        # What is ahead of the last that was taken, or all if there was room.
        last = (-taken[-1].priority, taken[-1].sort_at) if len(taken) == most else None
        overlooked = [r for r in best if r not in taken and (last is None or (-r.priority, r.sort_at) < last)]
        assert taken == sorted(taken, key=lambda r: (-r.priority, r.sort_at)), f"seed {seed}"
        for row in overlooked:
            assert row.passed_over, f"seed {seed}, step {step}: {row} was overlooked"
            assert index.now - row.free_since <= FULL_LOOK_SECONDS + calm, f"seed {seed}, step {step}: {row} waits"
        if not overlooked:
            assert taken == best, f"seed {seed}, step {step}"


def note(marks: Marks, now: datetime, rows: Sequence[Picked], most: int = 100) -> None:
    marks.seeks(QUEUE)
    marks.note(QUEUE, most, now, rows)


def test_a_priority_that_is_new_lies_in_a_stretch_that_is_looked_at_whole() -> None:
    marks = Marks()
    note(marks, START, [Picked("q", 5, START), Picked("q", 0, START)])
    whole = [(seek.top, seek.bottom) for seek in marks.seeks(QUEUE) if seek.since is None]
    for priority in (-32768, -1, 1, 4, 6, 32767):
        assert any(bottom < priority < top for top, bottom in whole), priority
    for priority in (5, 0):
        assert not any(bottom < priority < top for top, bottom in whole), priority


def test_what_was_locked_is_seen_by_the_next_claim() -> None:
    marks = Marks()
    locked = Picked("q", 0, START - timedelta(minutes=1), taken=False)
    note(marks, START, [locked, Picked("q", 0, START)])
    assert next(seek.since for seek in marks.seeks(QUEUE) if seek.top == 0) == locked.sort_at


def test_seeks_stay_few_whatever_priorities_there_are() -> None:
    marks = Marks(HANDICAP)
    note(marks, START, [Picked("q", priority, START) for priority in range(-100, 100)], most=1000)
    assert len(marks.seeks(QUEUE)) <= 25


def test_queues_have_marks_of_their_own() -> None:
    marks = Marks()
    marks.seeks(["a", "b"])
    marks.note(["a", "b"], 1, START, [Picked("a", 0, START - timedelta(hours=1))])
    since = {(seek.queue, seek.top): seek.since for seek in marks.seeks(["a", "b"]) if seek.since}
    assert since == {("a", 0): START - timedelta(hours=1)}


def test_slow_full_looks_are_made_less_often() -> None:
    moments = iter((100.0, 100.3, 100.3))
    marks = Marks()
    with patch.object(clock, "monotonic", lambda: next(moments)):
        note(marks, START, [])
    with patch.object(clock, "monotonic", lambda: 100.3):
        assert marks.pause(60.0) == pytest.approx(3.0)


def test_what_is_forgotten_is_looked_at_whole_even_if_a_claim_was_under_way() -> None:
    marks = Marks()
    whole = [Seek("q", 2**15, -(2**15) - 1)]
    assert marks.seeks(QUEUE) == whole
    marks.note(QUEUE, 10, START, [Picked("q", 0, START)])
    assert marks.seeks(QUEUE) != whole
    marks.forget()
    marks.note(QUEUE, 10, START, [])
    assert marks.seeks(QUEUE) == whole
    marks.note(QUEUE, 10, START, [Picked("q", 0, START)])
    assert marks.seeks(QUEUE) != whole
