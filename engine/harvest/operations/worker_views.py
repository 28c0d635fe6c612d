"""Workers, and what was asked of them, as API, pages and CLI show them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from msgspec import Raw, Struct

Status = Literal["active", "draining", "stopped"]
Health = Literal["healthy", "stale"]


class WorkerNow(Struct, frozen=True, kw_only=True):
    """What a worker said of itself with its last renewal: runs that it holds, activities that run, what it has parked.

    `lacks` are the definitions, `name/version`, that it was asked for and has no code for.
    """

    runs_held: int = 0
    activities_running: int = 0
    residents: int = 0
    resident_bytes: int = 0
    lacks: list[str] = []


class WorkerOnShard(Struct, frozen=True, kw_only=True):
    """A worker as one shard knows it. `alive` while its lease lasts; `partitions` is how many it owns there."""

    shard_id: int
    status: Status
    alive: bool
    started_at: datetime
    seen_at: datetime
    lease_expires_at: datetime
    scanned_at: datetime | None
    partitions: int
    drain_requested_at: datetime | None
    drain_deadline_at: datetime | None
    evict_requested_at: datetime | None


class WorkerSummary(Struct, frozen=True, kw_only=True):
    """A worker process over its shards.

    `health` is `healthy` while its lease lives on every shard, else `stale`, and null once it has stopped.
    `in_flight_count` are the runs that it holds and the activities that run, as it said at `seen_at`. `counters` are
    its totals since its start. `workflow_slots` is null for a worker of a release that does not tell.
    """

    worker_id: UUID
    name: str
    host: str
    pid: int
    build: str
    queues: list[str]
    status: Status
    health: Health | None
    started_at: datetime
    seen_at: datetime
    shard_ids: list[int]
    workflow_slots: int | None
    activity_slots: int
    in_flight_count: int
    now: WorkerNow
    partitions: int
    drain_requested_at: datetime | None
    drain_deadline_at: datetime | None
    counters: Raw


class ConfigOption(Struct, frozen=True, kw_only=True):
    """An option as a worker resolved it. `origin` is `default`, `argument` or `environment`."""

    name: str
    value: Any
    origin: str


class WorkerDetail(WorkerSummary, frozen=True, kw_only=True):
    """One worker with its shards, what it has the code for, its configuration, and its report once it has ended.

    Workflow types are `name/version`. `owned` are the numbers of its partitions by shard.
    """

    shards: list[WorkerOnShard]
    workflow_types: list[str]
    activity_types: list[str]
    config: list[ConfigOption]
    report: Raw
    owned: dict[int, list[int]]
    missing_shards: list[int]


class PinnedRun(Struct, frozen=True, kw_only=True):
    """A run that waits to be decided, and that others leave to this worker until `sticky_until`."""

    execution_id: UUID
    shard_id: int
    workflow_name: str
    version: int
    queue: str
    due: datetime
    sticky_until: datetime


class ShardHealth(Struct, frozen=True, kw_only=True):
    """How many workers of one shard are healthy, stale and draining; one that drains is healthy or stale, too."""

    shard_id: int
    healthy: int = 0
    stale: int = 0
    draining: int = 0


class QueueHealth(Struct, frozen=True, kw_only=True):
    """The same of one queue over all shards."""

    queue: str
    healthy: int = 0
    stale: int = 0
    draining: int = 0


class UncoveredDefinition(Struct, frozen=True, kw_only=True):
    """A definition that no living worker of a shard has, and that open work of that shard needs.

    `open` are runs of a workflow, `waiting` those of them that could go on at once; of an activity both are its
    waiting tasks. `version` is 0 for an activity. `execution_ids` are up to five of the runs.
    """

    kind: str
    name: str
    version: int
    shard_id: int
    open: int
    waiting: int
    execution_ids: list[UUID]


class FleetHealth(Struct, frozen=True, kw_only=True):
    """The fleet in figures, and what it has no code for."""

    healthy: int
    stale: int
    draining: int
    by_shard: list[ShardHealth]
    by_queue: list[QueueHealth]
    uncovered_definitions: list[UncoveredDefinition]


class DrainPreview(Struct, frozen=True, kw_only=True):
    """What draining a worker would do now.

    `runs_held` and `activities_running` are finished or handed back, `residents` are forgotten, `partitions` handed to
    other owners. `queues_left` and `types_left` are what no other living worker serves on some shard of this one.
    """

    worker_id: UUID
    name: str
    status: Status
    in_flight_count: int
    runs_held: int
    activities_running: int
    residents: int
    partitions: int
    queues_left: list[str]
    types_left: list[str]


class Drained(Struct, frozen=True, kw_only=True):
    """A worker was told to drain: `outcome` is `draining`, or `already_draining` when it had been told before."""

    worker_id: UUID
    outcome: Literal["draining", "already_draining"]
    in_flight_count: int
    drain_deadline_at: datetime | None
    shard_ids: list[int]


class Evicted(Struct, frozen=True, kw_only=True):
    """A worker was told to let go of its parked runs; `residents` is how many it had by its last word."""

    worker_id: UUID
    outcome: Literal["requested"]
    residents: int
    shard_ids: list[int]
