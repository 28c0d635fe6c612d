"""`/usage`: what each workflow type, or each value of a search attribute, has used in a window of time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Annotated, Any, Final

from litestar import get
from litestar.params import QueryParameter
from msgspec import Struct

from harvest.errors import InvalidRequestError, LimitError, TooManyGroupsError
from harvest.operations import usage
from harvest.operations.usage import UNATTRIBUTED, Usage, UsageGroup, UsageQuestion
from harvest.operations.views import API_ROOT
from harvest.shards import Shards
from harvest_console.auth.caller import settings_of
from harvest_console.pages.queries import input_text, link_text, read_instant
from harvest_console.pages.types import AnyRequest, Page, base_path
from harvest_console.rendering import build_url, render
from harvest_console.rendering.preferences import read_preferences
from harvest_console.rendering.times import zone_named

WINDOWS: Final = (("24 hours", "24h"), ("7 days", "7d"), ("30 days", "30d"))
DEFAULT_WINDOW: Final = "24h"
NOW: Final = "now"
PAGE_SIZE: Final = 100
_RELATIVE: Final = re.compile(r"-?\d{1,7}[smhdw]|now")


class Column(Struct, frozen=True):
    """A column of the table: the field of a group, its head with the unit, and how its numbers are written.

    `label` stands beside the number where there is no head.
    """

    field: str
    head: str
    label: str
    divisor: int = 1
    digits: int = 0

    def text(self, group: UsageGroup) -> str:
        """The number as people read it."""
        number = getattr(group, self.field)
        return f"{number / self.divisor:,.{self.digits}f}" if self.digits else f"{number:,}"


RUNS: Final = (
    Column("workflow_starts", "Starts", "Starts"),
    Column("completed", "Completed", "Completed"),
    Column("failed", "Failed", "Failed"),
    Column("cancelled", "Cancelled", "Cancelled"),
    Column("timed_out", "Timed out", "Timed out"),
)
ACTIVITIES: Final = (
    Column("activity_executions", "Attempts", "Attempts"),
    Column("activity_executions_failed", "Failed", "Act. failed"),
    Column("activity_compute_seconds", "Compute (s)", "Compute (s)", digits=1),
)
MODELS: Final = (
    Column("llm_calls", "Calls", "LLM calls"),
    Column("llm_input_tokens", "In (tokens)", "Tokens in"),
    Column("llm_output_tokens", "Out (tokens)", "Tokens out"),
    Column("llm_cost_usd_micros", "Cost (USD)", "Cost (USD)", 1_000_000, 4),
    Column("llm_unpriced_calls", "Unpriced", "Unpriced"),
    Column("llm_latency_ms", "Latency (s)", "LLM (s)", 1_000, 1),
)
FIELDS: Final = tuple(column.field for column in (*RUNS, *ACTIVITIES, *MODELS))


class Head(Struct, frozen=True):
    """A head of the table: its text, the link that sorts by it, and `ascending` or `descending` where it does."""

    text: str
    url: str
    sorted: str


class Row(Struct, frozen=True):
    """One group: its name, its page if it has one, and each number with its label."""

    name: str
    url: str | None
    cells: list[tuple[str, str]]


class Table(Struct, frozen=True, kw_only=True):
    """One of the page's tables: its sections with how many columns each has, heads, sums, and rows."""

    key: str
    sections: list[tuple[str, int]]
    heads: list[Head]
    sums: list[tuple[str, str]]
    rows: list[Row]


class Query(Struct, frozen=True, kw_only=True):
    """What the address asks for. `since` and `until` are as it has them, spans or instants in UTC."""

    since: str = DEFAULT_WINDOW
    until: str = NOW
    by: str = usage.BY_TYPE
    sort: str = "group"
    page: int = 1

    def parameters(self, **changed: Any) -> dict[str, Any]:
        """The parameters of an address; those that say nothing are left out."""
        values: dict[str, Any] = {
            "from": self.since if self.since != DEFAULT_WINDOW else None,
            "to": self.until if self.until != NOW else None,
            "by": self.by if self.by != usage.BY_TYPE else None,
            "sort": self.sort if self.sort != "group" else None,
            "page": self.page if self.page != 1 else None,
        }
        return values | changed


@get("/usage")
async def usage_page(
    request: AnyRequest,
    shards: Shards,
    since: Annotated[str, QueryParameter(name="from")] = "",
    until: Annotated[str, QueryParameter(name="to")] = "",
    tz: str = "",
    by: str = "",
    group_by: str = "",
    attribute: str = "",
    sort: str = "",
    page: int = 1,
) -> Page:
    """The report. A window or a grouping that cannot be is left out, and that is said.

    The grouping is the form's `attribute`, or `group_by` as the API writes it, for which `by` is short.
    """
    named = attribute.strip()
    by = usage.BY_ATTRIBUTE + named if named else group_by.strip() or by.strip() or usage.BY_TYPE
    sort = sort if sort.removeprefix("-") in ("group", *FIELDS) else "group"
    ceiling, problem = settings_of(request).usage_ceiling_days, ""
    try:
        query = Query(
            since=_moment(since.strip(), tz, "from") or DEFAULT_WINDOW,
            until=_moment(until.strip(), tz, "to") or NOW,
            by=by,
            sort=sort,
            page=max(1, page),
        )
        question = usage.asked(query.since, query.until, query.by, ceiling_days=ceiling)
    except (InvalidRequestError, LimitError) as error:
        problem = error.message
        query = Query(sort=sort)
        question = usage.asked(query.since, query.until, query.by, ceiling_days=ceiling)
    status, found = 200, None
    try:
        found = await usage.report_usage(shards, question)
    except TooManyGroupsError as error:
        status, problem = error.status, error.message
    context = _context(request, query, question, found)
    return render(request, "usage.html", status=status, section="usage", problem=problem, found=found, **context)


def _moment(text: str, zone: str, field: str) -> str:
    """A span back from now stays one; an instant of a form becomes one with its zone."""
    if not text or _RELATIVE.fullmatch(text):
        return text
    return link_text(read_instant(text, zone, field)) or ""


def _context(request: AnyRequest, query: Query, question: UsageQuestion, found: Usage | None) -> dict[str, Any]:
    base = base_path(request)
    zone = zone_named(read_preferences(request.cookies).zone)
    groups = _sorted(found.groups, query.sort) if found else []
    total = usage.sum_of(groups)
    pages = max(1, -(-len(groups) // PAGE_SIZE))
    number = min(query.page, pages)
    shown = groups[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]

    def link(**changed: Any) -> str:
        return build_url(base, "/usage", **query.parameters(**changed))

    def head(column: str, text: str, falls: bool) -> Head:
        """The first click on a number asks for the largest, the first on the names for their order."""
        is_sorted, descends = query.sort.removeprefix("-") == column, query.sort.startswith("-")
        turned = f"-{column}" if (not descends if is_sorted else falls) else column
        way = ("descending" if descends else "ascending") if is_sorted else ""
        return Head(text, link(sort=turned if turned != "group" else None, page=None), way)

    def table(key: str, sections: dict[str, Sequence[Column]], those: Sequence[UsageGroup]) -> Table:
        columns = [column for part in sections.values() for column in part]
        return Table(
            key=key,
            sections=[(word, len(part)) for word, part in sections.items()],
            heads=[head(column.field, column.head, True) for column in columns],
            sums=_row(total, columns, question, base).cells,
            rows=[_row(group, columns, question, base) for group in those],
        )

    window = {"from": link_text(question.since), "to": link_text(question.until), "group_by": question.group_by}
    return {
        "query": query,
        "question": question,
        "is_recent": query.until == NOW,
        "windows": [
            (word, query.since == span and query.until == NOW, link(**{"from": span, "to": None, "page": None}))
            for word, span in WINDOWS
        ],
        "type_url": link(by=None, page=None, sort=None),
        "since_text": input_text(question.since, zone),
        "until_text": input_text(question.until, zone),
        "answered": {"missing": found.missing, "read": found.status != "unavailable"} if found else None,
        "name_head": head("group", "Workflow type" if question.attribute is None else question.attribute, False),
        "runs": table("runs", {"Runs": RUNS, "Activities": ACTIVITIES}, shown),
        "models": table("models", {"Language models": MODELS}, [group for group in shown if group.llm_calls]),
        "since_said": _said(question.since, zone),
        "until_said": "now" if query.until == NOW else _said(question.until, zone),
        "count": len(groups),
        "first": (number - 1) * PAGE_SIZE + 1,
        "has_models": bool(total.llm_calls),
        "last": (number - 1) * PAGE_SIZE + len(shown),
        "longer_url": link(**{"from": "30d", "to": None, "page": None}),
        "is_long": question.until - question.since >= timedelta(days=30),
        "csv_url": build_url(base, f"{API_ROOT}/admin/usage", **window, format="csv"),
        "here_url": link(),
        "earlier_url": link(page=number - 1 if number > 2 else None) if number > 1 else None,
        "further_url": link(page=number + 1) if number < pages else None,
    }


def _said(at: datetime, zone: tzinfo) -> str:
    """An instant with its date, on whichever day the page is read."""
    return f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def _sorted(groups: Sequence[UsageGroup], sort: str) -> list[UsageGroup]:
    """By a field; groups that are equal in it are in the order of their names."""
    field, descends = sort.removeprefix("-"), sort.startswith("-")
    by_name = sorted(groups, key=lambda group: group.group)
    if field == "group":
        return by_name[::-1] if descends else by_name
    return sorted(by_name, key=lambda group: getattr(group, field), reverse=descends)


def _row(group: UsageGroup, columns: Sequence[Column], question: UsageQuestion, base: str) -> Row:
    of_type = question.attribute is None and group.group != UNATTRIBUTED
    return Row(
        group.group,
        build_url(base, "/workflows", type=group.group) if of_type else None,
        [(column.label, column.text(group)) for column in columns],
    )


handlers = [usage_page]
