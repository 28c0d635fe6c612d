"""`POST /preferences`: theme, zone and shortcuts, kept in cookies of this browser."""

from __future__ import annotations

from litestar import Response, post
from litestar.response import Redirect

from harvest_console.auth.routes import safe_next
from harvest_console.pages.types import AnyRequest, base_path, posted
from harvest_console.rendering.preferences import preference_cookies


@post("/preferences")
async def choose(request: AnyRequest) -> Response[None]:
    """Keep what was chosen and go back to the page where that was."""
    form = await posted(request)
    base = base_path(request)
    cookies = preference_cookies(form, path=base, secure=request.url.scheme == "https")
    return Redirect(base + safe_next(form.get("back", "/")), status_code=303, cookies=cookies)


handlers = [choose]
