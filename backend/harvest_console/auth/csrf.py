"""Changing requests must come from our own pages: the fetch metadata, the origin, and a token bound to the session."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

from litestar import Request

from harvest.operations.signin import Session
from harvest_console.auth.caller import Connection, caller_of, settings_of
from harvest_console.auth.errors import CrossSiteError

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
HEADER: Final = "x-csrf-token"
FIELD: Final = "csrf"
_PURPOSE: Final = b"harvest csrf 1\x00"
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")


def csrf_token(request: Connection) -> str:
    """The token that this session's forms carry; empty where nobody is signed in."""
    caller = caller_of(request)
    if caller is None or caller.session is None:
        return ""
    return token_for(settings_of(request).secret_key, caller.session)


def token_for(key: bytes, session: Session) -> str:
    """The token of one session, under the console's key."""
    return hmac.digest(key, _PURPOSE + session.secret, sha256).hex()


def check_same_origin(request: Connection) -> None:
    """Refuse a changing request that a browser says comes from elsewhere; raises CrossSiteError."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site not in ("same-origin", "none"):
            raise CrossSiteError("this request was sent by another site's page")
        return
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise CrossSiteError("this request was sent by another origin's page")


async def check_token(request: Request[Any, Any, Any]) -> None:
    """Refuse a changing request of a session that lacks the session's token; raises CrossSiteError."""
    sent = request.headers.get(HEADER)
    if sent is None and request.headers.get("content-type", "").split(";")[0].strip().lower() in _FORMS:
        field = (await request.form()).get(FIELD)
        sent = field if isinstance(field, str) else None
    if sent is None or not hmac.compare_digest(sent.encode(), csrf_token(request).encode()):
        raise CrossSiteError(
            "the request has no valid CSRF token: send it as X-CSRF-Token or in the form field `csrf`"
            if sent is None
            else "the CSRF token is not this session's: load the page again"
        )
