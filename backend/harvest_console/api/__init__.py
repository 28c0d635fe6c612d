"""The management API under /api/harvest (reference 4): controllers parse, call one operation and answer."""

from litestar import Router
from litestar.types import ControllerRouterHandler

from harvest.operations.views import API_ROOT
from harvest_console.api import changes, executions, families, insight, lists, requests, starts, updates
from harvest_console.api.health import health
from harvest_console.api.openapi import openapi_route

_handlers = [
    *executions.handlers,
    *families.handlers,
    *insight.handlers,
    *lists.handlers,
    *starts.handlers,
    *changes.handlers,
    *updates.handlers,
    *requests.handlers,
]
routers: list[ControllerRouterHandler] = [
    health,
    Router(API_ROOT, route_handlers=[*_handlers, openapi_route([health, *_handlers], API_ROOT)]),
]

__all__ = ["routers"]
