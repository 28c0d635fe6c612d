"""Settings and counters of a worker."""

from __future__ import annotations

import os
import socket

from msgspec import Struct

from harvest.errors import ConfigurationError


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """How much one worker process takes on. Times in seconds.

    `activity_slots` bounds activities under way, `threads` those of them that are not async. Residents are bounded by
    entries and by bytes.
    """

    name: str = ""
    queues: tuple[str, ...] = ("default",)
    build: str = ""
    activity_slots: int = 400
    threads: int = 32
    batch: int = 100
    claim_batch: int = 200
    resident_entries: int = 50_000
    resident_bytes: int = 512 * 1024 * 1024
    poll_interval: float = 1.0
    scan_interval: float = 0.5
    drain_timeout: float = 5.0

    def __post_init__(self) -> None:
        if not self.queues:
            raise ConfigurationError("a worker needs at least one queue")
        if min(self.activity_slots, self.threads, self.batch, self.claim_batch) < 1:
            raise ConfigurationError("activity_slots, threads, batch and claim_batch must be at least 1")

    @property
    def display_name(self) -> str:
        """What people know the worker by."""
        return self.name or f"{socket.gethostname()}-{os.getpid()}"


class Counters(Struct):
    """What a worker has done since it started (answers 18)."""

    decisions_warm: int = 0
    decisions_cold: int = 0
    declined_overtaken: int = 0
    passed: int = 0
    moved: int = 0
    busy: int = 0
    fenced: int = 0
    unknown: int = 0
    blocked: int = 0
    commits: int = 0
    claims: int = 0
    closed: int = 0
    loaded_events: int = 0
    loaded_bytes: int = 0
    statements: int = 0
    activities_eager: int = 0
    activities_claimed: int = 0
    activities_completed: int = 0
    activities_failed: int = 0
    activities_retried: int = 0
    activities_stale: int = 0
    evicted: int = 0
    refused_release: int = 0
    delivered: int = 0
    requests_warm: int = 0
    requests_cold: int = 0
    slow_steps: int = 0
    leases_lost: int = 0

    def summary(self) -> str:
        """What people want to know of a worker that has ended, in one line."""
        told = [
            f"{self.closed:,} runs closed",
            f"{self.passed:,} decisions ({self.decisions_cold:,} cold)",
            f"{self.activities_completed:,} activities completed",
        ]
        troubles = {
            "activities failed": self.activities_failed,
            "runs blocked": self.blocked,
            "decisions fenced": self.fenced,
            "commits unknown": self.unknown,
            "slow steps": self.slow_steps,
            "leases lost": self.leases_lost,
        }
        return ", ".join(told + [f"{count:,} {what}" for what, count in troubles.items() if count])
