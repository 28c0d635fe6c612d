"""Every process of a deployment as it tells this shard of itself: who it is, and how it routes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from harvest.store.pool import Connections, Record
from harvest.store.store import Store

Kind = Literal["worker", "console"]
REMEMBERED: Final = "1 day"

_TELL: Final = """
insert into harvest_processes (process, kind, name, host, pid, build, digest, topology)
values ($1, $2, $3, $4, $5, $6, $7, $8)
    on conflict (process) do update
   set seen_at = clock_timestamp(), digest = excluded.digest, topology = excluded.topology"""

_FORGET: Final = "delete from harvest_processes where process = $1"

_LIST: Final = f"""
select process, kind, name, host, pid, build, started_at, seen_at,
       extract(epoch from clock_timestamp() - seen_at)::float8 as age, digest, topology
  from harvest_processes
 where seen_at > clock_timestamp() - interval '{REMEMBERED}'
 order by seen_at desc
 limit $1"""

SWEEP: Final = f"""
delete from harvest_processes where ctid = any(array(
    select ctid from harvest_processes where seen_at < clock_timestamp() - interval '{REMEMBERED}' limit 1000))"""


class ProcessRow(Struct, frozen=True, kw_only=True):
    """A process: for workers, one incarnation. `topology` is JSON, `digest` of what all processes must agree on."""

    process: UUID
    kind: Kind
    name: str
    host: str
    pid: int
    build: str
    digest: str
    topology: bytes


class ProcessTold(ProcessRow, frozen=True, kw_only=True):
    """The same as a shard has it. `age` is how many seconds ago it was heard of, by the shard's clock."""

    started_at: datetime
    seen_at: datetime
    age: float


async def tell(connections: Connections, row: ProcessRow) -> None:
    """Write that a process lives, and how it routes."""
    await connections.write(
        _TELL, row.process, row.kind, row.name, row.host, row.pid, row.build, row.digest, row.topology
    )


async def forget(connections: Connections, process: UUID) -> None:
    """A process has ended."""
    await connections.write(_FORGET, process)


async def page(store: Store, limit: int) -> list[ProcessTold]:
    """The processes that were heard of within a day, the last heard of first."""
    rows: Sequence[Record] = await store.read.fetch(_LIST, limit)
    return [ProcessTold(**dict(row)) for row in rows]
