"""Reads of what belongs together: children of runs, level by level, and the runs of a chain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from msgspec import Struct
from sqlalchemy import ARRAY, ColumnElement, SmallInteger, any_, literal, select

from harvest.store.pool import Record
from harvest.store.schema import EXECUTIONS, Composed, beyond, run
from harvest.store.store import Store

_NODE_COLUMNS: Final = (
    "execution_id, workflow_name, workflow_id, state, started_at, closed_at, parent_id, previous_execution_id, "
    "awaited, close_policy"
)
_SHOWN: Final = tuple(EXECUTIONS.c[name.strip()] for name in _NODE_COLUMNS.split(","))
NODE: Final = f"select {_NODE_COLUMNS} from harvest_executions where execution_id = $1"
# The children of a parent beyond an anchor; without one, all of them.
_OF_PARENT: Final = """e.parent_id = parent.id and (e.started_at, e.execution_id) >
                   (coalesce(parent.at, '-infinity'), coalesce(parent.child_id, '00000000000000000000000000000000'))"""
# One walk of the index for each parent, which stops as soon as there are enough rows: nothing is sorted.
LEVEL: Final = f"""
    select child.* from unnest($1::uuid[], $3::timestamptz[], $4::uuid[]) as parent(id, at, child_id)
    cross join lateral (
        select {_NODE_COLUMNS} from harvest_executions e
         where {_OF_PARENT} order by e.started_at, e.execution_id limit $2) child
    limit $2
"""
INCOMPLETE: Final = f"""
    select parent.id from unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::uuid[])
                       as parent(id, shown, at, child_id)
     where exists (select from harvest_executions e where {_OF_PARENT}
                    order by e.started_at, e.execution_id offset parent.shown limit 1)
"""
Anchors = Mapping[UUID, tuple[datetime, UUID]]


async def node(store: Store, execution_id: UUID) -> Record | None:
    """One execution as trees and lists of children show it. None: it is not here."""
    return await store.read.fetch_row(NODE, execution_id)


async def level(store: Store, parents: Sequence[UUID], limit: int, after: Anchors) -> list[Record]:
    """Up to `limit` children of the parents, the oldest of each first; in no order over all of them.

    `after` has the child, by (started_at, execution_id), beyond which a parent's begin, where it is not the first.
    """
    rows: list[Any] = await store.read.fetch(LEVEL, list(parents), limit, *_anchors(parents, after))
    return rows


async def incomplete(store: Store, shown: dict[UUID, int], after: Anchors) -> list[UUID]:
    """Which of the parents have more children here, beyond their anchors, than the number that is shown of them."""
    anchors = _anchors(shown, after)
    rows: list[Any] = await store.read.fetch(INCOMPLETE, list(shown), list(shown.values()), *anchors)
    return [row["id"] for row in rows]


def _anchors(parents: Iterable[UUID], after: Anchors) -> tuple[list[datetime | None], list[UUID | None]]:
    found = [after.get(parent, (None, None)) for parent in parents]
    return [at for at, _ in found], [child for _, child in found]


class ChildFilter(Struct, frozen=True, kw_only=True):
    """Which children of a run; empty and None are any."""

    parent_id: UUID
    states: tuple[int, ...] = ()
    workflow_name: str | None = None


def children_statement(
    wanted: ChildFilter, anchor: tuple[datetime, UUID] | None, *, descending: bool, limit: int
) -> Composed:
    """The first `limit` children beyond `anchor` by (started_at, execution_id)."""
    columns = EXECUTIONS.c
    statement = select(*_SHOWN).where(columns.parent_id == wanted.parent_id)
    if wanted.states:
        states: ColumnElement[Any] = literal(list(wanted.states), ARRAY(SmallInteger))
        statement = statement.where(columns.state == any_(states))
    if wanted.workflow_name is not None:
        statement = statement.where(columns.workflow_name == wanted.workflow_name)
    if anchor is not None:
        statement = statement.where(beyond(columns.started_at, columns.execution_id, anchor, descending=descending))
    order = (columns.started_at, columns.execution_id)
    return statement.order_by(*(each.desc() if descending else each.asc() for each in order)).limit(limit)


async def children(
    store: Store, wanted: ChildFilter, anchor: tuple[datetime, UUID] | None, *, descending: bool, limit: int
) -> list[Record]:
    """Run `children_statement` on a shard."""
    return await run(store, children_statement(wanted, anchor, descending=descending, limit=limit))


_RUN_COLUMNS: Final = (
    "execution_id, workflow_name, workflow_id, version, state, started_at, closed_at, previous_execution_id"
)
FIRST_RUN: Final = """
    select coalesce(first_execution_id, execution_id) as first_execution_id, workflow_id from harvest_executions
     where execution_id = $1
"""
# The index of chains has every run but the first, which is reached by its id.
CHAIN_LENGTH: Final = """
    select count(*) as successors from harvest_executions
     where first_execution_id = $1 and previous_execution_id is not null
"""
SUCCESSORS: Final = f"""
    select {_RUN_COLUMNS} from harvest_executions
     where first_execution_id = $1 and previous_execution_id is not null
     order by started_at desc offset $2 limit $3
"""
_RUN: Final = f"select {_RUN_COLUMNS} from harvest_executions where execution_id = $1"


class ChainRows(Struct, frozen=True):
    """A window of a chain, newest first. `newer` is the run after the window, `total` counts all that are known."""

    workflow_id: str
    first_execution_id: UUID
    head_known: bool
    total: int
    runs: list[Record]
    newer: Record | None


async def chain(store: Store, execution_id: UUID, *, before: int | None, limit: int) -> ChainRows | None:
    """The runs of an execution's chain numbered below `before` (1 is the oldest). None: the execution is not here."""
    # One snapshot: a run that begins meanwhile would move the numbers.
    async with store.read.connection() as connection, connection.transaction(isolation="repeatable_read"):
        asked = await connection.fetchrow(FIRST_RUN, execution_id)
        if asked is None:
            return None
        first: UUID = asked["first_execution_id"]
        head = await connection.fetchrow(_RUN, first)
        successors: int = await connection.fetchval(CHAIN_LENGTH, first)
        total = successors + (head is not None)
        skipped = max(0, total - (before - 1)) if before is not None else 0
        # One more on the newer side: it is what the newest of the window goes on as.
        extra = min(skipped, 1)
        rows = list(await connection.fetch(SUCCESSORS, first, skipped - extra, limit + extra))
    if head is not None and len(rows) < limit + extra:
        rows.append(head)
    return ChainRows(
        asked["workflow_id"], first, head is not None, total, rows[extra:], rows[0] if extra and rows else None
    )
