"""What an execution waits for, as one short line (answers 13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from harvest.operations.views import ExecutionView, blocked_view, is_open
from harvest.shards import Shards
from harvest.store import reads
from harvest.store.store import Store

# What a parked run waits for when nothing of it is recorded.
OWN_CODE: Final = "something in its own code (an Event, a Queue, a Lock)"


def waiting_text(activities: Sequence[str], timer: datetime | None) -> str | None:
    """`activity charge`, `activities charge, ship, …`, `timer until 2026-05-01T10:00:00Z`; None for nothing."""
    if activities:
        names = list(dict.fromkeys(activities))
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 or len(activities) >= 5 else "")
        return f"activity {shown}" if len(activities) == 1 else f"activities {shown}"
    if timer is not None:
        return f"timer until {timer.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
    return None


async def fill_in(shards: Shards, views: Iterable[ExecutionView]) -> list[ExecutionView]:
    """The views of a page with `waiting` and `blocked` of open runs filled in: one statement a shard.

    A shard that stops answering meanwhile leaves its rows as they are: they were read.
    """
    views = list(views)
    asked: dict[int, list[UUID]] = {}
    for view in views:
        if is_open(view.state) and (view.waiting is None or view.blocked is not None):
            asked.setdefault(view.shard_id, []).append(view.execution_id)
    if not asked:
        return views

    async def read(store: Store) -> list[tuple[UUID, Mapping[str, Any]]]:
        return list((await reads.waiting(store, asked[store.shard_id])).items())

    found = dict((await shards.fan_out(read, over=tuple(asked))).rows)
    return [_filled(view, found.get(view.execution_id)) for view in views]


def _filled(view: ExecutionView, row: Mapping[str, Any] | None) -> ExecutionView:
    if row is None:
        return view
    return msgspec.structs.replace(
        view,
        waiting=view.waiting or waiting_text(row["names"] or [], row["fires_at"]),
        blocked=blocked_view(view.blocked.code, row["blocked"]) if view.blocked else None,
    )
