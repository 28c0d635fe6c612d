"""Connections to one database: every await on it passes here and has a limit on this side (design 1 and 4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

import asyncpg
from msgspec import Struct

from harvest import clock
from harvest.errors import OutcomeUnknownError, ShardUnavailableError
from harvest.store.address import Address

Record = Mapping[str, Any]
Connection = Any  # asyncpg's connection and its pool proxy have no common base
LOST = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.InternalClientError,  # the driver, when a server dies between two messages of one statement
)
GOING_DOWN = (asyncpg.AdminShutdownError, asyncpg.CrashShutdownError)
QUIET_SECONDS = 1.0
# Rolled back, out of resources, system error; lock not available, query cancelled, read-only.
_PASSING_CLASSES = {"40": "rolled_back", "53": "no_room", "58": "system_error"}
_PASSING_STATES = {
    "40P01": "deadlock",
    "40001": "serialization",
    "55P03": "lock",
    "57014": "cancelled",
    "25006": "read_only",
}


class Role(Struct, frozen=True):
    """What a pool is for: its size, its limits in seconds, and settings of each of its sessions.

    `for_people` says that those who ask hear of a passing refusal as of a shard that does not answer; a worker's loops
    tell them apart.
    """

    name: str
    size: int
    limit: float = 30.0
    connect_limit: float = 5.0
    settings: dict[str, str] = {}
    for_people: bool = False


# Everything hot is reached by a key. A plan made while a table was small may read it from end to end, and is kept until
# the next ANALYZE: with 20,000 parked runs each commit then took 17 ms.
BY_KEY = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
COMMIT = Role("commit", 2, settings={"enable_nestloop": "off", **BY_KEY})
CLAIM = Role("claim", 2, settings=BY_KEY)
SCAN = Role("scan", 2, settings=BY_KEY)
DELIVER = Role("deliver", 2, limit=10.0, settings={"statement_timeout": "5000", **BY_KEY})
WRITE = Role(
    "write",
    8,
    limit=5.0,
    connect_limit=1.5,
    settings={"statement_timeout": "5000", "enable_seqscan": "off"},
    for_people=True,
)
READ = Role(
    "read",
    4,
    limit=2.0,
    connect_limit=1.5,
    settings={"statement_timeout": "2000", "default_transaction_read_only": "on", "enable_seqscan": "off"},
    for_people=True,
)
# How shards and queues do, asked all the time by pages and scrapes. What is slow here takes no list down; the server's
# limit comes before that of this side.
LOOK = Role(
    "look",
    2,
    limit=2.0,
    connect_limit=1.5,
    settings={"statement_timeout": "1500", "default_transaction_read_only": "on", **BY_KEY},
    for_people=True,
)
# The one read that may take long: on one core of the server. Its windows differ by orders of magnitude, so each is
# planned by itself.
REPORT = Role(
    "report",
    2,
    limit=15.0,
    connect_limit=1.5,
    settings={
        "statement_timeout": "15000",
        "default_transaction_read_only": "on",
        "plan_cache_mode": "force_custom_plan",
        "max_parallel_workers_per_gather": "0",
        "work_mem": "64MB",
    },
    for_people=True,
)
# The one write that may take long: a history at its hard limit, after an erasure of the same run. What people do
# meanwhile has connections of its own, in `write`.
ERASE = Role(
    "erase",
    2,
    limit=60.0,
    connect_limit=1.5,
    settings={"statement_timeout": "30000", "enable_seqscan": "off"},
    for_people=True,
)
COMMON = {
    "jit": "off",
    "timezone": "UTC",
    "idle_in_transaction_session_timeout": "60000",
    "client_connection_check_interval": "10000",
}


async def connect(address: Address, limit: float, *, name: str = "", **settings: str) -> Connection:
    """A connection of its own to a shard, beside the pools; `name` is how the server's list of sessions shows it.

    Who opens it closes it, and limits each await on it. Raises what the driver raises.
    """
    named = {"application_name": name} if name else {}
    return await asyncpg.connect(address.dsn, timeout=limit, server_settings={**named, **settings, **address.settings})


async def _keep_session(_: Connection) -> None:
    """Replace asyncpg's reset, a round trip: nothing here changes session state after the connect."""


class Outage(Struct, frozen=True):
    """Since when a database has not answered, and why."""

    since: datetime
    reason: str


class Connections:
    """The pool of one role on one shard. Connects on first use, so a dead shard delays nobody's start."""

    def __init__(self, shard_id: int, address: Address, role: Role) -> None:
        self.shard_id = shard_id
        self.role = role
        self.outage: Outage | None = None
        self._failed_at = float("-inf")
        self._address = address
        self._pool: asyncpg.Pool[Any] | None = None
        self._opening = asyncio.Lock()
        # The pool lets those who come later pass those who wait: under load some would wait until their time is up.
        self._turns = asyncio.Semaphore(role.size)
        self.on_wait: Callable[[float], None] = lambda _: None
        self.on_use: Callable[[float], None] = lambda _: None
        self.on_passing: Callable[[asyncpg.PostgresError], None] = lambda _: None

    @property
    def in_use(self) -> int:
        """Connections that are busy."""
        return 0 if self._pool is None else self._pool.get_size() - self._pool.get_idle_size()

    @property
    def idle(self) -> int:
        """Connections that are open and free."""
        return 0 if self._pool is None else self._pool.get_idle_size()

    async def _opened(self) -> asyncpg.Pool[Any]:
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await asyncpg.create_pool(
                        self._address.dsn,
                        min_size=0,
                        max_size=self.role.size,
                        max_inactive_connection_lifetime=0 if self.role.size <= 2 else 300,
                        timeout=self.role.connect_limit,
                        reset=_keep_session,
                        server_settings={
                            **COMMON,
                            "application_name": f"harvest-{self.role.name}",
                            **self.role.settings,
                            **self._address.settings,
                        },
                    )
        return self._pool

    async def fetch(self, sql: str, *values: Any, limit: float | None = None) -> list[Record]:
        """Run a read and return its rows. Raises ShardUnavailableError."""
        async with self.connection(limit) as connection:
            rows: list[Record] = await connection.fetch(sql, *values)
            return rows

    async def fetch_row(self, sql: str, *values: Any, limit: float | None = None) -> Record | None:
        """Run a read and return its first row. Raises ShardUnavailableError."""
        async with self.connection(limit) as connection:
            row: Record | None = await connection.fetchrow(sql, *values)
            return row

    async def write(self, sql: str, *values: Any, limit: float | None = None) -> list[Record]:
        """Run one writing statement, a transaction by itself.

        Raises ShardUnavailableError when nothing was sent, OutcomeUnknownError when the answer was lost (design 4).
        """
        async with self.connection(limit, writes=True) as connection:
            rows: list[Record] = await connection.fetch(sql, *values)
            return rows

    @asynccontextmanager
    async def connection(self, limit: float | None = None, *, writes: bool = False) -> AsyncIterator[Connection]:
        """Hold one connection for at most `limit` seconds; losses become the typed errors above."""
        self._refuse_in_outage()
        await self._turn(limit or self.role.limit)
        began = clock.monotonic()
        try:
            async with self._acquired(limit or self.role.limit, writes) as connection:
                yield connection
        finally:
            self._turns.release()
            self.on_use(clock.monotonic() - began)

    async def _turn(self, limit: float) -> None:
        """Wait until a connection is free for this caller. That all are busy says nothing of the database."""
        if not self._turns.locked():
            await self._turns.acquire()
            return
        began = clock.monotonic()
        try:
            async with asyncio.timeout(limit):
                await self._turns.acquire()
        except TimeoutError as error:
            raise self._unavailable(Outage(clock.now(), "all connections are busy")) from error
        finally:
            self.on_wait(clock.monotonic() - began)
        try:
            self._refuse_in_outage()
        except ShardUnavailableError:
            self._turns.release()
            raise

    def end_quiet(self) -> None:
        """Let the next caller try at once, however lately another one has failed."""
        self._failed_at = float("-inf")

    def _refuse_in_outage(self) -> None:
        if self.outage is not None and clock.monotonic() - self._failed_at < QUIET_SECONDS:
            raise self._unavailable()

    @asynccontextmanager
    async def _acquired(self, limit: float, writes: bool) -> AsyncIterator[Connection]:
        pool = await self._opened()
        try:
            async with asyncio.timeout(self.role.connect_limit):
                connection = await pool.acquire()
        except (*LOST, asyncpg.PostgresError) as error:
            # What the server says before there is a connection is of the way to it: no such database, another password.
            self._note_outage(error)
            raise self._unavailable() from error
        try:
            async with asyncio.timeout(limit):
                yield connection
        except (*LOST, *GOING_DOWN) as error:
            _terminate(connection)
            if isinstance(error, TimeoutError):
                # Half open, perhaps: others need not find out one by one. One that was closed tells of itself alone.
                self._note_outage(error)
            if writes:
                raise OutcomeUnknownError(
                    f"shard {self.shard_id} took the write but its answer was lost; repeat the request with the same "
                    "idempotency key",
                    shard_id=self.shard_id,
                    reason=_reason(error),
                ) from error
            raise self._unavailable(Outage(clock.now(), _reason(error))) from error
        except asyncpg.PostgresError as error:
            if is_passing(error):
                self.on_passing(error)
                if self.role.for_people:
                    # Nothing was written, and the same again may pass.
                    raise self._unavailable(Outage(clock.now(), _reason(error))) from error
            raise
        except asyncio.CancelledError:
            _terminate(connection)
            raise
        else:
            self.outage = None
        finally:
            await pool.release(connection)

    def _note_outage(self, error: BaseException) -> None:
        self._failed_at = clock.monotonic()
        since = self.outage.since if self.outage else clock.now()
        self.outage = Outage(since, _reason(error))

    def _unavailable(self, otherwise: Outage | None = None) -> ShardUnavailableError:
        outage = self.outage or otherwise or Outage(clock.now(), "not connected")
        return ShardUnavailableError(
            f"shard {self.shard_id} does not answer: {outage.reason}",
            shard_id=self.shard_id,
            reason=outage.reason,
            since=outage.since,
        )

    async def close(self) -> None:
        """Close every connection, by force when that takes more than a second."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(1.0):
                await pool.close()
        except (*LOST, *GOING_DOWN):
            pool.terminate()


def _terminate(connection: Connection) -> None:
    """Close a connection at once. The pool has taken back one that the server has closed, and refuses every call."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def is_passing(error: asyncpg.PostgresError) -> bool:
    """Whether a refusal says nothing of what was sent: a deadlock, no room, a lock, a limit, a standby."""
    state = error.sqlstate or ""
    return state[:2] in _PASSING_CLASSES or state in _PASSING_STATES


def passing_reason(error: asyncpg.PostgresError) -> str:
    """A word for why the database refused something for now."""
    state = error.sqlstate or ""
    return _PASSING_STATES.get(state) or _PASSING_CLASSES.get(state[:2], "other")


def _reason(error: BaseException) -> str:
    """One short line of why, without addresses or credentials."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return "connection refused"
    if isinstance(error, asyncpg.QueryCanceledError):
        return "the query took too long"
    return type(error).__name__ if isinstance(error, OSError) else f"{type(error).__name__}: {error}"[:200]
