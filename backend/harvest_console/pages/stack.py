"""`/w/{execution_id}/stack`: where each task of a run's code waits, line by line, and everything that it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final
from uuid import UUID

from litestar import get
from msgspec import Struct

from harvest.errors import ExecutionClosedError, NoWorkerError, QueryFailedError, RequestTimeoutError
from harvest.history.ids import parse_execution_id
from harvest.operations import reading, stacks
from harvest.operations.stacks import Awaitable, AwaitablesView, StackView
from harvest.operations.views import Pending, PendingActivity, is_open
from harvest.replay.inspecting import Frame, TaskStack
from harvest.shards import Shards
from harvest_console.pages.blocking import block_text
from harvest_console.pages.frames import frame
from harvest_console.pages.types import AnyRequest, Page
from harvest_console.pages.unanswered import Unanswered, unanswered
from harvest_console.rendering import render

# Many tasks wait at one place, as a rule: those are told together. What is more than this is counted.
MOST_FRAMES: Final = 200
MOST_WAITS: Final = 200
_NAMES: Final = 6
# What a task is called that code gave no name.
UNNAMED: Final = "workflow"
_WORDS: Final = {
    "local_activity": "local activity",
    "child_workflow": "child",
    "external": "another run",
}


class Place(Struct, frozen=True, kw_only=True):
    """Tasks that wait at the same place; the innermost frame is the last one. `names` are those that code gave them."""

    count: int
    names: list[str]
    more_names: bool
    frames: tuple[Frame, ...]


class WaitRow(Struct, frozen=True, kw_only=True):
    """One thing that has not come to its end. `awaited` tells whether code waits for it now."""

    kind: str
    name: str = ""
    seq: int | None = None
    child: UUID | None = None
    since: datetime | None = None
    deadline: datetime | None = None
    activity: PendingActivity | None = None
    awaited: bool = True


@get("/w/{execution:str}/stack")
async def stack_page(request: AnyRequest, shards: Shards, execution: str) -> Page:
    """The stack as of now; reading it again asks again. Where nobody can be asked, what is recorded."""
    execution_id = parse_execution_id(execution)
    run = await reading.get(shards, execution_id)
    seen, waits = await asyncio.gather(_stack(shards, execution_id), stacks.awaitables(shards, execution_id))
    told = seen if isinstance(seen, StackView) else None
    places, left_out = places_of(told.tasks if told else ())
    rows = _rows(waits, told.pending if told else run.pending)
    return render(
        request,
        "stack.html",
        **frame(run, "stack"),
        told=told,
        unanswered=None if told else seen,
        ended=not is_open(waits.state),
        places=places,
        tasks_left_out=left_out,
        rows=rows[:MOST_WAITS],
        rows_left_out=max(0, len(rows) - MOST_WAITS),
        more_waits=waits.truncated or (told or run).pending.truncated,
        replayed=waits.wait_set == "replayed",
        block=block_text(told.blocked.code) if told and told.blocked else None,
    )


async def _stack(shards: Shards, execution_id: UUID) -> StackView | Unanswered:
    try:
        return await stacks.stack(shards, execution_id)
    except (NoWorkerError, RequestTimeoutError, QueryFailedError, ExecutionClosedError) as error:
        return unanswered(error)


def places_of(tasks: Iterable[TaskStack]) -> tuple[list[Place], int]:
    """Tasks by the place where they wait, in order of their first one, and how many tasks no room was left for."""
    together: dict[tuple[Frame, ...], list[str]] = {}
    for task in tasks:
        together.setdefault(tuple(task.frames), []).append(task.task)
    places: list[Place] = []
    room, left_out = MOST_FRAMES, 0
    for frames, names in together.items():
        if len(frames) > room:
            left_out += len(names)
            continue
        room -= max(1, len(frames))
        given = [name for name in dict.fromkeys(names) if name != UNNAMED]
        places.append(Place(count=len(names), names=given[:_NAMES], more_names=len(given) > _NAMES, frames=frames))
    return places, left_out


def _rows(waits: AwaitablesView, pending: Pending) -> list[WaitRow]:
    """What code waits for, then what is under way that it does not wait for now."""
    activities = {one.seq: one for one in pending.activities}
    awaited = [_awaited(one, activities) for one in waits.awaitables]
    known = {(row.kind, row.seq) for row in awaited}
    return [*awaited, *(row for row in _under_way(pending) if (row.kind, row.seq) not in known)]


def _awaited(one: Awaitable, activities: dict[int, PendingActivity]) -> WaitRow:
    return WaitRow(
        kind=_WORDS.get(one.kind, one.kind),
        name=one.name or "",
        seq=one.seq,
        child=one.execution_id,
        since=one.since,
        deadline=one.deadline,
        activity=activities.get(one.seq or 0) if one.kind == "activity" else None,
    )


def _under_way(pending: Pending) -> Iterator[WaitRow]:
    """Rows of what is recorded as not ended, all of them as if nobody waited."""
    for task in pending.activities:
        yield WaitRow(
            kind="activity", name=task.name, seq=task.seq, since=task.scheduled_at, activity=task, awaited=False
        )
    for timer in pending.timers:
        yield WaitRow(kind="timer", seq=timer.seq, deadline=timer.fires_at, awaited=False)
    for child in pending.children:
        name = child.workflow_name or ""
        yield WaitRow(kind=_WORDS["child_workflow"], name=name, seq=child.seq, child=child.execution_id, awaited=False)


handlers = [stack_page]
