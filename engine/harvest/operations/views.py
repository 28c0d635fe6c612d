"""What reads return: executions, events and the rest as API, pages and CLI show them (answers 13)."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from harvest.history.data import Failure
from harvest.history.deliveries import CLOSE_POLICIES
from harvest.history.events import kind_word
from harvest.history.payload import CODEC_JSON
from harvest.history.states import State

INLINE_BYTES: Final = 64 * 1024
HEAD_BYTES: Final = 2048
API_ROOT: Final = "/api/harvest"


class Truncated(Struct, frozen=True, kw_only=True):
    """Stands for a payload that is too large to show: its size, its first characters, and where the whole of it is."""

    bytes: int
    truncated: bool = True
    href: str
    head: str = ""


_utf8 = codecs.getincrementaldecoder("utf-8")

# A payload as the exact text that was stored, so that no number is rounded, or what stands for a large one.
Payload = Raw | Truncated


class Blocked(Struct, frozen=True, kw_only=True):
    """Why an open run does not go on, and when it is tried again."""

    code: str
    message: str = ""
    since: datetime | None = None
    count: int = 0
    next_try_at: datetime | None = None


AwaitMode = Literal["awaited", "detached"]


class ExecutionView(Struct, frozen=True, kw_only=True):
    """One execution without its payloads: a row of the list. `owner` and `severity` are what people have given it.

    `await_mode` tells whether its parent waits for its end, `parent_close_policy` what becomes of it when the parent
    ends; both are null where it has no parent.
    """

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    version: int
    state: str
    shard_id: int
    partition: int
    queue: str
    build: str
    parent_id: UUID | None
    root_id: UUID | None
    first_execution_id: UUID | None
    previous_execution_id: UUID | None
    started_at: datetime
    closed_at: datetime | None
    deadline_at: datetime | None
    history_events: int
    waiting: str | None
    blocked: Blocked | None
    await_mode: AwaitMode | None
    parent_close_policy: str | None
    search_attributes: dict[str, Raw] | None = None
    owner: str | None = None
    severity: str | None = None


class FailureView(Struct, frozen=True, kw_only=True):
    """A failure with its cause; the innermost cause is the root."""

    type: str
    message: str
    traceback: str = ""
    cause: FailureView | None = None


class PendingActivity(Struct, frozen=True, kw_only=True):
    """An activity that has not ended: `state` is PENDING or RUNNING, `next_try_at` is set while it waits for a try.

    `heartbeat_head` has the first characters of what its last heartbeat told, which may be of the attempt before.
    `queue_served` tells whether a living worker takes work from its queue.
    """

    seq: int
    name: str
    queue: str
    attempt: int
    state: str
    scheduled_at: datetime
    started_at: datetime | None
    next_try_at: datetime | None
    timeout_at: datetime | None
    cancel_requested: bool
    heartbeat_at: datetime | None
    heartbeat_head: str | None
    queue_served: bool
    last_failure: FailureView | None


class PendingTimer(Struct, frozen=True, kw_only=True):
    """A timer that has not fired."""

    seq: int
    fires_at: datetime


class PendingChild(Struct, frozen=True, kw_only=True):
    """A child that has not ended, and the shard of its id.

    `workflow_name` and `workflow_id` are null where it is not on its parent's shard, or has not begun yet, and an
    earlier run of the parent's chain asked for it.
    """

    seq: int
    execution_id: UUID
    shard_id: int
    workflow_name: str | None
    workflow_id: str | None
    await_mode: AwaitMode
    parent_close_policy: str


class Pending(Struct, frozen=True, kw_only=True):
    """What an open run has under way; `truncated` when there is more of a kind than is shown."""

    activities: list[PendingActivity] = []
    timers: list[PendingTimer] = []
    children: list[PendingChild] = []
    truncated: bool = False


class Pause(Struct, frozen=True, kw_only=True):
    """Since when a run is held, why, and who holds it."""

    paused_at: datetime
    reason: str = ""
    actor: str = ""


class ExecutionDetail(ExecutionView, frozen=True, kw_only=True):
    """One execution with its payloads and what it has under way.

    `queue_served` tells whether a living worker takes work from its queue, `definition_served` whether one has the code
    of its version; `cancel_requested_at` is when it was asked to cancel. `next_execution_id` is the run that it went on
    as, `current_details` what its code says of itself, `note` what people say of it.
    """

    queue_served: bool
    definition_served: bool
    cancel_requested_at: datetime | None
    next_execution_id: UUID | None
    paused: Pause | None
    current_details: Payload | None
    note: str | None = None

    input: Payload
    result: Payload | None
    failure: FailureView | None
    memo: Payload | None
    pending: Pending


class EventView(Struct, frozen=True, kw_only=True):
    """One event of a history. `data` has the fields of its kind; `bytes` is the stored size of all of them."""

    event_id: int
    type: str
    at: datetime
    seq: int
    bytes: int
    data: dict[str, Payload]


def state_word(number: int) -> str:
    """The word of a state, also of one that this release does not know."""
    try:
        return State(number).name
    except ValueError:
        return f"UNKNOWN_{number}"


def is_open(state: str) -> bool:
    """Whether a state's word is one of a run that can still go on."""
    return state in State.__members__ and State[state].is_open


def execution_fields(row: Mapping[str, Any], shard_id: int) -> dict[str, Any]:
    """The fields of an ExecutionView from a row of `harvest_executions`."""
    fields = {name: row[name] for name in ExecutionView.__struct_fields__ if name in row.keys()}  # noqa: SIM118
    fields |= {
        "state": state_word(row["state"]),
        "shard_id": shard_id,
        "history_events": row["next_event_id"] - 1,
        "blocked": Blocked(code=row["blocked"]) if row["blocked"] else None,
        "await_mode": await_mode(row["parent_id"], row["awaited"]),
        "parent_close_policy": close_policy_word(row["close_policy"]),
    }
    return fields


def await_mode(parent_id: UUID | None, awaited: bool | None) -> AwaitMode | None:
    """Whether a parent waits for a run; a run that reports to nobody is detached."""
    if parent_id is None:
        return None
    return "awaited" if awaited else "detached"


def close_policy_word(number: int | None) -> str | None:
    """The word of a parent close policy, also of one that this release does not know."""
    if number is None:
        return None
    return CLOSE_POLICIES[number] if 0 <= number < len(CLOSE_POLICIES) else f"unknown_{number}"


def attributes_view(stored: str | None) -> dict[str, Raw] | None:
    """Search attributes from the text of their jsonb value; null where there are none."""
    try:
        return msgspec.json.decode(stored, type=dict[str, Raw]) if stored else None
    except msgspec.MsgspecError:
        return None


def execution_view(row: Mapping[str, Any], shard_id: int) -> ExecutionView:
    """A row of the list."""
    return ExecutionView(**execution_fields(row, shard_id))


def blocked_view(code: str, stored: bytes | None) -> Blocked:
    """What blocks a run: the hot row's code with the stored details, which may be missing or of a newer release."""
    try:
        return msgspec.structs.replace(msgspec.json.decode(stored or b"", type=Blocked), code=code)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Blocked(code=code)


def failure_view(stored: bytes | None) -> FailureView | None:
    """A recorded failure; one that cannot be decoded is shown as text."""
    if stored is None:
        return None
    try:
        return _failure(msgspec.json.decode(stored, type=Failure))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return FailureView(type="Undecodable", message=f"{len(stored):,} bytes that are no failure: {error}")


def _failure(failure: Failure) -> FailureView:
    return FailureView(
        type=failure.type,
        message=failure.message,
        traceback=failure.traceback,
        cause=_failure(failure.cause) if failure.cause else None,
    )


def payload_view(stored: bytes, size: int, href: str, codec: int = CODEC_JSON) -> Payload:
    """A payload of `size` bytes from all of them, or from its first ones when `stored` is shorter."""
    if codec == CODEC_JSON and size <= INLINE_BYTES and len(stored) == size and is_json(stored):
        return Raw(stored)
    return Truncated(bytes=size, href=href, head="" if codec != CODEC_JSON else head_text(stored))


def is_json(data: bytes) -> bool:
    """Whether bytes may go into an answer as they are."""
    try:
        data.decode()
        msgspec.json.decode(data, type=Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def head_text(data: bytes) -> str:
    """The first characters of a payload; bytes that are no UTF-8 become replacement characters."""
    # Not final: a character that the cut went through is left out.
    return _utf8(errors="replace").decode(data[:HEAD_BYTES], final=False)


def event_view(row: Mapping[str, Any], href: str) -> EventView:
    """One event from a row whose `payload` may hold the first bytes only."""
    return EventView(
        event_id=row["event_id"],
        type=kind_word(row["kind"]),
        at=row["at"],
        seq=row["seq"],
        bytes=row["bytes"],
        data=_event_data(row["payload"], row["bytes"], row["codec"], href),
    )


def _event_data(stored: bytes, size: int, codec: int, href: str) -> dict[str, Payload]:
    whole = Truncated(bytes=size, href=href, head="" if codec != CODEC_JSON else head_text(stored))
    if codec != CODEC_JSON:
        return {"sealed": whole}
    if len(stored) < size:
        return _leading_fields(stored, whole)
    try:
        stored.decode()
        fields = msgspec.json.decode(stored, type=dict[str, Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {"undecodable": whole}
    return dict(fields)


def _leading_fields(head: bytes, whole: Truncated) -> dict[str, Payload]:
    """The fields that are complete in the first bytes of an event's data, and the first one that is not."""
    decoder = json.JSONDecoder(parse_int=str, parse_float=str)
    text = head.decode(errors="replace")
    fields: dict[str, Payload] = {}
    at = 1
    while True:
        try:
            name, colon = decoder.raw_decode(text, at)
            start = colon + 1
        except (ValueError, RecursionError):
            return fields | {"data": whole}
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = len(text)
        # A number at the very end may go on in what was not read.
        if not isinstance(name, str) or end >= len(text) - 1:
            return fields | {str(name): msgspec.structs.replace(whole, head=text[start : start + HEAD_BYTES])}
        fields[name] = Raw(text[start:end].encode())
        at = end + 1
