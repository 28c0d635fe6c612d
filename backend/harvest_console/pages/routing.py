"""Every route of the pages."""

from __future__ import annotations

from litestar import Router
from litestar.types import ControllerRouterHandler

from harvest_console.pages import (
    assets,
    audit,
    chain,
    closing,
    decisions,
    execution,
    help,
    history,
    overview,
    owner_mode,
    partitions,
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
    warmth,
    worker,
    worker_acts,
    workers,
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
            *decisions.handlers,
            *pausing.handlers,
            *closing.handlers,
            *workers.handlers,
            *worker.handlers,
            *worker_acts.handlers,
            *warmth.handlers,
            *partitions.handlers,
            *owner_mode.handlers,
            *audit.handlers,
            *preferences.handlers,
            *help.handlers,
        ],
        include_in_schema=False,
    )
]
