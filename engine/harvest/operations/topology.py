"""How each process routes, and whether all of them agree: one that does not puts runs where others do not look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.shards import Partial, ShardRouter, Shards
from harvest.shards.presence import TELL_SECONDS
from harvest.store import processes as rows
from harvest.store.processes import Kind, ProcessTold
from harvest.store.store import Store

STALE_SECONDS: Final = TELL_SECONDS * 3
"""A process that was not heard of for so long is no longer one of those that must agree."""
MOST_PROCESSES: Final = 500
FIELDS: Final = tuple(ShardRouter.of((0,)).topology())
"""The fields of the router, in the order of `GET /admin/config`."""
_OWN: Final = ("pool_shards", "shard_assignments")


class ProcessView(Struct, frozen=True, kw_only=True):
    """A process as it told of itself `age_seconds` ago.

    `topology` are the fields of its router and `digest` a hash of them. `pool_shards` are those with a database there,
    `shard_assignments` those that a worker works on; null for a console. `differing_fields` are those in which it is
    not like most. `shard_ids` are the shards that have heard of it.
    """

    process_id: UUID
    kind: Kind
    name: str
    host: str
    pid: int
    build: str
    started_at: datetime
    seen_at: datetime
    age_seconds: float
    stale: bool
    shard_ids: list[int]
    digest: str
    topology: dict[str, Any]
    pool_shards: list[int]
    shard_assignments: list[int] | None
    differing_fields: list[str] = []


class FieldView(Struct, frozen=True, kw_only=True):
    """A field of the router over all living processes.

    `agreed` is the value that most of them have; null where no value has more than each other one, and where nobody
    lives.
    """

    name: str
    differs: bool
    different_values: int
    agreed: Any


class Topology(Struct, frozen=True, kw_only=True):
    """Every process that was heard of within a day, those that differ first, and the fields, in the same order."""

    processes: list[ProcessView]
    fields: list[FieldView]

    @property
    def living(self) -> list[ProcessView]:
        """Those that are not stale."""
        return [one for one in self.processes if not one.stale]

    @property
    def differing(self) -> list[str]:
        """The names of the fields on which living processes do not agree."""
        return [field.name for field in self.fields if field.differs]


class Dissent(Struct, frozen=True, kw_only=True):
    """A living process that leads a residency key elsewhere: to `shard_id`, or nowhere where that is null."""

    process_id: UUID
    name: str
    shard_id: int | None


class ResidencyView(Struct, frozen=True, kw_only=True):
    """A residency key: the shard that this process leads it to, null where only others declare it.

    A start by the key is taken while the shard is `writable` and `has_database` here; `reserved` shards are cells.
    """

    key: str
    shard_id: int | None
    writable: bool
    reserved: bool
    has_database: bool
    dissent: list[Dissent]


async def topology(shards: Shards) -> Partial[Topology]:
    """What the shards that answer know: one row. A process is as the shard knows it that heard of it last."""

    async def read(store: Store) -> list[tuple[int, ProcessTold]]:
        return [(store.shard_id, row) for row in await rows.page(store, MOST_PROCESSES)]

    found = await shards.fan_out(read)
    views = _merged(found.rows)
    return Partial(rows=[compared(views)], expected=found.expected, read=found.read, missing=found.missing)


def compared(processes: Sequence[ProcessView]) -> Topology:
    """Which fields differ among the living processes, and which process from most of them, in each field."""
    living = [one for one in processes if not one.stale]
    others = sorted({name for one in processes for name in one.topology} - set(FIELDS))
    counted = {name: Counter(_key(one, name) for one in living) for name in (*FIELDS, *others)}
    agreed = {name: _most_common(values) for name, values in counted.items()}
    fields = [
        FieldView(
            name=name,
            differs=len(values) > 1,
            different_values=len(values),
            agreed=msgspec.json.decode(agreed[name] or b"null"),
        )
        for name, values in counted.items()
    ]
    marked = [
        msgspec.structs.replace(
            one,
            differing_fields=[
                field.name for field in fields if field.differs and _key(one, field.name) != agreed[field.name]
            ],
        )
        for one in processes
    ]
    marked.sort(key=lambda one: (one.stale, -len(one.differing_fields), one.kind, one.name, one.process_id))
    return Topology(processes=marked, fields=sorted(fields, key=lambda field: not field.differs))


def residency(shards: Shards, processes: Iterable[ProcessView]) -> list[ResidencyView]:
    """Every key that this process or a living one declares, with who leads it elsewhere; by key."""
    router, living = shards.router, [one for one in processes if not one.stale]
    declared = {one.process_id: one.topology.get("residency_map") or {} for one in living}
    keys = sorted({*router.residency, *(key for its in declared.values() for key in its)})
    found = []
    for key in keys:
        shard = router.residency.get(key)
        found.append(
            ResidencyView(
                key=key,
                shard_id=shard,
                writable=shard in router.writable,
                reserved=shard in router.reserved,
                has_database=shard in shards.stores,
                dissent=[
                    Dissent(process_id=one.process_id, name=one.name, shard_id=declared[one.process_id].get(key))
                    for one in living
                    if declared[one.process_id].get(key) != shard
                ],
            )
        )
    return found


class _Told(Struct, frozen=True):
    """The shapes of what this release reads of it."""

    readable_shards: list[int] = []
    writable_shards: list[int] = []
    reserved_shards: list[int] = []
    residency_map: dict[str, int] = {}
    shard_forwards: dict[str, int] = {}
    pool_shards: list[int] | None = None
    shard_assignments: list[int] | None = None


def _merged(known: Iterable[tuple[int, ProcessTold]]) -> list[ProcessView]:
    by_id: dict[UUID, list[tuple[int, ProcessTold]]] = {}
    for shard_id, row in known:
        by_id.setdefault(row.process, []).append((shard_id, row))
    return [_view(each) for each in by_id.values()]


def _view(on_shards: list[tuple[int, ProcessTold]]) -> ProcessView:
    """Ages are compared, not instants: each is by the clock of its shard alone."""
    newest = min((row for _, row in on_shards), key=lambda row: row.age)
    told = _decoded(newest.topology)
    return ProcessView(
        process_id=newest.process,
        kind=newest.kind,
        name=newest.name,
        host=newest.host,
        pid=newest.pid,
        build=newest.build,
        started_at=min(row.started_at for _, row in on_shards),
        seen_at=newest.seen_at,
        age_seconds=round(max(0.0, newest.age), 1),
        stale=newest.age > STALE_SECONDS,
        shard_ids=sorted(shard_id for shard_id, _ in on_shards),
        digest=newest.digest,
        topology={name: value for name, value in told.items() if name not in _OWN},
        pool_shards=told.get("pool_shards") or [],
        shard_assignments=told.get("shard_assignments"),
    )


def _decoded(stored: bytes) -> dict[str, Any]:
    """What a process of another release wrote may be anything; one that tells nothing differs in everything."""
    try:
        told: dict[str, Any] = msgspec.json.decode(stored, type=dict[str, Any])
        msgspec.convert(told, _Told)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return told


def _most_common(counted: Counter[bytes]) -> bytes | None:
    """The value that more processes have than any other one."""
    first = counted.most_common(2)
    return first[0][0] if first and (len(first) == 1 or first[0][1] > first[1][1]) else None


def _key(process: ProcessView, name: str) -> bytes:
    """A value as it is compared."""
    return msgspec.json.encode(process.topology.get(name), order="deterministic")
