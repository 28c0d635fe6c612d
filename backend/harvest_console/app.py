"""The factory of the console's web application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from litestar import Litestar, Request, Response
from litestar.datastructures import MutableScopeHeaders, State
from litestar.exceptions import HTTPException
from litestar.response import Redirect
from litestar.types import Message, Receive, Scope, Send
from litestar.types.asgi_types import LifeSpanReceive, LifeSpanScope, LifeSpanSend

from harvest.errors import UnauthenticatedError
from harvest.history.limits import REQUEST_BYTES
from harvest.operations.canary import Canary
from harvest.operations.signin import Sessions
from harvest.shards import Shards
from harvest.shards.connections import warn_of_room
from harvest_console import live, pages
from harvest_console.api import routers as api_routers
from harvest_console.auth.caller import caller_of, is_api, presumed, request_id, request_id_of
from harvest_console.auth.denials import Denials
from harvest_console.auth.guard import guard
from harvest_console.auth.pace import TokenPace
from harvest_console.auth.routes import routers as auth_routers
from harvest_console.deps import DEPENDENCIES
from harvest_console.live import Hub
from harvest_console.paths import routable
from harvest_console.presence import console_presence
from harvest_console.problems import log_unexpected, problem_response
from harvest_console.rendering import build_url
from harvest_console.settings import Settings

AnyRequest = Request[Any, Any, Any]
SECURITY_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Console(Litestar):
    """The application; encoded slashes in paths stay inside the part they were written in."""

    async def __call__(
        self,
        scope: Scope | LifeSpanScope,
        receive: Receive | LifeSpanReceive,
        send: Send | LifeSpanSend,
    ) -> None:
        """Route by the path as it was sent."""
        if scope["type"] != "lifespan":
            scope["path"] = routable(scope["raw_path"], scope["path"])
        await super().__call__(scope, receive, send)


def create_app(settings: Settings) -> Console:
    """The console over the shards of `settings`; shards that are down are connected to when they are back."""
    return Console(
        path=settings.base_path or "/",
        route_handlers=[*api_routers, *auth_routers, *live.routers, *pages.routers],
        dependencies=DEPENDENCIES,
        guards=[guard],
        lifespan=[_running(settings)],
        state=State({"settings": settings, "token_pace": TokenPace()}),
        exception_handlers={Exception: _answer_error, HTTPException: _answer_error},
        before_send=[_add_headers],
        request_max_body_size=REQUEST_BYTES,
        openapi_config=None,
        logging_config=None,
    )


def _running(settings: Settings) -> Callable[[Litestar], Any]:
    @asynccontextmanager
    async def running(app: Litestar) -> AsyncIterator[None]:
        shards = await Shards.open(settings.urls, settings.router)
        hub = Hub(shards)
        app.state.update({"shards": shards, "hub": hub, "sessions": Sessions(shards), "denials": Denials(shards)})
        await hub.start()
        presence, canary = console_presence(shards), Canary(shards)
        presence.start()
        asking = asyncio.create_task(warn_of_room(shards, "console", presence.process, lambda store: store.write))
        if settings.canary:
            canary.start()
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await hub.close()
            await asyncio.gather(canary.stop(), presence.stop())
            await shards.close()

    return running


async def _add_headers(message: Message, scope: Scope) -> None:
    if message["type"] != "http.response.start":
        return
    headers = MutableScopeHeaders.from_message(message)
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    headers["x-request-id"] = request_id_of(scope)


def _answer_error(request: AnyRequest, error: Exception) -> Response[Any]:
    log_unexpected(request, error)
    # An event stream that is answered by a redirect to a page makes its client spin.
    if is_api(request) or request.url.path.endswith("/live") or "text/html" not in request.headers.get("accept", ""):
        return problem_response(request, error)
    if isinstance(error, UnauthenticatedError):
        return _to_signin(request)
    # A path that is no route has no guard; the page still shows whose it is.
    if caller_of(request) is None:
        request.scope["state"]["caller"] = presumed(request)
    return pages.error_page(request, error, request_id(request))


def _to_signin(request: AnyRequest) -> Response[Any]:
    """Send a browser to the sign-in page and back to where it was; htmx by the header that it follows."""
    base = request.app.state.settings.base_path
    if "hx-request" in request.headers:
        return Response("", status_code=401, headers={"hx-redirect": build_url(base, "/signin")})
    here = request.url.path.removeprefix(base) + (f"?{request.url.query}" if request.url.query else "")
    return Redirect(build_url(base, "/signin", next=here if request.method == "GET" else "/"), status_code=303)
