"""Following what a run publishes of its progress, until it ends: one poll a shard for all who look on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Final
from uuid import UUID
from weakref import WeakKeyDictionary

from msgspec import Struct

from harvest import clock
from harvest.errors import ExecutionNotFoundError, HarvestError
from harvest.history.ids import ExecutionId
from harvest.operations.asking import ask
from harvest.operations.views import state_word
from harvest.shards import Shards
from harvest.store import progress, reads
from harvest.store.progress import Chunk

POLL_SECONDS: Final = 0.1
CLOSED_EVERY: Final = 5
# What a run published before it ended is written a moment after its end.
LINGER_POLLS: Final = 3
QUEUED_CHUNKS: Final = 1_000


class Ended(Struct, frozen=True):
    """The run has ended in this state; nothing follows."""

    execution_id: UUID
    state: str


class Published(Struct, frozen=True):
    """A chunk that is still kept: when it came, its first bytes, and its size in bytes."""

    seq: int
    at: datetime
    head: bytes
    size: int


async def recent(shards: Shards, execution_id: UUID, *, limit: int = 10, head: int = 400) -> list[Published]:
    """What a run published in the last minute, the newest first. Raises ShardUnavailableError."""
    shard_id = shards.store_of(execution_id).shard_id
    rows = await ask(shards, shard_id, lambda store: progress.newest(store, execution_id, head=head, limit=limit))
    return [Published(row["seq"], row["at"], row["head"], row["bytes"]) for row in rows]


class _Follower:
    """One who looks on. A slow one loses the oldest chunks."""

    def __init__(self, execution_id: UUID, after: int) -> None:
        self.execution_id = execution_id
        self.after = after
        self.chunks: deque[Chunk] = deque(maxlen=QUEUED_CHUNKS)
        self.changed = asyncio.Event()
        self.error: HarvestError | None = None
        self.polls_left: int | None = None

    def take(self, chunks: list[Chunk]) -> None:
        """Chunks have come; they are in order, and may be known already."""
        new = [chunk for chunk in chunks if chunk.seq > self.after]
        if new:
            self.after = new[-1].seq
            self.chunks.extend(new)
            self.changed.set()
        elif self.polls_left:
            self.polls_left -= 1
            if not self.polls_left:
                self.changed.set()

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and nothing has come since."""
        return self.polls_left == 0

    def fail(self, error: HarvestError) -> None:
        """The shard does not answer."""
        self.error = error
        self.changed.set()


class _Followers:
    """Everybody in this process who looks on at runs of a shard; it is polled while somebody does."""

    def __init__(self, shards: Shards, shard_id: int) -> None:
        self._shards = shards
        self._shard_id = shard_id
        self._followers: list[_Follower] = []
        self._poll: asyncio.Task[None] | None = None

    def add(self, follower: _Follower) -> None:
        """Begin to tell it."""
        self._followers.append(follower)
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._keep_polling())

    def remove(self, follower: _Follower) -> None:
        """It looks on no more."""
        self._followers.remove(follower)

    async def _keep_polling(self) -> None:
        polls = 0
        while self._followers:
            try:
                await self._tell(look_for_ends=polls % CLOSED_EVERY == 0)
            except HarvestError as error:
                for follower in self._followers:
                    follower.fail(error)
                return
            polls += 1
            await clock.sleep(POLL_SECONDS)

    async def _tell(self, *, look_for_ends: bool) -> None:
        wanted: dict[UUID, int] = {}
        for follower in self._followers:
            wanted[follower.execution_id] = min(follower.after, wanted.get(follower.execution_id, follower.after))
        found = await ask(self._shards, self._shard_id, lambda store: progress.after(store, wanted))
        for follower in self._followers:
            follower.take(found.get(follower.execution_id, []))
        if look_for_ends:
            ended = set(await ask(self._shards, self._shard_id, lambda store: reads.closed_among(store, list(wanted))))
            for follower in self._followers:
                if follower.execution_id in ended and follower.polls_left is None:
                    follower.polls_left = LINGER_POLLS


_of_shards: WeakKeyDictionary[Shards, dict[int, _Followers]] = WeakKeyDictionary()


async def follow(
    shards: Shards, execution_id: UUID, *, last_seen: int | None = None, quiet: float = 15.0
) -> AsyncGenerator[Chunk | Ended | None, None]:
    """What a run publishes from now on, then how it ended; None whenever nothing has come for `quiet` seconds.

    A caller that comes back says which chunk it saw last, and misses nothing that is still kept. Raises
    ExecutionNotFoundError and ShardUnavailableError; what is returned raises the latter when the shard stops answering.
    """
    shard_id = shards.store_of(ExecutionId(int=execution_id.int)).shard_id
    _, latest = await _standing(shards, shard_id, execution_id)
    follower = _Follower(execution_id, latest if last_seen is None else min(last_seen, latest))
    return _told(shards, shard_id, follower, quiet)


async def _told(
    shards: Shards, shard_id: int, follower: _Follower, quiet: float
) -> AsyncGenerator[Chunk | Ended | None, None]:
    of_shard = _of_shards.setdefault(shards, {})
    followers = of_shard.setdefault(shard_id, _Followers(shards, shard_id))
    followers.add(follower)
    try:
        while True:
            came = await clock.wait_event(follower.changed, quiet)
            follower.changed.clear()
            while follower.chunks:
                yield follower.chunks.popleft()
            if follower.error is not None:
                raise follower.error
            if follower.is_over:
                state, _ = await _standing(shards, shard_id, follower.execution_id)
                yield Ended(follower.execution_id, state)
                return
            if not came:
                yield None
    finally:
        followers.remove(follower)


async def _standing(shards: Shards, shard_id: int, execution_id: UUID) -> tuple[str, int]:
    """A run's state and its newest chunk."""
    found = await ask(shards, shard_id, lambda store: progress.standing(store, execution_id))
    if found is None:
        raise ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=str(execution_id))
    return state_word(found[0]), found[1]
