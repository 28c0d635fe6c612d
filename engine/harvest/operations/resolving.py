"""From a business key to the execution it means, by looking at every shard: the open run, else the newest.

Where a key would be placed now says nothing of where its runs are: a pinned run is elsewhere, and so is one whose shard
has begun to drain since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from msgspec import Struct

from harvest.errors import ExecutionNotFoundError, NoWritableShardError
from harvest.history.ids import business_key, partition_of, pick_shard
from harvest.history.limits import WORKFLOW_ID_BYTES, check_text
from harvest.history.states import State
from harvest.operations.placing import placeable
from harvest.shards import Partial, ShardRouter, Shards
from harvest.shards.keys import KeyedRun, meant
from harvest.store import reads, starts
from harvest.store.store import Store

MOST_RUNS: Final = 10
Rule = Literal["only_open", "newest_open", "newest_ended", "none", "unknown"]
Why = Literal["hash", "draining", "no_writable_shard"]


class FoundRun(Struct, frozen=True, kw_only=True):
    """A run of the key on its shard; `meant` marks the one that the key means."""

    execution_id: UUID
    state: str
    started_at: datetime
    closed_at: datetime | None
    meant: bool


class ShardAnswer(Struct, frozen=True, kw_only=True):
    """What one shard said: its runs of the key, the open one first, then the newest; or why it was not `inspected`.

    `more` tells that it has runs beyond those.
    """

    shard_id: int
    inspected: bool
    reason: str | None
    since: datetime | None
    writable: bool
    reserved: bool
    has_database: bool
    runs: list[FoundRun]
    more: bool


class PlacedAt(Struct, frozen=True, kw_only=True):
    """Where a start of the key without any placement would go now, and why.

    `hash`: its hash over the shards that are not reserved leads to `shard_id`. `draining`: that leads to
    `hashed_shard_id`, which takes no new runs, and the hash over the writable ones to `shard_id`. Nowhere, where there
    is `no_writable_shard`.
    """

    shard_id: int | None
    why: Why
    hashed_shard_id: int | None
    has_database: bool


class Resolution(Struct, frozen=True, kw_only=True):
    """Which run a business key means and by which rule, what each shard answered, and where a new run would go.

    `only_open`, or of several open ones `newest_open`; without an open one `newest_ended`; `none`: all shards answered
    and none has a run. `unknown`: a shard that was not inspected may have an open one.
    """

    workflow_name: str
    workflow_id: str
    partition: int
    rule: Rule
    execution_id: UUID | None
    shard_id: int | None
    open_runs: int
    placement: PlacedAt
    shards: list[ShardAnswer]


async def resolve(shards: Shards, workflow_name: str, workflow_id: str, *, tenant: str = "default") -> UUID:
    """The open run of (name, id), else the newest one. Every shard is asked.

    Raises ExecutionNotFoundError when all answered and none has it, UnknownExecutionError when a missing shard may
    have it, or may have a run that is still open.
    """
    key = _checked_key(workflow_name, workflow_id, tenant)

    async def read(store: Store) -> list[KeyedRun]:
        return [_keyed(store, row) for row in await reads.by_key(store, key)]

    answer = await shards.fan_out(read)
    best = meant(answer.rows)
    if best is None or not best.is_open:
        answer.require_complete(f"an open run of {workflow_name} {workflow_id!r}")
    if best is None:
        raise ExecutionNotFoundError(
            f"there is no execution of {workflow_name} with the id {workflow_id!r}",
            workflow_name=workflow_name,
            workflow_id=workflow_id,
        )
    return best.execution_id


async def shard_of_open(
    shards: Shards, workflow_name: str, workflow_id: str, *, tenant: str, start_key: str | None = None
) -> int | None:
    """The shard of the open run of (name, id); None where all shards answered and none has one.

    One that has `start_key`, an idempotency key of a start, comes before it: what the key stands for may have ended.
    Raises UnknownExecutionError when nothing is found and a missing shard may have it.
    """
    key = _checked_key(workflow_name, workflow_id, tenant)

    async def read(store: Store) -> list[tuple[bool, KeyedRun]]:
        runs = [(False, _keyed(store, row)) for row in await reads.by_key(store, key)]
        holder = None if start_key is None else await starts.holder_of_key(store, start_key)
        return runs if holder is None else [*runs, (True, _keyed(store, holder))]

    answer = await shards.fan_out(read)
    best = meant(run for held, run in answer.rows if held) or meant(run for _, run in answer.rows if run.is_open)
    if best is None:
        answer.require_complete(f"an open run of {workflow_name} {workflow_id!r}")
        return None
    return best.shard_id


async def inspect(
    shards: Shards, workflow_name: str, workflow_id: str, *, tenant: str = "default"
) -> Partial[Resolution]:
    """The same with its reasons: one row, whoever answers. Raises LimitError for what cannot be a key."""
    key = _checked_key(workflow_name, workflow_id, tenant)

    async def read(store: Store) -> list[tuple[int, Sequence[Mapping[str, Any]]]]:
        return [(store.shard_id, await reads.runs_of_key(store, key, MOST_RUNS + 1))]

    answer = await shards.fan_out(read)
    rows = dict(answer.rows)
    every = [
        KeyedRun(shard, row["execution_id"], row["state"], row["started_at"]) for shard in rows for row in rows[shard]
    ]
    best = meant(every)
    open_runs = sum(run.is_open for run in every)
    unknown = bool(answer.missing) and not open_runs
    found = None if best is None or unknown else best
    missing = {shard.shard_id: shard for shard in answer.missing}
    views = [
        ShardAnswer(
            shard_id=one.shard_id,
            inspected=one.shard_id not in missing,
            reason=missing[one.shard_id].reason if one.shard_id in missing else None,
            since=missing[one.shard_id].since if one.shard_id in missing else None,
            writable=one.writable,
            reserved=one.reserved,
            has_database=one.has_database,
            runs=[_found(row, found) for row in rows.get(one.shard_id, ())[:MOST_RUNS]],
            more=len(rows.get(one.shard_id, ())) > MOST_RUNS,
        )
        for one in placeable(shards)
    ]
    resolution = Resolution(
        workflow_name=workflow_name,
        workflow_id=workflow_id,
        partition=partition_of(workflow_id),
        rule="unknown" if unknown else _rule(best, open_runs),
        execution_id=found.execution_id if found else None,
        shard_id=found.shard_id if found else None,
        open_runs=open_runs,
        placement=placed_at(shards.router, workflow_name, workflow_id, shards.stores),
        shards=views,
    )
    return Partial(rows=[resolution], expected=answer.expected, read=answer.read, missing=answer.missing)


def placed_at(router: ShardRouter, workflow_name: str, workflow_id: str, pools: Mapping[int, Store]) -> PlacedAt:
    """Where an unpinned start of this key would go."""
    hashed = pick_shard(router.shared, workflow_name, workflow_id) if router.shared else None
    try:
        shard = router.pick(workflow_name, workflow_id)
    except NoWritableShardError:
        return PlacedAt(shard_id=None, why="no_writable_shard", hashed_shard_id=hashed, has_database=False)
    why: Why = "hash" if shard == hashed else "draining"
    return PlacedAt(shard_id=shard, why=why, hashed_shard_id=hashed, has_database=shard in pools)


def _checked_key(workflow_name: str, workflow_id: str, tenant: str) -> UUID:
    check_text(workflow_name, what="workflow_name")
    check_text(workflow_id, what="workflow_id", most=WORKFLOW_ID_BYTES)
    return business_key(tenant, workflow_name, workflow_id)


def _keyed(store: Store, row: Mapping[str, Any]) -> KeyedRun:
    return KeyedRun(store.shard_id, row["execution_id"], row["state"], row["started_at"])


def _found(row: Mapping[str, Any], best: KeyedRun | None) -> FoundRun:
    return FoundRun(
        execution_id=row["execution_id"],
        state=State(row["state"]).name,
        started_at=row["started_at"],
        closed_at=row["closed_at"],
        meant=best is not None and row["execution_id"] == best.execution_id,
    )


def _rule(best: KeyedRun | None, open_runs: int) -> Rule:
    if best is None:
        return "none"
    if not best.is_open:
        return "newest_ended"
    return "only_open" if open_runs == 1 else "newest_open"
