"""The commit of decisions: one statement for a batch, against the exact history each of them saw (design 4).

Each step is one CTE fed by the one before: the fence rows, the execution rows at the expected `next_event_id`, the
activity tasks whose results are merged; then what passed is written. A table is reached by `key = any(array)`, and
nothing here waits for a lock: `SKIP LOCKED` leaves a row out, and its decision comes back as busy. What is checked
beside the key is written `is not distinct from`, which no index serves: before the first ANALYZE the planner would else
walk all the rows of a worker or of a state.

Lock order: workflow task, execution, activity tasks, timers, children. As it waits for none of them, this statement is
never part of a deadlock, in whatever order others lock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

import asyncpg
from msgspec import Struct

from harvest.history.kinds import EventKind
from harvest.history.states import FIRST_CLOSED
from harvest.store.commit_parts import Needs, statement
from harvest.store.pool import Connection
from harvest.store.store import Store

_log = logging.getLogger("harvest.store")
HELD, PARKED, NEWS = 1, 2, 3


class Answer(IntEnum):
    """What became of one decision."""

    PASSED = 0
    MOVED = 1
    BUSY = 2
    FENCED = 3


Row = tuple[Any, ...]


class Successor(Struct, frozen=True, kw_only=True):
    """The run that a closing one goes on as, continued as new or tried again; `started` is its encoded WorkflowStarted.

    `events` (kind, encoded data) are carried over, after WorkflowStarted; its `carried` is their number. The first task
    is due in `delay` seconds. The earlier of `deadline_after`, in seconds from then, and `deadline_at` holds. With
    `repoint` open children become its own, no longer awaited; else their close policies are applied. What is not here
    is copied from the predecessor: tenant, memo, search attributes, parent, root, first run, awaited, close policy.
    """

    execution_id: UUID
    business_key: UUID
    workflow_name: str
    workflow_id: str
    version: int
    partition: int
    queue: str
    started: bytes
    input: bytes
    priority: int = 0
    events: Sequence[tuple[int, bytes]] = ()
    delay: float = 0.0
    deadline_after: float | None = None
    deadline_at: datetime | None = None
    repoint: bool = True


class Batch:
    """The rows of one commit, filled decision by decision."""

    def __init__(self) -> None:
        self.bytes = 0
        self.rows = 0
        self.decisions: list[Row] = []
        self.events: list[Row] = []
        self.merges: list[Row] = []
        self.activities: list[Row] = []
        self.timers: list[Row] = []
        self.cancels: list[Row] = []
        self.closes: list[Row] = []
        self.children: list[Row] = []
        self.deliveries: list[Row] = []
        self.details: list[Row] = []
        self.successors: list[Row] = []
        self.successor_events: list[Row] = []
        self.cascades: list[Row] = []
        self.sessions: list[Row] = []
        self.session_ends: list[Row] = []
        self.pins: list[Row] = []

    @property
    def optional(self) -> tuple[list[Row], ...]:
        """The rows of the parts that a statement has only when it needs them, in the order of its parameters.

        Those of `successors` and `successor_events` are one part.
        """
        return (
            self.merges,
            self.activities,
            self.timers,
            self.cancels,
            self.closes,
            self.children,
            self.deliveries,
            self.details,
            self.successors,
            self.successor_events,
            self.cascades,
            self.sessions,
            self.session_ends,
            self.pins,
        )

    @property
    def needs(self) -> Needs:
        """Which parts the statement has to have."""
        return Needs(
            merges=bool(self.merges),
            activities=bool(self.activities),
            timers=bool(self.timers),
            cancels=bool(self.cancels),
            closes=bool(self.closes),
            children=bool(self.children),
            deliveries=bool(self.deliveries),
            details=bool(self.details),
            successors=bool(self.successors),
            cascades=bool(self.cascades),
            sessions=bool(self.sessions),
            session_ends=bool(self.session_ends),
            pins=bool(self.pins),
        )

    def decision(
        self,
        execution_id: UUID,
        *,
        attempt: int,
        expected: int,
        next_event_id: int,
        state: int,
        task_state: int,
        merged: int,
        waiting: str | None,
    ) -> None:
        """One execution: its fence, the history it saw, and where it goes."""
        self.decisions.append((execution_id, attempt, expected, next_event_id, state, task_state, merged, waiting))

    def event(
        self, execution_id: UUID, event_id: int, kind: int, seq: int, at: datetime | None, payload: bytes
    ) -> None:
        """One event; `at` is given where the loop has already consumed it (design 3)."""
        self.events.append((execution_id, event_id, kind, seq, at, payload))
        self.bytes += len(payload)
        self.rows += 1

    def merge(self, execution_id: UUID, seq: int, attempt: int) -> None:
        """An activity whose result this decision brings along."""
        self.merges.append((execution_id, seq, attempt))

    def activity(
        self,
        execution_id: UUID,
        seq: int,
        *,
        eager: bool,
        scheduled_event_id: int,
        queue: str,
        name: str,
        priority: int,
        start_to_close: float | None,
        heartbeat: float | None,
        schedule_to_close: float | None,
        timeout_after: float | None,
    ) -> None:
        """A new activity task, already claimed when `eager`. Times in seconds from the commit."""
        self.activities.append(
            (
                execution_id,
                seq,
                1 if eager else 0,
                scheduled_event_id,
                queue,
                name,
                priority,
                start_to_close,
                heartbeat,
                schedule_to_close,
                timeout_after,
            )
        )
        self.rows += 1

    def timer(self, execution_id: UUID, seq: int, fires_at: datetime) -> None:
        """A new durable timer."""
        self.timers.append((execution_id, seq, fires_at))
        self.rows += 1

    def cancel(self, execution_id: UUID, seq: int) -> None:
        """A timer or activity that the workflow no longer waits for."""
        self.cancels.append((execution_id, seq))

    def close(self, execution_id: UUID, result: bytes | None, failure: bytes | None) -> None:
        """The run ends; what people read of it."""
        self.closes.append((execution_id, result, failure))
        self.bytes += len(result or b"") + len(failure or b"")

    def child(self, execution_id: UUID, seq: int, child_execution_id: UUID, close_policy: int, awaited: bool) -> None:
        """A child that reports its end or has a close policy (its place in `CLOSE_POLICIES`); the run is its parent."""
        self.children.append((execution_id, seq, child_execution_id, close_policy, awaited))
        self.rows += 1

    def delivery(
        self, execution_id: UUID, seq: int, kind: int, target_execution_id: UUID, target_shard: int, payload: bytes
    ) -> None:
        """What the run does to another; deliveries to one target are made in the order of these calls.

        A target that is known by name and id alone has its business key as `target_execution_id`, and `ANYWHERE` of
        `harvest.store.deliveries` as its shard.
        """
        self.deliveries.append((execution_id, seq, kind, target_execution_id, target_shard, payload))
        self.bytes += len(payload)
        self.rows += 1

    def detail(self, execution_id: UUID, search_attributes: str | None, details: bytes | None) -> None:
        """What people read of a run; None leaves it as it is.

        `search_attributes` is a JSON object that is merged into the stored one, a null in it takes an attribute away.
        """
        self.details.append((execution_id, search_attributes, details))
        self.bytes += len(details or b"")
        self.rows += 1

    def successor(self, execution_id: UUID, new: Successor) -> None:
        """The run that a closing one (see `close`) goes on as."""
        self.successors.append(
            (
                execution_id,
                new.execution_id,
                new.business_key,
                new.workflow_name,
                new.workflow_id,
                new.version,
                new.partition,
                new.queue,
                new.priority,
                new.input,
                2 + len(new.events),
                new.delay,
                new.deadline_after,
                new.deadline_at,
                new.repoint,
            )
        )
        events = [(int(EventKind.WORKFLOW_STARTED), new.started), *new.events]
        self.successor_events += [
            (new.execution_id, event_id, kind, payload) for event_id, (kind, payload) in enumerate(events, 1)
        ]
        self.bytes += len(new.input) + sum(len(payload) for _, payload in events)
        self.rows += 2 + len(events)

    def cascade(self, execution_id: UUID) -> None:
        """A closing run that may have open children: their close policies are applied, or its heir takes them over."""
        self.cascades.append((execution_id,))

    def session(
        self, session_id: UUID, execution_id: UUID, seq: int, queue: str, creation: float, execution: float | None
    ) -> None:
        """A worker session that waits for a worker of `queue`; its two timeouts in seconds."""
        self.sessions.append((session_id, execution_id, seq, queue, creation, execution))
        self.rows += 1

    def session_end(self, session_id: UUID) -> None:
        """A worker session that its run no longer needs."""
        self.session_ends.append((session_id,))

    def pin(self, execution_id: UUID, seq: int, session_id: UUID, worker: UUID) -> None:
        """A new activity that belongs to a session, and so to one worker."""
        self.pins.append((execution_id, seq, session_id, worker))


_NO_EVENTS: Final[tuple[tuple[()], ...]] = ((), (), (), (), (), ())
_WHY = """
select t.execution_id, e.state, e.next_event_id,
       t.worker = $2 and t.attempt = d.attempt and t.state in (1, 3) and exists (
           select from harvest_workers w where w.worker = $2 and w.lease_until > clock_timestamp())
       and (t.owner_epoch is null or exists (
           select from harvest_partitions p
            where p.partition = t.partition and p.owner = $2 and p.epoch = t.owner_epoch)) as is_held
  from unnest($1::uuid[], $3::int[]) as d(execution_id, attempt)
  left join harvest_workflow_tasks t on t.execution_id = d.execution_id and t.execution_id = any($1)
  left join harvest_executions e on e.execution_id = d.execution_id and e.execution_id = any($1)"""
_OVER = """
select m.execution_id from unnest($1::uuid[], $2::int[], $3::int[]) as m(execution_id, seq, attempt)
  left join harvest_activity_tasks a
    on a.execution_id = m.execution_id and a.seq = m.seq and a.attempt = m.attempt and a.worker = $4 and a.state = 1
   and a.execution_id = any($1)
 where a.execution_id is null"""


def parameters(worker: UUID, batch: Batch) -> list[Any]:
    """The values of a batch's statement, column by column."""
    events = zip(*batch.events, strict=True) if batch.events else _NO_EVENTS
    values = [*zip(*batch.decisions, strict=True), worker, *events]
    for rows in batch.optional:
        if rows:
            values.extend(zip(*rows, strict=True))
    return values


async def commit(store: Store, connection: Connection, worker: UUID, batch: Batch) -> dict[UUID, Answer]:
    """Commit a batch on `connection` and say what became of each decision."""
    rows = await connection.fetch(statement(batch.needs), *parameters(worker, batch))
    if rows:
        store.clock.observe(rows[0]["now"])
    answers = {row["execution_id"]: Answer.PASSED for row in rows}
    if len(answers) < len(batch.decisions):
        passed = set(answers)
        try:
            await _explain(connection, worker, batch, answers)
        except asyncpg.PostgresError as error:
            # What has passed is written, whatever becomes of this question: the others are tried again.
            _log.warning("shard %s: why decisions did not pass is not known: %s", store.shard_id, error)
            answers.update({row[0]: Answer.BUSY for row in batch.decisions if row[0] not in passed})
    return answers


async def _explain(connection: Connection, worker: UUID, batch: Batch, answers: dict[UUID, Answer]) -> None:
    """Tell moved, busy and fenced apart for what did not pass. A guess is safe: each is tried again or dropped."""
    left = [decision for decision in batch.decisions if decision[0] not in answers]
    ids = [decision[0] for decision in left]
    attempts = [decision[1] for decision in left]
    expected = {decision[0]: decision[2] for decision in left}
    for execution_id in ids:
        answers[execution_id] = Answer.FENCED
    for row in await connection.fetch(_WHY, ids, worker, attempts):
        if row["execution_id"] is None or not row["is_held"] or row["state"] is None:
            continue
        if row["state"] >= FIRST_CLOSED:
            continue
        moved = row["next_event_id"] != expected[row["execution_id"]]
        answers[row["execution_id"]] = Answer.MOVED if moved else Answer.BUSY
    merges = [merge for merge in batch.merges if answers[merge[0]] is Answer.BUSY]
    if merges:
        # A retry is no event: an attempt may be over although the history has not moved.
        for row in await connection.fetch(_OVER, *zip(*merges, strict=True), worker):
            answers[row["execution_id"]] = Answer.MOVED
