"""Live hints of one shard: asking for them, and listening to them on a connection of its own (answers 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from harvest.history.ids import PARTITIONS
from harvest.store import listening
from harvest.store.store import Store
from harvest.store.wakes import LIVE_CHANNEL

WATCH_SECONDS: Final = 20

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
    await listening.listen(store, LIVE_CHANNEL, lambda text: on_touched(touched_partitions(text)), on_gap, on_gap)
