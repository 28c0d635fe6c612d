"""What processes take of a database server, and whether it has room for that (`docs/operations/connections.md`).

The pools are those of a shard and a purpose, of a fixed size. Nobody holds a connection while waiting for another: so
no wait can form a circle, however small the pools are. What must fit is their sum, on each physical server: shards in
one database, or in several of one server, share its connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from uuid import UUID

import asyncpg
from msgspec import Struct

from harvest.errors import HarvestError
from harvest.shards.partial import Partial
from harvest.shards.shards import Shards
from harvest.store import pool
from harvest.store.pool import Connections, Role
from harvest.store.processes import Kind
from harvest.store.room import Room, room
from harvest.store.store import Store

ROLES: Final[Mapping[Kind, tuple[Role, ...]]] = {
    "worker": (pool.COMMIT, pool.CLAIM, pool.SCAN, pool.DELIVER, pool.WRITE),
    "console": (pool.SCAN, pool.WRITE, pool.READ, pool.LOOK, pool.REPORT, pool.ERASE),
}
"""The pools that a process of each kind opens on each shard."""
BESIDE: Final[Mapping[Kind, tuple[str, ...]]] = {"worker": ("listener", "lease"), "console": ("listener",)}
"""Its connections beside them, one each."""
_log = logging.getLogger("harvest.shards")


class ServerRoom(Struct, frozen=True, kw_only=True):
    """A physical server: the shards on it, what the processes that are known may open there, and what it lets in.

    `usable` is `max_connections` less the `reserved` ones, or the limit of the database or the account where that is
    less. `in_use` are open now. A worker may open `worker_need` and a console `console_need`; `need` is the sum for the
    `workers` and `consoles` that have told of themselves.
    """

    server: str
    shards: list[int]
    max_connections: int
    reserved: int
    usable: int
    in_use: int
    workers: int
    consoles: int
    worker_need: int
    console_need: int
    need: int

    @property
    def fits(self) -> bool:
        """Whether all may open what they want."""
        return self.need <= self.usable


def need(kind: Kind) -> int:
    """The most connections that one process of a kind opens to one shard."""
    return sum(role.size for role in ROLES[kind]) + len(BESIDE[kind])


async def rooms(
    shards: Shards,
    *,
    through: Callable[[Store], Connections] = lambda store: store.read,
    beside: tuple[Kind, UUID] | None = None,
) -> Partial[ServerRoom]:
    """Every server that answers. `beside` is a process that counts, whether or not it has told of itself by now."""

    async def read(store: Store) -> list[tuple[Store, Room]]:
        return [(store, await room(through(store), None if beside is None else beside[1]))]

    answer = await shards.fan_out(read, over=shards.stores)
    servers: dict[str, list[tuple[Store, Room]]] = {}
    for store, found in answer.rows:
        servers.setdefault(store.address.server, []).append((store, found))
    rows = [_server(name, of_server, beside) for name, of_server in sorted(servers.items())]
    return Partial(rows=rows, expected=answer.expected, read=answer.read, missing=answer.missing)


def _server(name: str, found: list[tuple[Store, Room]], beside: tuple[Kind, UUID] | None) -> ServerRoom:
    """What is of the server is the same whichever of its shards tells it; processes are counted on each shard."""
    first = found[0][1]
    counts: dict[Kind, int] = {
        "worker": sum(each.workers for _, each in found),
        "console": sum(each.consoles for _, each in found),
    }
    if beside is not None:
        counts[beside[0]] += len(found)
    return ServerRoom(
        server=name,
        shards=[store.shard_id for store, _ in found],
        max_connections=first.most,
        reserved=first.reserved,
        usable=_usable(found),
        in_use=first.in_use,
        workers=max(each.workers for _, each in found) + (beside is not None and beside[0] == "worker"),
        consoles=max(each.consoles for _, each in found) + (beside is not None and beside[0] == "console"),
        worker_need=need("worker") * len(found),
        console_need=need("console") * len(found),
        need=sum(need(kind) * count for kind, count in counts.items()),
    )


def _usable(found: Iterable[tuple[Store, Room]]) -> int:
    """Limits of several databases add up, as far as the server goes."""
    of_databases = {store.address.database: each.usable for store, each in found}
    most = max(each.most - each.reserved for _, each in found)
    return min(most, sum(of_databases.values()))


async def warn_of_room(shards: Shards, kind: Kind, process: UUID, through: Callable[[Store], Connections]) -> None:
    """Say in the log which servers cannot give all that the processes may open, this one among them. Once, at boot."""
    try:
        found = await rooms(shards, through=through, beside=(kind, process))
    except (HarvestError, asyncpg.PostgresError) as error:
        _log.info("the servers' connections could not be counted: %s", error)
        return
    for row in found.rows:
        if not row.fits:
            _log.warning("%s", warning_text(row))


def warning_text(row: ServerRoom) -> str:
    """What there is too little of, where, and for whom."""
    return (
        f"database server {row.server} (shards {', '.join(map(str, row.shards))}): {row.workers} workers and "
        f"{row.consoles} consoles may open {row.need} connections ({row.worker_need} a worker, {row.console_need} a "
        f"console), and there is room for {row.usable} (max_connections {row.max_connections}, {row.reserved} "
        "reserved); raise max_connections or run fewer processes: docs/operations/connections.md"
    )
