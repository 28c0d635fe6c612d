"""Whether the console is alive. Says nothing about the shards: a console without them still tells what is wrong."""

from __future__ import annotations

from litestar import Response, get
from msgspec import Struct

from harvest_console.api.answers import answer
from harvest_console.api.doc import Doc


class Health(Struct, frozen=True):
    """The console serves requests."""

    status: str


@get(
    ["/health", "/api/harvest/health"],
    opt={"public": True, "doc": Doc("Whether the console serves requests.", tag="health", answers={200: Health})},
)
async def health() -> Response[bytes]:
    """Answer at once, without asking a shard."""
    return answer(Health("ok"))
