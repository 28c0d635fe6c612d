"""Every route of the pages."""

from __future__ import annotations

from litestar import Router
from litestar.types import ControllerRouterHandler

from harvest_console.pages import (
    assets,
    audit,
    chain,
    closing,
    execution,
    help,
    history,
    overview,
    pausing,
    payload_pages,
    preferences,
    query,
    signal,
    stack,
    start,
    timeline,
    tree,
    update,
    update_answers,
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
            *history.handlers,
            *timeline.handlers,
            *tree.handlers,
            *chain.handlers,
            *payload_pages.handlers,
            *signal.handlers,
            *update.handlers,
            *update_answers.handlers,
            *query.handlers,
            *stack.handlers,
            *pausing.handlers,
            *closing.handlers,
            *audit.handlers,
            *preferences.handlers,
            *help.handlers,
        ],
        include_in_schema=False,
    )
]
