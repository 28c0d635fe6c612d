"""Counts in groups, over all shards and to a cap (reference 4.3)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct

from harvest import clock
from harvest.errors import InvalidRequestError
from harvest.operations.listing import COUNT_CAP, ListFilter, row_filter
from harvest.operations.views import state_word
from harvest.shards import MissingShard, Shards
from harvest.store import counts
from harvest.store.store import Store

MOST_GROUPS: Final = 500
GROUPINGS: Final = ("state", "workflow_name", "state,workflow_name")


class CountGroup(Struct, frozen=True, kw_only=True):
    """How many executions have this state, this type, or both; what was not asked for is null.

    `capped` tells that there are more than were looked at; `other` is all that did not fit into the answer.
    """

    state: str | None = None
    workflow_name: str | None = None
    count: int
    capped: bool = False
    other: bool = False


class Grouped(Struct, frozen=True, kw_only=True):
    """Groups, the largest first, and their sum. `truncated` tells that the last of them stands for several."""

    groups: list[CountGroup]
    total: int
    capped: bool
    truncated: bool
    as_of: datetime
    status: str
    missing: tuple[MissingShard, ...]


class _Row(Struct, frozen=True):
    key: tuple[str | None, str | None]
    count: int
    capped: bool
    more_names: bool


async def count_groups(
    shards: Shards, wanted: ListFilter, *, group_by: str, limit_groups: int = 50, cap: int = COUNT_CAP
) -> Grouped:
    """Count by `state`, `workflow_name` or `state,workflow_name`; shards that are missing are not in it.

    Of each state, or of each type, a shard looks at the newest `cap` rows at most, and at fewer where there are many
    types. Raises InvalidRequestError.
    """
    if group_by not in GROUPINGS:
        raise InvalidRequestError(
            f"group_by is {group_by[:80]!r}; it must be one of {'; '.join(GROUPINGS)}", field="group_by"
        )
    if not 1 <= limit_groups <= MOST_GROUPS:
        raise InvalidRequestError(
            f"limit_groups is {limit_groups}; it must be 1 to {MOST_GROUPS}", field="limit_groups"
        )
    by_row = row_filter(wanted)
    by = tuple(group_by.split(","))

    async def read(store: Store) -> list[_Row]:
        rows, more_names = await counts.groups(store, by_row, by, cap + 1)
        return [
            _Row(
                (None if row["state"] is None else state_word(row["state"]), row["workflow_name"]),
                row["count"],
                row["capped"],
                more_names,
            )
            for row in rows
        ]

    answer = await shards.fan_out(read)
    groups = _merged(answer.rows)
    shown, rest = groups[:limit_groups], groups[limit_groups:]
    if rest:
        shown.append(
            CountGroup(count=sum(group.count for group in rest), capped=any(g.capped for g in rest), other=True)
        )
    return Grouped(
        groups=shown,
        total=sum(group.count for group in groups),
        capped=any(group.capped for group in groups) or any(row.more_names for row in answer.rows),
        truncated=bool(rest),
        as_of=clock.now(),
        status=answer.status,
        missing=answer.missing,
    )


def _merged(rows: list[_Row]) -> list[CountGroup]:
    counted: dict[tuple[str | None, str | None], tuple[int, bool]] = {}
    for row in rows:
        count, capped = counted.get(row.key, (0, False))
        counted[row.key] = (count + row.count, capped or row.capped)
    groups = [
        CountGroup(state=state, workflow_name=name, count=count, capped=capped)
        for (state, name), (count, capped) in counted.items()
    ]
    return sorted(groups, key=lambda group: (-group.count, group.workflow_name or "", group.state or ""))
