"""The session cookie: the session's secret, name and expiry under an HMAC (answers 10)."""

from __future__ import annotations

import base64
import hmac
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

import msgspec
from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie

from harvest import clock
from harvest.operations.signin import Session
from harvest_console.settings import Settings, is_loopback

PLAIN_NAME: Final = "harvest_session"
SECURE_NAME: Final = "__Host-harvest_session"
_PURPOSE: Final = b"harvest session 1\x00"


class _Content(msgspec.Struct, frozen=True, array_like=True):
    secret: bytes
    actor: str
    expires_at: datetime


def _signature(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, _PURPOSE + content, sha256)


def seal(key: bytes, session: Session) -> str:
    """The cookie's value for a session."""
    content = msgspec.json.encode(_Content(session.secret, session.actor, session.expires_at))
    return base64.urlsafe_b64encode(_signature(key, content) + content).decode()


def unseal(key: bytes, value: str) -> Session | None:
    """The session that a cookie's value claims; None if it was not sealed with `key`."""
    try:
        raw = base64.b64decode(value, altchars=b"-_", validate=True)
    except ValueError:
        return None
    signature, content = raw[:32], raw[32:]
    if not hmac.compare_digest(signature, _signature(key, content)):
        return None
    claimed = msgspec.json.decode(content, type=_Content)
    return Session(secret=claimed.secret, actor=claimed.actor, expires_at=claimed.expires_at)


def _is_plain(connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
    """Whether a cookie without Secure is right: plain http on this machine, and nothing else."""
    return connection.url.scheme == "http" and is_loopback(connection.url.hostname or "")


def read_cookie(connection: ASGIConnection[Any, Any, Any, Any], settings: Settings) -> Session | None:
    """The session that the request's cookie claims, if its seal is ours."""
    value = connection.cookies.get(PLAIN_NAME if _is_plain(connection) else SECURE_NAME)
    return unseal(settings.secret_key, value) if value else None


def session_cookie(
    connection: ASGIConnection[Any, Any, Any, Any], settings: Settings, session: Session | None
) -> Cookie:
    """The cookie that carries `session`, or that takes it away when None."""
    plain = _is_plain(connection)
    return Cookie(
        key=PLAIN_NAME if plain else SECURE_NAME,
        value=seal(settings.secret_key, session) if session else "",
        max_age=max(0, int((session.expires_at - clock.now()).total_seconds())) if session else 0,
        path=(settings.base_path or "/") if plain else "/",
        secure=not plain,
        httponly=True,
        samesite="lax",
    )
