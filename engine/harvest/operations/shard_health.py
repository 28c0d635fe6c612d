"""Whether each shard is ready for work, and whether one that is to be added would be: the gate of its runbook.

`ready` is a shard with this release's schema on which living workers take what is to be taken. `degraded` answers, and
something is missing; `unavailable` cannot be worked with at all. Every reason has a code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct

from harvest import clock
from harvest.errors import InvalidRequestError
from harvest.history.ids import RESERVED_SHARD
from harvest.operations.canary import Probe, probe_of
from harvest.shards import MissingShard, Partial, ShardRouter, Shards
from harvest.store import shard_health as rows
from harvest.store.fleet import LEASE_SECONDS
from harvest.store.migrate import SCHEMA_LEVEL
from harvest.store.shard_health import ShardLook
from harvest.store.store import Store

Readiness = Literal["ready", "degraded", "unavailable"]
Role = Literal["writable", "readable", "candidate"]
MOST_NAMES: Final = 20
_ORDER: Final[tuple[Readiness, ...]] = ("ready", "degraded", "unavailable")
_NOT_CONFIGURED: Final = "not configured"


class ReasonCode(StrEnum):
    """Why a shard is not ready."""

    NO_LIVE_WORKER = "no_live_worker"
    """No living, active worker covers the shard: what is started there would wait for one."""
    WORKER_QUEUE_UNCOVERED = "worker_queue_uncovered"
    """No living, active worker of the shard takes a queue that it needs: one with work, or one that the other shards
    have workers for."""
    SCHEMA_MIGRATION_MISSING = "schema_migration_missing"
    """The database lacks migrations of this release."""
    UNREACHABLE = "unreachable"
    """The database does not answer."""
    NO_POOL = "no_pool"
    """This process has no database for the shard."""
    WRONG_SHARD = "wrong_shard"
    """The database says that it is another shard."""


class QueueHealth(Struct, frozen=True, kw_only=True):
    """A queue on one shard: who takes it, and what could be taken now (`capped`: at least so much).

    `is_required` tells a queue that has work, or that other shards have workers for, from one that is only served.
    """

    queue: str
    live_workers: int
    workflow_tasks: int
    activity_tasks: int
    capped: bool
    oldest_pending_age_secs: float | None
    is_required: bool
    is_covered: bool


class ShardReadiness(Struct, frozen=True, kw_only=True):
    """One shard. What is not known of it is null.

    `role` is `writable`, `readable` (it takes no new runs) or `candidate` (it is not read yet). Tasks are those that
    could be taken now; a count is at least that much where `pending_capped`. `stranded_pending` are those that no
    living worker of the shard would take. `worker_names` has the first twenty. `table_bytes` is what its tables take.
    """

    shard_id: int
    role: Role
    is_reserved: bool
    is_default: bool
    readiness: Readiness
    reason_codes: list[ReasonCode]
    message: str
    pending_workflow_tasks: int | None = None
    pending_activity_tasks: int | None = None
    pending_capped: bool = False
    oldest_pending_age_secs: float | None = None
    stranded_pending: int | None = None
    live_workers: int | None = None
    worker_names: list[str] = []
    queues: list[QueueHealth] = []
    schema_level: int | None = None
    schema_level_needed: int = SCHEMA_LEVEL
    owner_mode: bool | None = None
    table_bytes: int | None = None
    canary: list[Probe] = []
    unreachable_since: datetime | None = None

    @property
    def pending(self) -> int:
        """Tasks of both kinds."""
        return (self.pending_workflow_tasks or 0) + (self.pending_activity_tasks or 0)


class ShardsHealth(Struct, frozen=True, kw_only=True):
    """All readable shards in order, and the candidate. `overall_readiness` is the worst of the readable ones.

    `candidate_shard` is as it would be if new runs began there: a readable one without open runs needs no worker among
    the `shards`, and does as the candidate. A worker counts as living for `freshness_window_secs` after it was last
    heard of.
    """

    overall_readiness: Readiness
    freshness_window_secs: float
    observed_at: datetime
    shards: list[ShardReadiness]
    candidate_shard: ShardReadiness | None
    partial: Partial[ShardReadiness]


async def health(shards: Shards, candidate_shard: int | None = None, *, with_bytes: bool = False) -> ShardsHealth:
    """Look at every readable shard, and at a candidate, which need not be readable yet.

    Never raises for a shard that does not answer: it is `unavailable`. Raises InvalidRequestError for a number that no
    shard can have.
    """
    if candidate_shard is not None and not 0 <= candidate_shard < RESERVED_SHARD:
        raise InvalidRequestError(
            f"candidate_shard is {candidate_shard}; shards are numbered 0 to {RESERVED_SHARD - 1}",
            field="candidate_shard",
        )
    router = shards.router
    wanted = sorted({*router.readable, *(() if candidate_shard is None else (candidate_shard,))})

    async def read(store: Store) -> list[tuple[int, ShardLook]]:
        return [(store.shard_id, await rows.look(store, with_bytes=with_bytes))]

    answer = await shards.fan_out(read, over=wanted)
    looks = dict(answer.rows)
    found = [assess(router, shard, looks, answer.missing) for shard in wanted]
    readable = [each for each in found if each.shard_id in router.readable]
    return ShardsHealth(
        overall_readiness=worst(each.readiness for each in readable),
        freshness_window_secs=LEASE_SECONDS,
        observed_at=max((look.at for look in looks.values()), default=clock.now()),
        shards=found,
        candidate_shard=None
        if candidate_shard is None
        else assess(router, candidate_shard, looks, answer.missing, as_candidate=True),
        partial=Partial(rows=found, expected=answer.expected, read=answer.read, missing=answer.missing),
    )


def worst(found: Iterable[Readiness]) -> Readiness:
    """The worst of several; `ready` for none."""
    return max(found, key=_ORDER.index, default="ready")


def assess(
    router: ShardRouter,
    shard_id: int,
    looks: Mapping[int, ShardLook],
    missing: Iterable[MissingShard],
    *,
    as_candidate: bool = False,
) -> ShardReadiness:
    """One shard as the looks at all of them show it; `as_candidate`, as if new runs began there."""
    role = role_of(router, shard_id)
    takes_new = as_candidate or role != "readable"
    is_reserved, is_default = shard_id in router.reserved, shard_id == router.default
    look = looks.get(shard_id)
    if look is None:
        lost = next(each for each in missing if each.shard_id == shard_id)
        code = ReasonCode.NO_POOL if lost.reason == _NOT_CONFIGURED else ReasonCode.UNREACHABLE
        said = "no database of it is configured here" if code is ReasonCode.NO_POOL else lost.reason
        return ShardReadiness(
            shard_id=shard_id,
            role=role,
            is_reserved=is_reserved,
            is_default=is_default,
            readiness="unavailable",
            reason_codes=[code],
            message=said,
            unreachable_since=lost.since,
        )
    required = _required(router, shard_id, looks, takes_new=takes_new)
    reasons = _reasons(shard_id, look, required, takes_new=takes_new)
    known = look.is_migrated and ReasonCode.WRONG_SHARD not in reasons
    return ShardReadiness(
        shard_id=shard_id,
        role=role,
        is_reserved=is_reserved,
        is_default=is_default,
        readiness=_readiness(reasons),
        reason_codes=list(reasons),
        message="; ".join(reasons.values()),
        pending_workflow_tasks=sum(each.workflow_tasks for each in look.waiting) if known else None,
        pending_activity_tasks=sum(each.activity_tasks for each in look.waiting) if known else None,
        pending_capped=any(each.capped for each in look.waiting),
        oldest_pending_age_secs=_age(look, (each.oldest for each in look.waiting)),
        stranded_pending=look.stranded() if known else None,
        live_workers=len(look.workers) if known else None,
        worker_names=[worker.name for worker in look.workers[:MOST_NAMES]],
        queues=_queues(look, required),
        schema_level=look.schema_level,
        owner_mode=look.owner_mode if known else None,
        table_bytes=look.bytes if known and look.bytes else None,
        canary=[probe_of(shard_id, row) for row in look.canary] if role == "writable" else [],
    )


def role_of(router: ShardRouter, shard_id: int) -> Role:
    """What the router lets a shard do."""
    if shard_id in router.writable:
        return "writable"
    return "readable" if shard_id in router.readable else "candidate"


def _readiness(reasons: Mapping[ReasonCode, str]) -> Readiness:
    if ReasonCode.WRONG_SHARD in reasons:
        return "unavailable"
    return "degraded" if reasons else "ready"


def _reasons(shard_id: int, look: ShardLook, required: set[str], *, takes_new: bool) -> dict[ReasonCode, str]:
    """What keeps a shard that answers from being ready, each with a few words."""
    if look.named is not None and look.named != shard_id:
        return {ReasonCode.WRONG_SHARD: f"its database is shard {look.named}"}
    if not look.is_migrated:
        return {
            ReasonCode.SCHEMA_MIGRATION_MISSING: f"its database has schema level {look.schema_level}, this release "
            f"needs {SCHEMA_LEVEL}"
        }
    if not look.workers:
        # One that takes nothing new and has nothing open needs nobody.
        if not takes_new and not look.has_open_runs:
            return {}
        return {ReasonCode.NO_LIVE_WORKER: "no living worker covers it"}
    left = sorted(queue for queue in required if not is_covered(look, queue))
    if left:
        return {
            ReasonCode.WORKER_QUEUE_UNCOVERED: f"no living worker of it takes the queue{'s' if len(left) > 1 else ''} "
            + ", ".join(left[:MOST_NAMES])
        }
    return {}


def is_covered(look: ShardLook, queue: str) -> bool:
    """Whether living workers of a shard take both kinds of tasks of a queue, as far as there are any."""
    waiting = next((each for each in look.waiting if each.queue == queue), None)
    if queue in look.queues:
        return True
    served = any(queue in worker.queues for worker in look.workers)
    return served and waiting is not None and not waiting.workflow_tasks


def _required(router: ShardRouter, shard_id: int, looks: Mapping[int, ShardLook], *, takes_new: bool) -> set[str]:
    """The queues that a shard needs workers for: those with work, and where anything may be started those of the rest.

    A cell has what is placed there by name: it needs no more than what it has work for.
    """
    needed = {each.queue for each in looks[shard_id].waiting}
    if not takes_new or shard_id in router.reserved:
        return needed
    for other, look in looks.items():
        if other in router.writable and other not in router.reserved:
            needed |= look.queues
    return needed


def _queues(look: ShardLook, required: set[str]) -> list[QueueHealth]:
    waiting = {each.queue: each for each in look.waiting}
    served = {queue for worker in look.workers for queue in worker.queues}
    found = []
    for queue in sorted(waiting.keys() | served | required):
        there = waiting.get(queue)
        found.append(
            QueueHealth(
                queue=queue,
                live_workers=sum(queue in worker.queues for worker in look.workers),
                workflow_tasks=there.workflow_tasks if there else 0,
                activity_tasks=there.activity_tasks if there else 0,
                capped=bool(there and there.capped),
                oldest_pending_age_secs=_age(look, [there.oldest] if there else []),
                is_required=queue in required,
                is_covered=is_covered(look, queue),
            )
        )
    return found


def _age(look: ShardLook, instants: Iterable[datetime | None]) -> float | None:
    oldest = min((each for each in instants if each is not None), default=None)
    return None if oldest is None else max(0.0, (look.at - oldest).total_seconds())


async def gauges(shards: Shards) -> dict[tuple[str, ...], float]:
    """What `/metrics` tells of the shards and queues as they are now, by metric and labels.

    Of a shard that does not answer it is told that it is not ready, and nothing else.
    """
    pools = sorted({*shards.router.readable, *shards.stores})

    async def read(store: Store) -> list[tuple[int, ShardLook]]:
        return [(store.shard_id, await rows.look(store))]

    answer = await shards.fan_out(read, over=pools)
    looks = dict(answer.rows)
    found: dict[tuple[str, ...], float] = {}
    for shard in pools:
        seen = assess(shards.router, shard, looks, answer.missing)
        label = str(shard)
        if shard in shards.router.readable:
            found[("shard.ready", label)] = float(seen.readiness == "ready")
        if seen.stranded_pending is not None and seen.live_workers is not None:
            found[("shard.stranded_pending", label)] = seen.stranded_pending
            found[("shard.live_workers", label)] = seen.live_workers
            _add_queues(found, seen.queues)
    return found


def _add_queues(found: dict[tuple[str, ...], float], queues: list[QueueHealth]) -> None:
    """A worker on several shards polls its queue on each of them, and is counted on each."""
    for each in queues:
        depth, pollers = ("queue.depth", each.queue), ("worker.pollers", each.queue)
        found[depth] = found.get(depth, 0) + each.workflow_tasks + each.activity_tasks
        found[pollers] = found.get(pollers, 0) + each.live_workers
        age = ("queue.oldest_pending_age", each.queue)
        found[age] = max(found.get(age, 0.0), each.oldest_pending_age_secs or 0.0)
