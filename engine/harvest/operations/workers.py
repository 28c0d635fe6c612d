"""The fleet for people: which workers there are and how they do; draining one, and having it let go of parked runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from harvest.errors import InvalidRequestError, WorkerNotFoundError, WorkerStoppedError
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.asking import require_one
from harvest.operations.auditing import record
from harvest.operations.closing import checked_reason
from harvest.operations.views import is_json
from harvest.operations.worker_views import (
    ConfigOption,
    Drained,
    DrainPreview,
    Evicted,
    FleetHealth,
    Health,
    PinnedRun,
    QueueHealth,
    ShardHealth,
    Status,
    UncoveredDefinition,
    WorkerDetail,
    WorkerNow,
    WorkerOnShard,
    WorkerSummary,
)
from harvest.shards import Partial, Shards
from harvest.store import workers as rows
from harvest.store.audit import AuditEntry
from harvest.store.store import Store

T = TypeVar("T")
MOST_WORKERS: Final = 500
_ORDER: Final = ("draining", "active", "stopped")


class WorkerFilter(Struct, frozen=True, kw_only=True):
    """Which workers; None is any."""

    queue: str | None = None
    shard_id: int | None = None
    status: Status | None = None
    health: Health | None = None


async def list_workers(
    shards: Shards, wanted: WorkerFilter | None = None, *, limit: int = MOST_WORKERS
) -> Partial[WorkerSummary]:
    """The workers that had a lease in the last hour: those that drain, active ones, stopped ones; then by name."""
    wanted = wanted or WorkerFilter()
    if not 1 <= limit <= MOST_WORKERS:
        raise InvalidRequestError(f"limit is {limit}; it must be 1 to {MOST_WORKERS}", field="limit")
    known = await _known(shards, wanted.queue)
    found = [
        worker
        for worker in _merged(known.rows)
        if (wanted.status is None or worker.status == wanted.status)
        and (wanted.health is None or worker.health == wanted.health)
        and (wanted.shard_id is None or wanted.shard_id in worker.shard_ids)
    ]
    found.sort(key=lambda worker: (_ORDER.index(worker.status), worker.name, worker.started_at, worker.worker_id))
    return _with(known, found[:limit])


async def fleet_health(shards: Shards) -> Partial[FleetHealth]:
    """How the fleet does, over the shards that answer: one row."""

    async def lacked(store: Store) -> list[UncoveredDefinition]:
        return [_uncovered(store.shard_id, each) for each in await rows.lacked(store)]

    known = await _known(shards, None)
    uncovered = await shards.fan_out(lacked, over=known.read)
    workers = [worker for worker in _merged(known.rows) if worker.status != "stopped"]
    by_shard = {shard_id: _tally([each for shard, each in known.rows if shard == shard_id]) for shard_id in known.read}
    queues = sorted({queue for worker in workers for queue in worker.queues})
    health = FleetHealth(
        healthy=sum(worker.health == "healthy" for worker in workers),
        stale=sum(worker.health == "stale" for worker in workers),
        draining=sum(worker.status == "draining" for worker in workers),
        by_shard=[ShardHealth(shard_id=shard_id, **counts) for shard_id, counts in sorted(by_shard.items())],
        by_queue=[
            QueueHealth(
                queue=queue,
                healthy=sum(queue in worker.queues and worker.health == "healthy" for worker in workers),
                stale=sum(queue in worker.queues and worker.health == "stale" for worker in workers),
                draining=sum(queue in worker.queues and worker.status == "draining" for worker in workers),
            )
            for queue in queues
        ],
        uncovered_definitions=sorted(uncovered.rows, key=lambda each: (each.kind, each.name, each.version)),
    )
    return _with(known, [health])


async def uncovered_definitions(shards: Shards) -> Partial[UncoveredDefinition]:
    """What open work needs and no living worker has: workflow types by version, activity types."""

    async def read(store: Store) -> list[UncoveredDefinition]:
        return [_uncovered(store.shard_id, each) for each in await rows.lacked(store)]

    return await shards.fan_out(read)


async def get(shards: Shards, worker_id: UUID) -> WorkerDetail:
    """One worker, as the shards that answer know it. Raises WorkerNotFoundError, and ShardUnavailableError for none."""

    async def read(store: Store) -> list[tuple[int, Any]]:
        row = await rows.get(store, worker_id)
        return [] if row is None else [(store.shard_id, row)]

    known = await shards.fan_out(read)
    require_one(known)
    if not known.rows:
        raise _not_found(worker_id)
    (summary,) = _merged(known.rows)
    newest = _newest(row for _, row in known.rows)
    return WorkerDetail(
        **{name: getattr(summary, name) for name in WorkerSummary.__struct_fields__},
        shards=[_on_shard(shard_id, row) for shard_id, row in sorted(known.rows, key=lambda each: each[0])],
        workflow_types=list(newest["workflow_types"]),
        activity_types=list(newest["activity_types"]),
        config=config_of(newest["config"]),
        report=_json(next((row["report"] for _, row in known.rows if row["report"]), None)),
        owned={shard_id: list(row["owned"]) for shard_id, row in known.rows if row["owned"]},
        missing_shards=[shard.shard_id for shard in known.missing],
    )


async def pinned(shards: Shards, worker_id: UUID, *, limit: int = 100) -> Partial[PinnedRun]:
    """The runs that others leave to a worker now: those whose pin lasts longest are last. Raises as `get` does."""
    if not 1 <= limit <= MOST_WORKERS:
        raise InvalidRequestError(f"limit is {limit}; it must be 1 to {MOST_WORKERS}", field="limit")
    await get(shards, worker_id)

    async def read(store: Store) -> list[PinnedRun]:
        return [PinnedRun(shard_id=store.shard_id, **dict(row)) for row in await rows.pinned(store, worker_id, limit)]

    found = await shards.fan_out(read)
    return _with(found, sorted(found.rows, key=lambda run: (run.sticky_until, run.execution_id))[:limit])


async def drain_preview(shards: Shards, worker_id: UUID | None = None) -> Partial[DrainPreview]:
    """What draining would do: of one worker, or of each that has not stopped. Raises WorkerNotFoundError."""
    known = await _known(shards, None)
    workers = {worker.worker_id: worker for worker in _merged(known.rows) if worker.status != "stopped"}
    if worker_id is not None and worker_id not in workers:
        await _refuse_stopped(shards, worker_id)
    chosen = [workers[worker_id]] if worker_id is not None else list(workers.values())
    return _with(known, [_preview(worker, known.rows) for worker in sorted(chosen, key=lambda each: each.name)])


async def drain(
    shards: Shards, actor: Actor, worker_id: UUID, *, deadline_at: datetime | None = None, reason: str = ""
) -> Drained:
    """Have a worker claim nothing more, finish what runs, hand over and end; at `deadline_at` at the latest.

    Without a deadline its own `drain_timeout` holds. It hears of it within about a second. Asked again, the first
    request stands, and a deadline that is given replaces its own. Raises WorkerNotFoundError, WorkerStoppedError,
    ShardUnavailableError.
    """
    reason = checked_reason(reason)
    if deadline_at is not None and deadline_at.tzinfo is None:
        raise InvalidRequestError("deadline_at has no time zone", field="deadline_at")
    before = await _to_tell(shards, actor, "worker.drain", worker_id)

    async def tell(store: Store) -> list[int]:
        audit = _audit(actor, "worker.drain", store, worker_id, reason)
        if not await rows.ask_to_drain(store, worker_id, deadline_at, audit):
            return []
        store.waker.order(worker_id)
        return [store.shard_id]

    return Drained(
        worker_id=worker_id,
        outcome="draining" if before.drain_requested_at is None else "already_draining",
        in_flight_count=before.in_flight_count,
        drain_deadline_at=deadline_at,
        shard_ids=await _told(shards, before, tell),
    )


async def evict(shards: Shards, actor: Actor, worker_id: UUID, *, reason: str = "") -> Evicted:
    """Have a worker let go of its parked runs: the next decision of each is cold.

    Raises WorkerNotFoundError, WorkerStoppedError, ShardUnavailableError.
    """
    reason = checked_reason(reason)
    before = await _to_tell(shards, actor, "worker.evict", worker_id)

    async def tell(store: Store) -> list[int]:
        if not await rows.ask_to_evict(store, worker_id, _audit(actor, "worker.evict", store, worker_id, reason)):
            return []
        store.waker.order(worker_id)
        return [store.shard_id]

    return Evicted(
        worker_id=worker_id,
        outcome="requested",
        residents=before.now.residents,
        shard_ids=await _told(shards, before, tell),
    )


def config_of(stored: bytes | None) -> list[ConfigOption]:
    """The options that a worker has told; none where it told nothing that can be read."""
    try:
        return msgspec.json.decode(stored or b"[]", type=list[ConfigOption])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


def _with(answer: Partial[Any], found: list[T]) -> Partial[T]:
    return Partial(rows=found, expected=answer.expected, read=answer.read, missing=answer.missing)


async def _known(shards: Shards, queue: str | None) -> Partial[tuple[int, Any]]:
    async def read(store: Store) -> list[tuple[int, Any]]:
        found = await rows.page(store, queue=queue, status=None, limit=MOST_WORKERS)
        return [(store.shard_id, row) for row in found]

    return await shards.fan_out(read)


def _merged(known: Iterable[tuple[int, Any]]) -> list[WorkerSummary]:
    """One worker for all rows of its id: its totals as the newest row has them, its partitions over all."""
    by_id: dict[UUID, list[tuple[int, Any]]] = {}
    for shard_id, row in known:
        by_id.setdefault(row["worker"], []).append((shard_id, row))
    return [_summary(each) for each in by_id.values()]


def _summary(on_shards: list[tuple[int, Any]]) -> WorkerSummary:
    its = [row for _, row in on_shards]
    newest = _newest(its)
    statuses = {row["status"] for row in its}
    status: Status = next(each for each in _ORDER if each in statuses)
    asked = [row["drain_requested_at"] for row in its if row["drain_requested_at"] is not None]
    if asked and status == "active":
        status = "draining"
    living = [row for row in its if row["status"] != "stopped"]
    health: Health | None = None
    if living:
        health = "healthy" if all(row["alive"] for row in living) else "stale"
    now = _now(newest["counters"])
    return WorkerSummary(
        worker_id=newest["worker"],
        name=newest["name"],
        host=newest["host"],
        pid=newest["pid"],
        build=newest["build"],
        queues=list(newest["queues"]),
        status=status,
        health=health,
        started_at=min(row["started_at"] for row in its),
        seen_at=newest["seen_at"],
        shard_ids=sorted(shard_id for shard_id, _ in on_shards),
        workflow_slots=newest["workflow_slots"],
        activity_slots=newest["slots"],
        in_flight_count=now.runs_held + now.activities_running if living else 0,
        now=now if living else WorkerNow(),
        partitions=sum(row["partitions"] for row in its),
        drain_requested_at=min(asked, default=None),
        drain_deadline_at=next((row["drain_deadline_at"] for row in its if row["drain_deadline_at"]), None),
        counters=_json(newest["counters"]),
    )


def _newest(its: Iterable[Any]) -> Any:
    return max(its, key=lambda row: row["seen_at"])


class _Told(Struct):
    now: WorkerNow = WorkerNow()


def _now(counters: bytes | None) -> WorkerNow:
    try:
        return msgspec.json.decode(counters or b"{}", type=_Told).now
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return WorkerNow()


def _json(stored: bytes | None) -> Raw:
    return Raw(stored if stored and is_json(stored) else b"null")


def _on_shard(shard_id: int, row: Mapping[str, Any]) -> WorkerOnShard:
    same = ("status", "alive", "started_at", "seen_at", "scanned_at", "partitions", "drain_requested_at")
    return WorkerOnShard(
        shard_id=shard_id,
        lease_expires_at=row["lease_until"],
        drain_deadline_at=row["drain_deadline_at"],
        evict_requested_at=row["evict_requested_at"],
        **{name: row[name] for name in same},
    )


def _tally(its: list[Any]) -> dict[str, int]:
    living = [row for row in its if row["status"] != "stopped"]
    return {
        "healthy": sum(row["alive"] for row in living),
        "stale": sum(not row["alive"] for row in living),
        "draining": sum(row["status"] == "draining" or row["drain_requested_at"] is not None for row in living),
    }


def _uncovered(shard_id: int, each: rows.Lacked) -> UncoveredDefinition:
    return UncoveredDefinition(
        kind=each.kind,
        name=each.name,
        version=each.version,
        shard_id=shard_id,
        open=each.open,
        waiting=each.waiting,
        execution_ids=each.sample,
    )


def _preview(worker: WorkerSummary, known: list[tuple[int, Any]]) -> DrainPreview:
    """What nobody else serves is told apart by shard: a worker of one shard is no substitute on another."""
    queues: set[str] = set()
    types: set[str] = set()
    for shard_id, mine in known:
        if mine["worker"] != worker.worker_id or mine["status"] == "stopped":
            continue
        others = [
            row
            for shard, row in known
            if shard == shard_id and row["worker"] != worker.worker_id and row["alive"] and row["status"] == "active"
        ]
        queues |= set(mine["queues"]) - {queue for row in others for queue in row["queues"]}
        for column in ("workflow_types", "activity_types"):
            types |= set(mine[column]) - {name for row in others for name in row[column]}
    return DrainPreview(
        worker_id=worker.worker_id,
        name=worker.name,
        status=worker.status,
        in_flight_count=worker.in_flight_count,
        runs_held=worker.now.runs_held,
        activities_running=worker.now.activities_running,
        residents=worker.now.residents,
        partitions=worker.partitions,
        queues_left=sorted(queues),
        types_left=sorted(types),
    )


async def _to_tell(shards: Shards, actor: Actor, operation: str, worker_id: UUID) -> WorkerDetail:
    """The worker that is to be told something; a refusal is audited."""
    worker = await get(shards, worker_id)
    if worker.status == "stopped":
        error = _stopped(worker_id)
        await record(shards, actor, operation, "worker", str(worker_id), "failed", error.message)
        raise error
    return worker


async def _told(shards: Shards, before: WorkerDetail, tell: Callable[[Store], Awaitable[list[int]]]) -> list[int]:
    answer = await shards.fan_out(tell, over=tuple(before.shard_ids))
    require_one(answer)
    if not answer.rows:
        raise _stopped(before.worker_id)
    return sorted(answer.rows)


async def _refuse_stopped(shards: Shards, worker_id: UUID) -> None:
    await get(shards, worker_id)
    raise _stopped(worker_id)


def _audit(actor: Actor, operation: str, store: Store, worker_id: UUID, reason: str) -> AuditEntry:
    return audit_entry(
        actor, operation, shard_id=store.shard_id, target_type="worker", target_id=str(worker_id), reason=reason
    )


def _not_found(worker_id: UUID) -> WorkerNotFoundError:
    return WorkerNotFoundError(f"there is no worker {worker_id}", worker_id=worker_id)


def _stopped(worker_id: UUID) -> WorkerStoppedError:
    return WorkerStoppedError(f"worker {worker_id} has stopped", worker_id=worker_id)
