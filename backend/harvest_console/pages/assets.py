"""`GET /static/…`: the files of `static`, by dictionary lookup (toolbox 1.2)."""

from __future__ import annotations

from litestar import Response, get
from litestar.exceptions import NotFoundException

from harvest_console.rendering.assets import ASSETS

FOR_EVER = {"cache-control": "public, max-age=31536000, immutable"}


@get("/static/{digest:str}/{name:str}", opt={"public": True}, sync_to_thread=False)
def static_file(digest: str, name: str) -> Response[bytes]:
    """One file; an address with another digest than today's file has is not found."""
    found = ASSETS.content(digest, name)
    if found is None:
        raise NotFoundException("there is no such file")
    content, media_type = found
    return Response(content, media_type=media_type, headers=FOR_EVER)


handlers = [static_file]
