"""A proxy before PostgreSQL's socket that loses answers, swallows packets and cuts connections of a role."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PORT = 5432
BIND = b"B"


class Link:
    """One proxied connection; `role` is the application name that it gave."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter, role: str) -> None:
        self.client = client
        self.server = server
        self.role = role
        self.losing = False
        self.mute = False

    def cut(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


class Proxy:
    """Forwards everything until told otherwise. `url` leads through it, `delay` is seconds before each request."""

    def __init__(self, url: str, folder: Path) -> None:
        parts = urlsplit(url)
        self._real = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.{parse_qs(parts.query)['port'][0]}"
        self._path = folder / f".s.PGSQL.{PORT}"
        self.url = f"postgresql://postgres@{parts.path}?host={folder}&port={PORT}".replace("@/", "@/", 1)
        self.links: set[Link] = set()
        self.lost = 0
        self.accepted = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.delay = 0.0
        self._to_lose: tuple[str, bool] | None = None
        self._stalled: str | None = None
        self._flows = asyncio.Event()
        self._flows.set()

    def lose_next(self, role: str, *, request: bool = False) -> None:
        """The next statement on a connection of this role loses its answer, or itself, and its connection."""
        self._to_lose = (role, request)

    def stall(self, role: str = "") -> None:
        """Packets of connections whose role begins so go nowhere, and none of them is closed."""
        self._stalled = role
        self._flows.clear()

    def mute(self, role: str) -> int:
        """Links of this role that are open now stay open, and nothing ever comes through them again."""
        links = [link for link in self.links if link.role == role]
        for link in links:
            link.mute = True
        return len(links)

    def flow(self) -> None:
        """Forward again."""
        self._stalled = None
        self._flows.set()

    def cut(self, role: str = "") -> int:
        """Close connections whose role begins so."""
        links = [link for link in self.links if link.role.startswith(role)]
        for link in links:
            link.cut()
        return len(links)

    async def run(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._accepted, self._path)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cut everything."""
        self.flow()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.accepted += 1
        hello = await from_client.read(65536)
        words = hello[8:].split(b"\0")
        role = words[words.index(b"application_name") + 1].decode() if b"application_name" in words else ""
        try:
            from_server, server = await asyncio.open_unix_connection(self._real)
        except OSError:
            client.transport.abort()
            return
        link = Link(client, server, role)
        self.links.add(link)
        try:
            await self._open(link)
            server.write(hello)
            await asyncio.gather(self._requests(link, from_client), self._answers(link, from_server))
        finally:
            self.links.discard(link)
            link.cut()

    async def _open(self, link: Link) -> None:
        while self._stalled is not None and link.role.startswith(self._stalled):
            await self._flows.wait()

    async def _requests(self, link: Link, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._open(link)
                if self.delay:
                    await asyncio.sleep(self.delay)
                if link.mute:
                    continue
                if self._to_lose is not None and self._to_lose[0] == link.role and data[:1] == BIND:
                    _, request = self._to_lose
                    self._to_lose = None
                    self.lost += 1
                    if request:
                        break
                    link.losing = True
                link.server.write(data)
                await link.server.drain()
        link.cut()

    async def _answers(self, link: Link, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if link.losing:
                    break
                await self._open(link)
                if link.mute:
                    continue
                link.client.write(data)
                await link.client.drain()
        link.cut()


@contextlib.asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy in front of this database."""
    with tempfile.TemporaryDirectory(prefix="hvx-") as folder:
        proxy = Proxy(url, Path(folder))
        server = await proxy.run()
        try:
            yield proxy
        finally:
            server.close()
            await proxy.close()
