"""The timeline of an execution: its steps with their times, in windows, and figures of the whole (reference 4.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from harvest.errors import ExecutionNotFoundError, InvalidRequestError
from harvest.history.kinds import EventKind
from harvest.history.payload import CODEC_JSON
from harvest.history.steps import STEP_BY_BEGIN, StepKind
from harvest.operations.asking import ask
from harvest.operations.views import state_word
from harvest.shards import Shards
from harvest.store import timelines

MOST_STEPS: Final = 500


class Step(Struct, frozen=True, kw_only=True):
    """One step: what the run waited for or did, from the event `step` that begins it.

    `kind` is activity, local_activity, child, detached_child, timer, signal, update, external_signal, external_cancel,
    external_await or pause. Times are in milliseconds: `wait_ms` until the first attempt of an activity began,
    `exec_ms` from then to the end; they and `attempts` are null for other kinds. `end`, `total_ms`, `exec_ms` and
    `outcome` are null while the step is open; it stays so where the run has ended without it. `execution_id` is the
    child, or the run that something was sent to.
    """

    step: int
    kind: str
    name: str
    seq: int
    start: datetime
    end: datetime | None
    attempts: int | None
    total_ms: float | None
    wait_ms: float | None
    exec_ms: float | None
    outcome: str | None
    fires_at: datetime | None = None
    execution_id: UUID | None = None
    workflow_id: str | None = None


class Rollup(Struct, frozen=True, kw_only=True):
    """Figures of all steps. `busy_ms` is the time in which an activity or a child ran, or another run was awaited.

    `wait_ms` is the rest of the run's time. `slowest` has at most five of the steps of that sort that have ended.
    """

    busy_ms: float
    wait_ms: float
    total_steps: int
    open_steps: int
    failed_steps: int
    slowest: list[Step]


class Timeline(Struct, frozen=True, kw_only=True):
    """A window of the timeline, in the order in which steps began. `steps_before` lie ahead of it.

    `next_cursor` is the `after_step` of the next window, `previous_cursor` the `before_step` of the one before.
    `as_of` is the database's time of the answer: until then the open steps of an open run reach.
    """

    execution_id: UUID
    workflow_name: str
    workflow_id: str
    state: str
    started_at: datetime
    closed_at: datetime | None
    as_of: datetime
    steps: list[Step]
    steps_before: int
    next_cursor: int | None
    previous_cursor: int | None
    rollup: Rollup


async def timeline(
    shards: Shards, execution_id: UUID, *, after_step: int = 0, before_step: int | None = None, limit: int = 200
) -> Timeline:
    """Steps after `after_step`, or those right before `before_step`; at most `limit` (1 to 500).

    Raises ExecutionNotFoundError and ShardUnavailableError.
    """
    if not 1 <= limit <= MOST_STEPS:
        raise InvalidRequestError(f"limit is {limit}; it must be 1 to {MOST_STEPS}", field="limit")
    shard_id = shards.store_of(execution_id).shard_id
    rows = await ask(
        shards,
        shard_id,
        lambda store: timelines.timeline(store, execution_id, after=after_step, before=before_step, limit=limit),
    )
    if rows is None:
        raise ExecutionNotFoundError(f"there is no execution {execution_id}", execution_id=execution_id)
    run = rows.run
    steps = [_step(row) for row in rows.steps]
    ahead = run["steps_before"]
    more = ahead + len(steps) < run["total"]
    return Timeline(
        execution_id=execution_id,
        workflow_name=run["workflow_name"],
        workflow_id=run["workflow_id"],
        state=state_word(run["state"]),
        started_at=run["run_started_at"],
        closed_at=run["closed_at"],
        as_of=run["as_of"],
        steps=steps,
        steps_before=ahead,
        next_cursor=steps[-1].step if steps and more else None,
        previous_cursor=(steps[0].step if steps else after_step + 1) if ahead else None,
        rollup=_rollup(run, [_step(row) for row in rows.slowest]),
    )


def _rollup(run: Mapping[str, Any], slowest: list[Step]) -> Rollup:
    busy = round((run["busy_seconds"] or 0.0) * 1000, 3)
    elapsed = _milliseconds(run["until"] - run["run_started_at"])
    return Rollup(
        busy_ms=busy,
        wait_ms=round(max(0.0, elapsed - busy), 3),
        total_steps=run["total"],
        open_steps=run["open"],
        failed_steps=run["failed"],
        slowest=slowest,
    )


def _step(row: Mapping[str, Any]) -> Step:
    kind = STEP_BY_BEGIN[row["kind"]]
    start, tried = row["started_at"], row["tried_at"]
    end = start if kind.instant else row["ended_at"]
    facts = leading_fields(row["head"]) if row["codec"] == CODEC_JSON else {}
    target = facts.get("target")
    named = target if isinstance(target, dict) else facts
    return Step(
        step=row["step"],
        kind=kind.word,
        name=_name(facts, named),
        seq=max(0, row["key"]),
        start=start,
        end=end,
        attempts=row["attempts"] if kind.begins is EventKind.ACTIVITY_SCHEDULED else None,
        total_ms=None if end is None else _milliseconds(end - start),
        wait_ms=None if tried is None else _milliseconds(tried - start),
        exec_ms=None if end is None or tried is None else max(0.0, _milliseconds(end - tried)),
        outcome=_outcome(kind, row["ended_by"]),
        fires_at=_instant(facts.get("fires_at")),
        execution_id=_id(named.get("child_id") or named.get("execution_id")),
        workflow_id=_text(named.get("workflow_id")) or None,
    )


def _name(facts: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    return _text(facts.get("name")) or _text(named.get("workflow_name"))


def _outcome(kind: StepKind, ended_by: int | None) -> str | None:
    if kind.instant:
        return kind.instant
    return next((word for end, word in kind.ends.items() if end == ended_by), None)


def _milliseconds(length: timedelta) -> float:
    return round(length / timedelta(milliseconds=1), 3)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _id(value: object) -> UUID | None:
    try:
        return UUID(_text(value))
    except ValueError:
        return None


def _instant(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(_text(value))
    except ValueError:
        return None


_WANTED: Final = frozenset({"name", "child_id", "workflow_name", "workflow_id", "target", "fires_at"})
_PAYLOADS: Final = frozenset({"input", "payload", "output", "details", "value", "memo"})
_decoder: Final = json.JSONDecoder()


def leading_fields(head: bytes) -> dict[str, Any]:
    """The names and ids at the beginning of an event's data; nothing behind its first payload is looked at."""
    text = head.decode(errors="replace")
    found: dict[str, Any] = {}
    at = 1
    try:
        while at < len(text):
            name, colon = _decoder.raw_decode(text, at)
            if not isinstance(name, str) or name in _PAYLOADS:
                break
            value, end = _decoder.raw_decode(text, colon + 1)
            if name in _WANTED:
                found[name] = value
            at = end + 1
    except (ValueError, RecursionError):
        pass  # the head ends here
    return found
