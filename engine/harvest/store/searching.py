"""Which executions a condition is true of, in the order of the list, quickly whether it is true of many or of few.

The newest rows are looked at first, each beside its attributes: of many matches these fill the page. Where they do not
and few are to be expected, an index over attributes leads to all matches (decision 0011).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Select, any_, func, select, true

from harvest import clock
from harvest.errors import ShardUnavailableError
from harvest.history.states import State
from harvest.store.filter_sql import beside, seek
from harvest.store.filters import (
    ATTRIBUTE,
    COLUMN,
    EXECUTION_ID,
    OWNER,
    SEVERITY,
    STARTED_AT,
    STATE,
    WORKFLOW_NAME,
    Compare,
    Expression,
    Field,
    OneOf,
    Or,
    conjunction,
    kinds_of,
    parts_of,
)
from harvest.store.listing import (
    KEYS,
    SHOWN,
    Anchor,
    ExecutionFilter,
    bounds_of,
    names_statement,
    ordered,
    page_statement,
    traits_of,
    walk,
)
from harvest.store.pool import Record
from harvest.store.schema import EXECUTIONS, Composed, run
from harvest.store.store import Store

# Rows that a walk looks at in its first step, and in a later one at most. With several walks they share them.
FIRST_ROWS: Final = 2_000
FURTHER_ROWS: Final = 100_000
LEAST_ROWS: Final = 100
# Where more rows than this, and than a few for each one wanted, are to be expected before the page is full, an index is
# asked for the matches.
WORTH_WALKING: Final = 20_000
WORTH_WALKING_EACH: Final = 4
# More matches than this are not read by an index.
MANY: Final = 500_000
# More types than this are not walked each by itself.
MOST_WALKS: Final = 100
_SECONDS: Final = 2.0
_MICROSECOND: Final = timedelta(microseconds=1)
_IN_ROW: Final = (STATE, WORKFLOW_NAME, STARTED_AT)
Shown = tuple[ColumnElement[Any], ...]


class Search(Struct, frozen=True):
    """What to look for and how much of it: `limit` rows beyond `anchor`, with these columns."""

    wanted: ExecutionFilter
    anchor: Anchor | None
    descending: bool
    limit: int
    shown: Shown


async def page(
    store: Store, wanted: ExecutionFilter, anchor: Anchor | None, *, descending: bool, limit: int
) -> list[Record]:
    """The first `limit` executions beyond `anchor`. Raises ShardUnavailableError where they take too long."""
    if wanted.condition is None:
        return await run(store, page_statement(wanted, anchor, descending=descending, limit=limit))
    return await _found(store, Search(wanted, anchor, descending, limit, SHOWN))


async def keys(store: Store, wanted: ExecutionFilter, *, limit: int) -> list[Record]:
    """`started_at` and `execution_id` of the newest `limit` executions; raises what `page` raises."""
    if wanted.condition is None:
        return await run(store, walk(wanted, KEYS, None, descending=True, limit=limit))
    return await _found(store, Search(wanted, None, True, limit, KEYS))


async def _found(store: Store, search: Search) -> list[Record]:
    narrow = narrowed(search.wanted)
    if narrow is None:
        return []
    return await _search(store, _of(search, narrow), clock.monotonic() + _SECONDS)


def _of(search: Search, wanted: ExecutionFilter) -> Search:
    return Search(wanted, search.anchor, search.descending, search.limit, search.shown)


async def _search(store: Store, search: Search, until: float) -> list[Record]:
    search = await _by_names(store, search)
    if search.wanted.condition is None:
        columns, anchor = search.shown, search.anchor
        statement = walk(search.wanted, columns, anchor, descending=search.descending, limit=search.limit)
        return await run(store, statement)
    rows: list[Record] = []
    walked, sought = 0, False
    window = await _window(store, search, FIRST_ROWS)
    while True:
        rows, walked = rows + window.rows, walked + window.walked
        missing = search.limit - len(rows)
        if window.ended or missing <= 0:
            return rows
        # As many rows as the matches so far make one expect.
        needed = walked * missing // len(rows) if rows else MANY
        if needed > WORTH_WALKING + WORTH_WALKING_EACH * missing and not sought:
            found = await _by_index(store, search, until)
            if found is not None:
                return found
            sought = True
        if clock.monotonic() > until:
            reason = "the filter takes too long here: narrow it by a time, a type or a state"
            raise ShardUnavailableError(f"shard {store.shard_id}: {reason}", shard_id=store.shard_id, reason=reason)
        further = Search(search.wanted, window.last, search.descending, missing, search.shown)
        window = await _window(store, further, min(max(2 * needed, FIRST_ROWS), FURTHER_ROWS))


async def _by_index(store: Store, search: Search, until: float) -> list[Record] | None:
    """All matches by an index and the first of them; None where no index leads to them, or to too many."""
    condition = search.wanted.condition
    assert condition is not None
    ways = ways_to_seek(condition)
    for sought, rest in ways:
        rows = await run(store, seek_statement(search, sought, rest))
        if rows[0]["found"] <= MANY:
            return _real(rows)
    alternatives = [] if ways else _alternatives(search.wanted)
    return await _any_of(store, search, alternatives, until) if alternatives else None


class _Window(Struct, frozen=True):
    """The matches among the rows of one step, how many rows those were, where it ended, and if nothing is beyond."""

    rows: list[Record]
    walked: int
    last: Anchor | None
    ended: bool


async def _window(store: Store, search: Search, most: int) -> _Window:
    rows = max(most // _walks(search.wanted), LEAST_ROWS)
    answer = await run(store, window_statement(search, rows))
    reached = answer[0]
    last = None if reached["last_started_at"] is None else (reached["last_started_at"], reached["last_execution_id"])
    return _Window(_real(answer), reached["walked"], last, reached["walked"] < rows)


async def _by_names(store: Store, search: Search) -> Search:
    """The search by the names of all other types, where the condition excludes some and there are not too many."""
    wanted = search.wanted
    parts = parts_of(wanted.condition)
    excluded = {name: part for part in parts if (name := _other_name(part)) is not None}
    if not excluded or wanted.workflow_names:
        return search
    names = [row["name"] for row in await run(store, names_statement(MOST_WALKS + 1))]
    others = tuple(name for name in names if name not in excluded)
    if not others or len(names) > MOST_WALKS:
        return search
    rest = conjunction(part for part in parts if part not in excluded.values())
    return _of(search, replace(wanted, workflow_names=others, condition=rest))


async def _any_of(store: Store, search: Search, alternatives: Sequence[ExecutionFilter], until: float) -> list[Record]:
    """The first rows of several searches: each by its own way, each row once."""
    merged: dict[Any, Record] = {}
    for wanted in alternatives:
        narrow = narrowed(wanted)
        if narrow is not None:
            rows = await _search(store, _of(search, narrow), until)
            merged |= {row["execution_id"]: row for row in rows}
    in_order = sorted(
        merged.values(), key=lambda row: (row["started_at"], row["execution_id"]), reverse=search.descending
    )
    return in_order[: search.limit]


def _real(rows: list[Record]) -> list[Record]:
    """Without the row that only says how far the statement went."""
    return [row for row in rows if row["execution_id"] is not None]


def _walks(wanted: ExecutionFilter) -> int:
    """How many walks of an index the filter is answered by."""
    return max(1, len(wanted.workflow_names) if wanted.workflow_names else len(wanted.states))


def ways_to_seek(condition: Expression) -> list[tuple[Select[Any], Expression | None]]:
    """The parts of a condition that an index leads to, each with what is left to be asked of its rows."""
    parts = parts_of(condition)
    by_triage = tuple(part for part in parts if kinds_of(part) <= {OWNER, SEVERITY})
    by_ids = tuple(part for part in parts if kinds_of(part) == {EXECUTION_ID})
    by_attributes = tuple(part for part in parts if kinds_of(part) == {ATTRIBUTE})
    return [
        (seek(together), conjunction(part for part in parts if part not in chosen))
        for chosen in (by_triage, by_ids, by_attributes)
        if (together := conjunction(chosen)) is not None
    ]


def _other_name(part: Expression) -> str | None:
    """The type that a part excludes."""
    if isinstance(part, Compare) and part.field == Field(COLUMN, WORKFLOW_NAME) and part.op == "!=":
        return str(part.value)
    return None


def _alternatives(wanted: ExecutionFilter) -> list[ExecutionFilter]:
    """The filter once for each side of its first OR, where no one index leads to all of them."""
    parts = parts_of(wanted.condition)
    either = next((part for part in parts if isinstance(part, Or)), None)
    if either is None:
        return []
    rest = tuple(part for part in parts if part is not either)
    return [replace(wanted, condition=conjunction((side, *rest))) for side in either.parts]


def narrowed(wanted: ExecutionFilter) -> ExecutionFilter | None:
    """The filter with those parts of its condition as fields that an index is walked by; None: nothing can match."""
    left = []
    for part in parts_of(wanted.condition):
        fields = _narrowing(wanted, part)
        if fields is None:
            left.append(part)
        elif any(fields.get(name) == () for name in ("states", "workflow_names")):
            return None
        else:
            wanted = replace(wanted, **fields)
    return replace(wanted, condition=conjunction(left))


def _narrowing(wanted: ExecutionFilter, part: Expression) -> dict[str, Any] | None:
    """The fields that say the same as a part; None if none can."""
    if not isinstance(part, Compare | OneOf):
        return None
    values: Any = part.values if isinstance(part, OneOf) else (part.value,)
    operator = "=" if isinstance(part, OneOf) else part.op
    name = part.field.name if part.field.kind == COLUMN else ""
    if name == STATE:
        named = {State[value] for value in values}
        asked = set(wanted.states or State)
        return {"states": tuple(sorted(asked & named if operator == "=" else asked - named))}
    if name == WORKFLOW_NAME and operator == "=":
        return {"workflow_names": tuple(sorted(set(values) & set(wanted.workflow_names or values)))}
    if name == STARTED_AT and isinstance(part, Compare) and operator != "!=":
        return _between(wanted, operator, part.value)
    return None


def _between(wanted: ExecutionFilter, operator: str, instant: Any) -> dict[str, Any] | None:
    try:
        # The first bound is inclusive and the last exclusive; no time has parts of a microsecond.
        after = {">": instant + _MICROSECOND, ">=": instant, "=": instant}.get(operator)
        before = {"<": instant, "<=": instant + _MICROSECOND, "=": instant + _MICROSECOND}.get(operator)
    except OverflowError:
        return None
    return {
        "started_after": max(filter(None, (wanted.started_after, after)), default=None),
        "started_before": min(filter(None, (wanted.started_before, before)), default=None),
    }


def window_statement(search: Search, rows: int) -> Composed:
    """The matches among the next `rows` rows of the walk, with how many were walked and the last of them.

    There is always one row: where nothing matches its `execution_id` is null.
    """
    condition = search.wanted.condition
    assert condition is not None
    needed = tuple(EXECUTIONS.c[name] for name in _IN_ROW if name in kinds_of(condition) and name != STARTED_AT)
    walked = walk(search.wanted, (*KEYS, *needed), search.anchor, descending=search.descending, limit=rows).cte(
        "walked"
    )
    joined, holds = beside(walked, condition)
    matched = (
        ordered(select(walked.c.started_at, walked.c.execution_id), walked.c, descending=search.descending)
        .select_from(joined)
        .where(holds)
        .limit(search.limit)
    )
    reached = select(func.count().label("walked")).select_from(walked).subquery("reached")
    last = (
        ordered(
            select(walked.c.started_at.label("last_started_at"), walked.c.execution_id.label("last_execution_id")),
            walked.c,
            descending=not search.descending,
        )
        .limit(1)
        .subquery("last")
    )
    if search.shown is KEYS:
        found = matched.subquery("found")
    else:
        ids = select(matched.subquery("matched").c.execution_id)
        found = select(*search.shown).where(EXECUTIONS.c.execution_id == any_(_array(ids))).subquery("found")
    whole = select(reached, last, found).select_from(reached.outerjoin(last, true()).outerjoin(found, true()))
    return ordered(whole, found.c, descending=search.descending)


def seek_statement(search: Search, sought: Select[Any], rest: Expression | None) -> Composed:
    """The matches among the rows that `sought` finds, `found` of them; none is looked at if those are more than MANY.

    There is always one row: where nothing matches its `execution_id` is null.
    """
    sought_ids = sought.limit(MANY + 1).cte("sought")
    how_many = select(func.count()).select_from(sought_ids).scalar_subquery()
    candidates = select(*search.shown, *_asked_of_rows(search, rest)).where(
        EXECUTIONS.c.execution_id == any_(_array(select(sought_ids.c.execution_id))),
        *bounds_of(search.wanted, search.anchor, descending=search.descending),
        *traits_of(search.wanted),
        how_many <= MANY,
    )
    if rest is None:
        matched = ordered(candidates, EXECUTIONS.c, descending=search.descending).limit(search.limit)
    else:
        rows = candidates.subquery("candidates")
        joined, holds = beside(rows, rest)
        shown = (rows.c[column.name] for column in search.shown)
        matched = ordered(select(*shown).select_from(joined).where(holds), rows.c, descending=search.descending)
        matched = matched.limit(search.limit)
    counted = select(func.count().label("found")).select_from(sought_ids).subquery("counted")
    found = matched.subquery("matched")
    whole = select(counted, found).select_from(counted.outerjoin(found, true()))
    return ordered(whole, found.c, descending=search.descending)


def _asked_of_rows(search: Search, rest: Expression | None) -> list[ColumnElement[Any]]:
    """The columns that what is left of a condition needs, beside those that are shown."""
    kinds = frozenset() if rest is None else kinds_of(rest)
    shown = {column.name for column in search.shown}
    return [EXECUTIONS.c[name] for name in _IN_ROW if name in kinds and name not in shown]


def _array(ids: Select[Any]) -> Any:
    return func.array(ids.scalar_subquery())
