"""Counts of executions in groups. Each walk of an index ends at a cap, and all walks of a statement have one too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import ARRAY, ColumnElement, Select, Text, column, func, literal, null, select, true, union_all

from harvest.history.states import State
from harvest.store.listing import KEYS, ExecutionFilter, bounds_of, branches_of, names_of_types
from harvest.store.pool import Record
from harvest.store.schema import EXECUTIONS, Composed, run
from harvest.store.store import Store

MOST_NAMES: Final = 1_000
# How many rows of an index a shard looks at when it counts every type, and of each type at least.
ROWS_OF_ALL: Final = 200_000
ROWS_OF_EACH: Final = 100
STATE, NAME = "state", "workflow_name"


def needs_names(wanted: ExecutionFilter, by: Sequence[str]) -> bool:
    """Whether a count is one walk for each type that there is, rather than one for each state, or one alone."""
    return NAME in by and not (wanted.workflow_name or wanted.workflow_id or wanted.states or wanted.blocked)


def names_statement() -> Composed:
    """The types that have executions, by name."""
    names = names_of_types()
    return select(names.c.name).where(names.c.name.is_not(None)).limit(MOST_NAMES + 1)


def groups_statement(wanted: ExecutionFilter, by: Sequence[str], cap: int) -> Composed:
    """Groups of the executions that a filter finds, each walk counted to `cap` rows: the newest."""
    if not (wanted.states or wanted.workflow_name or wanted.workflow_id or wanted.blocked):
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
    """Groups by `state`, `workflow_name` or both, and whether there are more types than were looked at."""
    if not needs_names(wanted, by):
        return await run(store, groups_statement(wanted, by, cap)), False
    names = [row["name"] for row in await run(store, names_statement())]
    if not names:
        return [], False
    most = min(cap, max(ROWS_OF_EACH, ROWS_OF_ALL // len(names)))
    rows = await run(store, names_groups_statement(wanted, by, names[:MOST_NAMES], most))
    return rows, len(names) > MOST_NAMES
