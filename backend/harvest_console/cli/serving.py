"""The console's HTTP server inside our own event loop, under our own signals (toolbox 3)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING

import uvicorn
from litestar import Litestar

from harvest import clock
from harvest.errors import ConfigurationError

if TYPE_CHECKING:
    from harvest_console.live.hub import Hub

_GRACE_SECONDS = 5


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals alone: uvicorn raises them again after `serve`, and nothing after it would run."""
        yield


async def serve(
    app: Litestar, listener: socket.socket, stop: asyncio.Event, ready: Callable[[], Awaitable[None]]
) -> None:
    """Serve `app` on `listener` until `stop` is set; `ready` is called once requests are answered.

    Event streams end at the signal, not after the grace: the hub in the app's state is closed first.
    Raises ConfigurationError if the app cannot start; its reason is in the log.
    """
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        timeout_keep_alive=30,
    )
    server = _Server(config)
    serving = asyncio.create_task(_serve(server, listener))
    try:
        while not server.started and not serving.done():
            await clock.sleep(0.01)
        if not serving.done():
            await ready()
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
    finally:
        hub: Hub | None = app.state.get("hub")
        if hub is not None:
            await hub.close()
        server.should_exit = True
        await serving


async def _serve(server: _Server, listener: socket.socket) -> None:
    try:
        await server.serve(sockets=[listener])
    except SystemExit as error:  # uvicorn's way to say that the lifespan failed
        raise ConfigurationError("the console could not start; the reason is in the log above") from error
