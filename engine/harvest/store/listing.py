"""Pages of executions. Each shape of filter is answered by walking one index in its order."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import (
    ARRAY,
    CTE,
    Column,
    ColumnElement,
    LargeBinary,
    Select,
    SmallInteger,
    Text,
    Uuid,
    any_,
    cast,
    func,
    literal,
    literal_column,
    select,
    true,
    union_all,
)

from harvest.history.ids import business_key
from harvest.history.states import State
from harvest.store.filters import Expression
from harvest.store.reads import EXECUTION_COLUMNS
from harvest.store.schema import EXECUTIONS, Composed, beyond

SHOWN: Final = tuple(EXECUTIONS.c[name.strip()] for name in EXECUTION_COLUMNS.split(","))
KEYS: Final = (EXECUTIONS.c.started_at, EXECUTIONS.c.execution_id)
Anchor = tuple[datetime, UUID]


class ExecutionFilter(Struct, frozen=True, kw_only=True):
    """Which executions; empty and None are any. `started_before` is exclusive; `blocked` asks for those alone.

    `condition` is what must hold beside that; store.searching finds what it is true of. No Ago is in it.
    """

    tenant: str = "default"
    states: tuple[State, ...] = ()
    blocked: bool = False
    workflow_names: tuple[str, ...] = ()
    workflow_id: str | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    condition: Expression | None = None


def page_statement(wanted: ExecutionFilter, anchor: Anchor | None, *, descending: bool, limit: int) -> Composed:
    """The first `limit` rows beyond `anchor` by (started_at, execution_id), of all branches of the filter."""
    return walk(wanted, SHOWN, anchor, descending=descending, limit=limit)


def walk(
    wanted: ExecutionFilter,
    shown: tuple[ColumnElement[Any], ...],
    anchor: Anchor | None,
    *,
    descending: bool,
    limit: int,
) -> Select[Any]:
    """The `shown` columns of a page; the keys are among them. The filter's condition is not looked at."""
    branches = branches_of(wanted, shown, anchor, descending=descending, limit=limit)
    if len(branches) == 1:
        return branches[0]
    # No branch reads more than the limit, so neither does a shard send more.
    merged = union_all(*(branch.subquery().select() for branch in branches)).subquery()
    return ordered(select(merged), merged.c, descending=descending).limit(limit)


def branches_of(
    wanted: ExecutionFilter,
    shown: tuple[ColumnElement[Any], ...],
    anchor: Anchor | None,
    *,
    descending: bool,
    limit: int,
) -> list[Select[Any]]:
    """One query for each walk of an index: a type each, else a state each, or the whole when neither is asked for."""
    base = select(*shown).where(*bounds_of(wanted, anchor, descending=descending))
    if wanted.workflow_id is not None:
        base = base.where(*traits_of(replace(wanted, workflow_id=None, workflow_names=())))
        return [_with_id(base, wanted, wanted.workflow_id, descending=descending, limit=limit)]
    if wanted.blocked:
        # Those have an index of their own, which is short: the rest of the filter is read off its rows.
        walks = [base.where(*traits_of(wanted))]
    elif wanted.workflow_names:
        if wanted.states:
            base = base.where(_in_states(wanted))
        walks = [
            _walking(base, EXECUTIONS.c.workflow_name, name, descending=descending)
            for name in sorted(set(wanted.workflow_names))
        ]
    else:
        each_state = sorted(set(wanted.states))
        walks = [_walking(base, EXECUTIONS.c.state, int(state), descending=descending) for state in each_state] or [
            base
        ]
    return [ordered(walk, EXECUTIONS.c, descending=descending).limit(limit) for walk in walks]


def traits_of(wanted: ExecutionFilter) -> list[ColumnElement[bool]]:
    """What the filter asks of a row by itself, its times aside."""
    columns = EXECUTIONS.c
    traits: list[ColumnElement[bool]] = []
    if wanted.blocked:
        traits.append(columns.blocked.is_not(None))
    if wanted.workflow_names:
        traits.append(columns.workflow_name == any_(literal(list(wanted.workflow_names), ARRAY(Text))))
    if wanted.workflow_id is not None:
        traits.append(columns.workflow_id == wanted.workflow_id)
    if wanted.states:
        traits.append(_in_states(wanted))
    return traits


def _walking(base: Select[Any], first: Column[Any], value: Any, *, descending: bool) -> Select[Any]:
    """Rows whose `first` column has one value, in an order that only the index which begins with it gives.

    With a plain equality the planner may walk the index of all starts and throw away what does not match: without end
    where the matches are old. An array of one value and the column in the order leave it no such choice.
    """
    one: ColumnElement[Any] = literal([value], ARRAY(first.type))
    return base.where(first == any_(one)).order_by(first.asc() if descending else first.desc())


def _in_states(wanted: ExecutionFilter) -> ColumnElement[bool]:
    states: ColumnElement[Any] = literal([int(state) for state in wanted.states], ARRAY(SmallInteger))
    return EXECUTIONS.c.state == any_(states)


def _with_id(
    base: Select[Any], wanted: ExecutionFilter, workflow_id: str, *, descending: bool, limit: int
) -> Select[Any]:
    """By business key: that of the type, or of every type there is, found by leaping over the index of names."""
    if wanted.workflow_names:
        keys = [business_key(wanted.tenant, name, workflow_id) for name in wanted.workflow_names]
        of_keys = base.where(EXECUTIONS.c.business_key == any_(literal(keys, ARRAY(Uuid))))
        return ordered(of_keys, EXECUTIONS.c, descending=descending).limit(limit)
    names = names_of_types()
    of_name = base.where(EXECUTIONS.c.business_key == _key_of_name(wanted.tenant, names.c.name, workflow_id))
    found = ordered(of_name, EXECUTIONS.c, descending=descending).limit(limit).lateral("found")
    return ordered(select(found).select_from(names.join(found, true())), found.c, descending=descending).limit(limit)


def names_of_types() -> CTE:
    """Every workflow name that has an execution: one descent of the index for each."""
    name = EXECUTIONS.c.workflow_name
    first = select(func.min(name).label("name")).cte("names", recursive=True)
    following = select(func.min(name)).where(name > first.c.name).scalar_subquery()
    return first.union_all(select(following).where(first.c.name.is_not(None)))


def names_statement(most: int) -> Composed:
    """The first `most` types that have executions, by name."""
    names = names_of_types()
    return select(names.c.name).where(names.c.name.is_not(None)).limit(most)


def _key_of_name(tenant: str, name: ColumnElement[str], workflow_id: str) -> ColumnElement[UUID]:
    """The business key (history.ids) of a name from the index, in SQL: the same bytes hashed the same way."""
    nul: ColumnElement[bytes] = literal_column(r"'\x00'::bytea")
    utf8: ColumnElement[str] = literal_column("'UTF8'")
    before: ColumnElement[bytes] = literal(tenant.encode() + b"\x00", LargeBinary)
    after: ColumnElement[bytes] = literal(workflow_id.encode(), LargeBinary)
    digest = func.sha256(before.op("||")(func.convert_to(name, utf8)).op("||")(nul).op("||")(after))
    return cast(func.encode(func.substr(digest, 1, 16), literal_column("'hex'")), Uuid)


def bounds_of(
    wanted: ExecutionFilter, anchor: Anchor | None = None, *, descending: bool = True
) -> list[ColumnElement[bool]]:
    """When they started, as conditions; at least one."""
    columns = EXECUTIONS.c
    bounds: list[ColumnElement[bool]] = []
    if wanted.started_after is not None:
        bounds.append(columns.started_at >= wanted.started_after)
    if wanted.started_before is not None:
        bounds.append(columns.started_at < wanted.started_before)
    if anchor is not None:
        bounds.append(beyond(columns.started_at, columns.execution_id, anchor, descending=descending))
    return bounds or [true()]


def ordered(statement: Select[Any], columns: Any, *, descending: bool) -> Select[Any]:
    """In the order of the list."""
    order = (columns.started_at, columns.execution_id)
    return statement.order_by(*(column.desc() if descending else column.asc() for column in order))
