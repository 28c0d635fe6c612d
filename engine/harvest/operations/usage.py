"""What each workflow type, or each value of a search attribute, has used in a window of time, over all shards.

Nothing is left out and nothing is put together: a report that dropped small groups would be wrong where it matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct

from harvest import clock
from harvest.errors import InvalidRequestError, TooManyGroupsError
from harvest.history.limits import check_text
from harvest.shards import MissingShard, Shards
from harvest.store import usage
from harvest.store.store import Store
from harvest.store.usage import UNATTRIBUTED, Used

__all__ = ["UNATTRIBUTED", "Usage", "UsageGroup", "UsageQuestion", "asked", "report_usage", "sum_of"]

BY_TYPE: Final = "workflow_name"
BY_ATTRIBUTE: Final = "search_attr:"
MOST_GROUPS: Final = 10_000
# Beyond the limit of the statement itself, so that a shard that is late can say so.
_DEADLINE: Final = 16.0
_SPAN: Final = re.compile(r"-?(\d{1,7})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class UsageGroup(Struct, frozen=True, kw_only=True):
    """What the runs of one group have used: counts, seconds of activities, and what language models took.

    Cost is in millionths of a US dollar; calls without one are `llm_unpriced_calls`.
    """

    group: str
    workflow_starts: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    timed_out: int = 0
    activity_executions: int = 0
    activity_executions_failed: int = 0
    activity_compute_seconds: float = 0.0
    llm_calls: int = 0
    llm_input_tokens: int = 0
    llm_output_tokens: int = 0
    llm_cost_usd_micros: int = 0
    llm_unpriced_calls: int = 0
    llm_latency_ms: int = 0


class UsageQuestion(Struct, frozen=True, kw_only=True):
    """From when to when, both included, and by what; `attribute` is None for the workflow type."""

    since: datetime
    until: datetime
    attribute: str | None

    @property
    def group_by(self) -> str:
        """The grouping as it is asked for."""
        return BY_TYPE if self.attribute is None else BY_ATTRIBUTE + self.attribute


class Usage(Struct, frozen=True, kw_only=True):
    """The report, its groups by name; what happened on shards that are missing is not in it."""

    question: UsageQuestion
    groups: list[UsageGroup]
    status: str
    missing: tuple[MissingShard, ...]


def asked(since: str, until: str, group_by: str = BY_TYPE, *, ceiling_days: int) -> UsageQuestion:
    """The question in these texts: RFC 3339 instants, or spans back from now like `24h`; `now` is now.

    Raises InvalidRequestError, also for a window longer than `ceiling_days`, and LimitError for an attribute's name
    that cannot be.
    """
    now = clock.now()
    question = UsageQuestion(
        since=_instant(since, "from", now), until=_instant(until, "to", now), attribute=_attribute(group_by)
    )
    if question.since > question.until:
        raise InvalidRequestError(f"from ({since[:40]}) is later than to ({until[:40]})", field="from")
    if question.until - question.since > timedelta(days=ceiling_days):
        raise InvalidRequestError(
            f"the window from {since[:40]} to {until[:40]} is too long: at most {ceiling_days} days can be reported at "
            "once (HARVEST_USAGE_WINDOW_CEILING_DAYS)",
            field="from",
            ceiling_days=ceiling_days,
        )
    return question


def _attribute(group_by: str) -> str | None:
    if group_by == BY_TYPE:
        return None
    if not group_by.startswith(BY_ATTRIBUTE):
        raise InvalidRequestError(
            f"group_by is {group_by[:80]!r}; it must be {BY_TYPE}, or {BY_ATTRIBUTE}KEY with a search attribute's name",
            field="group_by",
        )
    return check_text(group_by.removeprefix(BY_ATTRIBUTE), what="group_by")


def _instant(text: str, field: str, now: datetime) -> datetime:
    if text == "now":
        return now
    try:
        if span := _SPAN.fullmatch(text):
            return now - timedelta(**{_UNITS[span[2]]: int(span[1])})
        at = msgspec.convert(text, datetime)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (msgspec.ValidationError, OverflowError):
        pass
    raise InvalidRequestError(
        f"{field} is {text[:40]!r}; it must be an instant with its zone like 2026-06-01T00:00:00Z, or a span back from "
        "now like 24h, 30d or 0s",
        field=field,
    )


async def report_usage(shards: Shards, question: UsageQuestion) -> Usage:
    """Ask every shard, each within its time. Raises TooManyGroupsError."""

    async def read(store: Store) -> list[Used]:
        return await usage.used(store, question.since, question.until, question.attribute, MOST_GROUPS + 1)

    answer = await shards.fan_out(read, deadline=_DEADLINE)
    found: dict[str, list[Used]] = {}
    for used in answer.rows:
        found.setdefault(used.name, []).append(used)
    if len(found) > MOST_GROUPS:
        raise TooManyGroupsError(
            f"there are more than {MOST_GROUPS:,} groups by {question.group_by}; group by what has fewer values, such "
            "as a tenant, or ask for a shorter window",
            field="group_by",
            limit=MOST_GROUPS,
        )
    return Usage(
        question=question,
        groups=[_group(name, parts) for name, parts in sorted(found.items())],
        status=answer.status,
        missing=answer.missing,
    )


def _group(name: str, parts: list[Used]) -> UsageGroup:
    """One group over all shards. Time is added in whole microseconds, so that no order of shards changes it."""
    counted = {field: sum(getattr(part, field) for part in parts) for field in _COUNTS}
    micros = sum(part.activity_compute_micros for part in parts)
    return UsageGroup(group=name, activity_compute_seconds=micros / 1_000_000, **counted)


_COUNTS: Final = tuple(
    field for field in UsageGroup.__struct_fields__ if field not in ("group", "activity_compute_seconds")
)


def sum_of(groups: Iterable[UsageGroup]) -> UsageGroup:
    """All groups together, under an empty name."""
    groups = list(groups)
    counted = {field: sum(getattr(group, field) for group in groups) for field in _COUNTS}
    micros = sum(round(group.activity_compute_seconds * 1_000_000) for group in groups)
    return UsageGroup(group="", activity_compute_seconds=micros / 1_000_000, **counted)
