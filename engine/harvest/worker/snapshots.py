"""Histories of parked runs in memory: the level of warmth below parked code, for a worker that keeps none (design 6).

A decision then reads only what has come since, and replays from here. A snapshot is what was read or loaded before, so
what this worker's own commits have written comes with the next read: each event crosses the wire once.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from uuid import UUID

from harvest.history.events import Event

EVENT_BYTES: Final = 250
"""What an event takes in memory beside its payload."""


class Snapshots:
    """Histories, least recently used first, bounded by entries and bytes. One that is used is taken out."""

    def __init__(self, entries: int, most_bytes: int) -> None:
        self.bytes = 0
        self.evicted = 0
        self._kept: OrderedDict[UUID, tuple[list[Event], int]] = OrderedDict()
        self._entries = entries
        self._most_bytes = most_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, execution_id: UUID, history: list[Event]) -> None:
        """Keep a history, dense from its first event on; let go of the oldest while a bound is passed."""
        self.take(execution_id)
        weight = sum(len(event.payload) for event in history) + EVENT_BYTES * len(history)
        self._kept[execution_id] = (history, weight)
        self.bytes += weight
        while len(self._kept) > self._entries or self.bytes > self._most_bytes:
            _, (_, its_weight) = self._kept.popitem(last=False)
            self.bytes -= its_weight
            self.evicted += 1

    def take(self, execution_id: UUID) -> list[Event] | None:
        """Take a history out, if it is here."""
        found = self._kept.pop(execution_id, None)
        if found is None:
            return None
        self.bytes -= found[1]
        return found[0]

    def clear(self) -> None:
        """Forget every history."""
        self._kept.clear()
        self.bytes = 0
