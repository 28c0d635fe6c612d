"""Time that passes only when it is told to, and what is due when it does."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import datetime, timedelta


class Due:
    """Something that happens at an instant, unless it is cancelled before."""

    __slots__ = ("_action", "_held", "when")

    def __init__(self, when: datetime, action: Callable[[], None] | None) -> None:
        self.when = when
        self._action = action
        self._held: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is still to come."""
        return self._action is not None

    def cancel(self) -> None:
        """It will not happen."""
        self._action = self._held = None

    def hold(self) -> None:
        """It will not happen before it is postponed."""
        self._held, self._action = self._action, None

    def postponed(self, seconds: float) -> Due:
        """What was held, so many seconds later; what was not stays as it is."""
        if self._held is None:
            return self
        held, self._held = self._held, None
        return Due(self.when + timedelta(seconds=seconds), held)

    def happen(self) -> None:
        """Do it, once."""
        action, self._action = self._action, None
        if action is not None:
            action()


class VirtualClock:
    """An instant, and what is due later, in the order of time and then of asking."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._due: list[tuple[datetime, int, Due]] = []
        self._asked = 0

    def at(self, when: datetime, action: Callable[[], None]) -> Due:
        """Do `action` at an instant; one that has passed is due at once, when time is next looked at."""
        return self._put(Due(when, action))

    def after(self, seconds: float, action: Callable[[], None]) -> Due:
        """Do `action` so many seconds from now."""
        return self.at(self.now + timedelta(seconds=seconds), action)

    def postponed(self, due: Due, seconds: float) -> Due:
        """What was held happens so many seconds later than it was to."""
        later = due.postponed(seconds)
        return due if later is due else self._put(later)

    def _put(self, due: Due) -> Due:
        self._asked += 1
        heapq.heappush(self._due, (due.when, self._asked, due))
        return due

    def next(self) -> datetime | None:
        """When something is due next, or None."""
        while self._due and not self._due[0][2].is_open:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def step(self) -> None:
        """Go on to what is due next, and do it."""
        when = self.next()
        if when is not None:
            self.advance_to(when)
            heapq.heappop(self._due)[2].happen()

    def advance_to(self, instant: datetime) -> None:
        """Let time pass; it never goes back."""
        self.now = max(self.now, instant)
