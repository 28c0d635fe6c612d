"""Owner mode of the shards, and the partitions of each: read, turned on, turned off."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, get, post
from msgspec import Meta, Struct

from harvest.errors import (
    InvalidRequestError,
    NotTableOwnerError,
    OutcomeUnknownError,
    OwnerModeBusyError,
    OwnerModeRefusedError,
    ShardUnavailableError,
)
from harvest.history.limits import REASON_CHARACTERS
from harvest.operations import owner_mode, partitions
from harvest.operations.actor import Actor
from harvest.operations.owner_mode import OwnerModeChange, OwnerModeStatus
from harvest.operations.partitions import MOST_ENTRIES, PartitionJournal, PartitionMap
from harvest.shards import Shards
from harvest_console.api.answers import UnavailableShard, answer, read_body, read_query, status_fields
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import Availability, NoQuery
from harvest_console.paths import part

AnyRequest = Request[Any, Any, Any]
_TAG = "ownership"


class OwnerModeAnswer(Struct, frozen=True, kw_only=True):
    """Owner mode on each shard that answered."""

    shards: list[OwnerModeStatus]
    status: Availability
    unavailable_shards: list[UnavailableShard]


class OwnerModeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """On or off, and why: the audit log keeps it."""

    enabled: bool
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARACTERS)]


class JournalQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A window of a journal: entries older than the one with the id `before`, which a `next_cursor` names."""

    before: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_ENTRIES)] = 50


@get(
    "/admin/owner-mode",
    opt={
        "doc": Doc(
            "Whether owner mode is on, and what its preconditions find, for each shard.",
            tag=_TAG,
            query=NoQuery,
            answers={200: OwnerModeAnswer},
        )
    },
)
async def get_owner_mode(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """A precondition that is not met names the workers that offend against it."""
    read_query(request, NoQuery)
    found = await owner_mode.status(shards)
    return answer(OwnerModeAnswer(shards=found.rows, **status_fields(found)))


@post(
    "/admin/shards/{shard_id:str}/owner-mode",
    status_code=200,
    opt={
        "doc": Doc(
            "Turn owner mode on or off.",
            tag=_TAG,
            query=NoQuery,
            body=OwnerModeBody,
            answers={200: OwnerModeChange},
            refusals=(
                OwnerModeRefusedError,
                NotTableOwnerError,
                OwnerModeBusyError,
                ShardUnavailableError,
                OutcomeUnknownError,
            ),
        )
    },
)
async def set_owner_mode(
    request: AnyRequest, shards: Shards, actor: Actor, shard_id: str, body: bytes
) -> Response[bytes]:
    """Refused with 409 while the living workers do not allow it: `blockers` has each reason and its workers."""
    read_query(request, NoQuery)
    wanted = read_body(body, OwnerModeBody)
    change = owner_mode.enable if wanted.enabled else owner_mode.disable
    return answer(await change(shards, actor, _number(shard_id, "shard_id"), reason=wanted.reason))


@get(
    "/admin/shards/{shard_id:str}/partitions",
    opt={
        "doc": Doc(
            "Who owns each partition of a shard.",
            tag=_TAG,
            query=NoQuery,
            answers={200: PartitionMap},
            refusals=(InvalidRequestError, ShardUnavailableError),
        )
    },
)
async def get_partitions(request: AnyRequest, shards: Shards, shard_id: str) -> Response[bytes]:
    """All of one moment; without owner mode no partition has an owner."""
    read_query(request, NoQuery)
    return answer(await partitions.partition_map(shards, _number(shard_id, "shard_id")))


@get(
    "/admin/shards/{shard_id:str}/partitions/{partition:str}/journal",
    opt={
        "doc": Doc(
            "What befell a partition, newest first.",
            tag=_TAG,
            query=JournalQuery,
            answers={200: PartitionJournal},
            refusals=(ShardUnavailableError,),
        )
    },
)
async def get_partition_journal(request: AnyRequest, shards: Shards, shard_id: str, partition: str) -> Response[bytes]:
    """Who acquired and released it, whose lease on it expired, and whose late commits were refused."""
    query = read_query(request, JournalQuery)
    found = await partitions.journal(
        shards,
        _number(shard_id, "shard_id"),
        _number(partition, "partition"),
        before=query.before,
        limit=query.limit,
    )
    return answer(found)


def _number(text: str, field: str) -> int:
    text = part(text)
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise InvalidRequestError(f"{field} is {text[:40]!r}; it must be a number", field=field)
    return int(text)


handlers = [get_owner_mode, set_owner_mode, get_partitions, get_partition_journal]
