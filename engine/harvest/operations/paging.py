"""Pages over several shards: one order, cursors bound to their filter, a k-way merge (design 7)."""

from __future__ import annotations

import base64
import binascii
import heapq
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.errors import CursorError
from harvest.shards import Partial, Shards
from harvest.store.store import Store

T = TypeVar("T")
Key = tuple[datetime, UUID]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Page(Struct, Generic[T], frozen=True):
    """Rows of one page with the shards they came from, cursors to its neighbours, and how many rows were read."""

    rows: Partial[T]
    next_cursor: str | None
    previous_cursor: str | None
    rows_read: int


class _Cursor(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    microseconds: int
    row_id: UUID
    backwards: bool
    digest: str


def filter_digest(*parts: Any) -> str:
    """What binds a cursor to its filter and order."""
    return sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def write_cursor(key: Key, *, backwards: bool, digest: str) -> str:
    """The cursor of the rows beyond `key`. Time goes as whole microseconds, so nothing is rounded."""
    cursor = _Cursor(1, (key[0] - _EPOCH) // _MICROSECOND, key[1], backwards, digest)
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).rstrip(b"=").decode()


def read_cursor(text: str, digest: str) -> tuple[Key, bool]:
    """The key of a cursor and whether it goes backwards. Raises CursorError if damaged or of another filter."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = msgspec.json.decode(raw, type=_Cursor)
        at = _EPOCH + cursor.microseconds * _MICROSECOND
    except (binascii.Error, ValueError, OverflowError, msgspec.MsgspecError):
        raise CursorError("the cursor is damaged: begin at the first page", field="cursor") from None
    if cursor.version != 1 or cursor.digest != digest:
        raise CursorError("the cursor belongs to another filter or order: begin at the first page", field="cursor")
    return (at, cursor.row_id), cursor.backwards


async def keyset_page(
    shards: Shards,
    read: Callable[[Store, Key | None, bool, int], Awaitable[list[T]]],
    *,
    key: Callable[[T], Key],
    size: int,
    descending: bool,
    cursor: str | None,
    digest: str,
    over: Iterable[int] | None = None,
) -> Page[T]:
    """One page of at most `size` rows, merged over all shards; each shard reads at most `size + 1` rows.

    `read(store, beyond, descending, limit)` answers a shard's rows in that order. `over` asks these shards alone, for
    what they have of the same page. Raises CursorError.
    """
    anchor, backwards = read_cursor(cursor, digest) if cursor else (None, False)
    downwards = descending != backwards
    streams: list[list[T]] = []

    async def one(store: Store) -> list[T]:
        streams.append(await read(store, anchor, downwards, size + 1))
        return []

    answered = await shards.fan_out(one, over=over)
    merged = list(heapq.merge(*streams, key=key, reverse=downwards))
    more, rows = len(merged) > size, merged[:size]
    if backwards:
        rows.reverse()
    ahead = bool(rows) and (backwards or more)
    behind = bool(rows) and (more if backwards else anchor is not None)
    return Page(
        rows=msgspec.structs.replace(answered, rows=rows),
        next_cursor=write_cursor(key(rows[-1]), backwards=False, digest=digest) if ahead else None,
        previous_cursor=write_cursor(key(rows[0]), backwards=True, digest=digest) if behind else None,
        rows_read=sum(len(stream) for stream in streams),
    )
