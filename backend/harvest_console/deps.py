"""What handlers may ask for by name: `shards` and `actor`."""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.di import Provide

from harvest.errors import UnauthenticatedError
from harvest.operations.actor import Actor
from harvest.shards import Shards
from harvest_console.auth.caller import caller_of


def provide_shards(request: Request[Any, Any, Any]) -> Shards:
    """The shards of this process."""
    shards: Shards = request.app.state.shards
    return shards


def provide_actor(request: Request[Any, Any, Any]) -> Actor:
    """Who sent the request, as operations record it."""
    caller = caller_of(request)
    if caller is None:
        raise UnauthenticatedError("nobody is signed in")
    return caller.actor


DEPENDENCIES = {
    "shards": Provide(provide_shards, sync_to_thread=False),
    "actor": Provide(provide_actor, sync_to_thread=False),
}
