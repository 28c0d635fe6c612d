"""The one guard of the console: every route that is not marked `public` needs a known caller."""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.handlers import BaseRouteHandler

from harvest.errors import ForbiddenError, HarvestError, ShardUnavailableError, UnauthenticatedError
from harvest_console.auth.caller import NOBODY, Caller, Connection, actor_of, caller_of, identify, settings_of
from harvest_console.auth.csrf import SAFE, check_same_origin, check_token
from harvest_console.auth.denials import Denials
from harvest_console.auth.errors import HostRefusedError
from harvest_console.settings import is_loopback


async def guard(connection: Connection, handler: BaseRouteHandler) -> None:
    """Let the request pass, or raise why not. Who it was is then in the request's state; refusals are audited."""
    try:
        _check_host(connection)
        if handler.opt.get("public"):
            if connection.scope.get("method") not in SAFE:
                check_same_origin(connection)
            return
        await _authenticate(connection)
    except (UnauthenticatedError, ForbiddenError) as error:
        if _worth_a_row(connection):
            await _note(connection, error)
        raise


def _check_host(connection: Connection) -> None:
    """On a console for this machine alone, a foreign host name is a page that was rebound to our address."""
    if settings_of(connection).loopback and not is_loopback(connection.url.hostname or ""):
        raise HostRefusedError(
            f"this console serves this machine only; {connection.headers.get('host', '')[:200]!r} is not its name: "
            "use http://127.0.0.1 or http://localhost"
        )


async def _authenticate(connection: Connection) -> None:
    caller = await identify(connection)
    if caller is None:
        raise UnauthenticatedError("nobody is signed in: send the bearer token, or sign in with the printed link")
    connection.scope["state"]["caller"] = caller
    if caller.session is None or connection.scope.get("method") in SAFE:
        return
    check_same_origin(connection)
    await check_token(_as_request(connection))
    if not caller.session.confirmed:
        raise ShardUnavailableError("the shards that know this session do not answer: changes must wait")


def _as_request(connection: Connection) -> Request[Any, Any, Any]:
    if not isinstance(connection, Request):
        raise UnauthenticatedError("only HTTP requests are served")
    return connection


def _worth_a_row(connection: Connection) -> bool:
    """Everything but a signed-out browser looking at a page: that is no attempt at anything."""
    return (
        connection.scope.get("method") not in SAFE
        or "authorization" in connection.headers
        or caller_of(connection) is not None
    )


async def _note(connection: Connection, error: HarvestError) -> None:
    caller: Caller | None = caller_of(connection)
    denials: Denials = connection.app.state.denials
    actor = caller.actor if caller else actor_of(connection, NOBODY)
    await denials.record(actor, connection.url.path[:1000], error)
