"""Slots that shards share: all of them for whoever is alone, an equal share for each that waits, and nobody idle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harvest import clock
from harvest.worker import slots as module
from harvest.worker.slots import PATIENCE_SECONDS, Slots


class Hall:
    """Slots, with what each shard was woken for, and a clock that is set by hand."""

    def __init__(self, total: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slots = Slots(total)
        self.woken: list[int] = []
        self.now = clock.monotonic()
        monkeypatch.setattr(module.clock, "monotonic", lambda: self.now)

    def take(self, shard_id: int, count: int = 1) -> int:
        """Take as many as there is room for, `count` at most; how many those are."""
        taken = min(count, self.slots.room(shard_id))
        for _ in range(taken):
            self.slots.take(shard_id)
        return taken

    def wait(self, shard_id: int) -> None:
        """Find no room."""
        assert self.slots.room(shard_id) == 0
        self.slots.wait(shard_id, lambda: self.woken.append(shard_id))


@pytest.fixture
def hall(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Hall]:
    """Make slots of a number."""
    return lambda total: Hall(total, monkeypatch)


def test_a_shard_takes_all_while_nobody_waits(hall: Callable[[int], Hall]) -> None:
    alone = hall(10)
    assert alone.take(0, 20) == 10
    alone.slots.leave(0)
    assert alone.take(0) == 1
    assert alone.slots.free == 0


def test_one_shard_alone_is_not_woken_for_each_slot(hall: Callable[[int], Hall]) -> None:
    alone = hall(2)
    alone.take(0, 2)
    alone.wait(0)
    alone.slots.leave(0)
    assert alone.woken == []
    assert alone.slots.room(0) == 1


def test_a_slot_that_gets_free_is_for_who_waits(hall: Callable[[int], Hall]) -> None:
    both = hall(10)
    both.take(0, 10)
    both.wait(1)
    both.slots.leave(0)
    assert both.woken == [1]
    assert both.slots.room(0) == 0
    assert both.slots.room(1) == 1


def test_two_shards_with_a_backlog_come_to_equal_shares(hall: Callable[[int], Hall]) -> None:
    both = hall(10)
    both.take(0, 10)
    both.wait(1)
    for _ in range(5):
        both.slots.leave(0)
        assert both.take(0) == 0
        assert both.take(1) == 1
        both.wait(1)
        both.wait(0)
    both.slots.leave(1)
    assert (both.slots.room(0), both.slots.room(1)) == (0, 1)
    both.slots.leave(0)
    assert (both.take(0), both.take(1)) == (1, 1)


def test_the_last_of_few_slots_goes_to_who_came_first(hall: Callable[[int], Hall]) -> None:
    one = hall(1)
    one.take(0)
    one.wait(1)
    one.wait(0)
    one.slots.leave(0)
    assert (one.slots.room(0), one.slots.room(1)) == (0, 1)
    one.take(1)
    one.slots.content(1)
    one.slots.leave(1)
    assert one.slots.room(0) == 1


def test_who_has_no_further_use_keeps_nothing_from_the_others(hall: Callable[[int], Hall]) -> None:
    both = hall(4)
    both.take(0, 4)
    both.wait(1)
    both.wait(0)
    both.slots.leave(0)
    both.woken.clear()
    both.slots.content(1)
    assert both.woken == [0]
    assert both.slots.room(0) == 1


def test_who_does_not_come_for_its_slot_loses_its_turn(hall: Callable[[int], Hall]) -> None:
    both = hall(4)
    both.take(0, 4)
    both.wait(1)
    both.now += PATIENCE_SECONDS * 10
    assert both.slots.room(0) == 0, "nothing was offered yet"
    both.slots.leave(0)
    assert both.slots.room(0) == 0
    both.now += PATIENCE_SECONDS * 1.1
    assert both.slots.room(0) == 1
