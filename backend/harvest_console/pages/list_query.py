"""What the address of the list asks for: read from it, and written into its links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from harvest.errors import InvalidRequestError
from harvest.history.states import State
from harvest.operations.listing import ListFilter
from harvest.store.filters import SEVERITIES
from harvest_console.pages.queries import link_text, read_instant
from harvest_console.rendering import build_url

LIST: Final = "/workflows"
SIZES: Final = (25, 50, 100, 200)
DEFAULT_SIZE: Final = 50
MOST_COLUMNS: Final = 3
Parameters = Mapping[str, Sequence[str]]


class Query(Struct, frozen=True, kw_only=True):
    """What the address of a list asks for, but for the page of it. `expression` is as it was typed."""

    states: tuple[str, ...] = ()
    blocked: bool = False
    type: str = ""
    id: str = ""
    owner: str = ""
    severity: str = ""
    after: datetime | None = None
    before: datetime | None = None
    expression: str = ""
    columns: tuple[str, ...] = ()
    order: str = "desc"
    size: int = DEFAULT_SIZE

    def filter(self, *, after: datetime | None = None) -> ListFilter:
        """The filter of operations; `after` narrows it."""
        return ListFilter(
            states=self.states,
            blocked=self.blocked,
            workflow_name=self.type or None,
            workflow_id=self.id or None,
            owner=self.owner or None,
            severity=self.severity or None,
            started_after=max(filter(None, (self.after, after)), default=None),
            started_before=self.before,
            filter=self.expression,
            order="asc" if self.order == "asc" else "desc",
        )

    def parameters(self, **changed: Any) -> dict[str, Any]:
        """The parameters of an address; those that say nothing are None or empty."""
        values: dict[str, Any] = {
            "state": list(self.states),
            "blocked": "1" if self.blocked else None,
            "type": self.type,
            "id": self.id,
            "owner": self.owner,
            "severity": self.severity,
            "after": link_text(self.after),
            "before": link_text(self.before),
            "filter": self.expression,
            "columns": list(self.columns),
            "order": self.order if self.order != "desc" else None,
            "size": self.size if self.size != DEFAULT_SIZE else None,
        }
        return values | changed

    def url(self, base: str, path: str = LIST, **changed: Any) -> str:
        """The address of the list, or of a page beside it, with some of this changed."""
        return build_url(base, path, **self.parameters(**changed))

    @property
    def query_string(self) -> str:
        """The query string of its address, without a question mark."""
        return self.url("", "").removeprefix("?")

    @property
    def narrowed(self) -> bool:
        """Whether anything is filtered."""
        asked = self.states or self.blocked or self.type or self.id or self.owner or self.severity
        return bool(asked or self.after or self.before or self.expression.strip())


def read_query(given: Parameters) -> tuple[Query, str]:
    """The query of an address. What is not right is left out and told, so that the filter bar stays usable."""

    def last(name: str) -> str:
        values = given.get(name) or ("",)
        return values[-1].strip()

    known = [word.upper() for word in given.get("state", ())]
    problems = [f"{word[:40]!r} is no state." for word in known if word not in State.__members__]
    times: dict[str, datetime | None] = {}
    for name in ("after", "before"):
        try:
            times[name] = read_instant(last(name), last("tz"), name)
        except InvalidRequestError as error:
            times[name] = None
            problems.append(error.message + ".")
    severity = last("severity")
    if severity and severity not in SEVERITIES:
        problems.append(f"{severity[:40]!r} is no severity.")
        severity = ""
    size = last("size")
    columns = dict.fromkeys(key for key in (one.strip() for one in given.get("columns", ())) if key)
    query = Query(
        states=tuple(dict.fromkeys(word for word in known if word in State.__members__)),
        blocked=last("blocked") in ("1", "true"),
        type=last("type"),
        id=last("id"),
        owner=last("owner"),
        severity=severity,
        after=times["after"],
        before=times["before"],
        expression=last("filter"),
        columns=tuple(columns)[:MOST_COLUMNS],
        order="asc" if last("order") == "asc" else "desc",
        size=int(size) if size.isdecimal() and size in map(str, SIZES) else DEFAULT_SIZE,
    )
    return query, " ".join(problems)
