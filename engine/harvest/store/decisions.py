"""The ring of a run: its last attempts to decide, with their outcome and times. Written beside the commits.

The words are closed sets: they are labels of metrics, columns of the ring, and what pages and the API show.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.store.pool import Record
from harvest.store.store import Store

MOST: Final = 200
"""The attempts of a run that are kept."""
KEPT_HOURS: Final = 24


class DecisionOutcome(StrEnum):
    """How an attempt to decide began, or that it decided nothing. The seeds' other words name waits that a resident of
    theirs cannot take; ours takes all."""

    HIT = "hit"
    """The parked code was here and went on."""
    COLD = "cold"
    """No parked code was here; the run was replayed."""
    DECLINED = "declined"
    """Parked code was here and could not be gone on with, or had bet on a place that others took; it was replayed."""
    BLOCKED = "blocked"
    """The code could not be brought on; the run was put aside."""


class ColdReason(StrEnum):
    """Why an attempt was no hit."""

    FIRST = "first"
    """Nothing of the run had been decided before: every run has one such decision."""
    EVICTED = "evicted"
    """This worker had the run last and let it go: the bounds of its memory, or an operator."""
    OTHER_WORKER = "other_worker"
    """Another worker had the run last."""
    TAKEN_OVER = "taken_over"
    """Whoever had the run last has ended, been restarted or given up its partition."""
    RESIDENTS_OFF = "residents_off"
    """This worker keeps no parked code."""
    BLOCKED = "blocked"
    """The attempt before was put aside, and its code let go."""
    GAP = "gap"
    """Declined: what was loaded did not continue where the parked code stood."""
    OVERTAKEN = "overtaken"
    """Declined: others wrote where the decision had bet on a place in history."""
    UNKNOWN_COMMIT = "unknown_commit"
    """Declined: the answer to the commit before was lost."""


class DecisionSource(StrEnum):
    """Where what an attempt began with came from."""

    RESIDENT = "resident"
    """The parked code in memory; at most what had come since was read."""
    MEMORY = "memory"
    """A history that was kept in memory; at most what had come since was read."""
    POSTGRES = "postgres"
    """The whole history, read."""


class DecisionAnswer(StrEnum):
    """What became of an attempt."""

    PASSED = "passed"
    OVERTAKEN = "overtaken"
    FENCED = "fenced"
    UNKNOWN = "unknown"
    BLOCKED = "blocked"


DECLINED: Final = frozenset({ColdReason.GAP, ColdReason.OVERTAKEN, ColdReason.UNKNOWN_COMMIT})


class DecisionRecord(Struct, frozen=True, kw_only=True):
    """One attempt to decide. A refused one that was tried again is one attempt, with the times of its last try.

    `number` counts the attempts of the run that were kept: under load not all are. `outcome`, `reason`, `source` and
    `answer` are words of DecisionOutcome, ColdReason, DecisionSource and DecisionAnswer; `reason` is empty for a hit.
    `events_loaded` and `bytes_loaded` are what was read of the history. `epoch` is the owner's, null in claim
    mode. Times are the database's, in the order of the fields: the run was woken, this worker heard of it, it took
    the run, had its events, had run its code, had sent the commit that checks the fence, and had its answer. The first
    two are null where nobody knows them.
    """

    number: int
    epoch: int | None
    outcome: str
    reason: str
    source: str
    answer: str
    events_loaded: int
    bytes_loaded: int
    woken_at: datetime | None
    notified_at: datetime | None
    taken_at: datetime
    loaded_at: datetime
    driven_at: datetime
    fence_checked_at: datetime
    committed_at: datetime


class DecisionRow(DecisionRecord, frozen=True, kw_only=True):
    """An attempt as its worker writes it."""

    execution_id: UUID


_COLUMNS: Final = DecisionRow.__struct_fields__
_TYPES: Final = {
    "execution_id": "uuid",
    "outcome": "text",
    "reason": "text",
    "source": "text",
    "answer": "text",
} | {name: "timestamptz" for name in _COLUMNS if name.endswith("_at")}

WRITE: Final = f"""
insert into harvest_decisions (slot, worker, {", ".join(_COLUMNS)})
select number % {MOST}, $1, n.*
  from unnest({", ".join(f"${i}::{_TYPES.get(name, 'int')}[]" for i, name in enumerate(_COLUMNS, 2))})
    as n({", ".join(_COLUMNS)})
 order by execution_id, number
    on conflict (execution_id, slot) do update
   set worker = excluded.worker, {", ".join(f"{name} = excluded.{name}" for name in DecisionRecord.__struct_fields__)}
 where harvest_decisions.number < excluded.number
returning execution_id, number"""

LAST_NUMBERS: Final = """
select d.execution_id, max(d.number) as number
  from harvest_decisions d where d.execution_id = any($1) group by d.execution_id"""

READ: Final = f"""
select d.*, coalesce(w.name, '') as worker_name
  from harvest_executions e
  left join harvest_decisions d on d.execution_id = e.execution_id
  left join harvest_workers w on w.worker = d.worker
 where e.execution_id = $1
 order by d.committed_at, d.number
 limit {MOST}"""

SWEEP: Final = f"""
delete from harvest_decisions where ctid = any(array(
    select ctid from harvest_decisions
     where committed_at < clock_timestamp() - interval '{KEPT_HOURS} hours' order by committed_at limit 10000))"""


async def last_numbers(store: Store, executions: Sequence[UUID]) -> dict[UUID, int]:
    """The number of the newest attempt that is kept of each run; runs without any are left out."""
    rows = await store.scan.fetch(LAST_NUMBERS, list(executions))
    return {row["execution_id"]: row["number"] for row in rows}


async def write(store: Store, worker: UUID, attempts: Sequence[DecisionRow]) -> set[tuple[UUID, int]]:
    """Keep attempts of one worker, in one statement; each takes the place of the one `MOST` numbers before.

    Returns those (execution, number) whose number another worker has given to another attempt by now.
    """
    # Two rows of one statement cannot have one place.
    newest = {(attempt.execution_id, attempt.number % MOST): attempt for attempt in attempts}
    rows = await store.scan.write(
        WRITE, worker, *([getattr(attempt, name) for attempt in newest.values()] for name in _COLUMNS)
    )
    written = {(row["execution_id"], row["number"]) for row in rows}
    return {(attempt.execution_id, attempt.number) for attempt in newest.values()} - written


async def read(store: Store, execution_id: UUID) -> list[Record] | None:
    """The attempts of a run that are kept, oldest first; None when there is no such run.

    Where a run went from one worker to another their numbers may be in another order.
    """
    rows = await store.read.fetch(READ, execution_id)
    return [row for row in rows if row["number"] is not None] if rows else None


async def sweep(store: Store) -> None:
    """Delete what is older than `KEPT_HOURS`, a bounded number of rows."""
    await store.scan.write(SWEEP)
