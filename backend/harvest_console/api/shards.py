"""Whether each shard is ready for work, whether one that is to be added would be, and how the liveness probes go."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from litestar import Request, Response, get
from msgspec import Meta, Struct

from harvest.history.ids import RESERVED_SHARD
from harvest.operations import canary, shard_health
from harvest.operations.canary import STALE_SECONDS, Probe
from harvest.operations.shard_health import Readiness, ShardReadiness
from harvest.shards import Shards
from harvest.store.canary import INTERVAL_SECONDS
from harvest_console.api.answers import UnavailableShard, answer, read_query, status_fields
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import Availability, NoQuery

AnyRequest = Request[Any, Any, Any]
_TAG = "shards"


class ShardsHealthQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A shard to look at beside the readable ones: it needs no more than a database here."""

    candidate_shard: Annotated[int, Meta(ge=0, lt=RESERVED_SHARD)] | None = None


class ShardsHealthAnswer(Struct, frozen=True, kw_only=True):
    """Every readable shard, and the candidate. `overall_readiness` is the worst of the readable ones.

    A worker counts as living for `freshness_window_secs` after it was last heard of.
    """

    overall_readiness: Readiness
    freshness_window_secs: float
    observed_at: datetime
    shards: list[ShardReadiness]
    candidate_shard: ShardReadiness | None
    status: Availability
    unavailable_shards: list[UnavailableShard]


class CanaryAnswer(Struct, frozen=True, kw_only=True):
    """The probes of each queue on each writable shard.

    One is begun each `interval_secs`; without a success for `stale_after_secs` it is stale. `probing` says whether this
    console begins probes; others may.
    """

    probing: bool
    interval_secs: float
    stale_after_secs: float
    probes: list[Probe]
    status: Availability
    unavailable_shards: list[UnavailableShard]


@get(
    "/admin/shards/health",
    opt={
        "doc": Doc(
            "Whether each shard is ready for work, with reason codes.",
            tag=_TAG,
            query=ShardsHealthQuery,
            answers={200: ShardsHealthAnswer},
        )
    },
)
async def get_shards_health(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """A shard that does not answer is `unavailable`, and holds up no other."""
    query = read_query(request, ShardsHealthQuery)
    found = await shard_health.health(shards, query.candidate_shard, with_bytes=True)
    return answer(
        ShardsHealthAnswer(
            overall_readiness=found.overall_readiness,
            freshness_window_secs=found.freshness_window_secs,
            observed_at=found.observed_at,
            shards=found.shards,
            candidate_shard=found.candidate_shard,
            **status_fields(found.partial),
        )
    )


@get(
    "/admin/canary",
    opt={
        "doc": Doc(
            "How the liveness probes of each queue and writable shard go.",
            tag=_TAG,
            query=NoQuery,
            answers={200: CanaryAnswer},
        )
    },
)
async def get_canary(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """A probe is a run that is started, decided by a worker, and removed; one that is under way is named."""
    read_query(request, NoQuery)
    found = await canary.probes(shards)
    return answer(
        CanaryAnswer(
            probing=request.app.state.settings.canary,
            interval_secs=INTERVAL_SECONDS,
            stale_after_secs=STALE_SECONDS,
            probes=found.rows,
            **status_fields(found),
        )
    )


handlers = [get_shards_health, get_canary]
