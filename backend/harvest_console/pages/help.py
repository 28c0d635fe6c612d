"""`GET /help/keys`: the keyboard shortcuts, for who opens the link without scripts."""

from __future__ import annotations

from litestar import get

from harvest_console.pages.types import AnyRequest, Page
from harvest_console.rendering import render


@get("/help/keys", sync_to_thread=False)
def keys_page(request: AnyRequest) -> Page:
    """The same table as the dialog."""
    return render(request, "keys.html")


handlers = [keys_page]
