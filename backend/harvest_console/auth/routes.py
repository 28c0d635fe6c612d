"""Signing in and out, by a link or by the admin token.

A link is spent by the form's POST alone: opening it, or a preview of it, spends nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, Router, get, post
from litestar.enums import RequestEncodingType
from litestar.params import Body
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from harvest.errors import ForbiddenError, SigninLinkError
from harvest.operations.signin import Session, Sessions, begin_session, note_refusal, spend_link
from harvest.shards import Shards
from harvest_console.auth.caller import NOBODY, actor_of, caller_of, is_admin_token, settings_of
from harvest_console.auth.cookies import session_cookie
from harvest_console.auth.pace import TokenPace
from harvest_console.rendering import render

AnyRequest = Request[Any, Any, Any]


class SigninForm(Struct, frozen=True):
    """The sign-in page's form: the link's token, and the page to go on to."""

    token: str = ""
    next: str = ""


class TokenForm(Struct, frozen=True):
    """The other form of the page: the admin token, and the page to go on to."""

    admin_token: str = ""
    next: str = ""


def safe_next(text: str) -> str:
    """A path of this console to go on to; anything that could lead elsewhere becomes the overview."""
    inside = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and "\\" not in text
    return text if inside else "/"


@get("/signin", opt={"public": True}, include_in_schema=False)
async def signin_page(request: AnyRequest, token: str = "", next: str = "") -> Response[str]:
    """The page with the one button; without a token it says where links come from."""
    return _page(request, next, token=token)


@post("/signin", opt={"public": True}, include_in_schema=False)
async def sign_in(
    request: AnyRequest,
    shards: Shards,
    data: Annotated[SigninForm, Body(media_type=RequestEncodingType.URL_ENCODED)],
) -> Response[Any]:
    """Spend the link and begin a session."""
    try:
        session = await spend_link(shards, actor_of(request, NOBODY), data.token)
    except SigninLinkError as error:
        return _page(request, data.next, status=403, refused=error.message)
    return _signed_in(request, session, data.next)


@post("/signin/token", opt={"public": True}, include_in_schema=False)
async def sign_in_by_token(
    request: AnyRequest,
    shards: Shards,
    data: Annotated[TokenForm, Body(media_type=RequestEncodingType.URL_ENCODED)],
) -> Response[Any]:
    """Trade HARVEST_ADMIN_TOKEN for a session; wrong ones are audited, as far as they are looked at."""
    settings = settings_of(request)
    if not settings.token_signin:
        raise ForbiddenError("nobody signs in by token here: HARVEST_ADMIN_TOKEN was not set when the console started")
    pace: TokenPace = request.app.state.token_pace
    address = request.client.host if request.client else ""
    actor = actor_of(request, NOBODY)
    if not pace.may_try(address):
        return _page(request, data.next, status=429, refused="too many wrong tokens; wait a little and try again")
    if not is_admin_token(settings, data.admin_token):
        pace.was_wrong(address)
        refused = "this is not the console's admin token"
        await note_refusal(shards, actor, refused)
        return _page(request, data.next, status=403, refused=refused)
    return _signed_in(request, await begin_session(shards, actor), data.next)


def _page(request: AnyRequest, next: str, *, status: int = 200, token: str = "", refused: str = "") -> Response[str]:
    by_token = settings_of(request).token_signin
    return render(
        request, "signin.html", status=status, token=token, next=safe_next(next), refused=refused, by_token=by_token
    )


def _signed_in(request: AnyRequest, session: Session, next: str) -> Redirect:
    settings = settings_of(request)
    return Redirect(
        settings.base_path + safe_next(next), status_code=303, cookies=[session_cookie(request, settings, session)]
    )


@post("/signout", include_in_schema=False)
async def sign_out(request: AnyRequest) -> Redirect:
    """End the session and take its cookie away."""
    caller = caller_of(request)
    settings = settings_of(request)
    if caller is not None and caller.session is not None:
        sessions: Sessions = request.app.state.sessions
        await sessions.end(caller.session, caller.actor)
    return Redirect(settings.base_path + "/signin", status_code=303, cookies=[session_cookie(request, settings, None)])


handlers = [signin_page, sign_in, sign_in_by_token, sign_out]
routers: list[ControllerRouterHandler] = [Router("/", route_handlers=handlers)]
