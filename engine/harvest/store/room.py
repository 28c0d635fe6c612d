"""How many connections a server, a database and an account allow, and which processes are known to share them."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.store.pool import Connections

LIVING_SECONDS: Final = 30

# A limit of -1 is none. Whoever may use reserved connections is an operator in need, and not one of ours.
_ROOM: Final = f"""
select current_setting('max_connections')::int as most,
       current_setting('superuser_reserved_connections')::int
           + coalesce(current_setting('reserved_connections', true)::int, 0) as reserved,
       (select datconnlimit from pg_database where datname = current_database()) as of_database,
       (select rolconnlimit from pg_roles where rolname = current_user) as of_account,
       (select coalesce(sum(numbackends), 0)::int from pg_stat_database) as in_use,
       (select count(*)::int from harvest_processes
         where kind = 'worker' and process <> $1 and seen_at > now() - interval '{LIVING_SECONDS} seconds') as workers,
       (select count(*)::int from harvest_processes
         where kind = 'console' and process <> $1 and seen_at > now() - interval '{LIVING_SECONDS} seconds') as consoles
"""
_NOBODY: Final = UUID(int=0)


class Room(Struct, frozen=True, kw_only=True):
    """What a shard's server lets in.

    `most` connections, less those `reserved` for operators; `in_use` are those open now, whoever has them. `database`
    and `account` are limits of those, None where there is none. `workers` and `consoles` are the living processes that
    have told this shard of themselves.
    """

    most: int
    reserved: int
    database: int | None
    account: int | None
    in_use: int
    workers: int
    consoles: int

    @property
    def usable(self) -> int:
        """What all processes together may have."""
        limits = (self.most - self.reserved, self.database, self.account)
        return min(limit for limit in limits if limit is not None)


async def room(pool: Connections, but: UUID | None = None) -> Room:
    """Ask one shard; `but` is a process that is not counted. Raises ShardUnavailableError."""
    row = await pool.fetch_row(_ROOM, but or _NOBODY)
    assert row is not None
    return Room(
        most=row["most"],
        reserved=row["reserved"],
        database=row["of_database"] if row["of_database"] >= 0 else None,
        account=row["of_account"] if row["of_account"] >= 0 else None,
        in_use=row["in_use"],
        workers=row["workers"],
        consoles=row["consoles"],
    )
