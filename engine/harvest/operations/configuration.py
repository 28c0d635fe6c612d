"""How this deployment is configured, as it works: the workers' options, limits, shards, connections. No secrets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.history import limits
from harvest.operations.worker_views import ConfigOption
from harvest.operations.workers import config_of
from harvest.shards import Partial, Shards
from harvest.shards.connections import ROLES, ServerRoom, rooms
from harvest.store import workers as rows
from harvest.store.store import Store

MOST_WORKERS: Final = 200


class WorkerConfig(Struct, frozen=True, kw_only=True):
    """The options of a living worker, each with its value and origin; durations in milliseconds under `…_ms`."""

    worker_id: UUID
    name: str
    options: list[ConfigOption]


class Coverage(Struct, frozen=True, kw_only=True):
    """What the living workers work on together: every shard that at least one of them has among its own."""

    shard_assignments: list[int]


class PayloadCaps(Struct, frozen=True, kw_only=True):
    """What may be stored, in bytes where no other unit is named."""

    payload_bytes: int = limits.PAYLOAD_BYTES
    payload_warn_bytes: int = limits.PAYLOAD_WARN_BYTES
    request_bytes: int = limits.REQUEST_BYTES
    nesting: int = limits.NESTING
    workflow_id_bytes: int = limits.WORKFLOW_ID_BYTES
    name_bytes: int = limits.NAME_BYTES
    pending_of_a_kind: int = limits.PENDING_OF_A_KIND
    history_events_soft: int = limits.HISTORY_EVENTS_SOFT
    history_events_hard: int = limits.HISTORY_EVENTS_HARD
    history_bytes_soft: int = limits.HISTORY_BYTES_SOFT
    history_bytes_hard: int = limits.HISTORY_BYTES_HARD


class ShardTopology(Struct, frozen=True, kw_only=True):
    """How this process routes, every field of its router in a stable order: two processes are compared by `diff`."""

    default_shard: int
    readable_shards: list[int]
    reserved_shards: list[int]
    residency_map: dict[str, int]
    shard_forwards: dict[str, int]
    writable_shards: list[int]


class PoolConfig(Struct, frozen=True, kw_only=True):
    """The connections that a process keeps to each shard for one purpose, and the limit of one statement."""

    name: str
    size: int
    limit_ms: int


def payload_caps() -> PayloadCaps:
    """The limits of this release."""
    return PayloadCaps()


def topology(shards: Shards) -> ShardTopology:
    """The router of this process. A field of it that `ShardTopology` does not have is an error, not left out."""
    return ShardTopology(**shards.router.topology())


def pools() -> list[PoolConfig]:
    """The connections of each process to each shard, by purpose."""
    roles = {role.name: role for of_kind in ROLES.values() for role in of_kind}
    return [PoolConfig(name=role.name, size=role.size, limit_ms=round(role.limit * 1000)) for role in roles.values()]


async def server_rooms(shards: Shards) -> Partial[ServerRoom]:
    """What the processes may take of each physical server, and what that has."""
    return await rooms(shards)


def coverage(workers: Iterable[WorkerConfig]) -> Coverage:
    """The shards of these workers, as each resolved its `shard_assignments`."""
    told = (option.value for worker in workers for option in worker.options if option.name == "shard_assignments")
    return Coverage(shard_assignments=sorted({shard for value in told for shard in value}))


async def worker_configs(shards: Shards) -> Partial[WorkerConfig]:
    """The options of every living worker, by name; each worker once."""

    async def read(store: Store) -> list[WorkerConfig]:
        return [
            WorkerConfig(worker_id=row["worker"], name=row["name"], options=config_of(row["config"]))
            for row in await rows.configurations(store, MOST_WORKERS)
        ]

    found = await shards.fan_out(read)
    once = {each.worker_id: each for each in found.rows}
    ordered = sorted(once.values(), key=lambda each: (each.name, each.worker_id))
    return Partial(rows=ordered, expected=found.expected, read=found.read, missing=found.missing)
