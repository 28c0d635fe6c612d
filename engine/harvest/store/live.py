"""Live hints of one shard: asking for them, and listening to them on a connection of its own (answers 9)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import asyncpg

from harvest import clock
from harvest.history.ids import PARTITIONS
from harvest.store.pool import COMMON, GOING_DOWN, LOST
from harvest.store.store import Store

CHANNEL: Final = "harvest_live"
WATCH_SECONDS: Final = 20
_CONNECT_LIMIT: Final = 3.0
_PROBE_SECONDS: Final = 15.0
_FIRST_DELAY: Final = 0.2
_LONGEST_DELAY: Final = 10.0

# The row is read before it is changed, so the answer tells whether hints had been switched off until now.
_WATCH: Final = """
with before as (select watched_until < clock_timestamp() as lapsed from harvest_meta)
update harvest_meta set watched_until = greatest(watched_until, clock_timestamp() + make_interval(secs => $1))
returning (select lapsed from before) as lapsed
"""


async def watch(store: Store) -> bool:
    """Ask this shard's writers for hints during the next 20 seconds; tells whether they had been switched off.

    Raises ShardUnavailableError.
    """
    rows: list[Any] = await store.write.write(_WATCH, float(WATCH_SECONDS), limit=2.0)
    return any(row["lapsed"] for row in rows)


def touched_partitions(payload: str) -> int:
    """The set of partitions that a hint names, as an integer whose bit p stands for partition p.

    Damaged payloads mean "anything may have changed": a hint too many costs one read, a hint too few a stale page.
    """
    try:
        partitions = int(payload, 16)
    except ValueError:
        return (1 << PARTITIONS) - 1
    return partitions & ((1 << PARTITIONS) - 1)


async def listen(store: Store, on_touched: Callable[[int], None], on_gap: Callable[[], None]) -> None:
    """Call `on_touched` with each hint's set of partitions until cancelled; reconnects by itself.

    `on_gap` is called when the connection is lost, so that readers learn of it, and when it is there again: LISTEN is
    in force by then, so a read that follows sees everything that was missed.
    """
    delay = _FIRST_DELAY
    while True:
        try:
            connection = await _connect(store.url)
        except (*LOST, *GOING_DOWN, asyncpg.PostgresError):
            await clock.sleep(clock.jittered(delay))
            delay = min(delay * 2, _LONGEST_DELAY)
            continue
        try:
            await _follow(connection, on_touched, on_gap)
            delay = _FIRST_DELAY
        except (*LOST, *GOING_DOWN, asyncpg.PostgresError):
            await clock.sleep(clock.jittered(delay))
        finally:
            connection.terminate()
        on_gap()


async def _connect(url: str) -> Any:
    async with asyncio.timeout(_CONNECT_LIMIT):
        return await asyncpg.connect(
            url,
            timeout=_CONNECT_LIMIT,
            command_timeout=5,
            server_settings={**COMMON, "application_name": "harvest-live"},
        )


async def _follow(connection: Any, on_touched: Callable[[int], None], on_gap: Callable[[], None]) -> None:
    """Deliver hints until the connection is lost; a statement each 15 seconds finds half-open links."""
    lost = asyncio.Event()
    connection.add_termination_listener(lambda _: lost.set())
    async with asyncio.timeout(_CONNECT_LIMIT):
        await connection.add_listener(CHANNEL, lambda *args: on_touched(touched_partitions(args[3])))
    on_gap()
    while not await clock.wait_event(lost, _PROBE_SECONDS):
        async with asyncio.timeout(_CONNECT_LIMIT):
            await connection.execute("select 1")
