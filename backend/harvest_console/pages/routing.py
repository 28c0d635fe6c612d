"""Every route of the pages."""

from __future__ import annotations

from litestar import Router
from litestar.types import ControllerRouterHandler

from harvest_console.pages import (
    assets,
    audit,
    closing,
    execution,
    help,
    overview,
    payload_pages,
    preferences,
    signal,
    start,
    workflows,
)

routers: list[ControllerRouterHandler] = [
    Router(
        "/",
        route_handlers=[
            *assets.handlers,
            *overview.handlers,
            *workflows.handlers,
            *start.handlers,
            *execution.handlers,
            *payload_pages.handlers,
            *signal.handlers,
            *closing.handlers,
            *audit.handlers,
            *preferences.handlers,
            *help.handlers,
        ],
        include_in_schema=False,
    )
]
