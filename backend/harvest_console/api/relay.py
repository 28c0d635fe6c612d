"""What is under way between shards, and what of it makes no progress."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get
from msgspec import Struct

from harvest.operations import relay
from harvest.operations.relay import FailingDelivery, InFlight
from harvest.shards import Shards
from harvest_console.api.answers import UnavailableShard, answer, read_query, status_fields
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import Availability, NoQuery

AnyRequest = Request[Any, Any, Any]


class RelayAnswer(Struct, frozen=True, kw_only=True):
    """Children on other shards by source, target and status, and the deliveries that were tried most often in vain.

    Where `capped`, there are at least so many; with `in_flight_capped` there may be ways that are not listed.
    """

    in_flight: list[InFlight]
    in_flight_capped: bool
    failing: list[FailingDelivery]
    failing_capped: bool
    status: Availability
    unavailable_shards: list[UnavailableShard]


@get(
    "/admin/shards/relay",
    opt={
        "doc": Doc(
            "Children on other shards that are under way, and deliveries between shards that fail.",
            tag="shards",
            query=NoQuery,
            answers={200: RelayAnswer},
        )
    },
)
async def get_relay(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """What comes from a shard that does not answer is not in it; what goes there is."""
    read_query(request, NoQuery)
    found = await relay.relay(shards)
    return answer(
        RelayAnswer(
            in_flight=found.in_flight,
            in_flight_capped=found.in_flight_capped,
            failing=found.failing,
            failing_capped=found.failing_capped,
            **status_fields(found.shards),
        )
    )


handlers = [get_relay]
