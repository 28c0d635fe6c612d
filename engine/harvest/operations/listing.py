"""The list of executions over all shards, and capped counts (design 7, console 5.8)."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.errors import InvalidRequestError
from harvest.history.states import State
from harvest.operations.paging import filter_digest, keyset_page
from harvest.operations.views import ExecutionView, execution_view
from harvest.operations.waiting import fill_in
from harvest.shards import MissingShard, Partial, Shards
from harvest.store import listing as rows
from harvest.store.store import Store

MOST_ROWS: Final = 200
COUNT_CAP: Final = 10_000


class ListFilter(Struct, frozen=True, kw_only=True):
    """Which executions, and in which order of their start. Empty and None are any; `started_before` is exclusive.

    `blocked` asks for the open runs that stand still alone.
    """

    states: tuple[str, ...] = ()
    blocked: bool = False
    workflow_name: str | None = None
    workflow_id: str | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
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
    shards: Shards, wanted: ListFilter, *, page_size: int = 50, cursor: str | None = None
) -> ListPage:
    """One page, merged over the shards; each reads at most `page_size + 1` rows and no payload.

    Raises CursorError for a cursor of another filter, InvalidRequestError for a filter that cannot be.
    """
    if not 1 <= page_size <= MOST_ROWS:
        raise InvalidRequestError(f"page_size is {page_size}; it must be 1 to {MOST_ROWS}", field="page_size")
    began = clock.monotonic()
    by_row = row_filter(wanted)

    async def read(
        store: Store, anchor: tuple[datetime, UUID] | None, descending: bool, limit: int
    ) -> list[ExecutionView]:
        found = await rows.page(store, by_row, anchor, descending=descending, limit=limit)
        return [execution_view(row, store.shard_id) for row in found]

    page = await keyset_page(
        shards,
        read,
        key=lambda view: (view.started_at, view.execution_id),
        size=page_size,
        descending=wanted.order == "desc",
        cursor=cursor,
        digest=filter_digest("executions", msgspec.to_builtins(wanted)),
    )
    filled = await fill_in(shards, page.rows.rows)
    return ListPage(
        executions=msgspec.structs.replace(page.rows, rows=filled),
        next_cursor=page.next_cursor,
        previous_cursor=page.previous_cursor,
        rows_read=page.rows_read,
        took_ms=round((clock.monotonic() - began) * 1000, 1),
    )


async def count(shards: Shards, wanted: ListFilter, *, cap: int = COUNT_CAP) -> Counted:
    """How many executions match, counted to `cap`: no shard looks at more than `cap + 1` of them."""
    by_row = row_filter(wanted)

    async def read(store: Store) -> list[int]:
        return [await rows.count(store, by_row, cap + 1)]

    answer = await shards.fan_out(read)
    total = sum(answer.rows)
    return Counted(count=min(total, cap), capped=total > cap, status=answer.status, missing=answer.missing)


def row_filter(wanted: ListFilter) -> rows.ExecutionFilter:
    """The filter as the store takes it; raises InvalidRequestError for one that cannot be."""
    if wanted.order not in ("asc", "desc"):
        raise InvalidRequestError(f"order is {wanted.order[:80]!r}; it must be asc or desc", field="order")
    for field in ("workflow_name", "workflow_id"):
        if "\x00" in (getattr(wanted, field) or ""):
            raise InvalidRequestError(f"{field} holds a NUL character, which no name or id has", field=field)
    states = tuple(sorted({state_named(word) for word in wanted.states}))
    return rows.ExecutionFilter(
        states=states if len(states) < len(State) else (),
        blocked=wanted.blocked,
        workflow_name=wanted.workflow_name,
        workflow_id=wanted.workflow_id,
        started_after=wanted.started_after,
        started_before=wanted.started_before,
    )


def state_named(word: str, field: str = "state") -> State:
    """The state of a word; raises InvalidRequestError naming the `field` that holds it."""
    if word not in State.__members__:
        raise InvalidRequestError(f"{word[:80]!r} is no state; there are {', '.join(State.__members__)}", field=field)
    return State[word]
