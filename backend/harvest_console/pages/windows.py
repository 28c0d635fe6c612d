"""Windows on a history, in full or in short, and the addresses of what lies beside them (console 2 and 5.8)."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from harvest.errors import InvalidRequestError
from harvest.operations import histories
from harvest.operations.histories import GROUPS, HistoryWindow
from harvest.operations.views import is_open
from harvest.shards import Shards
from harvest_console.pages.events import EventRow, event_rows
from harvest_console.pages.lines import Line, lines
from harvest_console.pages.types import FRAGMENTS
from harvest_console.rendering import build_url

WINDOW: Final = 200
FOLDED_WINDOW: Final = 100
# On the page of the run itself, above which the rest of it is shown.
BRIEF_WINDOW: Final = 50
# Enough of an event to tell it in a row; the rest is read when it is unfolded.
ROW_BYTES: Final = 1024
_BEYOND_ALL: Final = 2**31 - 1
COMPACT: Final = "compact"
FULL: Final = "full"
_WORDS: Final = {
    "workflow": "Workflow",
    "activities": "Activities",
    "timers": "Timers",
    "messages": "Signals and updates",
    "children": "Children",
    "external": "Other runs",
    "sessions": "Sessions",
    "markers": "Markers",
    "failed": "Failures",
}


class Asked(Struct, frozen=True, kw_only=True):
    """Which window an address asks for. `at` wins over all else: it shows that event among its neighbours, in full."""

    view: str = COMPACT
    kinds: tuple[str, ...] = ()
    direction: str = ""
    at: int | None = None
    after: int | None = None
    before: int | None = None
    brief: bool = False

    def checked(self) -> Asked:
        """The same without what does not mean anything. Raises InvalidRequestError for kinds that there are not."""
        unknown = [word for word in self.kinds if word not in GROUPS]
        if unknown:
            raise InvalidRequestError(
                f"{unknown[0][:40]!r} is no kind of event; there are {', '.join(GROUPS)}", field="kind"
            )
        if self.at is not None:
            return Asked(view=FULL, direction="oldest", at=_bounded(self.at))
        return Asked(
            view=self.view if self.view in (COMPACT, FULL) else COMPACT,
            kinds=tuple(dict.fromkeys(self.kinds)),
            direction=self.direction if self.direction in ("newest", "oldest") else "",
            after=_bounded(self.after),
            before=_bounded(self.before),
            brief=self.brief,
        )

    @property
    def size(self) -> int:
        """How many rows there are at most."""
        if self.brief:
            return BRIEF_WINDOW
        return WINDOW if self.view == FULL else FOLDED_WINDOW


def _bounded(event_id: int | None) -> int | None:
    return None if event_id is None else min(max(1, event_id), _BEYOND_ALL)


class Choice(Struct, frozen=True):
    """A link that filters; `count` is None where it is not counted."""

    word: str
    url: str
    on: bool
    count: int | None = None


class Window(Struct, frozen=True, kw_only=True):
    """A window as the page draws it: `rows` in full, or `lines` in short."""

    view: str
    rows: list[EventRow]
    lines: list[Line]
    total: int
    newest_first: bool
    live: bool
    brief: bool
    filtered: bool
    page: str
    run_page: str
    fragment: str
    choices: list[Choice]
    compact_url: str
    full_url: str
    newest_first_url: str
    oldest_first_url: str
    earlier_url: str | None
    later_url: str | None


async def read_window(shards: Shards, execution_id: UUID, asked: Asked, *, newest_first: bool, base: str) -> Window:
    """Read one window. `newest_first` is the order if the address names none; raises as `histories.window` does."""
    asked = asked.checked()
    if asked.direction:
        newest_first = asked.direction == "newest"
    after, before, backward = _place(asked, newest_first)
    found = await histories.window(
        shards,
        execution_id,
        groups=asked.kinds,
        folded=asked.view == COMPACT,
        after=after,
        before=before,
        limit=asked.size,
        newest_first=backward,
        inline=ROW_BYTES,
    )
    return _Drawing(found, asked, newest_first, backward, base).window()


def _place(asked: Asked, newest_first: bool) -> tuple[int, int | None, bool]:
    """After and before which event to read, and whether to read backwards."""
    if asked.at is not None:
        start = (asked.at - 1) // WINDOW * WINDOW
        return start, min(start + WINDOW + 1, _BEYOND_ALL), False
    if asked.after is not None:
        return asked.after, None, False
    if asked.before is not None:
        return 0, asked.before, True
    return 0, None, newest_first


class _Drawing:
    """What was read, on its way to what is drawn."""

    def __init__(self, found: HistoryWindow, asked: Asked, newest_first: bool, backward: bool, base: str) -> None:
        self._found = found
        self._asked = asked
        self._newest_first = newest_first
        self._backward = backward
        self._base = base
        self._run = f"/w/{found.execution_id}"
        self._page = f"{self._run}/history"

    def window(self) -> Window:
        """The whole of it."""
        found, asked = self._found, self._asked
        events = sorted(found.events, key=lambda event: event.event_id, reverse=self._newest_first)
        found = replace(found, events=events)
        older, newer = self._beside()
        folded = asked.view == COMPACT
        return Window(
            view=asked.view,
            rows=[] if folded else event_rows(found.events, found.beside),
            lines=lines(found) if folded else [],
            total=found.last_event_id,
            newest_first=self._newest_first,
            live=newer is None and is_open(found.state),
            brief=asked.brief,
            filtered=bool(asked.kinds),
            page=self._base + self._page,
            run_page=self._base + self._run,
            fragment=self._fragment(),
            choices=self._choices(),
            compact_url=self._url(view=COMPACT),
            full_url=self._url(view=FULL),
            newest_first_url=self._url(dir="newest"),
            oldest_first_url=self._url(dir="oldest"),
            earlier_url=newer if self._newest_first else older,
            later_url=older if self._newest_first else newer,
        )

    def _beside(self) -> tuple[str | None, str | None]:
        """The addresses of what is older than this window, and of what is newer."""
        events, asked, more = self._found.events, self._asked, self._found.next_cursor is not None
        ids = [event.event_id for event in events]
        low = min(ids, default=(asked.after or 0) + 1)
        high = max(ids, default=(asked.before or 1) - 1)
        if asked.at is not None:
            has_older, has_newer = low > 1, high < self._found.last_event_id
        elif self._backward:
            has_older, has_newer = more, asked.before is not None and asked.before <= self._found.last_event_id
        else:
            has_older, has_newer = bool(asked.after), more
        return (
            self._url(before=low) if has_older else None,
            self._url(after=high) if has_newer else None,
        )

    def _order(self) -> str:
        return "newest" if self._newest_first else "oldest"

    def _url(self, **changed: object) -> str:
        asked = self._asked
        values = {"view": asked.view, "kind": list(asked.kinds), "dir": self._order()} | changed
        return build_url(self._base, self._page, **values) + "#history"

    def _fragment(self) -> str:
        asked = self._asked
        return build_url(
            self._base,
            FRAGMENTS + self._page,
            view=asked.view,
            kind=list(asked.kinds),
            dir=self._order(),
            at=asked.at,
            after=asked.after,
            before=asked.before,
            brief="1" if asked.brief else None,
        )

    def _choices(self) -> list[Choice]:
        """A link for each group that there is anything of, or that is chosen; each adds it or takes it away."""
        asked, counts = self._asked, self._found.counts
        every = Choice("All", self._url(kind=None), not asked.kinds, None)
        return [every] + [
            Choice(
                word,
                self._url(kind=[each for each in GROUPS if (each in asked.kinds) != (each == group)]),
                group in asked.kinds,
                counts[group],
            )
            for group, word in _WORDS.items()
            if counts[group] or group in asked.kinds
        ]
