"""From one LISTEN a shard to the event streams of all tabs of this process (console 5.4, answers 9)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from msgspec import Struct

from harvest import clock
from harvest.errors import HarvestError
from harvest.shards import Shards
from harvest.store import live as store_live
from harvest.store.store import Store
from harvest_console.live.topics import Topics

QUEUE_SIZE: Final = 64
RING_SIZE: Final = 256
STREAMS_EACH: Final = 4
PING_SECONDS: Final = 15.0
WATCH_EVERY: Final = 10.0
# Writers look at `watched_until` when they renew their lease, each 3 s; what they touched before that is caught by one
# more re-read.
NOTICE_SECONDS: Final = 3.5
FIRST_WATCH_LIMIT: Final = 0.5


class Hint(Struct, frozen=True):
    """One set of touched partitions, numbered; `partitions` of 0 means that anything may have changed."""

    number: int
    shard_id: int
    partitions: int


class Client:
    """One tab's stream: a bounded queue of frames. `None` in the queue ends it."""

    def __init__(self, owner: str, topics: Topics) -> None:
        self.owner = owner
        self.topics = topics
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE_SIZE)

    def offer(self, frames: list[bytes], instead: bytes) -> None:
        """Queue frames; where there is no room, drop all that waits and say `instead` (a resync) once."""
        if self.queue.qsize() + len(frames) > QUEUE_SIZE:
            while not self.queue.empty():
                self.queue.get_nowait()
            frames = [instead]
        for frame in frames:
            self.queue.put_nowait(frame)

    def end(self) -> None:
        """Let the stream end after what is queued; never blocks."""
        if self.queue.full():
            self.queue.get_nowait()
        self.queue.put_nowait(None)


class Hub:
    """Listens to every shard and tells each tab what concerns it. `start` before serving, `close` at the signal.

    `closing` is set by then, for streams that are not of tabs.
    """

    def __init__(self, shards: Shards) -> None:
        self.closing = asyncio.Event()
        self._shards = shards
        self._boot = clock.random_bytes(4).hex()
        self._number = 0
        self._ring: deque[Hint] = deque(maxlen=RING_SIZE)
        self._clients: set[Client] = set()
        self._wanted = asyncio.Event()
        self._watching = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def start(self) -> None:
        """Begin to listen; shards that are down are connected to when they are back."""
        for store in self._shards.stores.values():
            self._tasks.append(asyncio.create_task(self._listen(store)))
            self._tasks.append(asyncio.create_task(self._keep_watched(store)))

    async def close(self) -> None:
        """End every stream and stop listening. Safe to call more than once."""
        self._closed = True
        self.closing.set()
        for client in self._clients:
            client.end()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stream(self, owner: str, topics: Topics, last_event_id: str | None) -> AsyncIterator[bytes]:
        """The frames of one tab's stream.

        `owner` is the session: its fifth stream is told to poll instead and ends. A tab that comes back with the id
        of the last frame it saw gets what it missed, or `resync` when that is no longer known.
        """
        if self._closed or sum(client.owner == owner for client in self._clients) >= STREAMS_EACH:
            yield self._frame("poll")
            return
        client = Client(owner, topics)
        self._clients.add(client)
        self._wanted.set()
        try:
            await clock.wait_event(self._watching, FIRST_WATCH_LIMIT)
            for frame in self._greeting(topics, last_event_id):
                yield frame
            while True:
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        item = await client.queue.get()
                except TimeoutError:
                    yield b": ping\n\n"
                    continue
                if item is None:
                    return
                yield item
        finally:
            self._clients.discard(client)
            if not self._clients:
                self._wanted.clear()

    def _greeting(self, topics: Topics, last_event_id: str | None) -> list[bytes]:
        if not last_event_id:
            return [self._frame("hello")]
        missed = self._missed(last_event_id)
        if missed is None:
            return [self._frame("resync")]
        frames = [self._frame("hello")]
        for hint in missed:
            frames.extend(self._frames(topics, hint))
        return frames

    def _missed(self, last_event_id: str) -> list[Hint] | None:
        """Hints after the one a tab saw last; None when they are not all kept."""
        boot, _, number = last_event_id.rpartition("-")
        if boot != self._boot or not (number.isascii() and number.isdigit()) or int(number) > self._number:
            return None
        seen = int(number)
        oldest = self._ring[0].number if self._ring else self._number + 1
        if seen + 1 < oldest:
            return None
        return [hint for hint in self._ring if hint.number > seen]

    def _frames(self, topics: Topics, hint: Hint) -> list[bytes]:
        if not hint.partitions:
            return [self._frame("resync", hint.number)]
        return [self._frame(name, hint.number) for name in topics.events(hint.shard_id, hint.partitions)]

    def _frame(self, event: str, number: int | None = None) -> bytes:
        number = self._number if number is None else number
        return f"id: {self._boot}-{number}\nevent: {event}\ndata: {{}}\n\n".encode()

    def _tell(self, shard_id: int, partitions: int) -> None:
        self._number += 1
        hint = Hint(self._number, shard_id, partitions)
        self._ring.append(hint)
        for client in self._clients:
            if frames := self._frames(client.topics, hint):
                client.offer(frames, self._frame("resync", hint.number))

    async def _listen(self, store: Store) -> None:
        shard_id = store.shard_id
        await store_live.listen(
            store,
            on_touched=lambda partitions: self._tell(shard_id, partitions) if partitions else None,
            on_gap=lambda: self._tell(shard_id, 0),
        )

    async def _keep_watched(self, store: Store) -> None:
        """While any tab listens, ask the shard's writers for hints each 10 seconds."""
        while True:
            if not self._wanted.is_set():
                self._watching.clear()
                await self._wanted.wait()
            try:
                lapsed = await store_live.watch(store)
            except HarvestError:
                await clock.sleep(clock.jittered(2.0))
                continue
            self._watching.set()
            if lapsed:
                await clock.sleep(NOTICE_SECONDS)
                self._tell(store.shard_id, 0)
            await clock.sleep(WATCH_EVERY)
