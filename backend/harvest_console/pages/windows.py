"""Windows of 200 events on a history, and the addresses of their neighbours (console 2 and 5.8)."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.history.kinds import TERMINAL
from harvest.operations import reading
from harvest.operations.reading import HistoryPage
from harvest.shards import Shards
from harvest_console.pages.events import EventRow, event_rows
from harvest_console.pages.types import FRAGMENTS
from harvest_console.rendering import build_url

WINDOW: Final = 200
# Enough of an event to tell it in a row; the rest is read when it is unfolded.
ROW_BYTES: Final = 1024
_TERMINAL_WORDS: Final = frozenset(kind.word for kind in TERMINAL)


class Asked(Struct, frozen=True, kw_only=True):
    """Which window an address asks for. `at` wins over `after` and `before`."""

    direction: str = ""
    at: int | None = None
    after: int | None = None
    before: int | None = None


class Window(Struct, frozen=True, kw_only=True):
    """A window as the page draws it."""

    rows: list[EventRow]
    total: int
    newest_first: bool
    live: bool
    page: str
    page_root: str
    fragment: str
    newest_first_url: str
    oldest_first_url: str
    earlier_url: str | None
    later_url: str | None


async def read_window(shards: Shards, execution_id: UUID, asked: Asked, *, newest_first: bool, base: str) -> Window:
    """Read one window. `newest_first` is the order if the address names none; raises as `reading.history` does."""
    if asked.direction or asked.at is not None:
        newest_first = asked.direction == "newest"
    after, before = asked.after or 0, asked.before
    if asked.at is not None:
        after = max(0, asked.at - 1) // WINDOW * WINDOW
        before = after + WINDOW + 1
    history = await reading.history(
        shards,
        execution_id,
        after=after if not newest_first or asked.at is not None else 0,
        before=before if newest_first or asked.at is not None else None,
        limit=WINDOW,
        newest_first=newest_first,
        inline=ROW_BYTES,
    )
    return _window(history, asked, newest_first, base)


def _window(history: HistoryPage, asked: Asked, newest_first: bool, base: str) -> Window:
    page = f"/w/{history.execution_id}"
    order = "newest" if newest_first else "oldest"
    rows = event_rows(history.events)
    ids = [row.event_id for row in rows]
    low, high, last = min(ids, default=0), max(ids, default=0), history.last_event_id
    ended = any(row.event_id == last and row.type in _TERMINAL_WORDS for row in rows)

    def beside(**place: int | None) -> str:
        return build_url(base, page, dir=order, **place) + "#history"

    up_to_newer = beside(before=high + WINDOW + 1 if high + WINDOW < last else None)
    newer = None if high >= last else (up_to_newer if newest_first else beside(after=high))
    older = None if low <= 1 else (beside(before=low) if newest_first else beside(after=max(0, low - 1 - WINDOW)))
    return Window(
        rows=rows,
        total=history.total_events,
        newest_first=newest_first,
        live=high >= last and not ended,
        page=base + page,
        page_root=f"{base}{page}/events",
        fragment=build_url(
            base, f"{FRAGMENTS}{page}/history", dir=order, at=asked.at, after=asked.after, before=asked.before
        ),
        newest_first_url=build_url(base, page, dir="newest") + "#history",
        oldest_first_url=build_url(base, page, dir="oldest") + "#history",
        earlier_url=newer if newest_first else older,
        later_url=older if newest_first else newer,
    )
