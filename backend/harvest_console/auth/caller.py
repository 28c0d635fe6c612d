"""Who sends a request: a bearer token's holder or a signed-in person, as the actor that operations record."""

from __future__ import annotations

import hmac
import re
from typing import Any, Final

from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.types import Scope
from msgspec import Struct

from harvest import clock
from harvest.errors import UnauthenticatedError
from harvest.operations.actor import Actor, Source
from harvest.operations.signin import Session, Sessions
from harvest_console.auth.cookies import read_cookie
from harvest_console.settings import Settings

Connection = ASGIConnection[Any, Any, Any, Any]
API_PATH: Final = "/api/harvest"
TOKEN_ACTOR: Final = "token:admin"
NOBODY: Final = "anonymous"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ON_BEHALF_CHARACTERS: Final = 255


class Caller(Struct, frozen=True):
    """A known caller; `session` is set for people, None for the holder of the token."""

    actor: Actor
    session: Session | None = None


def settings_of(connection: Connection) -> Settings:
    """The settings of the console that serves the request."""
    settings: Settings = connection.app.state.settings
    return settings


def request_id(connection: Connection) -> str:
    """The request's id: the caller's own when it is a sane one, else minted; the same for the whole request."""
    return request_id_of(connection.scope)


def request_id_of(scope: Scope) -> str:
    """The same for code that has the scope alone."""
    known = scope["state"].get("request_id")
    if known is None:
        given = Headers.from_scope(scope).get("x-request-id", "")
        known = given if _REQUEST_ID.fullmatch(given) else f"req-{clock.random_bytes(8).hex()}"
        scope["state"]["request_id"] = known
    return str(known)


def is_api(connection: Connection) -> bool:
    """Whether the request is for the API rather than for a page."""
    return connection.url.path.startswith(settings_of(connection).base_path + API_PATH)


def actor_of(connection: Connection, name: str) -> Actor:
    """`name` with what the request says about itself. A claimed actor is kept apart (answers 11)."""
    source: Source = "ui"
    if is_api(connection):
        source = "cli" if connection.headers.get("x-harvest-source") == "cli" else "api"
    claimed = "".join(c for c in connection.headers.get("x-harvest-actor", "") if c.isprintable())
    template = connection.scope.get("path_template") or connection.url.path
    return Actor(
        name=name,
        source=source,
        request_id=request_id(connection),
        route=f"{connection.scope.get('method', 'GET')} {template}",
        on_behalf_of=claimed[:_ON_BEHALF_CHARACTERS] or None,
    )


def is_admin_token(settings: Settings, token: str) -> bool:
    """Whether `token` is the console's, compared in constant time."""
    expected = settings.admin_token
    return expected is not None and hmac.compare_digest(token.strip().encode(), expected.encode())


async def identify(connection: Connection) -> Caller | None:
    """The caller by bearer token, else by session cookie; None when the request claims to be nobody.

    Raises UnauthenticatedError for a token that is not ours, ShardUnavailableError when a session cannot be checked.
    """
    settings = settings_of(connection)
    header = connection.headers.get("authorization")
    if header is not None:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not is_admin_token(settings, token):
            raise UnauthenticatedError("the Authorization header does not carry this console's token")
        return Caller(actor_of(connection, TOKEN_ACTOR))
    claimed = read_cookie(connection, settings)
    if claimed is None:
        return None
    sessions: Sessions = connection.app.state.sessions
    session = await sessions.verify(claimed)
    return Caller(actor_of(connection, session.actor), session) if session else None


def presumed(connection: Connection) -> Caller | None:
    """Whose cookie it is by its seal alone, for pages that no guard stands before; grants nothing."""
    claimed = read_cookie(connection, settings_of(connection))
    if claimed is None or claimed.expires_at <= clock.now():
        return None
    return Caller(actor_of(connection, claimed.actor), claimed)


def caller_of(connection: Connection) -> Caller | None:
    """Who the guard found the caller to be; None on public routes and before the guard has run."""
    caller: Caller | None = connection.scope["state"].get("caller")
    return caller
