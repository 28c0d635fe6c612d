"""What is under way between shards: children elsewhere, and deliveries that make no progress (seed `sharding.md`)."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.history.deliveries import ANYWHERE, DeliveryKind
from harvest.shards import Partial, Shards
from harvest.store import relay as rows
from harvest.store.measures import Key
from harvest.store.pool import Record
from harvest.store.store import Store

MOST_FAILING: Final = 50
_CHILDREN: Final = frozenset(
    {
        int(DeliveryKind.CHILD_START),
        int(DeliveryKind.CHILD_CLOSED),
        int(DeliveryKind.CHILD_CANCEL),
        int(DeliveryKind.CLOSE_POLICY),
    }
)


class InFlight(Struct, frozen=True, kw_only=True):
    """Children of runs on `source_shard` that live on `target_shard`, the oldest asked for at `oldest_at`.

    PENDING_START: still to be started there. STARTED: their end is still to come. CLOSING: their parent has ended, and
    its close policy is still to reach them. Of `failing` ones the last delivery has failed. With `capped` there are at
    least so many: of a shard with very many the oldest are looked at.
    """

    source_shard: int
    target_shard: int
    status: str
    cancel_requested: bool
    in_flight: int
    failing: int
    oldest_at: datetime
    capped: bool


class FailingDelivery(Struct, frozen=True, kw_only=True):
    """What one run does to another on another shard, and has failed; `target_shard` is null where any may have it."""

    kind: str
    source_shard: int
    target_shard: int | None
    source_execution_id: UUID
    target_execution_id: UUID
    created_at: datetime
    attempts: int
    last_attempt_at: datetime | None
    next_attempt_at: datetime
    last_error: str


class Relay(Struct, frozen=True, kw_only=True):
    """What is under way from the shards that answered; `failing` are those tried most often, 50 of each shard.

    With `in_flight_capped` a shard has more than was looked at, and there may be ways that are not listed.
    """

    in_flight: list[InFlight]
    in_flight_capped: bool
    failing: list[FailingDelivery]
    failing_capped: bool
    shards: Partial[None]


async def relay(shards: Shards) -> Relay:
    """Read every shard. What comes from one that does not answer is not known; what goes there, the others tell."""

    async def read(store: Store) -> list[tuple[list[InFlight], bool, list[FailingDelivery]]]:
        found, capped = await rows.in_flight(store)
        under_way = [_in_flight(store, row) for row in found]
        return [(under_way, capped, [_failing(store, row) for row in await rows.worst(store, MOST_FAILING + 1)])]

    answer = await shards.fan_out(read)
    failing = [each for _, _, found in answer.rows for each in found[:MOST_FAILING]]
    return Relay(
        in_flight=sorted(
            (each for found, _, _ in answer.rows for each in found),
            key=lambda each: (each.source_shard, each.target_shard, each.status, each.cancel_requested),
        ),
        in_flight_capped=any(capped for _, capped, _ in answer.rows),
        failing=sorted(failing, key=lambda each: (-each.attempts, each.created_at)),
        failing_capped=any(len(found) > MOST_FAILING for _, _, found in answer.rows),
        shards=Partial(rows=[], expected=answer.expected, read=answer.read, missing=answer.missing),
    )


async def gauges(shards: Shards) -> dict[Key, float]:
    """What `/metrics` tells of it, by metric and labels: of all shards that answer together, by target."""

    async def read(store: Store) -> list[dict[Key, float]]:
        return [await _gauges_of(store)]

    found: dict[Key, float] = {}
    for gauges_of_one in (await shards.fan_out(read)).rows:
        for key, value in gauges_of_one.items():
            known = found.get(key, 0.0)
            found[key] = max(known, value) if key[0] == "cross_shard_child.oldest_age" else known + value
    return found


async def _gauges_of(store: Store) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for row in (await rows.in_flight(store))[0]:
        target = str(row["target_shard"])
        place = ("cross_shard_child.in_flight", target, row["status"].lower())
        age = ("cross_shard_child.oldest_age", target)
        found[place] = found.get(place, 0.0) + row["in_flight"]
        seconds = max(0.0, (row["now"] - row["oldest_at"]).total_seconds())
        found[age] = max(found.get(age, 0.0), seconds)
    for row in await rows.failing(store):
        if row["kind"] in _CHILDREN:
            found["cross_shard_child.failing", str(row["target_shard"]), _kind(row["kind"])] = row["failing"]
    return found


def _in_flight(store: Store, row: Record) -> InFlight:
    return InFlight(
        source_shard=store.shard_id,
        target_shard=row["target_shard"],
        status=row["status"],
        cancel_requested=row["cancel_requested"],
        in_flight=row["in_flight"],
        failing=row["failing"],
        oldest_at=row["oldest_at"],
        capped=row["capped"],
    )


def _failing(store: Store, row: Record) -> FailingDelivery:
    return FailingDelivery(
        kind=_kind(row["kind"]),
        source_shard=store.shard_id,
        target_shard=None if row["target_shard"] == ANYWHERE else row["target_shard"],
        source_execution_id=row["source_execution_id"],
        target_execution_id=row["target_execution_id"],
        created_at=row["created_at"],
        attempts=row["attempts"],
        last_attempt_at=row["last_attempt_at"],
        next_attempt_at=row["next_attempt_at"],
        last_error=row["last_error"],
    )


def _kind(number: int) -> str:
    """The word of a kind, also of one that this release does not know."""
    try:
        return DeliveryKind(number).word
    except ValueError:
        return f"unknown_{number}"
