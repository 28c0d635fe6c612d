"""How every process routes, and where they do not agree."""

from __future__ import annotations

from litestar import Response, get
from msgspec import Struct

from harvest.operations import topology
from harvest.operations.topology import STALE_SECONDS, FieldView, ProcessView
from harvest.shards import Shards
from harvest_console.api.answers import UnavailableShard, answer, read_query, status_fields
from harvest_console.api.doc import Doc
from harvest_console.api.pairs import AnyRequest
from harvest_console.api.shapes import Availability, NoQuery


class TopologyAnswer(Struct, frozen=True, kw_only=True):
    """Processes that differ from most first, fields that differ first.

    A process is `stale` that was not heard of for `stale_after_seconds`; what it told does not count.
    """

    differing_fields: list[str]
    fields: list[FieldView]
    processes: list[ProcessView]
    stale_after_seconds: float
    status: Availability
    unavailable_shards: list[UnavailableShard]


@get(
    "/admin/topology",
    opt={
        "doc": Doc(
            "How every process routes, and where they do not agree.",
            tag="fleet",
            query=NoQuery,
            answers={200: TopologyAnswer},
        )
    },
)
async def get_topology(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """Each worker and console tells every ten seconds; one that ends well is gone at once, any other after a day."""
    read_query(request, NoQuery)
    found = await topology.topology(shards)
    (known,) = found.rows
    return answer(
        TopologyAnswer(
            differing_fields=known.differing,
            fields=known.fields,
            processes=known.processes,
            stale_after_seconds=STALE_SECONDS,
            **status_fields(found),
        )
    )


handlers = [get_topology]
