"""How far a worker has emptied a claim index, so that no claim walks what earlier ones left dead (decision 0007)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from harvest import clock

HANDICAP: Final = timedelta(seconds=30)
"""A first task is sorted so much later than it is due (answers 4)."""
FULL_LOOK_SECONDS: Final = 1.0
_LATE: Final = timedelta(seconds=1)  # a row comes into sight so much later than it was sorted, at most
_MOST_PRIORITIES: Final = 8
_BEGINNING: Final = datetime(2000, 1, 1, tzinfo=UTC)
_ABOVE_ALL, _BELOW_ALL = 2**15, -(2**15) - 1
# Where a full look is slow (a transaction that is open for hours keeps dead entries alive), it is made less often.
_SHARE_OF_LOOKS, _LONGEST_BREAK = 0.1, 5.0


class Seek(Struct, frozen=True):
    """A stretch of the claim index of one queue, to be read in its order.

    With `since`: priority `top` from there on, up to now; of `later` ones what is sorted after now. Without: every
    priority below `top` and above `bottom`, whole.
    """

    queue: str
    top: int
    bottom: int
    since: datetime | None = None
    later: bool = False


class Picked(Struct, frozen=True):
    """A row that a claim has come upon; one that is not `taken` was locked elsewhere and is to be seen again."""

    queue: str
    priority: int
    sort_at: datetime
    taken: bool = True


class _Mark(Struct):
    """In one priority nothing is left before `since`, and after now nothing before `later`."""

    since: datetime = _BEGINNING
    later: datetime = _BEGINNING


class Marks:
    """The marks of one claiming loop, by queue and priority: its claims seek from them, in the order of answers 4.

    Rows that were passed over (pinned, locked, seen too late) lie before the marks, which are therefore forgotten each
    second. `handicap` is how long before its `sort_at` a row may be due.
    """

    def __init__(self, handicap: timedelta = timedelta(0)) -> None:
        self._handicap = handicap
        self._marks: dict[str, dict[int, _Mark]] = {}
        self._look_at = 0.0
        self._is_anew = False
        self._looking_since: float | None = None

    def pause(self, seconds: float) -> float:
        """How long to sleep, of `seconds`, when nothing was found: no longer than until the next full look."""
        to_look = self._look_at - clock.monotonic()
        return min(seconds, to_look) if to_look > 0 else seconds

    def forget(self) -> None:
        """What was not this worker's may be now: the next claim looks at all of it."""
        self._is_anew = True

    def seeks(self, queues: Sequence[str]) -> list[Seek]:
        """Where the next claim looks, in order. All of it, if a full look is due."""
        now = clock.monotonic()
        if now >= self._look_at or self._is_anew:
            self._is_anew = False
            self._marks.clear()
            self._looking_since = now
        return [seek for queue in queues for seek in self._seeks_of(queue)]

    def _seeks_of(self, queue: str) -> Iterable[Seek]:
        marks = self._marks.get(queue, {})
        above = _ABOVE_ALL
        for priority in sorted(marks, reverse=True):
            # What lies between two known priorities is looked at whole, so that no new one waits for the full look.
            if above - priority > 1:
                yield Seek(queue, above, priority)
            yield Seek(queue, priority, priority, marks[priority].since)
            if self._handicap:
                yield Seek(queue, priority, priority, marks[priority].later, later=True)
            above = priority
        yield Seek(queue, above, _BELOW_ALL)

    def note(self, queues: Sequence[str], most: int, asked_at: datetime, picked: Sequence[Picked]) -> None:
        """Move the marks after a claim of up to `most` rows a queue that began at `asked_at`, the database's time."""
        for queue in queues:
            self._note_queue(queue, most, asked_at, [row for row in picked if row.queue == queue])
        if self._looking_since is not None:
            took = clock.monotonic() - self._looking_since
            self._looking_since = None
            self._look_at = clock.monotonic() + max(FULL_LOOK_SECONDS, min(took / _SHARE_OF_LOOKS, _LONGEST_BREAK))

    def _note_queue(self, queue: str, most: int, asked_at: datetime, picked: list[Picked]) -> None:
        marks = self._marks.setdefault(queue, {})
        stopped_in = min(row.priority for row in picked) if len(picked) >= most else _BELOW_ALL
        for priority in marks.keys() | {row.priority for row in picked}:
            if priority < stopped_in or (priority not in marks and len(marks) >= _MOST_PRIORITIES):
                continue
            rows = [row for row in picked if row.priority == priority]
            ends = [row.sort_at for row in rows if not row.taken]
            if priority == stopped_in:
                ends.append(max(row.sort_at for row in rows))
            self._move(marks.setdefault(priority, _Mark()), asked_at, min(ends, default=None))

    def _move(self, mark: _Mark, asked_at: datetime, end: datetime | None) -> None:
        """Everything before `end` is taken, or, if it is None, everything that was in sight."""
        since, later = asked_at - _LATE, asked_at + self._handicap - _LATE
        mark.since = since if end is None else min(since, end)
        if end is None or end >= asked_at:
            mark.later = later if end is None else min(later, end)
