"""The usage report of a window, as JSON or as CSV."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from litestar import Request, Response, get
from msgspec import Struct, field

from harvest.errors import ShardUnavailableError, TooManyGroupsError
from harvest.operations import usage
from harvest.operations.usage import Usage, UsageGroup
from harvest.shards import Shards
from harvest_console.api.answers import UnavailableShard, answer, read_query, unavailable
from harvest_console.api.doc import Doc
from harvest_console.api.shapes import Availability
from harvest_console.auth.caller import settings_of
from harvest_console.usage_text import usage_csv

AnyRequest = Request[Any, Any, Any]
CSV: Final = "text/csv; charset=utf-8; header=present"


class UsageQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From when to when, both included: RFC 3339 instants, or spans back from now like `24h`, or `now`.

    `group_by` is `workflow_name`, or `search_attr:` and the name of a search attribute. CSV is answered where `format`
    or the Accept header asks for it.
    """

    since: str = field(name="from")
    until: str = field(name="to")
    group_by: str = usage.BY_TYPE
    format: Literal["json", "csv"] | None = None


class UsageAnswer(Struct, frozen=True, kw_only=True):
    """What each group has used on the shards that answered, by name; no group is left out."""

    status: Availability
    since: datetime = field(name="from")
    until: datetime = field(name="to")
    group_by: str
    groups: list[UsageGroup]
    unavailable_shards: list[UnavailableShard]


@get(
    "/admin/usage",
    opt={
        "doc": Doc(
            "What each workflow type, or each value of a search attribute, has used in a window of time.",
            tag="usage",
            query=UsageQuery,
            answers={200: UsageAnswer},
            refusals=(TooManyGroupsError, ShardUnavailableError),
        )
    },
)
async def get_usage(request: AnyRequest, shards: Shards) -> Response[bytes]:
    """Counted from what is stored, each thing once where it happened. A table without any shard is refused."""
    query = read_query(request, UsageQuery)
    question = usage.asked(
        query.since, query.until, query.group_by, ceiling_days=settings_of(request).usage_ceiling_days
    )
    found = await usage.report_usage(shards, question)
    availability: dict[str, Any] = {"status": found.status, "unavailable_shards": unavailable(found.missing)}
    shown = UsageAnswer(
        since=question.since,
        until=question.until,
        group_by=question.group_by,
        groups=found.groups,
        **availability,
    )
    wants_csv = query.format == "csv" or (query.format is None and "text/csv" in request.headers.get("accept", ""))
    return _table(found, shown) if wants_csv else answer(shown)


def _table(found: Usage, shown: UsageAnswer) -> Response[bytes]:
    if found.status == "unavailable":
        raise ShardUnavailableError(
            "no shard answered, and a table without any row would look like no usage",
            unavailable_shards=[{"shard_id": shard.shard_id, "reason": shard.reason} for shard in found.missing],
        )
    window = "-".join(f"{at.astimezone(UTC):%Y%m%dT%H%M%SZ}" for at in (shown.since, shown.until))
    name = f"usage-{window}{'-partial' if found.missing else ''}.csv"
    return Response(
        usage_csv(msgspec.to_builtins(shown)).encode(),
        media_type=CSV,
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


handlers = [get_usage]
