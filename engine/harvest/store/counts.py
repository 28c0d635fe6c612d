"""Counts of executions, in groups too. Each walk of an index ends at a cap, and all walks of a statement have one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace
from sqlalchemy import (
    ARRAY,
    Boolean,
    ColumnElement,
    Select,
    Text,
    Uuid,
    any_,
    column,
    func,
    literal,
    null,
    select,
    true,
    union_all,
)

from harvest.history.states import State
from harvest.store.listing import KEYS, ExecutionFilter, bounds_of, branches_of, names_statement
from harvest.store.pool import Record
from harvest.store.schema import EXECUTIONS, Composed, run
from harvest.store.searching import keys
from harvest.store.store import Store

MOST_NAMES: Final = 1_000
# How many rows of an index a shard looks at when it counts every type, and of each type at least.
ROWS_OF_ALL: Final = 200_000
ROWS_OF_EACH: Final = 100
STATE, NAME = "state", "workflow_name"


def count_statement(wanted: ExecutionFilter, cap: int) -> Composed:
    """How many there are, counted to `cap` at most."""
    branches = branches_of(wanted, KEYS, None, descending=True, limit=cap)
    if len(branches) > 1:
        found = union_all(*(branch.subquery().select() for branch in branches)).limit(cap).subquery()
    else:
        found = branches[0].subquery()
    return select(func.count().label("count")).select_from(found)


async def count(store: Store, wanted: ExecutionFilter, cap: int) -> int:
    """How many a shard has, counted to `cap` at most. Raises ShardUnavailableError where that takes too long."""
    if wanted.condition is not None:
        return len(await keys(store, wanted, limit=cap))
    found: int = (await run(store, count_statement(wanted, cap)))[0]["count"]
    return found


def needs_names(wanted: ExecutionFilter, by: Sequence[str]) -> bool:
    """Whether a count is one walk for each type that there is, rather than one for each state, or one alone."""
    return NAME in by and not (wanted.workflow_names or wanted.workflow_id or wanted.states or wanted.blocked)


def groups_statement(wanted: ExecutionFilter, by: Sequence[str], cap: int) -> Composed:
    """Groups of the executions that a filter finds, each walk counted to `cap` rows: the newest."""
    if not (wanted.states or wanted.workflow_names or wanted.workflow_id or wanted.blocked):
        wanted = replace(wanted, states=tuple(State))
    shown = (*KEYS, EXECUTIONS.c.state, EXECUTIONS.c.workflow_name)
    walks = [
        _grouped(walk.subquery(), by, cap) for walk in branches_of(wanted, shown, None, descending=True, limit=cap)
    ]
    return walks[0] if len(walks) == 1 else union_all(*walks)


def names_groups_statement(wanted: ExecutionFilter, by: Sequence[str], names: Sequence[str], cap: int) -> Composed:
    """Groups of each of the types, the newest `cap` rows of each."""
    types: Any = (
        func.unnest(literal(list(names), ARRAY(Text))).table_valued(column("name", Text)).render_derived(name="types")
    )
    walk = (
        select(EXECUTIONS.c.state, EXECUTIONS.c.workflow_name)
        .where(EXECUTIONS.c.workflow_name == types.c.name, *bounds_of(wanted))
        .order_by(EXECUTIONS.c.workflow_name.desc(), EXECUTIONS.c.started_at.desc())
        .limit(cap)
        .correlate(types)
        .subquery()
    )
    each = _grouped(walk, by, cap).lateral("each_type")
    return select(each).select_from(types.join(each, true()))


def _grouped(walk: Any, by: Sequence[str], cap: int) -> Select[Any]:
    """`state`, `workflow_name` (null where not asked for), `count`, and whether the walk ended at its cap."""
    columns: list[ColumnElement[Any]] = [walk.c[name] for name in (STATE, NAME) if name in by]
    shown = [walk.c[name] if name in by else null().label(name) for name in (STATE, NAME)]
    counted = func.count()
    return select(*shown, counted.label("count"), (func.sum(counted).over() >= cap).label("capped")).group_by(*columns)


async def groups(store: Store, wanted: ExecutionFilter, by: Sequence[str], cap: int) -> tuple[list[Record], bool]:
    """Groups by `state`, `workflow_name` or both, and whether there are more types than were looked at.

    With a condition, of the newest `cap` executions that it is true of. Raises ShardUnavailableError.
    """
    if wanted.condition is not None:
        found = [row["execution_id"] for row in await keys(store, wanted, limit=cap)]
        return await _groups_of(store, found, by, capped=len(found) >= cap), False
    if not needs_names(wanted, by):
        return await run(store, groups_statement(wanted, by, cap)), False
    names = [row["name"] for row in await run(store, names_statement(MOST_NAMES + 1))]
    if not names:
        return [], False
    most = min(cap, max(ROWS_OF_EACH, ROWS_OF_ALL // len(names)))
    rows = await run(store, names_groups_statement(wanted, by, names[:MOST_NAMES], most))
    return rows, len(names) > MOST_NAMES


async def _groups_of(store: Store, execution_ids: Sequence[UUID], by: Sequence[str], *, capped: bool) -> list[Record]:
    counted = func.count()
    columns = [EXECUTIONS.c[name] for name in (STATE, NAME) if name in by]
    shown = [EXECUTIONS.c[name] if name in by else null().label(name) for name in (STATE, NAME)]
    ids: ColumnElement[Any] = literal(list(execution_ids), ARRAY(Uuid))
    return await run(
        store,
        select(*shown, counted.label("count"), literal(capped, Boolean).label("capped"))
        .where(EXECUTIONS.c.execution_id == any_(ids))
        .group_by(*columns),
    )
