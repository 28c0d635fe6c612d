"""Pages and regions as answers of the web layer."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, Final

from litestar import Request, Response

from harvest_console.rendering.environment import ENVIRONMENT
from harvest_console.rendering.page import PageTools

HTML: Final = "text/html"
AnyRequest = Request[Any, Any, Any]
# What ticks by itself in the browser, and the moment of the answer, are no change of a region.
_TICKING = re.compile(r'(<span[^>]* data-(?:since|until)="\d+"[^>]*>)[^<]*')
_HEADERS: Final = {"cache-control": "no-store", "vary": "cookie, hx-request"}


def render(request: AnyRequest, template: str, *, status: int = 200, **context: Any) -> Response[str]:
    """A whole page from `template`; `context` is added to what every page knows (`PageTools`)."""
    return Response(_text(request, template, context), status_code=status, media_type=HTML, headers=_HEADERS)


def render_region(request: AnyRequest, template: str, **context: Any) -> Response[str]:
    """A region of a page for a tab that has it already: 304 without a body when nothing but the time has changed."""
    text = _text(request, template, context)
    tag = blake2b(_TICKING.sub(r"\1", text).encode(), digest_size=12).hexdigest()
    headers = {**_HEADERS, "hx-ptag": tag}
    if request.headers.get("hx-ptag") == tag:
        return Response("", status_code=304, media_type=HTML, headers=headers)
    return Response(text, media_type=HTML, headers=headers)


def _text(request: AnyRequest, template: str, context: dict[str, Any]) -> str:
    tools = PageTools(request)
    return ENVIRONMENT.get_template(template).render(tools.context() | context)
