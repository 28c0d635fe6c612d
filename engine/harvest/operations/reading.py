"""Read one execution: the whole of it, its history, its payloads, its result."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from harvest.errors import ExecutionNotFoundError, InvalidRequestError, PayloadDecodeError, PayloadsErasedError
from harvest.history.data import WorkflowContinuedAsNew, WorkflowExecutionPaused
from harvest.history.erasing import ERASED
from harvest.history.ids import ExecutionId, shard_of
from harvest.history.payload import CODEC_JSON
from harvest.history.states import State
from harvest.operations.asking import ask
from harvest.operations.outcomes import waiters
from harvest.operations.views import (
    API_ROOT,
    HEAD_BYTES,
    INLINE_BYTES,
    EventView,
    ExecutionDetail,
    FailureView,
    Pause,
    Payload,
    Pending,
    PendingActivity,
    PendingChild,
    PendingTimer,
    attributes_view,
    blocked_view,
    close_policy_word,
    event_view,
    execution_fields,
    failure_view,
    head_text,
    is_open,
    payload_view,
    state_word,
)
from harvest.operations.waiting import OWN_CODE, no_worker_text, waiting_text
from harvest.shards import Shards
from harvest.store import reads

MOST_EVENTS: Final = 1000
LAST_EVENT_ID: Final = 2**31 - 1
MOST_WAIT: Final = 30.0
# Enough to name a large event: its fields before the large one.
_EVENT_HEAD: Final = 4096
_MOST_HOPS: Final = 1000
_PENDING: Final = 0
_PARKED: Final = 2


class HistoryPage(Struct, frozen=True, kw_only=True):
    """A window of a history. `next_cursor` is the `after` (or, newest first, the `before`) of the next window."""

    execution_id: UUID
    events: list[EventView]
    next_cursor: int | None
    last_event_id: int
    total_events: int


class Outcome(Struct, frozen=True, kw_only=True):
    """How an execution ended. `execution_id` is the last run of a chain that continued as new or was tried again."""

    execution_id: UUID
    state: str
    output: Payload | None
    error: FailureView | None
    completed_at: datetime


async def get(shards: Shards, execution_id: UUID, *, api_root: str = API_ROOT) -> ExecutionDetail:
    """One execution with its payloads; those over 64 KiB as a reference below `api_root`.

    Raises ExecutionNotFoundError, or ShardUnavailableError when its shard does not answer.
    """
    store = shards.store_of(execution_id)
    rows = await ask(
        shards,
        store.shard_id,
        lambda store: reads.detail(store, execution_id, inline=INLINE_BYTES, head=HEAD_BYTES, event_head=_EVENT_HEAD),
    )
    if rows is None:
        raise _not_found(execution_id)
    return _detail(rows, store.shard_id, f"{api_root}/workflows/{execution_id}/payload")


def _detail(rows: reads.DetailRows, shard_id: int, href: str) -> ExecutionDetail:
    row = rows.execution
    fields = execution_fields(row, shard_id)
    if row["blocked"]:
        fields["blocked"] = blocked_view(row["blocked"], row["blocked_details"])
    if is_open(fields["state"]) and fields["waiting"] is None:
        timers = [timer["fires_at"] for timer in rows.timers]
        fields["waiting"] = waiting_text(
            [task["name"] for task in rows.activities],
            min(timers, default=None),
            [child["workflow_name"] for child in rows.children if child["awaited"]],
        )
        if fields["waiting"] is None and row["task_state"] == _PARKED and not row["blocked"]:
            fields["waiting"] = OWN_CODE
    if row["task_state"] == _PENDING and row["queue_served"] and not row["definition_served"]:
        fields["waiting"] = no_worker_text(row["workflow_name"], row["version"])
    fields["search_attributes"] = attributes_view(row["search_attributes"])
    return ExecutionDetail(
        **fields,
        queue_served=row["queue_served"],
        definition_served=row["definition_served"],
        cancel_requested_at=row["cancel_requested_at"],
        next_execution_id=row["next_execution_id"],
        paused=_pause(rows.paused),
        current_details=_part(row, "current_details", href),
        input=_part(row, "input", href) or msgspec.Raw(b"null"),
        result=_part(row, "result", href),
        failure=failure_view(row["failure"]),
        memo=_part(row, "memo", href),
        note=row["note"],
        pending=_pending(rows),
    )


def _part(row: Mapping[str, Any], name: str, href: str) -> Payload | None:
    stored = row[name]
    return None if stored is None else payload_view(stored, row[f"{name}_bytes"], f"{href}/{name}", row["codec"])


def _pending(rows: reads.DetailRows) -> Pending:
    most = reads.PENDING_SHOWN
    told = dict(filter(None, map(_child_told, rows.children_told)))
    return Pending(
        activities=[_activity(row, put_off=rows.paused is not None) for row in rows.activities[:most]],
        timers=[PendingTimer(seq=row["seq"], fires_at=row["fires_at"]) for row in rows.timers[:most]],
        children=[_child(row, told) for row in rows.children[:most]],
        truncated=any(len(each) > most for each in (rows.activities, rows.timers, rows.children)),
    )


def _child_told(row: Mapping[str, Any]) -> tuple[str, tuple[str, str]] | None:
    """The id of a child with its type and workflow id, from the event that asked for it; None if that cannot be read.

    Numbers are of one run: a child that was handed on by an earlier run of the chain is no other one of this run.
    """
    data = event_view(row, "").data
    try:
        child_id, name, workflow_id = (
            msgspec.json.decode(msgspec.json.encode(data.get(field)), type=str)
            for field in ("child_id", "workflow_name", "workflow_id")
        )
    except msgspec.MsgspecError:
        return None
    return child_id, (name, workflow_id)


def _child(row: Mapping[str, Any], told: Mapping[str, tuple[str, str]]) -> PendingChild:
    child: UUID = row["child_execution_id"]
    name, workflow_id = row["workflow_name"], row["workflow_id"]
    if name is None:
        name, workflow_id = told.get(str(child), (None, None))
    return PendingChild(
        seq=row["seq"],
        execution_id=child,
        shard_id=shard_of(ExecutionId(int=child.int)),
        workflow_name=name,
        workflow_id=workflow_id,
        await_mode="awaited" if row["awaited"] else "detached",
        parent_close_policy=str(close_policy_word(row["close_policy"])),
    )


def _pause(row: Mapping[str, Any] | None) -> Pause | None:
    """Who held a run and why, from the event of that; one that cannot be decoded tells when."""
    if row is None:
        return None
    try:
        data = msgspec.json.decode(row["payload"], type=WorkflowExecutionPaused)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Pause(paused_at=row["at"])
    return Pause(paused_at=row["at"], reason=data.reason, actor=data.actor)


def _activity(row: Mapping[str, Any], *, put_off: bool) -> PendingActivity:
    """`put_off`: the run is paused, and what waits to be claimed has no time until it is resumed."""
    running = row["state"] == 1
    timeless = put_off and not running
    return PendingActivity(
        seq=row["seq"],
        name=row["name"],
        queue=row["queue"],
        attempt=row["attempt"],
        state="RUNNING" if running else "PENDING",
        scheduled_at=row["scheduled_at"],
        started_at=row["started_at"] if running else None,
        next_try_at=None if running or timeless else row["due"],
        timeout_at=None if timeless else row["timeout_at"],
        cancel_requested=row["cancel_requested"],
        heartbeat_at=row["heartbeat_at"],
        heartbeat_head=None if row["heartbeat_head"] is None else head_text(row["heartbeat_head"]),
        queue_served=row["queue_served"],
        last_failure=failure_view(row["last_failure"]),
    )


async def history(
    shards: Shards,
    execution_id: UUID,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int = 100,
    newest_first: bool = False,
    inline: int = INLINE_BYTES,
    api_root: str = API_ROOT,
) -> HistoryPage:
    """Events with ids above `after` and below `before`, at most `limit` (1 to 1000).

    An event of more than `inline` bytes comes with its leading fields and a reference. Raises ExecutionNotFoundError
    and ShardUnavailableError.
    """
    if not 1 <= limit <= MOST_EVENTS:
        raise InvalidRequestError(f"limit is {limit}; it must be 1 to {MOST_EVENTS}", field="limit")
    inline = min(inline, INLINE_BYTES)
    store = shards.store_of(execution_id)
    rows = await ask(
        shards,
        store.shard_id,
        lambda store: reads.history(
            store,
            execution_id,
            after=max(0, min(after, LAST_EVENT_ID)),
            before=None if before is None else max(0, min(before, LAST_EVENT_ID)),
            limit=limit + 1,
            newest_first=newest_first,
            inline=inline,
            head=min(_EVENT_HEAD, inline),
        ),
    )
    if rows is None:
        raise _not_found(execution_id)
    shown = rows.events[:limit]
    root = f"{api_root}/workflows/{execution_id}/history"
    return HistoryPage(
        execution_id=execution_id,
        events=[event_view(row, f"{root}/{row['event_id']}/payload") for row in shown],
        next_cursor=shown[-1]["event_id"] if len(rows.events) > limit else None,
        last_event_id=rows.last_event_id,
        total_events=rows.last_event_id,
    )


async def event_payload(shards: Shards, execution_id: UUID, event_id: int) -> bytes:
    """The whole data of one event, as the JSON text that is stored.

    Raises ExecutionNotFoundError, ShardUnavailableError, and PayloadDecodeError for sealed data.
    """
    shard_id = shards.store_of(execution_id).shard_id
    within = 0 < event_id <= LAST_EVENT_ID
    row = (
        await ask(shards, shard_id, lambda store: reads.event_payload(store, execution_id, event_id))
        if within
        else None
    )
    if row is None:
        raise ExecutionNotFoundError(
            f"execution {execution_id} has no event {event_id}", execution_id=execution_id, event_id=event_id
        )
    return _plain(row, f"event {event_id}")


async def detail_payload(shards: Shards, execution_id: UUID, name: str) -> bytes:
    """The whole `input`, `result`, `memo` or `current_details`, as the JSON text that is stored.

    Raises as `event_payload` does.
    """
    if name not in reads.DETAIL_PAYLOADS:
        raise InvalidRequestError(
            f"{name[:80]!r} is no payload of an execution; there are {', '.join(reads.DETAIL_PAYLOADS)}", field="name"
        )
    shard_id = shards.store_of(execution_id).shard_id
    row = await ask(shards, shard_id, lambda store: reads.detail_payload(store, execution_id, name))
    if row is None or row["payload"] is None:
        raise ExecutionNotFoundError(f"execution {execution_id} has no {name}", execution_id=execution_id)
    return _plain(row, name)


def _plain(row: Mapping[str, Any], what: str) -> bytes:
    if row["codec"] != CODEC_JSON:
        raise PayloadDecodeError(f"{what} is kept with codec {row['codec']}, which this release does not read")
    return bytes(row["payload"])


async def result(shards: Shards, execution_id: UUID, *, wait: float = 0, api_root: str = API_ROOT) -> Outcome | None:
    """How the execution ended, or None while it is open after `wait` seconds (30 at most).

    Waiting holds no connection: all waiters of the process share one poll a shard. A run that continued as new or is
    tried again is followed to the last of its chain. Raises ExecutionNotFoundError, ShardUnavailableError, and
    PayloadsErasedError where the result was erased with its run.
    """
    waiting = waiters(shards).until_closed(shards, min(max(wait, 0.0), MOST_WAIT))
    for _ in range(_MOST_HOPS):
        shard_id = shards.store_of(execution_id).shard_id
        row = await _outcome(shards, shard_id, execution_id)
        if State.RUNNING <= row["state"] < State.COMPLETED:
            if not await waiting(shard_id, execution_id):
                return None
            row = await _outcome(shards, shard_id, execution_id)
        following = _following(execution_id, row)
        if following is None:
            href = f"{api_root}/workflows/{execution_id}/payload/result"
            stored = row["result"]
            if stored == ERASED:
                raise _erased(execution_id, row)
            return Outcome(
                execution_id=execution_id,
                state=state_word(row["state"]),
                output=None if stored is None else payload_view(stored, len(stored), href, row["codec"]),
                error=failure_view(row["failure"]),
                completed_at=row["closed_at"],
            )
        execution_id = following
    return None


def _erased(execution_id: UUID, row: Mapping[str, Any]) -> PayloadsErasedError:
    return PayloadsErasedError(
        f"the result of execution {execution_id} was erased",
        execution_id=execution_id,
        state=state_word(row["state"]),
        completed_at=row["closed_at"],
    )


def _following(execution_id: UUID, row: Mapping[str, Any]) -> UUID | None:
    """The run that a closed one went on as: the newest of its chain, else the one that its last event names."""
    if row["newest"] is not None and row["newest"] != execution_id:
        newest: UUID = row["newest"]
        return newest
    if row["state"] != State.CONTINUED_AS_NEW or row["continued"] is None:
        return None
    return UUID(msgspec.json.decode(row["continued"], type=WorkflowContinuedAsNew).new_execution_id)


async def _outcome(shards: Shards, shard_id: int, execution_id: UUID) -> Mapping[str, Any]:
    row: Mapping[str, Any] | None = await ask(shards, shard_id, lambda store: reads.outcome(store, execution_id))
    if row is None:
        raise _not_found(execution_id)
    return row


def _not_found(execution_id: UUID) -> ExecutionNotFoundError:
    return ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=execution_id)
