"""What each worker process has measured lately: a row every few seconds, and a coarse one every five minutes.

The console and `/metrics` read these; nobody asks a worker. Fine rows are kept for two hours, coarse ones for a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.store.measures import Key, Share, Spread, Totals
from harvest.store.store import Store

COARSE_SECONDS: Final = 300.0
LEAST_COARSE: Final = 30.0
"""A row of more seconds takes in the fine ones before it."""
FINE_HOURS, COARSE_HOURS = 2, 25

_WRITE: Final = "insert into harvest_rollups (worker, seconds, data) values ($1, $2, $3) on conflict do nothing"

# The fine rows that no coarse row has taken in yet are those after a worker's last; a worker that has ended leaves five
# minutes of them at most.
_READ: Final = f"""
select r.worker, coalesce(w.name, '') as name, r.at, r.seconds, r.data
  from harvest_rollups r left join harvest_workers w on w.worker = r.worker
 where r.at > $1 and r.at <= $2
   and (($3 and (r.seconds > {LEAST_COARSE} or r.at > $2 - interval '{COARSE_SECONDS * 2} seconds'))
        or (not $3 and r.seconds <= {LEAST_COARSE}))
 order by r.at"""

_SWEEP: Final = f"""
delete from harvest_rollups where ctid = any(array(
    select ctid from harvest_rollups
     where at < clock_timestamp() - interval '{FINE_HOURS} hours'
       and (seconds <= {LEAST_COARSE} or at < clock_timestamp() - interval '{COARSE_HOURS} hours')
     order by at limit 10000))"""
_NOW: Final = "select clock_timestamp() as now"


class _Wire(Struct, omit_defaults=True):
    """`Totals` as JSON: keys are lists there."""

    counters: list[tuple[Key, float]] = []
    spreads: list[tuple[Key, Spread]] = []
    gauges: list[tuple[Key, float]] = []
    shares: list[tuple[Key, Share]] = []


class Rollup(Struct, frozen=True, kw_only=True):
    """What one worker measured on one shard in the `seconds` before `at`; gauges are of `at`."""

    shard_id: int
    worker: UUID
    name: str
    at: datetime
    seconds: float
    totals: Totals

    @property
    def is_coarse(self) -> bool:
        """Whether it takes in fine rows of the same worker."""
        return self.seconds > LEAST_COARSE


def encode(totals: Totals) -> bytes:
    """Totals as the bytes of a row, without what is nothing."""
    return msgspec.json.encode(
        _Wire(
            [(key, amount) for key, amount in totals.counters.items() if amount],
            [(key, spread) for key, spread in totals.spreads.items() if spread.count],
            list(totals.gauges.items()),
            [(key, share) for key, share in totals.shares.items() if share.count],
        )
    )


_decoder: Final = msgspec.json.Decoder(_Wire)


def decode(data: bytes) -> Totals:
    """The totals of a row; raises msgspec.MsgspecError for what is none."""
    wire = _decoder.decode(data)
    return Totals(dict(wire.counters), dict(wire.spreads), dict(wire.gauges), dict(wire.shares))


async def write(store: Store, worker: UUID, seconds: float, totals: Totals) -> None:
    """Write what a worker measured in the last `seconds`."""
    await store.scan.write(_WRITE, worker, seconds, encode(totals))


async def read(store: Store, since: datetime, until: datetime, *, coarse: bool = False) -> list[Rollup]:
    """The rows that ended after `since`, `until` at the latest, oldest first.

    With `coarse` the coarse ones, and the fine ones of each worker that none of them has taken in.
    """
    rows = await store.read.fetch(_READ, since, until, coarse)
    found = [
        Rollup(
            shard_id=store.shard_id,
            worker=row["worker"],
            name=row["name"],
            at=row["at"],
            seconds=row["seconds"],
            totals=decode(row["data"]),
        )
        for row in rows
    ]
    return _untaken(found) if coarse else found


def _untaken(rollups: Sequence[Rollup]) -> list[Rollup]:
    last = {rollup.worker: rollup.at for rollup in rollups if rollup.is_coarse}
    return [each for each in rollups if each.is_coarse or each.worker not in last or each.at > last[each.worker]]


async def now(store: Store) -> datetime:
    """The database's time."""
    row = await store.read.fetch_row(_NOW)
    assert row is not None
    found: datetime = row["now"]
    return found


async def sweep(store: Store) -> None:
    """Delete what nobody reads any more, a bounded number of rows."""
    await store.scan.write(_SWEEP)
