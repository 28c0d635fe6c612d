"""Where the runs of a business key are, as every shard answered, and where a new one would go."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import Request, Response, get
from msgspec import Struct

from harvest.operations import resolving
from harvest.operations.resolving import PlacedAt, Rule, ShardAnswer
from harvest.shards import Shards
from harvest_console.api.answers import UnavailableShard, answer, read_query, status_fields
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import Availability, Key, WorkflowId

AnyRequest = Request[Any, Any, Any]


class ResolveQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A business key."""

    workflow_name: Key
    workflow_id: WorkflowId


class ResolveAnswer(Struct, frozen=True, kw_only=True):
    """The run that the key means, by which rule, what each shard has of it, and where an unpinned start would go.

    `only_open` or, of several, `newest_open`; without an open run `newest_ended`; `none` when all shards answered and
    none has one; `unknown` when a shard that was not inspected may have an open one.
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
    status: Availability
    unavailable_shards: list[UnavailableShard]


@get(
    "/admin/resolve",
    opt={
        "doc": Doc(
            "Which run a business key means, and what each shard answered.",
            tag="shards",
            query=ResolveQuery,
            answers={200: ResolveAnswer},
        )
    },
)
async def resolve(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """Every readable shard is looked at; one that is not, and why, is named with its reason."""
    query = read_query(request, ResolveQuery)
    found = await resolving.inspect(shards, query.workflow_name, query.workflow_id)
    (resolution,) = found.rows
    told = {name: getattr(resolution, name) for name in resolution.__struct_fields__}
    return answer(ResolveAnswer(**told, **status_fields(found)))


handlers = [resolve]
