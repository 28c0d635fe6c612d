"""`GET /live`: a tab's event stream."""

from __future__ import annotations

from typing import Any

from litestar import Request, Router, get
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from harvest.operations.actor import Actor
from harvest_console.live.hub import Hub
from harvest_console.live.topics import parse_topics

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@get("/live", media_type="text/event-stream", opt={"exclude_from_compression": True}, include_in_schema=False)
async def live(request: Request[Any, Any, Any], actor: Actor, t: str = "") -> Stream:
    """Stream hints for the topics in `t`. A signed-out tab gets 401 from the guard, never a redirect (toolbox 2.4)."""
    hub: Hub = request.app.state.hub
    frames = hub.stream(actor.name, parse_topics(t), request.headers.get("last-event-id"))
    return Stream(frames, headers=HEADERS)


routers: list[ControllerRouterHandler] = [Router("/", route_handlers=[live])]
