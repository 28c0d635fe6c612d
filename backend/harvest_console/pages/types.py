"""Names that every page's module uses."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response

AnyRequest = Request[Any, Any, Any]
Page = Response[str]
FRAGMENTS: Final = "/_f"


async def posted(request: AnyRequest) -> dict[str, str]:
    """The fields of a posted form; files are not taken, and of a repeated name the last one counts."""
    form = await request.form()
    return {name: value for name, value in form.multi_items() if isinstance(value, str)}


def base_path(request: AnyRequest) -> str:
    """The path below which a proxy serves the console."""
    path: str = request.app.state.settings.base_path
    return path
