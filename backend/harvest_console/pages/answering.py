"""Asking only the shards that did not answer a page, before anything else is read again."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from harvest.errors import InvalidRequestError
from harvest.operations import probing
from harvest.shards import Shards
from harvest_console.auth.routes import safe_next
from harvest_console.pages.types import FRAGMENTS, AnyRequest, Page, base_path
from harvest_console.rendering import render

ShardIds = Annotated[list[int] | None, QueryParameter(name="shard")]


@get(FRAGMENTS + "/shards/answering")
async def answering_region(request: AnyRequest, shards: Shards, over: ShardIds = None, again: str = "") -> Page:
    """Whether they answer now. `again` is the address of the page that did without them."""
    base = base_path(request)
    if not again.startswith(f"{base}/") or safe_next(again) != again:
        raise InvalidRequestError("again must be an address of this console", field="again")
    answer = await probing.answering(shards, sorted(set(over or ()) & set(shards.router.readable)))
    return render(request, "regions/answering.html", answer=answer, again_url=again)


handlers = [answering_region]
