"""Signing in and out. A link is spent by the form's POST alone: opening it, or a preview of it, spends nothing."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, Router, get, post
from litestar.enums import RequestEncodingType
from litestar.params import Body
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from harvest.errors import SigninLinkError
from harvest.operations.signin import Sessions, spend_link
from harvest.shards import Shards
from harvest_console.auth.caller import NOBODY, actor_of, caller_of, settings_of
from harvest_console.auth.cookies import session_cookie
from harvest_console.rendering import render

AnyRequest = Request[Any, Any, Any]


class SigninForm(Struct, frozen=True):
    """The sign-in page's form: the link's token, and the page to go on to."""

    token: str = ""
    next: str = ""


def safe_next(text: str) -> str:
    """A path of this console to go on to; anything that could lead elsewhere becomes the overview."""
    inside = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and "\\" not in text
    return text if inside else "/"


@get("/signin", opt={"public": True}, include_in_schema=False)
async def signin_page(request: AnyRequest, token: str = "", next: str = "") -> Response[str]:
    """The page with the one button; without a token it says where links come from."""
    return render(request, "signin.html", token=token, next=safe_next(next), error=None)


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
        return render(request, "signin.html", status=403, token="", next=safe_next(data.next), error=error)
    settings = settings_of(request)
    return Redirect(
        settings.base_path + safe_next(data.next), status_code=303, cookies=[session_cookie(request, settings, session)]
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


routers: list[ControllerRouterHandler] = [Router("/", route_handlers=[signin_page, sign_in, sign_out])]
