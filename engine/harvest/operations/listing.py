"""The list of executions over all shards, and capped counts (design 7, console 5.8)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.errors import FilterError, InvalidRequestError
from harvest.history.ids import ids_beginning
from harvest.history.states import State
from harvest.operations.filter_language import MOST_PREDICATES, parse, render
from harvest.operations.paging import filter_digest, keyset_page, write_cursor
from harvest.operations.probing import end_quiet
from harvest.operations.views import ExecutionView, execution_view
from harvest.operations.waiting import fill_in
from harvest.shards import MissingShard, Partial, Shards
from harvest.store import counts, searching
from harvest.store.filters import (
    COLUMN,
    EXECUTION_ID,
    OWNER,
    SEVERITIES,
    SEVERITY,
    Compare,
    Expression,
    Field,
    conjunction,
    leaves,
    resolved,
)
from harvest.store.listing import ExecutionFilter
from harvest.store.store import Store

MOST_ROWS: Final = 200
COUNT_CAP: Final = 10_000
_LAST_ID: Final = UUID(int=2**128 - 1)


class ListFilter(Struct, frozen=True, kw_only=True):
    """Which executions, and in which order of their start. Empty and None are any; `started_before` is exclusive.

    `blocked` asks for the open runs that stand still alone. `exec_id_prefix` is how the execution id begins, in
    hexadecimal digits, with or without its dashes. `attrs` are single conditions (filter_language.search_attr
    and search_attr_filter), `filter` is a text of the language. All must hold.
    """

    states: tuple[str, ...] = ()
    blocked: bool = False
    workflow_name: str | None = None
    workflow_id: str | None = None
    exec_id_prefix: str | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    owner: str | None = None
    severity: str | None = None
    attrs: tuple[Expression, ...] = ()
    filter: str = ""
    order: str = "desc"


class ListPage(Struct, frozen=True, kw_only=True):
    """One page: rows with the shards they came from, cursors to its neighbours, and what reading it took."""

    executions: Partial[ExecutionView]
    next_cursor: str | None
    previous_cursor: str | None
    rows_read: int
    took_ms: float


class Counted(Struct, frozen=True, kw_only=True):
    """How many there are; `capped` when there are more than `count`. Shards that are missing are not in it."""

    count: int
    capped: bool
    status: str
    missing: tuple[MissingShard, ...]


async def list_executions(
    shards: Shards,
    wanted: ListFilter,
    *,
    page_size: int = 50,
    cursor: str | None = None,
    over: Collection[int] | None = None,
) -> ListPage:
    """One page, merged over the shards; each reads at most `page_size + 1` rows and no payload.

    `over` asks these shards alone, however lately they have failed, for what they have of the same page.

    Raises CursorError for a cursor of another filter, FilterError or InvalidRequestError for a filter that cannot be.
    """
    if not 1 <= page_size <= MOST_ROWS:
        raise InvalidRequestError(f"page_size is {page_size}; it must be 1 to {MOST_ROWS}", field="page_size")
    began = clock.monotonic()
    by_row = row_filter(wanted)
    end_quiet(shards, over or ())

    async def read(
        store: Store, anchor: tuple[datetime, UUID] | None, descending: bool, limit: int
    ) -> list[ExecutionView]:
        found = await searching.page(store, by_row, anchor, descending=descending, limit=limit)
        return [execution_view(row, store.shard_id) for row in found]

    page = await keyset_page(
        shards,
        read,
        key=lambda view: (view.started_at, view.execution_id),
        size=page_size,
        descending=wanted.order == "desc",
        cursor=cursor,
        digest=_digest(wanted),
        over=over,
    )
    filled = await fill_in(shards, page.rows.rows)
    return ListPage(
        executions=msgspec.structs.replace(page.rows, rows=filled),
        next_cursor=page.next_cursor,
        previous_cursor=page.previous_cursor,
        rows_read=page.rows_read,
        took_ms=round((clock.monotonic() - began) * 1000, 1),
    )


def cursor_from(wanted: ListFilter, newest: datetime) -> str:
    """The cursor of the page, newest first, that begins with what started at `newest`."""
    return write_cursor((newest, _LAST_ID), backwards=False, digest=_digest(wanted))


def _digest(wanted: ListFilter) -> str:
    # As data in which no two filters look alike: a number and the text of its digits are told apart.
    fields = msgspec.structs.asdict(wanted) | {"attrs": [render(part) for part in wanted.attrs]}
    return filter_digest("executions", msgspec.to_builtins(fields))


async def count(shards: Shards, wanted: ListFilter, *, cap: int = COUNT_CAP) -> Counted:
    """How many executions match, counted to `cap`: no shard counts more than `cap + 1` of them."""
    by_row = row_filter(wanted)

    async def read(store: Store) -> list[int]:
        return [await counts.count(store, by_row, cap + 1)]

    answer = await shards.fan_out(read)
    total = sum(answer.rows)
    return Counted(count=min(total, cap), capped=total > cap, status=answer.status, missing=answer.missing)


def row_filter(wanted: ListFilter) -> ExecutionFilter:
    """The filter as the store takes it. Raises FilterError, InvalidRequestError for one that cannot be."""
    if wanted.order not in ("asc", "desc"):
        raise InvalidRequestError(f"order is {wanted.order[:80]!r}; it must be asc or desc", field="order")
    for field in ("workflow_name", "workflow_id", "owner"):
        if "\x00" in (getattr(wanted, field) or ""):
            raise InvalidRequestError(f"{field} holds a NUL character, which no name or id has", field=field)
    states = tuple(sorted({state_named(word) for word in wanted.states}))
    return ExecutionFilter(
        states=states if len(states) < len(State) else (),
        blocked=wanted.blocked,
        workflow_names=() if wanted.workflow_name is None else (wanted.workflow_name,),
        workflow_id=wanted.workflow_id,
        started_after=wanted.started_after,
        started_before=wanted.started_before,
        condition=_condition(wanted),
    )


def _condition(wanted: ListFilter) -> Expression | None:
    """All conditions on ids, attributes, owner and severity, and the filter's text, as one expression."""
    parts = list(wanted.attrs)
    if wanted.owner is not None:
        parts.append(Compare(Field(COLUMN, OWNER), "=", wanted.owner))
    if wanted.severity is not None:
        parts.append(Compare(Field(COLUMN, SEVERITY), "=", severity_named(wanted.severity)))
    if wanted.filter:
        parts.append(parse(wanted.filter))
    predicates = sum(1 for part in parts for _ in leaves(part))
    if predicates > MOST_PREDICATES:
        raise FilterError(
            f"the request has {predicates} conditions; use {MOST_PREDICATES} at most",
            field="filter",
            column=1,
            remedy="name several values of one field by IN",
        )
    if wanted.exec_id_prefix is not None:
        ids = Field(COLUMN, EXECUTION_ID)
        first, last = ids_beginning(wanted.exec_id_prefix)
        parts += (Compare(ids, ">=", first), Compare(ids, "<=", last))
    whole = conjunction(parts)
    return None if whole is None else resolved(whole, clock.now())


def severity_named(word: str, field: str = "severity") -> str:
    """A severity; raises InvalidRequestError naming the `field` that holds something else."""
    if word not in SEVERITIES:
        raise InvalidRequestError(f"{word[:80]!r} is no severity; there are {', '.join(SEVERITIES)}", field=field)
    return word


def state_named(word: str, field: str = "state") -> State:
    """The state of a word; raises InvalidRequestError naming the `field` that holds it."""
    if word not in State.__members__:
        raise InvalidRequestError(f"{word[:80]!r} is no state; there are {', '.join(State.__members__)}", field=field)
    return State[word]
