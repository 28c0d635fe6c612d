"""How warm the fleet decides, and how the last decisions of one execution went."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import Request, Response, get
from msgspec import Struct

from harvest.errors import ExecutionNotFoundError, ShardUnavailableError
from harvest.operations import decisions, warmth
from harvest.operations.decisions import Decisions
from harvest.operations.warmth import Warmth, WarmthAnswerFields, Window
from harvest.shards import Shards
from harvest_console.api.answers import UnavailableShard, answer, read_query, unavailable
from harvest_console.api.doc import Doc
from harvest_console.api.pairs import read_pair
from harvest_console.api.shapes import Availability, NoQuery

AnyRequest = Request[Any, Any, Any]


class WarmthQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How far back to sum."""

    window: Window = "1h"


class WarmthAnswer(WarmthAnswerFields, frozen=True, kw_only=True):
    """What was decided in the window on the shards that answered, and how much of it warm."""

    status: Availability
    unavailable_shards: list[UnavailableShard]


@get(
    "/admin/warmth",
    opt={
        "doc": Doc(
            "How warm the fleet decides: by outcome, workflow type, queue and worker, and over time.",
            tag="warmth",
            query=WarmthQuery,
            answers={200: WarmthAnswer},
        )
    },
)
async def get_warmth(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """Summed from what each worker writes every five seconds; no worker is asked."""
    found: Warmth = await warmth.warmth(shards, read_query(request, WarmthQuery).window)
    fields: dict[str, Any] = {name: getattr(found, name) for name in (*WarmthAnswerFields.__struct_fields__, "status")}
    return answer(WarmthAnswer(**fields, unavailable_shards=unavailable(found.missing)))


async def _decisions(request: AnyRequest, shards: Shards, execution_id: UUID) -> Response[bytes]:
    """The last 200 attempts that were kept, oldest first; under load not all are."""
    read_query(request, NoQuery)
    return answer(await decisions.decisions(shards, execution_id))


handlers = [
    get_warmth,
    *read_pair(
        "/decisions",
        Doc(
            "How the last decisions of an execution went, with the time of each step.",
            query=NoQuery,
            answers={200: Decisions},
            refusals=(ExecutionNotFoundError, ShardUnavailableError),
        ),
        _decisions,
    ),
]
