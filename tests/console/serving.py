"""A console that serves on a real socket, for clients that are none of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harvest_console.app import create_app
from harvest_console.cli.listener import listen
from harvest_console.cli.serving import serve
from harvest_console.settings import Settings


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[str]:
    """Serve a console on a free port of this machine; gives its address."""
    listener = listen("127.0.0.1", 0)
    stop, started = asyncio.Event(), asyncio.Event()

    async def ready() -> None:
        started.set()

    serving = asyncio.create_task(serve(create_app(settings), listener, stop, ready))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        waiting.cancel()
        stop.set()
        await serving
