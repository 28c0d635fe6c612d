"""Listening to one channel of a shard on a connection of its own: LISTEN, then scan, and proof of life (design 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import asyncpg

from harvest import clock
from harvest.store.address import Address
from harvest.store.pool import COMMON, GOING_DOWN, LOST, Connection, connect
from harvest.store.store import Store

_CONNECT_LIMIT: Final = 3.0
_PROBE_SECONDS: Final = 10.0
_FIRST_DELAY: Final = 0.2
_LONGEST_DELAY: Final = 5.0
_PROBE: Final = "probe:"


async def listen(
    store: Store,
    channel: str,
    on_payload: Callable[[str], None],
    on_gap: Callable[[], None],
    on_lost: Callable[[], None] = lambda: None,
) -> None:
    """Call `on_payload` with each notification on the shard's channel until cancelled; reconnects by itself.

    `on_gap` is called whenever notifications may have been missed: LISTEN is in force again by then, so a read that
    follows sees everything. `on_lost` is called when a connection ends. A link that looks open but delivers nothing is
    found by a notification to ourselves.
    """
    delay = _FIRST_DELAY
    channel = store.address.channel(channel)
    while True:
        connection = None
        try:
            connection = await _connect(store.address, channel)
            delay = _FIRST_DELAY
            await _follow(connection, channel, on_payload, on_gap)
        except (*LOST, *GOING_DOWN, asyncpg.PostgresError):
            await clock.sleep(clock.jittered(delay))
            delay = min(delay * 2, _LONGEST_DELAY)
        finally:
            if connection is not None:
                connection.terminate()
                on_lost()


async def _connect(address: Address, channel: str) -> Connection:
    async with asyncio.timeout(_CONNECT_LIMIT):
        return await connect(address, _CONNECT_LIMIT, name=f"harvest-listen-{channel}", **COMMON)


async def _follow(
    connection: Connection, channel: str, on_payload: Callable[[str], None], on_gap: Callable[[], None]
) -> None:
    lost, heard = asyncio.Event(), asyncio.Event()
    token = _PROBE + clock.random_bytes(8).hex()

    def received(_: Any, __: int, ___: str, text: str) -> None:
        if text == token:
            heard.set()
        elif not text.startswith(_PROBE):
            on_payload(text)

    connection.add_termination_listener(lambda _: lost.set())
    async with asyncio.timeout(_CONNECT_LIMIT):
        await connection.add_listener(channel, received)
    on_gap()
    while not await clock.wait_event(lost, _PROBE_SECONDS):
        heard.clear()
        async with asyncio.timeout(_CONNECT_LIMIT):
            await connection.execute("select pg_notify($1, $2)", channel, token)
            await heard.wait()
