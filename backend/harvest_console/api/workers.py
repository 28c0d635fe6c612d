"""The fleet: workers and how they do, draining and evicting them, and the configuration that is in force."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from uuid import UUID

from litestar import Request, Response, get, post
from msgspec import Meta, Struct

from harvest.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    ShardUnavailableError,
    WorkerNotFoundError,
    WorkerStoppedError,
)
from harvest.history.limits import NAME_BYTES, REASON_CHARACTERS
from harvest.operations import configuration, workers
from harvest.operations.actor import Actor
from harvest.operations.configuration import Coverage, PayloadCaps, PoolConfig, ShardTopology, WorkerConfig
from harvest.operations.worker_views import (
    Drained,
    DrainPreview,
    Evicted,
    Health,
    PinnedRun,
    QueueHealth,
    ShardHealth,
    Status,
    UncoveredDefinition,
    WorkerDetail,
    WorkerSummary,
)
from harvest.operations.workers import MOST_WORKERS, WorkerFilter
from harvest.shards import Shards
from harvest.shards.connections import ServerRoom
from harvest_console.api.answers import UnavailableShard, answer, read_body, read_query, status_fields
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import Availability, Instant, NoQuery, ReasonBody
from harvest_console.auth.caller import settings_of
from harvest_console.paths import part

AnyRequest = Request[Any, Any, Any]
_TAG = "fleet"
_TOLD = (WorkerNotFoundError, WorkerStoppedError, ShardUnavailableError, OutcomeUnknownError)
ShardNumber = Annotated[int, Meta(ge=0, le=65_535)]
Limit = Annotated[int, Meta(ge=1, le=MOST_WORKERS)]


class WorkersQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which workers; those that ended within the last hour are among them."""

    queue: Annotated[str, Meta(min_length=1, max_length=NAME_BYTES)] | None = None
    shard_id: ShardNumber | None = None
    status: Status | None = None
    health: Health | None = None
    limit: Limit = 100


class WorkersAnswer(Struct, frozen=True, kw_only=True):
    """The workers, those that drain first."""

    workers: list[WorkerSummary]
    status: Availability
    unavailable_shards: list[UnavailableShard]


class HealthAnswer(Struct, frozen=True, kw_only=True):
    """The fleet in figures, and the definitions that open work needs and no living worker has."""

    healthy: int
    stale: int
    draining: int
    by_shard: list[ShardHealth]
    by_queue: list[QueueHealth]
    uncovered_definitions: list[UncoveredDefinition]
    status: Availability
    unavailable_shards: list[UnavailableShard]


class PinnedQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How many runs."""

    limit: Limit = 100


class PinnedAnswer(Struct, frozen=True, kw_only=True):
    """Runs that wait to be decided and that others leave to this worker; the pin that ends first is first."""

    worker_id: UUID
    pinned: list[PinnedRun]
    status: Availability
    unavailable_shards: list[UnavailableShard]


class PreviewQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """One worker; all of them without it."""

    worker_id: UUID | None = None


class PreviewAnswer(Struct, frozen=True, kw_only=True):
    """What draining each worker would do now."""

    workers: list[DrainPreview]
    status: Availability
    unavailable_shards: list[UnavailableShard]


class DrainBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Until when what runs may go on, and why; without a deadline the worker's own `drain_timeout` holds."""

    deadline_at: Instant | None = None
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)] = ""


class Features(Struct, frozen=True, kw_only=True):
    """What is set up here, without saying what it is set to."""

    admin_token: bool
    token_signin: bool
    base_path: bool


class ConfigAnswer(Struct, frozen=True, kw_only=True):
    """The configuration in force: of the living workers, together and each, and of this console."""

    worker: Coverage
    workers: list[WorkerConfig]
    payload_caps: PayloadCaps
    shard_topology: ShardTopology
    features: Features
    pool: list[PoolConfig]
    pools: list[ServerRoom]
    status: Availability
    unavailable_shards: list[UnavailableShard]


@get(
    "/workers",
    opt={"doc": Doc("List workers over all shards.", tag=_TAG, query=WorkersQuery, answers={200: WorkersAnswer})},
)
async def list_workers(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """Each process once; `health` is `healthy` while its lease lives on every shard."""
    query = read_query(request, WorkersQuery)
    wanted = WorkerFilter(queue=query.queue, shard_id=query.shard_id, status=query.status, health=query.health)
    found = await workers.list_workers(shards, wanted, limit=query.limit)
    return answer(WorkersAnswer(workers=found.rows, **status_fields(found)))


@get(
    "/workers/health",
    opt={"doc": Doc("How the fleet does, in figures.", tag=_TAG, query=NoQuery, answers={200: HealthAnswer})},
)
async def get_fleet_health(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """Workers that have stopped do not count; one that drains is healthy or stale, too."""
    read_query(request, NoQuery)
    found = await workers.fleet_health(shards)
    (health,) = found.rows
    return answer(
        HealthAnswer(**{name: getattr(health, name) for name in health.__struct_fields__}, **status_fields(found))
    )


@get(
    "/workers/drain-preview",
    opt={
        "doc": Doc(
            "What draining a worker would do.",
            tag=_TAG,
            query=PreviewQuery,
            answers={200: PreviewAnswer},
            refusals=(WorkerNotFoundError, WorkerStoppedError, ShardUnavailableError),
        )
    },
)
async def get_drain_preview(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """What it has in hand, and which queues and types nobody else would serve."""
    query = read_query(request, PreviewQuery)
    found = await workers.drain_preview(shards, query.worker_id)
    return answer(PreviewAnswer(workers=found.rows, **status_fields(found)))


@get(
    "/workers/{worker_id:str}",
    opt={
        "doc": Doc(
            "One worker: its shards, definitions, configuration and report.",
            tag=_TAG,
            query=NoQuery,
            answers={200: WorkerDetail},
            refusals=(WorkerNotFoundError, ShardUnavailableError),
        )
    },
)
async def get_worker(request: AnyRequest, shards: Shards, worker_id: str) -> Response[bytes]:
    """The id is that of the process's incarnation: a worker that starts again has another."""
    read_query(request, NoQuery)
    return answer(await workers.get(shards, _worker_id(worker_id)))


@get(
    "/workers/{worker_id:str}/pinned",
    opt={
        "doc": Doc(
            "The runs that others leave to a worker now.",
            tag=_TAG,
            query=PinnedQuery,
            answers={200: PinnedAnswer},
            refusals=(WorkerNotFoundError, ShardUnavailableError),
        )
    },
)
async def list_pinned(request: AnyRequest, shards: Shards, worker_id: str) -> Response[bytes]:
    """A pin lasts for the worker's `lease_ttl` from the wake that set it."""
    query = read_query(request, PinnedQuery)
    worker = _worker_id(worker_id)
    found = await workers.pinned(shards, worker, limit=query.limit)
    return answer(PinnedAnswer(worker_id=worker, pinned=found.rows, **status_fields(found)))


@post(
    "/workers/{worker_id:str}/drain",
    status_code=200,
    opt={
        "doc": Doc(
            "Have a worker finish what runs, hand over and end.",
            tag=_TAG,
            query=NoQuery,
            body=DrainBody,
            answers={200: Drained},
            refusals=_TOLD,
        )
    },
)
async def drain_worker(
    request: AnyRequest, shards: Shards, actor: Actor, worker_id: str, body: bytes
) -> Response[bytes]:
    """It hears of it within about a second, claims nothing more, and is not started again by its parent."""
    read_query(request, NoQuery)
    wanted = read_body(body, DrainBody)
    done = await workers.drain(
        shards, actor, _worker_id(worker_id), deadline_at=wanted.deadline_at, reason=wanted.reason
    )
    return answer(done)


@post(
    "/workers/{worker_id:str}/evict",
    status_code=200,
    opt={
        "doc": Doc(
            "Have a worker let go of its parked runs.",
            tag=_TAG,
            query=NoQuery,
            body=ReasonBody,
            answers={200: Evicted},
            refusals=_TOLD,
        )
    },
)
async def evict_worker(
    request: AnyRequest, shards: Shards, actor: Actor, worker_id: str, body: bytes
) -> Response[bytes]:
    """The next decision of each is cold; nothing is lost by it."""
    read_query(request, NoQuery)
    return answer(await workers.evict(shards, actor, _worker_id(worker_id), reason=read_body(body, ReasonBody).reason))


@get(
    "/admin/config",
    opt={
        "doc": Doc(
            "The configuration in force, with where each option comes from.",
            tag=_TAG,
            query=NoQuery,
            answers={200: ConfigAnswer},
        )
    },
)
async def get_config(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """No secret is in it: only whether there is one. Durations are in milliseconds."""
    read_query(request, NoQuery)
    settings = settings_of(request)
    found, rooms = await asyncio.gather(configuration.worker_configs(shards), configuration.server_rooms(shards))
    return answer(
        ConfigAnswer(
            worker=configuration.coverage(found.rows),
            pools=rooms.rows,
            workers=found.rows,
            payload_caps=configuration.payload_caps(),
            shard_topology=configuration.topology(shards),
            features=Features(
                admin_token=settings.admin_token is not None,
                token_signin=settings.token_signin,
                base_path=bool(settings.base_path),
            ),
            pool=configuration.pools(),
            **status_fields(found),
        )
    )


def _worker_id(text: str) -> UUID:
    try:
        return UUID(part(text))
    except ValueError:
        raise InvalidRequestError(
            f"{text[:80]!r} is not a worker id; it must look like 00000000-0000-4000-8000-000000000000",
            field="worker_id",
        ) from None


handlers = [
    list_workers,
    get_fleet_health,
    get_drain_preview,
    get_worker,
    list_pinned,
    drain_worker,
    evict_worker,
    get_config,
]
