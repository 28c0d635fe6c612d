"""Waking the holder of a run: the task row first, then a hint by NOTIFY, coalesced and of fixed size (design 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

import asyncpg

from harvest import clock
from harvest.errors import ShardUnavailableError

if TYPE_CHECKING:
    from harvest.store.store import Store

CHANNEL: Final = "harvest_wake"
LIVE_CHANNEL: Final = "harvest_live"
ANYBODY: Final = "*"
# Before a target: a question to running code waits for it (store/requests.py), and no task.
ASKED: Final = "?"
# Before a target: somebody wants something of the worker itself (store/workers.py).
ORDERED: Final = "&"
# Before a target: its owner loop is to look, for an offer, an answer to one, or the switch.
OWNERS: Final = "!"
# Before a target: a worker session waits for a worker.
SESSIONS: Final = "+"
# Sets a parked task pending and pins it to its last worker while that one lives; marks a held one as having news.
# To be formatted with the condition that names the executions.
WAKE_TASKS: Final = """
    update harvest_workflow_tasks t
       set state = case t.state when 2 then 0 when 1 then 3 else t.state end,
           due = case t.state when 2 then clock_timestamp() else t.due end,
           sort_at = case t.state when 2 then clock_timestamp() else t.sort_at end,
           sticky_until = case when t.state = 2 then coalesce((
               select clock_timestamp() + w.sticky_ttl * interval '1 second' from harvest_workers w
                where w.worker = t.sticky_worker and w.status = 'active' and w.lease_until > clock_timestamp()
           ), t.sticky_until) else t.sticky_until end
     where {condition}
 returning t.execution_id,
           coalesce(t.worker, (select p.owner from harvest_partitions p where p.partition = t.partition),
                    case when t.sticky_until > clock_timestamp() then t.sticky_worker end) as holder"""

_NOTIFY = "select pg_notify($1, target) from unnest($2::text[]) as target"


async def notify(store: Store, targets: set[str], channel: str = CHANNEL) -> None:
    """Tell other processes: `targets` are workers in hex, or `ANYBODY`. A lost hint costs one poll interval."""
    if targets:
        await store.scan.write(_NOTIFY, store.address.channel(channel), sorted(targets))


def target_of(holder: UUID | None) -> str:
    """The target that names a holder."""
    return ANYBODY if holder is None else holder.hex


class Waker:
    """Sends the wakes of a process for one shard: at most one NOTIFY under way, all that came meanwhile in the next.

    A worker in the same process sets `local`, and hears of every wake at once.
    """

    def __init__(self, store: Store) -> None:
        self.local: Callable[[str], bool] | None = None
        self._store = store
        self._targets: set[str] = set()
        self._sending: asyncio.Task[None] | None = None

    def wake(self, holder: UUID | None) -> None:
        """Wake the holder of a run, or anybody if nobody holds it."""
        self._tell(target_of(holder))

    def ask(self, worker: UUID | None) -> None:
        """Tell a worker, or all of them, that a question to running code waits."""
        self._tell(ASKED + target_of(worker))

    def tell_owner(self, worker: UUID | None) -> None:
        """Tell the owner loop of a worker, or all of them, to look."""
        self._tell(OWNERS + target_of(worker))

    def order(self, worker: UUID) -> None:
        """Tell a worker that it is to look at what people want of it."""
        self._tell(ORDERED + target_of(worker))

    def open_sessions(self) -> None:
        """Tell all workers that a session waits for one of them."""
        self._tell(SESSIONS + ANYBODY)

    def _tell(self, target: str) -> None:
        if self.local is not None and self.local(target):
            return
        self._targets.add(target)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        while self._targets:
            targets, self._targets = self._targets, set()
            try:
                await notify(self._store, targets)
            except (ShardUnavailableError, asyncpg.PostgresError):
                return

    async def close(self) -> None:
        """Wait for the NOTIFY under way."""
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)


class Hints:
    """Tells consoles which partitions were touched: one NOTIFY each 250 ms at most, 512 bits (answers 9)."""

    EVERY: Final = 0.25

    def __init__(self, store: Store) -> None:
        self.watched = True
        self._store = store
        self._touched = 0
        self._sending: asyncio.Task[None] | None = None

    def touch(self, partition: int) -> None:
        """Note that a run of this partition changed."""
        if not self.watched:
            return
        self._touched |= 1 << partition
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        while self._touched:
            touched, self._touched = self._touched, 0
            try:
                await notify(self._store, {f"{touched:0128x}"}, LIVE_CHANNEL)
            except (ShardUnavailableError, asyncpg.PostgresError):
                return
            await clock.sleep(self.EVERY)

    async def close(self) -> None:
        """Stop sending."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
