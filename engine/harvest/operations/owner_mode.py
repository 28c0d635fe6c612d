"""Owner mode of each shard: whether its workers allow it, turning it on and off (seed `sticky-routing.md`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.errors import HarvestError, InvalidRequestError, OutcomeUnknownError, OwnerModeRefusedError
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.auditing import record
from harvest.operations.closing import checked_reason
from harvest.shards import Partial, Shards
from harvest.store import owner_mode as rows
from harvest.store.owner_mode import FleetWorker, Readiness
from harvest.store.partitions import LIVE_SECONDS
from harvest.store.store import Store

ENABLE: Final = "owner_mode.enable"
DISABLE: Final = "owner_mode.disable"
TARGET: Final = "shard"


class Offender(Struct, frozen=True, kw_only=True):
    """A worker that keeps owner mode off, and what of it does."""

    worker: UUID
    name: str
    detail: str


class Precondition(Struct, frozen=True, kw_only=True):
    """One thing that owner mode needs of the living workers. `message` says how it stands, `workers` who offends."""

    code: str
    ok: bool
    message: str
    workers: list[Offender] = []


class OwnerModeStatus(Struct, frozen=True, kw_only=True):
    """Owner mode on one shard. `workers` counts the living ones, `live_owners` those that can own partitions now."""

    shard_id: int
    enabled: bool
    since: datetime | None
    workers: int
    live_owners: int
    preconditions: list[Precondition]

    @property
    def is_ready(self) -> bool:
        """Whether it could be turned on."""
        return all(one.ok for one in self.preconditions)


class OwnerModeChange(Struct, frozen=True, kw_only=True):
    """What became of a request. `changed` is false where it was on, or off, already."""

    shard_id: int
    enabled: bool
    since: datetime | None
    changed: bool


async def status(shards: Shards) -> Partial[OwnerModeStatus]:
    """Every shard in order; those that do not answer are named."""

    async def read(store: Store) -> list[OwnerModeStatus]:
        return [_status(store.shard_id, await rows.readiness(store))]

    found = await shards.fan_out(read)
    return msgspec.structs.replace(found, rows=sorted(found.rows, key=lambda each: each.shard_id))


def _status(shard_id: int, found: Readiness) -> OwnerModeStatus:
    return OwnerModeStatus(
        shard_id=shard_id,
        enabled=found.switch.enabled,
        since=found.switch.since,
        workers=len(found.fleet),
        live_owners=sum(worker.is_live_owner for worker in found.fleet),
        preconditions=preconditions(found.fleet),
    )


async def enable(shards: Shards, actor: Actor, shard_id: int, *, reason: str) -> OwnerModeChange:
    """Turn owner mode on, if the living workers allow it.

    Raises OwnerModeRefusedError with every blocker, OwnerModeBusyError, NotTableOwnerError, ShardUnavailableError.
    """
    store, reason = shards.store(shard_id), _needed(reason)
    entry = audit_entry(actor, ENABLE, shard_id=shard_id, target_id=str(shard_id), target_type=TARGET, reason=reason)
    since: datetime | None = None
    try:
        async with rows.switching(store) as (connection, found):
            before = found.switch
            if not before.enabled:
                _require_ready(shard_id, preconditions(found.fleet))
                since = await rows.turn_on(connection, entry)
    except OutcomeUnknownError:
        raise
    except HarvestError as error:
        await record(shards, actor, ENABLE, TARGET, str(shard_id), "failed", error.message)
        raise
    if since is None:
        await record(shards, actor, ENABLE, TARGET, str(shard_id), "succeeded", "owner mode was on before")
        return OwnerModeChange(shard_id=shard_id, enabled=True, since=before.since, changed=False)
    store.waker.tell_owner(None)
    return OwnerModeChange(shard_id=shard_id, enabled=True, since=since, changed=True)


async def disable(shards: Shards, actor: Actor, shard_id: int, *, reason: str) -> OwnerModeChange:
    """Turn owner mode off: every partition is without an owner at once, and workers claim as before.

    Raises OwnerModeBusyError, NotTableOwnerError, ShardUnavailableError.
    """
    store, reason = shards.store(shard_id), _needed(reason)
    entry = audit_entry(actor, DISABLE, shard_id=shard_id, target_id=str(shard_id), target_type=TARGET, reason=reason)
    try:
        async with rows.switching(store) as (connection, found):
            if found.switch.enabled:
                await rows.turn_off(connection, entry)
    except OutcomeUnknownError:
        raise
    except HarvestError as error:
        await record(shards, actor, DISABLE, TARGET, str(shard_id), "failed", error.message)
        raise
    if found.switch.enabled:
        store.waker.tell_owner(None)
    else:
        await record(shards, actor, DISABLE, TARGET, str(shard_id), "succeeded", "owner mode was off before")
    return OwnerModeChange(shard_id=shard_id, enabled=False, since=None, changed=found.switch.enabled)


def _needed(reason: str) -> str:
    reason = checked_reason(reason).strip()
    if not reason:
        raise InvalidRequestError("a reason is needed: the audit log keeps it", field="reason")
    return reason


def _require_ready(shard_id: int, found: Sequence[Precondition]) -> None:
    blockers = [one for one in found if not one.ok]
    if blockers:
        raise OwnerModeRefusedError(
            f"owner mode cannot be turned on for shard {shard_id}: " + "; ".join(one.message for one in blockers),
            shard_id=shard_id,
            blockers=[
                {"code": one.code, "message": one.message, "workers": msgspec.to_builtins(one.workers)}
                for one in blockers
            ],
        )


def preconditions(fleet: Sequence[FleetWorker]) -> list[Precondition]:
    """What owner mode needs, in the order in which it is mended. An owner takes every task of its partitions.

    So the living workers must take the same queues by the same build, and those that can own have the same types.
    """
    owners = [worker for worker in fleet if worker.is_live_owner]
    return [
        _can_own(fleet),
        _alike(
            "queues_differ",
            fleet,
            lambda worker: worker.queues,
            lambda worker: "queues " + _names(worker.queues),
            right="all living workers take the same queues",
            wrong="living workers take different queues",
        ),
        _alike(
            "builds_differ",
            fleet,
            lambda worker: worker.build,
            lambda worker: f"build {worker.build or 'not named'}",
            right="all living workers run the same build",
            wrong="living workers run different builds",
        ),
        _same_types(owners),
        _has_owner(fleet, owners),
    ]


def _can_own(fleet: Sequence[FleetWorker]) -> Precondition:
    offenders = [
        Offender(worker=worker.worker, name=worker.name, detail="has run no owner loop")
        for worker in fleet
        if worker.scanned_seconds is None
    ]
    return Precondition(
        code="worker_cannot_own",
        ok=not offenders,
        message="a living worker knows no owners: its release is too old, or it has only just begun"
        if offenders
        else "every living worker knows owners",
        workers=offenders,
    )


def _alike(
    code: str,
    workers: Sequence[FleetWorker],
    has: Callable[[FleetWorker], Hashable],
    told: Callable[[FleetWorker], str],
    *,
    right: str,
    wrong: str,
) -> Precondition:
    offenders = [Offender(worker=one.worker, name=one.name, detail=told(one)) for one in _unlike(workers, has)]
    return Precondition(code=code, ok=not offenders, message=wrong if offenders else right, workers=offenders)


def _unlike(workers: Sequence[FleetWorker], has: Callable[[FleetWorker], Hashable]) -> list[FleetWorker]:
    """Those that differ from what more than half have; all of them where no half agrees."""
    counted = Counter(map(has, workers))
    if len(counted) < 2:
        return []
    common, times = counted.most_common(1)[0]
    return [worker for worker in workers if has(worker) != common or 2 * times <= len(workers)]


def _same_types(owners: Sequence[FleetWorker]) -> Precondition:
    def has(worker: FleetWorker) -> Any:
        return worker.workflow_types, worker.activity_types

    everything = {name for worker in owners for kind in has(worker) for name in kind}

    def lacks(worker: FleetWorker) -> str:
        missing = sorted(everything - set(worker.workflow_types) - set(worker.activity_types))
        return "lacks " + _names(missing) if missing else "has types that others lack"

    return _alike(
        "types_differ",
        owners,
        has,
        lacks,
        right="all live owners have the same workflow and activity types",
        wrong="live owners have different workflow or activity types",
    )


def _has_owner(fleet: Sequence[FleetWorker], owners: Sequence[FleetWorker]) -> Precondition:
    if owners:
        return Precondition(code="no_live_owner", ok=True, message=f"{len(owners)} of {len(fleet)} can own partitions")
    return Precondition(
        code="no_live_owner",
        ok=False,
        message="no living worker can own partitions",
        workers=[Offender(worker=one.worker, name=one.name, detail=_why_not(one)) for one in fleet],
    )


def _why_not(worker: FleetWorker) -> str:
    if worker.workflow_slots == 0:
        return "has no workflow slot"
    if not worker.workflow_types:
        return "has no workflow type"
    if worker.scanned_seconds is None:
        return "has run no owner loop"
    return f"its owner loop has not run for {worker.scanned_seconds:.0f} s, longer than {LIVE_SECONDS:.0f} s"


def _names(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
