"""Settings and counters of a worker."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence

from msgspec import Struct

from harvest.errors import ConfigurationError
from harvest.history.events import Event

RENEWALS = 3
"""How often a lease is renewed within its length, at the least."""
LEAST_LEASE = 1.0


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """How much one worker process takes on, and how long it keeps what it took. Times in seconds.

    `shard_assignments` are the shards that it works on; without any, all that have a database here.

    `workflow_slots` bounds the runs that it holds at once on each shard; with 0 it decides nothing and owns no
    partition. `activity_slots` bounds activities under way over all shards, `threads` those of them that are not
    async, `max_concurrent_sessions` the worker sessions that are open here.

    `lease_ttl` is for how long a wake keeps a parked run for this worker; with 0 nothing is kept for it, and it caches
    nothing. `resident_workflows` keeps parked code, else only its history is cached; `workflow_cache_size` (runs) and
    `workflow_cache_bytes` bound either. `owner_lease_ttl` is the length of the worker's own lease on each shard, under
    which it holds tasks and owns partitions; it is renewed at least three times within that.

    `origins` says where an option's value comes from, where that is neither the default nor an argument.
    """

    name: str = ""
    queues: tuple[str, ...] = ("default",)
    shard_assignments: tuple[int, ...] = ()
    build: str = ""
    workflow_slots: int = 2_000
    activity_slots: int = 400
    threads: int = 32
    max_concurrent_sessions: int = 100
    batch: int = 100
    claim_batch: int = 200
    lease_ttl: float = 5.0
    resident_workflows: bool = True
    workflow_cache_size: int = 50_000
    workflow_cache_bytes: int = 512 * 1024 * 1024
    owner_lease_ttl: float = 10.0
    poll_interval: float = 1.0
    scan_interval: float = 0.5
    drain_timeout: float = 5.0
    origins: dict[str, str] = {}

    def __post_init__(self) -> None:
        if not self.queues:
            raise ConfigurationError("a worker needs at least one queue")
        if min(self.activity_slots, self.threads, self.batch, self.claim_batch) < 1:
            raise ConfigurationError("activity_slots, threads, batch and claim_batch must be at least 1")
        for name in _DURATIONS:
            if not math.isfinite(getattr(self, name)):
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be a finite number")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} is {getattr(self, name):g}; it must be 0 or more")
        if min(self.poll_interval, self.scan_interval) <= 0:
            raise ConfigurationError("poll_interval and scan_interval must be more than 0")
        if self.owner_lease_ttl < LEAST_LEASE:
            raise ConfigurationError(
                f"owner_lease_ttl is {self.owner_lease_ttl:g} s; it must be {LEAST_LEASE:g} or more"
            )

    @property
    def display_name(self) -> str:
        """What people know the worker by."""
        return self.name or f"{socket.gethostname()}-{os.getpid()}"

    @property
    def renew_interval(self) -> float:
        """Seconds between two renewals of the worker's lease: below a third of it, so that two may be lost."""
        return self.owner_lease_ttl * 0.9 / RENEWALS


_DURATIONS = ("lease_ttl", "owner_lease_ttl", "poll_interval", "scan_interval", "drain_timeout")
_NOT_NEGATIVE = (
    "workflow_slots",
    "max_concurrent_sessions",
    "lease_ttl",
    "workflow_cache_size",
    "workflow_cache_bytes",
    "drain_timeout",
)


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
    warmed: int = 0
    partitions_owned: int = 0
    partitions_acquired: int = 0
    partitions_handed_over: int = 0
    definitions_unavailable: int = 0
    idle_polls: int = 0
    backoffs: int = 0
    infrastructure_errors: int = 0
    peak_active_cycles: int = 0

    def note_loaded(self, events: Sequence[Event]) -> None:
        """Events of a history were read from the database."""
        self.loaded_events += len(events)
        self.loaded_bytes += sum(len(event.payload) for event in events)

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
