"""A history for people: windows of what they ask for, each event with those that belong to it.

`reading.history` has every event as it is; here events of chosen groups are read, and of a pair each half is told
with the other one, wherever in the history that is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final
from uuid import UUID

from msgspec import Struct

from harvest.errors import ExecutionNotFoundError, InvalidRequestError
from harvest.history.events import kind_word
from harvest.history.kinds import EventKind
from harvest.history.steps import ATTEMPT, STEP_KINDS
from harvest.operations.asking import ask
from harvest.operations.views import API_ROOT, EventView, event_view, state_word
from harvest.shards import Shards
from harvest.store import windows

MOST_EVENTS: Final = 1_000
FAILED: Final = "failed"
_UPDATE_ENDS: Final = (EventKind.UPDATE_COMPLETED, EventKind.UPDATE_FAILED)
# Every kind is in one group, but that those which tell of a failure are in `failed` too.
GROUPS: Final[dict[str, tuple[EventKind, ...]]] = {
    "workflow": (
        EventKind.WORKFLOW_STARTED,
        EventKind.WORKFLOW_COMPLETED,
        EventKind.WORKFLOW_FAILED,
        EventKind.WORKFLOW_CANCELLED,
        EventKind.WORKFLOW_CONTINUED_AS_NEW,
        EventKind.WORKFLOW_EXECUTION_TIMED_OUT,
        EventKind.WORKFLOW_EXECUTION_PAUSED,
        EventKind.WORKFLOW_EXECUTION_RESUMED,
        EventKind.WORKFLOW_CANCEL_REQUESTED,
        EventKind.WORKFLOW_TERMINATED,
    ),
    "activities": (
        EventKind.ACTIVITY_SCHEDULED,
        EventKind.ACTIVITY_STARTED,
        EventKind.ACTIVITY_COMPLETED,
        EventKind.ACTIVITY_FAILED,
        EventKind.ACTIVITY_TIMED_OUT,
        EventKind.ACTIVITY_CANCEL_REQUESTED,
        EventKind.LOCAL_ACTIVITY_SCHEDULED,
        EventKind.LOCAL_ACTIVITY_COMPLETED,
        EventKind.LOCAL_ACTIVITY_FAILED,
    ),
    "timers": (EventKind.TIMER_STARTED, EventKind.TIMER_FIRED, EventKind.TIMER_CANCELLED),
    "messages": (
        EventKind.SIGNAL_RECEIVED,
        EventKind.UPDATE_ADMITTED,
        *_UPDATE_ENDS,
    ),
    "children": (
        EventKind.CHILD_WORKFLOW_STARTED,
        EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED,
        EventKind.CHILD_WORKFLOW_COMPLETED,
        EventKind.CHILD_WORKFLOW_FAILED,
        EventKind.CHILD_CANCEL_REQUESTED,
    ),
    "external": (
        EventKind.EXTERNAL_SIGNAL_REQUESTED,
        EventKind.EXTERNAL_SIGNAL_DELIVERED,
        EventKind.EXTERNAL_SIGNAL_FAILED,
        EventKind.EXTERNAL_CANCEL_REQUESTED,
        EventKind.EXTERNAL_CANCEL_DELIVERED,
        EventKind.EXTERNAL_CANCEL_FAILED,
        EventKind.EXTERNAL_AWAIT_REQUESTED,
        EventKind.EXTERNAL_AWAIT_RESOLVED,
        EventKind.EXTERNAL_AWAIT_FAILED,
    ),
    "sessions": (
        EventKind.SESSION_REQUESTED,
        EventKind.SESSION_OPENED,
        EventKind.SESSION_CLOSED,
        EventKind.SESSION_BROKEN,
    ),
    "markers": (EventKind.MARKER_RECORDED, EventKind.SIDE_EFFECT_RECORDED),
    FAILED: (
        EventKind.WORKFLOW_FAILED,
        EventKind.WORKFLOW_EXECUTION_TIMED_OUT,
        EventKind.ACTIVITY_FAILED,
        EventKind.ACTIVITY_TIMED_OUT,
        EventKind.LOCAL_ACTIVITY_FAILED,
        EventKind.CHILD_WORKFLOW_FAILED,
        EventKind.UPDATE_FAILED,
        EventKind.EXTERNAL_SIGNAL_FAILED,
        EventKind.EXTERNAL_CANCEL_FAILED,
        EventKind.EXTERNAL_AWAIT_FAILED,
        EventKind.SESSION_BROKEN,
    ),
}
# What begins a step and ends by its own number, so that the two can be told on one line.
_PAIRS: Final = tuple(kind for kind in STEP_KINDS if kind.ends and kind.word != "pause")
_BEGINS: Final = frozenset(kind.begins for kind in _PAIRS)
_FOLLOWS: Final = frozenset(end for kind in _PAIRS for end in kind.ends) | {ATTEMPT}
_NUMBERED: Final = sorted(_FOLLOWS - set(_UPDATE_ENDS))
_OF_WORD: Final = {kind.word: kind for kind in EventKind}


class HistoryWindow(Struct, frozen=True, kw_only=True):
    """Events of a history, and `beside` them those that belong to one of them and are not among them.

    `next_cursor` is the `after` (or, newest first, the `before`) of the next window. `counts` is of the whole history,
    by group.
    """

    execution_id: UUID
    state: str
    events: list[EventView]
    beside: list[EventView]
    next_cursor: int | None
    last_event_id: int
    counts: dict[str, int]


def step_of(event: EventView) -> tuple[str, int] | None:
    """What the halves of a pair have in common; None for an event that belongs to no other."""
    kind = _OF_WORD.get(event.type)
    if kind is EventKind.UPDATE_ADMITTED:
        return "update", event.event_id
    if kind in _UPDATE_ENDS:
        return "update", event.seq
    return ("command", event.seq) if kind in _BEGINS or kind in _FOLLOWS else None


def begins_step(event: EventView) -> bool:
    """Whether an event is the first half of a pair."""
    return _OF_WORD.get(event.type) in _BEGINS


async def window(
    shards: Shards,
    execution_id: UUID,
    *,
    groups: Collection[str] = (),
    folded: bool = False,
    after: int = 0,
    before: int | None = None,
    limit: int = 100,
    newest_first: bool = False,
    inline: int = 1024,
    api_root: str = API_ROOT,
) -> HistoryWindow:
    """Events with ids above `after` and below `before`, at most `limit` (1 to 1,000); of `groups`, if any are named.

    `folded` leaves out what belongs to an event before it and gives it `beside` that one. Events of more than `inline`
    bytes come with their leading fields. Raises InvalidRequestError, ExecutionNotFoundError, ShardUnavailableError.
    """
    if not 1 <= limit <= MOST_EVENTS:
        raise InvalidRequestError(f"limit is {limit}; it must be 1 to {MOST_EVENTS}", field="limit")
    kinds, others = _wanted(groups, folded)
    shard_id = shards.store_of(execution_id).shard_id
    found = await ask(
        shards,
        shard_id,
        lambda store: windows.window(
            store,
            execution_id,
            kinds=kinds,
            others=others,
            after=after,
            before=before,
            limit=limit + 1,
            newest_first=newest_first,
            head=inline,
        ),
    )
    if found is None:
        raise ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=execution_id)
    root = f"{api_root}/workflows/{execution_id}/history"
    events = [event_view(row, f"{root}/{row['event_id']}/payload") for row in found.events[:limit]]
    wanted = _beside(events, folded)
    rows = await ask(shards, shard_id, lambda store: windows.beside(store, execution_id, wanted, head=inline))
    shown = {event.event_id for event in events}
    return HistoryWindow(
        execution_id=execution_id,
        state=state_word(found.state),
        events=events,
        beside=[event_view(row, f"{root}/{row['event_id']}/payload") for row in rows if row["event_id"] not in shown],
        next_cursor=events[-1].event_id if len(found.events) > limit else None,
        last_event_id=found.last_event_id,
        counts=_counts(found.counts),
    )


def _wanted(groups: Collection[str], folded: bool) -> tuple[list[int], bool]:
    """The kinds to read, or to leave out."""
    unknown = [group for group in groups if group not in GROUPS]
    if unknown:
        raise InvalidRequestError(
            f"{unknown[0][:80]!r} is no group of events; there are {', '.join(GROUPS)}", field="kinds"
        )
    if not groups:
        return (sorted(_FOLLOWS) if folded else []), True
    chosen = {kind for group in groups if group != FAILED for kind in GROUPS[group]}
    if folded:
        chosen -= _FOLLOWS
    if FAILED in groups:
        chosen |= set(GROUPS[FAILED])
    return sorted(chosen), False


def _beside(events: Iterable[EventView], folded: bool) -> windows.Beside:
    """What belongs to these events: how the steps that they begin went on, and the beginnings of the others."""
    by_kind: dict[EventKind | None, list[EventView]] = {}
    for event in events:
        by_kind.setdefault(_OF_WORD.get(event.type), []).append(event)
    begun = {event.seq for kind in _BEGINS - {EventKind.UPDATE_ADMITTED} for event in by_kind.get(kind, ())}
    followed = {event.seq for kind in _NUMBERED for event in by_kind.get(kind, ())}
    answered = {event.seq for kind in _UPDATE_ENDS for event in by_kind.get(kind, ())}
    admitted = [event.event_id for event in by_kind.get(EventKind.UPDATE_ADMITTED, ())]
    # Whatever has one of these numbers: the beginnings are told by them as the rest is.
    return windows.Beside(
        kinds=sorted({*_BEGINS, *(_NUMBERED if folded else ())}),
        seqs=sorted((begun | followed) if folded else (followed - begun)),
        update_kinds=_UPDATE_ENDS if folded else (),
        update_seqs=admitted if folded else (),
        event_ids=sorted(answered),
    )


def _counts(counts: dict[int, int]) -> dict[str, int]:
    """Events by group."""
    by_word = {kind_word(number): count for number, count in counts.items()}
    return {group: sum(by_word.get(kind.word, 0) for kind in kinds) for group, kinds in GROUPS.items()}
