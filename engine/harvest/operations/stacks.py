"""Where a run's code stands, line by line, and everything that it waits for (reference 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.errors import ExecutionClosedError, NoWorkerError, QueryFailedError, RequestTimeoutError
from harvest.operations import reading
from harvest.operations.asking import ask
from harvest.operations.requesting import SECONDS, ask_code
from harvest.operations.views import ExecutionDetail, Pending, is_open
from harvest.replay.inspecting import MOST_TASKS, TaskStack
from harvest.replay.waits import Buffered, Wait
from harvest.shards import Shards
from harvest.store import requests

CATEGORY_CAP: Final = 200
WaitSet = Literal["replayed", "history_only", "terminal"]


class StackBlock(Struct, frozen=True):
    """Why the code does not go on; `tasks` are where its last decision left it, or how far it came."""

    code: str
    message: str


class StackView(Struct, frozen=True, kw_only=True):
    """Where each task of a run's code waits, the main one first, and what the run has under way.

    `tasks` is capped at 200, and so is each list of `pending`; a run that has ended has none.
    """

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    state: str
    is_terminal: bool
    tasks: list[TaskStack] = []
    tasks_truncated: bool = False
    pending: Pending
    pending_local_activities: list[Wait] = []
    pending_externals: list[Wait] = []
    pending_signals: list[str] = []
    pending_updates: list[Wait] = []
    pending_conditions: int = 0
    buffered_signals: list[Buffered] = []
    blocked: StackBlock | None = None
    last_event_id: int


class Awaitable(Struct, frozen=True, kw_only=True):
    """One thing that a run waits for; `kind` and `seq` as `Wait` has them, `execution_id` is a child's.

    `deadline` is when it comes to an end by itself.
    """

    kind: str
    name: str | None = None
    seq: int | None = None
    execution_id: UUID | None = None
    since: datetime | None = None
    deadline: datetime | None = None


class AwaitablesView(Struct, frozen=True, kw_only=True):
    """Everything that a run waits for.

    `wait_set` is `replayed` where the code said so itself, `history_only` where nobody could ask it (the reason is the
    slug of an error), and then only what is recorded is listed; `terminal` for a run that has ended.
    """

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    state: str
    wait_set: WaitSet
    wait_set_reason: str | None = None
    awaitables: list[Awaitable] = []
    category_cap: int = CATEGORY_CAP
    truncated: bool = False
    truncated_kinds: list[str] = []


class _Told(Struct, frozen=True):
    """What a worker says of a run's code."""

    tasks: list[TaskStack]
    waits: list[Wait]
    buffered_signals: list[Buffered]
    last_event_id: int
    blocked: StackBlock | None = None


async def stack(shards: Shards, execution_id: UUID, *, seconds: float = SECONDS) -> StackView:
    """The stack of a run's code; of one that has ended, that it has.

    Raises ExecutionNotFoundError, ShardUnavailableError, NoWorkerError, and RequestTimeoutError after `seconds`.
    """
    detail = await reading.get(shards, execution_id)
    told = None
    if is_open(detail.state):
        try:
            told = await _told(shards, execution_id, seconds)
        except ExecutionClosedError:
            detail = await reading.get(shards, execution_id)
    if told is None:
        return StackView(**_facts(detail), is_terminal=True, pending=Pending(), last_event_id=detail.history_events)
    stopped = detail.blocked
    return StackView(
        **_facts(detail),
        is_terminal=False,
        tasks=told.tasks,
        tasks_truncated=len(told.tasks) >= MOST_TASKS,
        pending=detail.pending,
        pending_local_activities=_of(told, "local_activity")[:CATEGORY_CAP],
        pending_externals=_of(told, "external")[:CATEGORY_CAP],
        pending_signals=[wait.name for wait in _of(told, "signal")][:CATEGORY_CAP],
        pending_updates=_of(told, "update")[:CATEGORY_CAP],
        pending_conditions=len(_of(told, "condition")),
        buffered_signals=told.buffered_signals[:CATEGORY_CAP],
        blocked=told.blocked or (StackBlock(stopped.code, stopped.message) if stopped else None),
        last_event_id=told.last_event_id,
    )


async def awaitables(shards: Shards, execution_id: UUID, *, seconds: float = SECONDS) -> AwaitablesView:
    """What a run waits for, from its code where a worker can ask it, else from what is recorded.

    Raises ExecutionNotFoundError and ShardUnavailableError.
    """
    detail = await reading.get(shards, execution_id)
    if not is_open(detail.state):
        return _view(detail, "terminal", None, [])
    try:
        told = await _told(shards, execution_id, seconds)
    except (NoWorkerError, RequestTimeoutError, QueryFailedError) as error:
        return _view(detail, "history_only", error.slug, _from_rows(detail.pending))
    except ExecutionClosedError:
        return _view(await reading.get(shards, execution_id), "terminal", None, [])
    if told.blocked is not None:
        return _view(detail, "history_only", told.blocked.code, _from_rows(detail.pending))
    return _view(detail, "replayed", None, await _from_code(shards, detail, told))


async def _told(shards: Shards, execution_id: UUID, seconds: float) -> _Told:
    return msgspec.json.decode(await ask_code(shards, execution_id, requests.STACK, seconds=seconds), type=_Told)


def _of(told: _Told, kind: str) -> list[Wait]:
    return [wait for wait in told.waits if wait.kind == kind]


def _facts(detail: ExecutionDetail) -> dict[str, Any]:
    return {name: getattr(detail, name) for name in ("execution_id", "workflow_name", "workflow_id", "state")}


def _view(detail: ExecutionDetail, wait_set: WaitSet, reason: str | None, found: Sequence[Awaitable]) -> AwaitablesView:
    kept: list[Awaitable] = []
    counts: dict[str, int] = {}
    for each in found:
        counts[each.kind] = counts.get(each.kind, 0) + 1
        if counts[each.kind] <= CATEGORY_CAP:
            kept.append(each)
    capped = sorted(kind for kind, count in counts.items() if count > CATEGORY_CAP)
    return AwaitablesView(
        **_facts(detail),
        wait_set=wait_set,
        wait_set_reason=reason,
        awaitables=kept,
        truncated=bool(capped) or (wait_set == "history_only" and detail.pending.truncated),
        truncated_kinds=capped,
    )


def _from_rows(pending: Pending) -> list[Awaitable]:
    found = [
        Awaitable(kind="activity", name=task.name, seq=task.seq, since=task.scheduled_at, deadline=task.timeout_at)
        for task in pending.activities
    ]
    found += [Awaitable(kind="timer", seq=timer.seq, deadline=timer.fires_at) for timer in pending.timers]
    found += [
        Awaitable(kind="child_workflow", name=child.workflow_name, seq=child.seq, execution_id=child.execution_id)
        for child in pending.children
        if child.await_mode == "awaited"
    ]
    return found


async def _from_code(shards: Shards, detail: ExecutionDetail, told: _Told) -> list[Awaitable]:
    """The code's own waits, with the times that history and the open tasks have of them."""
    deadlines = {("activity", task.seq): task.timeout_at for task in detail.pending.activities}
    deadlines |= {("timer", timer.seq): timer.fires_at for timer in detail.pending.timers}
    commands, events = await _begun_at(shards, detail, told.waits)
    return [
        Awaitable(
            kind=wait.kind,
            name=wait.name or None,
            seq=wait.seq or None,
            execution_id=UUID(wait.execution_id) if wait.execution_id else None,
            since=(events if wait.kind == "update" else commands).get(wait.seq),
            deadline=deadlines.get((wait.kind, wait.seq)),
        )
        for wait in told.waits
    ]


async def _begun_at(
    shards: Shards, detail: ExecutionDetail, waits: Iterable[Wait]
) -> tuple[dict[int, datetime], dict[int, datetime]]:
    seqs = [wait.seq for wait in waits if wait.seq and wait.kind != "update"]
    event_ids = [wait.seq for wait in waits if wait.kind == "update"]
    if not seqs and not event_ids:
        return {}, {}
    return await ask(
        shards, detail.shard_id, lambda store: requests.begun_at(store, detail.execution_id, seqs, event_ids)
    )
