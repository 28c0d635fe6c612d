"""What an execution waits for, as one short line (answers 13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from harvest.operations.views import ExecutionView, attributes_view, blocked_view, is_open
from harvest.shards import Shards
from harvest.store import reads
from harvest.store.store import Store

# What a parked run waits for when nothing of it is recorded.
OWN_CODE: Final = "something in its own code (an Event, a Queue, a Lock)"


def waiting_text(activities: Sequence[str], timer: datetime | None, children: Sequence[str | None] = ()) -> str | None:
    """`activity charge`, `activities charge, ship, …`, `child ship_flow`, `timer until 2026-05-01T10:00:00Z`, or None.

    A child without a name has not begun, or is on another shard.
    """
    if activities:
        return _several("activity", "activities", activities)
    names = [name for name in children if name is not None]
    if names:
        return _several("child", "children", names, more=len(children) > len(names))
    if children:
        return "a child" if len(children) == 1 else "children"
    if timer is not None:
        return f"timer until {timer.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
    return None


def no_worker_text(workflow_name: str, version: int) -> str:
    """What a run that is due waits for when no living worker has its code."""
    return f"a worker: no worker has workflow {workflow_name!r} version {version} now"


def _several(one: str, many: str, names: Sequence[str], *, more: bool = False) -> str:
    each = list(dict.fromkeys(names))
    shown = ", ".join(each[:3]) + (", …" if more or len(each) > 3 or len(names) >= 5 else "")
    return f"{one if len(names) == 1 and not more else many} {shown}"


async def fill_in(shards: Shards, views: Iterable[ExecutionView]) -> list[ExecutionView]:
    """The views of a page with attributes and triage, and `waiting` and `blocked` of open runs: one statement a shard.

    A shard that stops answering meanwhile leaves its rows as they are: they were read.
    """
    views = list(views)
    asked: dict[int, list[UUID]] = {}
    for view in views:
        asked.setdefault(view.shard_id, []).append(view.execution_id)

    async def read(store: Store) -> list[tuple[UUID, Mapping[str, Any]]]:
        return list((await reads.beside(store, asked[store.shard_id])).items())

    found = dict((await shards.fan_out(read, over=tuple(asked))).rows)
    return [_filled(view, found.get(view.execution_id)) for view in views]


def _filled(view: ExecutionView, row: Mapping[str, Any] | None) -> ExecutionView:
    if row is None:
        return view
    waiting = view.waiting
    if waiting is None and is_open(view.state):
        waiting = waiting_text(row["names"] or [], row["fires_at"], row["children"] or [])
    return msgspec.structs.replace(
        view,
        waiting=waiting,
        blocked=blocked_view(view.blocked.code, row["blocked"]) if view.blocked else None,
        search_attributes=attributes_view(row["search_attributes"]),
        owner=row["owner"],
        severity=row["severity"],
    )
