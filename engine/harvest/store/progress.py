"""Progress that workflow code publishes for whoever looks on: chunks that live for a minute and may be lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import asyncpg
from msgspec import Struct

from harvest.errors import ShardUnavailableError
from harvest.store.pool import Record
from harvest.store.store import Store

_log = logging.getLogger("harvest.store")
KEPT_SECONDS: Final = 60
MOST_CHUNKS: Final = 1_000
MOST_BYTES: Final = 4 * 1024 * 1024
READ_AT_ONCE: Final = 100

_PUBLISH: Final = """
insert into harvest_progress (execution_id, chunk)
select execution_id, chunk from unnest($1::uuid[], $2::bytea[]) with ordinality as p(execution_id, chunk, n)
 where not exists (select from harvest_erasures r where r.execution_id = p.execution_id)
 order by n"""

_AFTER: Final = f"""
select p.execution_id, p.seq, p.chunk
  from unnest($1::uuid[], $2::bigint[]) as w(execution_id, after)
 cross join lateral (
    select * from harvest_progress p
     where p.execution_id = w.execution_id and p.seq > w.after
     order by p.seq limit {READ_AT_ONCE}
 ) p"""

_NEWEST: Final = """
select seq, at, substring(chunk for $2) as head, octet_length(chunk) as bytes
  from harvest_progress where execution_id = $1 order by seq desc limit $3"""

_STANDING: Final = """
select e.state, (select coalesce(max(p.seq), 0) from harvest_progress p where p.execution_id = $1) as latest
  from harvest_executions e where e.execution_id = $1"""

SWEEP: Final = f"""
delete from harvest_progress where (execution_id, seq) in (
    select execution_id, seq from harvest_progress
     where at < clock_timestamp() - interval '{KEPT_SECONDS} seconds' order by at limit 10000)"""


class Chunk(Struct, frozen=True):
    """What a workflow has published: JSON text, numbered in the order in which it came."""

    seq: int
    data: bytes


async def publish(store: Store, chunks: Sequence[tuple[UUID, bytes]]) -> None:
    """Publish chunks (execution, JSON text) in their order; what comes late of a run that is erased is dropped."""
    await store.write.write(_PUBLISH, [each[0] for each in chunks], [each[1] for each in chunks])


async def after(store: Store, wanted: Mapping[UUID, int]) -> dict[UUID, list[Chunk]]:
    """For each execution the next chunks after a number, a hundred at most."""
    found: dict[UUID, list[Chunk]] = {}
    for row in await store.read.fetch(_AFTER, list(wanted), list(wanted.values())):
        found.setdefault(row["execution_id"], []).append(Chunk(row["seq"], row["chunk"]))
    return found


async def newest(store: Store, execution_id: UUID, *, head: int, limit: int) -> list[Record]:
    """The last chunks of an execution that are kept, the newest first, each cut to `head` bytes."""
    rows: list[Record] = await store.read.fetch(_NEWEST, execution_id, head, limit)
    return rows


async def standing(store: Store, execution_id: UUID) -> tuple[int, int] | None:
    """A run's state, and the number of its newest chunk that is kept, 0 for none. None: it is not here."""
    row = await store.read.fetch_row(_STANDING, execution_id)
    return None if row is None else (row["state"], row["latest"])


class ProgressWriter:
    """Publishes the chunks of a worker on one shard: one statement under way, all that came meanwhile in the next.

    Decisions do not wait for it. While the database does not keep up, the oldest chunks are lost.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._chunks: list[tuple[UUID, bytes]] = []
        self._bytes = 0
        self._writing: asyncio.Task[None] | None = None

    def add(self, execution_id: UUID, chunks: Sequence[bytes]) -> None:
        """Publish chunks of a run soon."""
        for chunk in chunks:
            self._chunks.append((execution_id, chunk))
            self._bytes += len(chunk)
        while len(self._chunks) > MOST_CHUNKS or self._bytes > MOST_BYTES:
            self._bytes -= len(self._chunks.pop(0)[1])
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def close(self) -> None:
        """Publish what is left, once."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write(self) -> None:
        while self._chunks:
            chunks, self._chunks, self._bytes = self._chunks, [], 0
            try:
                await publish(self._store, chunks)
            except (ShardUnavailableError, asyncpg.PostgresError) as error:
                _log.warning("shard %s: %d chunks of progress are lost: %s", self._store.shard_id, len(chunks), error)
