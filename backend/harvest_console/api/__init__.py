"""The management API under /api/harvest (reference 4): controllers parse, call one operation and answer."""

from litestar import Router
from litestar.types import ControllerRouterHandler

from harvest.operations.views import API_ROOT
from harvest_console.api import (
    changes,
    erasure,
    executions,
    families,
    insight,
    legal_holds,
    lists,
    ownership,
    relay,
    requests,
    resolve,
    shards,
    starts,
    topology,
    triage,
    updates,
    usage,
    views,
    warmth,
    workers,
)
from harvest_console.api.health import health
from harvest_console.api.metrics import metrics
from harvest_console.api.openapi import openapi_route

_handlers = [
    *erasure.handlers,
    *executions.handlers,
    *families.handlers,
    *insight.handlers,
    *legal_holds.handlers,
    *lists.handlers,
    *ownership.handlers,
    *starts.handlers,
    *changes.handlers,
    *updates.handlers,
    *usage.handlers,
    *relay.handlers,
    *requests.handlers,
    *resolve.handlers,
    *shards.handlers,
    *topology.handlers,
    *triage.handlers,
    *views.handlers,
    *warmth.handlers,
    *workers.handlers,
]
routers: list[ControllerRouterHandler] = [
    health,
    metrics,
    Router(API_ROOT, route_handlers=[*_handlers, openapi_route([health, *_handlers], API_ROOT)]),
]

__all__ = ["routers"]
