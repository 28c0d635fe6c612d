"""Many starts in one request: each by itself, or all or none of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from harvest.errors import (
    BatchRefusedError,
    BatchTooLargeError,
    ExecutionExistsError,
    HarvestError,
    InvalidRequestError,
    ShardUnavailableError,
)
from harvest.history.limits import REQUEST_BYTES
from harvest.history.states import State
from harvest.operations import starting
from harvest.operations.actor import Actor, audit_entry
from harvest.operations.auditing import record
from harvest.operations.preparing import Prepared, StartRequest, checked, prepare
from harvest.operations.starting import Started
from harvest.shards import Shards
from harvest.store import audit, starts
from harvest.store.pool import Connection
from harvest.store.store import Store

MOST_ITEMS: Final = 1_000
MOST_BYTES: Final = REQUEST_BYTES
_AT_ONCE: Final = 8
_SHOWN: Final = 20
_LIMIT_SECONDS: Final = 30.0


class BatchItem(Struct, frozen=True):
    """What became of one item: its run, or why there is none."""

    started: Started | None
    error: HarvestError | None


class _Refused(Exception):
    """Items that an atomic batch cannot start, found inside its transaction. Never leaves this module."""

    def __init__(self, errors: dict[int, HarvestError]) -> None:
        super().__init__()
        self.errors = errors


async def start_batch(
    shards: Shards, actor: Actor, requests: Sequence[StartRequest], *, atomic: bool
) -> list[BatchItem]:
    """Start every request, in their order; an open run of a workflow id stands for its item, as with a single start.

    Not atomic, each item has its own outcome. Atomic, all begin in one transaction, or nothing does: an item that is
    not valid, or whose workflow id has an open run, refuses the batch. Items on several shards cannot be atomic.

    Raises BatchTooLargeError above 1,000 items or 16 MiB of inputs and memos; of an atomic batch BatchRefusedError
    (409, the items at fault in `fields["items"]`), and InvalidRequestError for one over several shards.
    """
    size = sum(len(request.input) + len(request.memo or b"") for request in requests)
    if len(requests) > MOST_ITEMS or size > MOST_BYTES:
        raise BatchTooLargeError(
            f"the batch has {len(requests):,} items and {size:,} bytes; at most {MOST_ITEMS:,} items and "
            f"{MOST_BYTES:,} bytes are allowed: send it in parts",
            items=len(requests),
            size=size,
            max_items_per_batch=MOST_ITEMS,
            max_total_bytes=MOST_BYTES,
        )
    if not requests:
        raise InvalidRequestError("items is empty: name at least one run to start", field="items")
    if atomic:
        return await _all_or_none(shards, actor, requests)
    room = asyncio.Semaphore(_AT_ONCE)
    return list(await asyncio.gather(*(_one(shards, actor, request, room) for request in requests)))


async def _one(shards: Shards, actor: Actor, request: StartRequest, room: asyncio.Semaphore) -> BatchItem:
    async with room:
        try:
            return BatchItem(await starting.start_one(shards, actor, request), None)
        except HarvestError as error:
            return BatchItem(None, error)


async def _all_or_none(shards: Shards, actor: Actor, requests: Sequence[StartRequest]) -> list[BatchItem]:
    try:
        prepared = await _prepared(shards, actor, requests)
        store = _only_store(prepared)
        started = await _in_one(store, actor, requests, prepared)
    except HarvestError as error:
        if not error.retryable:
            what = f"a batch of {len(requests)}"
            await record(shards, actor, "workflow.batch_start", "workflow", what, "failed", error.message)
        raise
    if any(each.created for each in started):
        # After the commit: a wake that comes before it finds nothing.
        store.waker.wake(None)
        for each, one in zip(started, prepared, strict=True):
            if each.created:
                store.hints.touch(one.new.partition)
    return [BatchItem(each, None) for each in started]


async def _prepared(shards: Shards, actor: Actor, requests: Sequence[StartRequest]) -> list[Prepared]:
    prepared: list[Prepared] = []
    errors: dict[int, HarvestError] = {}
    for index, request in enumerate(requests):
        try:
            prepared.append(await prepare(shards, actor, checked(request, shards.router)))
        except ShardUnavailableError:
            raise
        except HarvestError as error:
            errors[index] = error
    if not errors:
        errors = _repeated(requests, prepared)
    if errors:
        raise _refusal(requests, errors)
    return prepared


def _repeated(requests: Sequence[StartRequest], prepared: Sequence[Prepared]) -> dict[int, HarvestError]:
    """The items that name the run, or use the key, of one before them."""
    runs, keys = Counter[UUID](), Counter[tuple[str, str]]()
    errors: dict[int, HarvestError] = {}
    for index, (request, one) in enumerate(zip(requests, prepared, strict=True)):
        runs[one.new.business_key] += 1
        if runs[one.new.business_key] > 1:
            errors[index] = InvalidRequestError(f"workflow id {one.new.workflow_id!r} is in the batch twice")
        if request.idempotency_key is not None:
            key = (request.workflow_name, request.idempotency_key)
            keys[key] += 1
            if keys[key] > 1:
                errors[index] = InvalidRequestError(f"idempotency key {key[1]!r} is in the batch twice")
    return errors


def _only_store(prepared: Sequence[Prepared]) -> Store:
    by_shard = Counter(one.store.shard_id for one in prepared)
    if len(by_shard) > 1:
        where = ", ".join(f"{count} on shard {shard}" for shard, count in sorted(by_shard.items()))
        raise InvalidRequestError(
            f"an atomic batch must lie on one shard, as no transaction spans two; this one has {where}. Send a batch "
            "for each shard, or one that is not atomic with an idempotency key for each item, and repeat it until all "
            "began",
            field="atomic",
            items_by_shard={str(shard): count for shard, count in sorted(by_shard.items())},
        )
    return prepared[0].store


def _refusal(requests: Sequence[StartRequest], errors: dict[int, HarvestError]) -> BatchRefusedError:
    first = min(errors)
    items: list[dict[str, Any]] = [
        {
            "index": index,
            "workflow_name": requests[index].workflow_name,
            "workflow_id": requests[index].workflow_id,
            "code": error.code,
            "slug": error.slug,
            "detail": error.message,
        }
        for index, error in sorted(errors.items())[:_SHOWN]
    ]
    return BatchRefusedError(
        f"nothing was started: {len(errors):,} of {len(requests):,} items cannot be, the first is item {first}: "
        f"{errors[first].message}",
        items=items,
        refused=len(errors),
    )


async def _in_one(
    store: Store, actor: Actor, requests: Sequence[StartRequest], prepared: Sequence[Prepared]
) -> list[Started]:
    try:
        async with (
            store.write.connection(_LIMIT_SECONDS, writes=True) as connection,
            connection.transaction(),
        ):
            return await _start_all(store, connection, actor, requests, prepared)
    except _Refused as refused:
        raise _refusal(requests, refused.errors) from None


async def _start_all(
    store: Store,
    connection: Connection,
    actor: Actor,
    requests: Sequence[StartRequest],
    prepared: Sequence[Prepared],
) -> list[Started]:
    repeated = await _keyed(store, connection, requests, prepared)
    fresh = [one for index, one in enumerate(prepared) if index not in repeated]
    began = await starts.start_many_on(connection, [one.new for one in fresh])
    taken: dict[int, HarvestError] = {
        index: ExecutionExistsError(
            f"workflow {one.new.workflow_name!r} with id {one.new.workflow_id!r} has an open run"
        )
        for index, one in enumerate(prepared)
        if index not in repeated and one.new.execution_id not in began
    }
    if taken:
        raise _Refused(taken)
    entries = [
        audit_entry(
            actor,
            "workflow.start",
            shard_id=store.shard_id,
            target_id=str(one.new.execution_id),
            idempotency_key=request.idempotency_key,
            reason=f"with a batch of {len(prepared)}",
        )
        for index, (request, one) in enumerate(zip(requests, prepared, strict=True))
        if index not in repeated
    ]
    await audit.insert_many(connection, entries)
    return [
        repeated.get(index)
        or starting.started_answer(store, one.new.execution_id, one.new, State.RUNNING, created=True)
        for index, one in enumerate(prepared)
    ]


async def _keyed(
    store: Store,
    connection: Connection,
    requests: Sequence[StartRequest],
    prepared: Sequence[Prepared],
) -> dict[int, Started]:
    """The items whose idempotency key has led to a run before. Raises _Refused for a key of another request."""
    scoped = {
        index: f"{request.workflow_name}/{request.idempotency_key}"
        for index, request in enumerate(requests)
        if request.idempotency_key is not None
    }
    if not scoped:
        return {}
    wanted = [(prepared[index].new.execution_id, key) for index, key in scoped.items()]
    holders = await starts.take_start_keys(connection, wanted)
    found: dict[int, Started] = {}
    errors: dict[int, HarvestError] = {}
    for index, key in scoped.items():
        new, request = prepared[index].new, requests[index]
        if holders[key] == new.execution_id:
            continue
        try:
            found[index] = await starting.keyed_replay(
                store,
                connection,
                holders[key],
                request.idempotency_key or "",
                new,
                names_id=bool(request.workflow_id),
            )
        except HarvestError as error:
            errors[index] = error
    if errors:
        raise _Refused(errors)
    return found
