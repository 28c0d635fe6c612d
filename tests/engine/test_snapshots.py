"""Histories in memory: bounded by entries and by bytes, and taken out by whoever uses one."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

from harvest.history.events import Event
from harvest.worker.snapshots import EVENT_BYTES, Snapshots


def history(events: int, size: int) -> list[Event]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return [Event(event_id, 14, 0, at, b"x" * size) for event_id in range(1, events + 1)]


def kept(snapshots: Snapshots, ids: list[UUID]) -> list[bool]:
    return [snapshots.take(each) is not None for each in ids]


def test_a_history_that_is_used_is_taken_out() -> None:
    snapshots, one = Snapshots(10, 10**6), uuid4()
    snapshots.put(one, history(3, 10))
    assert snapshots.bytes == 3 * (10 + EVENT_BYTES)
    assert snapshots.take(one) == history(3, 10)
    assert (snapshots.take(one), snapshots.bytes, len(snapshots)) == (None, 0, 0)


def test_the_least_recently_used_goes_when_there_are_too_many() -> None:
    snapshots, ids = Snapshots(2, 10**6), [uuid4() for _ in range(3)]
    for each in ids:
        snapshots.put(each, history(1, 1))
    assert snapshots.evicted == 1
    assert kept(snapshots, ids) == [False, True, True]


def test_the_least_recently_used_goes_when_they_are_too_big() -> None:
    snapshots, ids = Snapshots(100, 25_000), [uuid4() for _ in range(4)]
    for each in ids[:3]:
        snapshots.put(each, history(1, 8_000))
    snapshots.put(ids[0], history(1, 8_000))
    snapshots.put(ids[3], history(1, 8_000))
    assert snapshots.bytes <= 25_000
    assert kept(snapshots, ids) == [True, False, True, True]


def test_one_that_is_bigger_than_the_bound_is_not_kept() -> None:
    snapshots = Snapshots(100, 1_000)
    snapshots.put(uuid4(), history(1, 8_000))
    assert (len(snapshots), snapshots.bytes) == (0, 0)
