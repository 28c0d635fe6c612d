"""How workers are shown: the word and the shape of their status and health, and what their counters count."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class WorkerState(Struct, frozen=True):
    """A word, and the class that gives it its colour and shape."""

    word: str
    look: str


_STATUSES: Final = {
    "active": WorkerState("Active", "running"),
    "draining": WorkerState("Draining", "paused"),
    "stopped": WorkerState("Stopped", "terminated"),
}
_HEALTHS: Final = {
    "healthy": WorkerState("Healthy", "completed"),
    "stale": WorkerState("Stale", "blocked"),
}
# What people look for first, in the order of the page; the counters that have no words here follow by their names.
COUNTERS: Final = {
    "passed": "decisions committed",
    "decisions_warm": "decisions from parked code",
    "decisions_cold": "decisions by replay",
    "closed": "runs ended",
    "activities_completed": "activities completed",
    "activities_failed": "activities failed",
    "activities_retried": "activities to be tried again",
    "definitions_unavailable": "tasks left for want of their code",
    "blocked": "runs put aside",
    "moved": "decisions overtaken by others",
    "fenced": "decisions refused by the fence",
    "unknown": "commits without an answer",
    "leases_lost": "leases lost",
    "evicted": "parked runs let go for room",
    "loaded_events": "events read",
    "loaded_bytes": "bytes of history read",
    "infrastructure_errors": "errors of the database",
}


def status_shown(status: str) -> WorkerState:
    """The status of a worker."""
    return _STATUSES.get(status) or WorkerState(status, "")


def health_shown(health: str) -> WorkerState:
    """The health of a worker."""
    return _HEALTHS.get(health) or WorkerState(health, "")
