"""Saved views: filters of the list under a name, kept on the default shard and the same for everybody."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl, quote
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.errors import InvalidRequestError, LimitError, SavedViewExistsError, SavedViewNotFoundError
from harvest.operations.actor import Actor, audit_entry
from harvest.shards import Partial, Shards
from harvest.store import saved_views as rows
from harvest.store.store import Store

MOST_VIEWS: Final = 200
NAME_CHARACTERS: Final = 80
QUERY_BYTES: Final = 8192
TARGET: Final = "saved_view"
# What of the list's address a view keeps: which runs, how they are shown, and no place in the list.
PARAMETERS: Final = (
    "state",
    "blocked",
    "type",
    "id",
    "owner",
    "severity",
    "after",
    "before",
    "filter",
    "columns",
    "order",
    "size",
)


class SavedView(Struct, frozen=True, kw_only=True):
    """A view: `query` is the query string of the list's address, without a question mark. `actor` saved it."""

    view_id: UUID
    name: str
    query: str
    actor: str
    created_at: datetime


class Saved(Struct, frozen=True, kw_only=True):
    """What became of a request to save; `newly_saved` is false where this view was there already."""

    view: SavedView
    newly_saved: bool


async def list_views(shards: Shards) -> Partial[SavedView]:
    """Every view by name. The default shard alone has them; when it does not answer, it is named as missing."""

    async def read(store: Store) -> list[SavedView]:
        return [_view(row) for row in await rows.every(store)]

    found = await shards.fan_out(read, over=(shards.router.default,))
    return msgspec.structs.replace(found, rows=sorted(found.rows, key=lambda view: (view.name.casefold(), view.name)))


async def save_view(shards: Shards, actor: Actor, *, name: str, query: str) -> Saved:
    """Save a filter under a name. Saved twice it is there once.

    Raises SavedViewExistsError when another filter has the name, LimitError when there are too many views,
    InvalidRequestError for a name or a query that cannot be, ShardUnavailableError.
    """
    name, query = checked_name(name), checked_query(query)
    default, view_id = shards.router.default, UUID(bytes=clock.random_bytes(16), version=4)
    entry = audit_entry(actor, "saved_view.save", shard_id=default, target_id=str(view_id), target_type=TARGET)
    row, added = await rows.insert(shards.store(default), view_id, name, query, most=MOST_VIEWS, audit=entry)
    if row is None:
        raise LimitError(f"there are {MOST_VIEWS} saved views, and no more can be: delete one first", field="name")
    view = _view(row)
    if view.query != query:
        raise _taken(view)
    return Saved(view=view, newly_saved=added)


async def rename_view(shards: Shards, actor: Actor, view_id: UUID, *, name: str) -> SavedView:
    """Give a view another name. Raises SavedViewExistsError, SavedViewNotFoundError, and as `save_view` does."""
    name, default = checked_name(name), shards.router.default
    entry = audit_entry(actor, "saved_view.rename", shard_id=default, target_id=str(view_id), target_type=TARGET)
    row = await rows.rename(shards.store(default), view_id, name, audit=entry)
    if row is None:
        raise _not_found(view_id)
    view = _view(row)
    if view.view_id != view_id:
        raise _taken(view)
    return view


async def delete_view(shards: Shards, actor: Actor, view_id: UUID) -> SavedView:
    """Delete a view, and answer what it was. Raises SavedViewNotFoundError, ShardUnavailableError."""
    default = shards.router.default
    entry = audit_entry(actor, "saved_view.delete", shard_id=default, target_id=str(view_id), target_type=TARGET)
    row = await rows.delete(shards.store(default), view_id, audit=entry)
    if row is None:
        raise _not_found(view_id)
    return _view(row)


def checked_name(name: str) -> str:
    """The name without space around it. Raises InvalidRequestError."""
    name = name.strip()
    if not 1 <= len(name) <= NAME_CHARACTERS:
        raise InvalidRequestError(
            f"the name has {len(name)} characters; a view's has 1 to {NAME_CHARACTERS}", field="name"
        )
    if not name.isprintable():
        raise InvalidRequestError("the name holds a control character or a line break; leave it out", field="name")
    return name


def checked_query(query: str) -> str:
    """A query string as views keep it: in one order and encoding, so that equal filters are equal texts.

    Raises InvalidRequestError for what is no query string, or has a parameter that is no part of a view.
    """
    try:
        pairs = parse_qsl(query.removeprefix("?"), strict_parsing=bool(query), errors="strict", max_num_fields=100)
    except ValueError as error:
        raise InvalidRequestError(f"query is not a query string: {error}", field="query") from None
    for name, value in pairs:
        if name not in PARAMETERS:
            raise InvalidRequestError(
                f"query has the parameter {name[:40]!r}; a view keeps {', '.join(PARAMETERS)}", field="query"
            )
        if "\x00" in value:
            raise InvalidRequestError(f"{name} in query holds a NUL character, which nothing has", field="query")
    ordered = sorted(pairs, key=lambda pair: PARAMETERS.index(pair[0]))
    text = "&".join(f"{name}={quote(value, safe='')}" for name, value in ordered if value)
    if len(text) > QUERY_BYTES:
        raise InvalidRequestError(f"query has {len(text)} bytes; {QUERY_BYTES} are the most", field="query")
    return text


def _view(row: Any) -> SavedView:
    return SavedView(**{name: row[name] for name in SavedView.__struct_fields__})


def _taken(view: SavedView) -> SavedViewExistsError:
    return SavedViewExistsError(
        f"there is a view named {view.name!r} already, of another filter: choose another name",
        field="name",
        view_id=str(view.view_id),
    )


def _not_found(view_id: UUID) -> SavedViewNotFoundError:
    return SavedViewNotFoundError(f"there is no saved view {view_id}", view_id=str(view_id))
