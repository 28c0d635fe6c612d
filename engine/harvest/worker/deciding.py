"""From what has come for a run to the rows of its decision. No I/O: the committer sends what is built here."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

from msgspec import Struct

from harvest.definitions.registry import Registry
from harvest.errors import (
    DecisionFailedError,
    DefinitionMissingError,
    HarvestError,
    NonDeterminismError,
    PayloadDecodeError,
)
from harvest.history import payload
from harvest.history.data import ActivityStarted, Failure
from harvest.history.events import EMPTY, Event, encode_data
from harvest.history.ids import ExecutionId
from harvest.history.kinds import EventKind
from harvest.history.limits import HISTORY_BYTES_SOFT, HISTORY_EVENTS_SOFT, PAYLOAD_WARN_BYTES
from harvest.history.states import CLOSES_AS, State
from harvest.replay.commands import CancelActivity, CancelTimer, Command, ScheduleActivity, StartTimer
from harvest.replay.context import WorkflowContext
from harvest.replay.decision import Outcome, failed, history_cap, outcome_of
from harvest.replay.locating import locate
from harvest.replay.matching import BEGUN_BY, Asked
from harvest.replay.placing import Placer
from harvest.replay.records import AnswerUpdate
from harvest.replay.relations import AwaitExternal, CancelChild, CancelExternal, SignalExternal, StartChild
from harvest.replay.run import Run
from harvest.replay.sessions import CloseSession, OpenSession
from harvest.replay.state import Identity
from harvest.store.commit import HELD, PARKED, Batch
from harvest.store.worker_sessions import session_id
from harvest.worker import relating
from harvest.worker.options import Counters
from harvest.worker.watch import StepInterrupted, StepWatch
from harvest.worker.work import Work

_log = logging.getLogger("harvest.worker")
_CANCELS_ACTIVITY: Final = int(EventKind.ACTIVITY_CANCEL_REQUESTED)
_CANCELS_TIMER: Final = int(EventKind.TIMER_CANCELLED)
_CANCELS_CHILD: Final = int(EventKind.CHILD_CANCEL_REQUESTED)
_CLOSES_SESSION: Final = int(EventKind.SESSION_CLOSED)
NOBODY: Final = UUID(int=0)


class Slots(Protocol):
    """Who says whether an activity may start here at once."""

    def reserve(self, command: ScheduleActivity) -> bool:
        """Take a slot for it, or say no."""

    def give_back(self, command: ScheduleActivity) -> None:
        """The activity will not start here after all."""


class Decision(Struct):
    """What was put into a batch for one run, and what follows from its being confirmed."""

    work: Work
    next_event_id: int
    outcome: Outcome | None
    eager: list[ScheduleActivity]
    cancelled: list[int]
    fires_at: datetime | None
    size: int = 0
    holds: bool = False
    queued: bool = False
    delivers: bool = False
    sessions: list[str] | None = None
    progress: list[bytes] = []
    timers: int = 0
    answers: list[AnswerUpdate] | None = None


class Decider:
    """Drives runs and fills batches. One for each shard of a worker."""

    def __init__(
        self,
        registry: Registry,
        slots: Slots,
        steps: StepWatch,
        counters: Counters,
        worker_name: str,
        worker: UUID = NOBODY,
        placer: Placer | None = None,
    ) -> None:
        self._placer = placer
        self._worker = worker.hex
        self._registry = registry
        self._slots = slots
        self._steps = steps
        self._counters = counters
        self._started = encode_data(ActivityStarted(attempt=1, worker=worker_name))

    def step(self, work: Work, now: datetime) -> HarvestError | None:
        """Bring a run up to everything that has come for it; an error means that it is blocked."""
        self._steps.begin(work.workflow_name)
        try:
            error = self._drive(work, now)
        except StepInterrupted:
            error = None
        except HarvestError as caught:
            error = caught
        except BaseException as caught:
            # Whatever it is, it must not end the loop that all other runs live by.
            error = self._not_decided(work, caught)
        too_long = self._steps.end()
        if too_long is not None and work.run is not None:
            work.run.interrupted(too_long)
        return too_long or error

    def warm(self, work: Work) -> bool:
        """Replay what was decided of a run that comes from another worker; tells whether it can be kept."""
        self._steps.begin(work.workflow_name)
        try:
            run = self._replay(work)
            fit = run.blocked is None and not run.is_done
        except (StepInterrupted, HarvestError):
            fit = False
        except BaseException:
            # As for a step: it must not end the loop that gives this worker its partitions.
            _log.exception("execution %s could not be warmed", work.execution_id)
            fit = False
        return self._steps.end() is None and fit

    def _replay(self, work: Work) -> Run:
        """A run from the history that was loaded for it."""
        run = self._new_run(work)
        history, work.delta = work.delta, []
        work.run = run
        work.history_bytes = sum(len(event.payload) for event in history)
        if history:
            work.next_event_id = history[-1].event_id + 1
        run.replay(history, run.decided_through)
        if isinstance(run.blocked, NonDeterminismError):
            locate(run, self._new_run(work), history)
        return run

    def _drive(self, work: Work, now: datetime) -> HarvestError | None:
        if work.run is None:
            self._counters.decisions_cold += 1
            run = self._replay(work)
        else:
            self._counters.decisions_warm += 1
            run = work.run
            if work.delta:
                delta, work.delta = work.delta, []
                work.next_event_id = delta[-1].event_id + 1
                work.history_bytes += sum(len(event.payload) for event in delta)
                if work.decided_through_hint > run.decided_through:
                    # Another worker has decided meanwhile: what it was told and what it asked for is replayed.
                    run.replay(delta, work.decided_through_hint)
                else:
                    run.deliver(delta)
        if run.blocked is None and work.inbox:
            run.deliver(self._merge(work, now))
        return run.blocked

    def _not_decided(self, work: Work, caught: BaseException) -> HarvestError:
        if work.run is not None and work.run.blocked is not None:
            return work.run.blocked
        _log.error("execution %s could not be decided", work.execution_id, exc_info=caught)
        return DecisionFailedError(f"deciding this run failed: {type(caught).__name__}: {caught}")

    def _new_run(self, work: Work) -> Run:
        definition = self._registry.workflow(work.workflow_name, work.version)
        if definition is None:
            raise DefinitionMissingError(
                f"this worker has no code for workflow {work.workflow_name!r} version {work.version}; "
                "deploy it, or add a worker that has it",
                workflow_name=work.workflow_name,
                version=work.version,
            )
        run = Run(
            definition,
            Identity(ExecutionId(int=work.execution_id.int), work.workflow_name, work.workflow_id, work.queue),
            WorkflowContext,
            self._placer,
        )
        run.decided_through = work.decided_through_hint
        return run

    def _merge(self, work: Work, now: datetime) -> list[Event]:
        """The results that wait in the inbox, as the events they will be if nothing comes between (design 4)."""
        events = []
        while work.inbox:
            result = work.inbox.popleft()
            event_id = work.next_event_id + len(work.consumed)
            events.append(Event(event_id, result.kind, result.seq, now, result.payload))
            work.consumed.append((result, now))
            work.inflight.pop(result.seq, None)
        return events

    def fill(self, batch: Batch, work: Work, now: datetime) -> Decision:
        """Put a run's decision into a batch."""
        run = work.run
        assert run is not None
        outcome = _outcome(work, run)
        bytes_before = batch.bytes
        event_id = work.next_event_id
        for result, at in work.consumed:
            batch.event(work.execution_id, event_id, result.kind, result.seq, at, result.payload)
            if not result.is_local:
                batch.merge(work.execution_id, result.seq, result.attempt)
            event_id += 1
        decision = Decision(work, event_id, outcome, [], [], None)
        for command in run.asked.values():
            self._put_command(batch, decision, run, command, now, run.asked)
        if outcome is not None:
            batch.event(work.execution_id, decision.next_event_id, int(outcome.kind), 0, None, outcome.payload)
            decision.next_event_id += 1
        decision.size = batch.bytes - bytes_before
        if outcome is not None:
            batch.close(work.execution_id, outcome.result, outcome.failure)
            decision.delivers |= relating.put_end(batch, work, run, outcome)
        self._put_visible(batch, work, run, decision)
        self._note_size(work, run.decided_through, decision)
        decision.holds = bool(decision.eager) or work.is_busy_elsewhere
        state = State.RUNNING if outcome is None else CLOSES_AS[outcome.kind]
        batch.decision(
            work.execution_id,
            attempt=work.attempt,
            expected=work.next_event_id,
            next_event_id=decision.next_event_id,
            state=int(state),
            task_state=HELD if decision.holds else PARKED,
            merged=sum(not result.is_local for result, _ in work.consumed),
            waiting=run.waiting_for() if outcome is None else None,
        )
        return decision

    def give_back(self, command: ScheduleActivity) -> None:
        """A decision was refused: its reserved slot is free again."""
        self._slots.give_back(command)

    def _note_size(self, work: Work, decided_through: int, decision: Decision) -> None:
        """Warn of a large decision, and once of a history that passes a soft limit (answers 15)."""
        size = work.history_bytes
        if decision.size >= PAYLOAD_WARN_BYTES:
            _log.warning(
                "a decision of workflow %r (%s) writes %d bytes; keep large data elsewhere and pass a reference",
                work.workflow_name,
                work.execution_id,
                decision.size,
            )
        if decided_through < HISTORY_EVENTS_SOFT < decision.next_event_id:
            self._note_history(work, HISTORY_EVENTS_SOFT, "events")
        if size <= HISTORY_BYTES_SOFT < size + decision.size:
            self._note_history(work, HISTORY_BYTES_SOFT, "bytes")

    def _note_history(self, work: Work, limit: int, what: str) -> None:
        _log.warning("the history of workflow %r (%s) passes %d %s", work.workflow_name, work.execution_id, limit, what)

    def _put_visible(self, batch: Batch, work: Work, run: Run, decision: Decision) -> None:
        """What the code shows to people: its details and attributes in the same commit, progress after it."""
        if run.details is not None or run.upserts:
            attributes = payload.encode(run.upserts).decode() if run.upserts else None
            batch.detail(work.execution_id, attributes, run.details)
        decision.progress = run.progress

    def _put_command(
        self, batch: Batch, decision: Decision, run: Run, command: Command, now: datetime, asked: Asked
    ) -> None:
        execution_id, event_id = decision.work.execution_id, decision.next_event_id
        decision.next_event_id += 1
        if isinstance(command, StartTimer):
            fires_at = command.until or now + timedelta(seconds=command.duration)
            batch.event(execution_id, event_id, int(command.kind), command.seq, None, command.payload_at(fires_at))
            if (_CANCELS_TIMER, command.seq) not in asked:
                batch.timer(execution_id, command.seq, fires_at)
                decision.timers += 1
                decision.fires_at = min(fires_at, decision.fires_at or fires_at)
            return
        data = getattr(command, "payload", None)
        batch.event(execution_id, event_id, int(command.kind), command.seq, None, EMPTY if data is None else data())
        if isinstance(command, ScheduleActivity):
            if decision.outcome is None and (_CANCELS_ACTIVITY, command.seq) not in asked:
                self._put_activity(batch, decision, command, event_id)
        elif isinstance(command, StartChild):
            if (_CANCELS_CHILD, command.seq) not in asked:
                relating.put_child(batch, decision.work, run, command)
                decision.delivers = True
        elif isinstance(command, CancelTimer | CancelActivity | CancelChild):
            # What is asked for and taken back in one commit never begins.
            if (BEGUN_BY[int(command.kind)], command.seq) not in asked:
                self._put_cancel(batch, decision, command)
        elif isinstance(command, SignalExternal | CancelExternal | AwaitExternal):
            relating.put_external(batch, decision.work, run, command)
            decision.delivers = True
        elif isinstance(command, OpenSession | CloseSession):
            _put_session(batch, decision, command, asked)
        elif isinstance(command, AnswerUpdate):
            decision.answers = [*(decision.answers or ()), command]

    def _put_cancel(
        self, batch: Batch, decision: Decision, command: CancelTimer | CancelActivity | CancelChild
    ) -> None:
        if isinstance(command, CancelChild):
            relating.put_child_cancel(batch, decision.work, command)
            decision.delivers = True
        else:
            batch.cancel(decision.work.execution_id, command.seq)
            decision.cancelled.append(command.seq)

    def _put_activity(self, batch: Batch, decision: Decision, command: ScheduleActivity, event_id: int) -> None:
        session = command.session
        eager = (session is None or session.worker == self._worker) and self._slots.reserve(command)
        if session is not None:
            execution_id = decision.work.execution_id
            batch.pin(execution_id, command.seq, session_id(execution_id, session.seq), UUID(session.worker))
        if eager:
            batch.event(
                decision.work.execution_id,
                decision.next_event_id,
                int(EventKind.ACTIVITY_STARTED),
                command.seq,
                None,
                self._started,
            )
            decision.next_event_id += 1
            decision.eager.append(command)
        decision.queued |= not eager
        options = command.options
        limits = (
            (options.start_to_close, options.heartbeat, options.schedule_to_close)
            if eager
            else (options.schedule_to_start, options.schedule_to_close)
        )
        given = [limit for limit in limits if limit is not None]
        batch.activity(
            decision.work.execution_id,
            command.seq,
            eager=eager,
            scheduled_event_id=event_id,
            queue=command.queue,
            name=command.name,
            priority=options.priority,
            start_to_close=options.start_to_close,
            heartbeat=options.heartbeat,
            schedule_to_close=options.schedule_to_close,
            timeout_after=min(given) if given else None,
        )


def _put_session(batch: Batch, decision: Decision, command: OpenSession | CloseSession, asked: Asked) -> None:
    """A session begins to wait for a worker, or ends; one that begins and ends in one commit never was."""
    execution_id, seq = decision.work.execution_id, command.seq
    key = session_id(execution_id, seq)
    if isinstance(command, OpenSession):
        if decision.outcome is None and (_CLOSES_SESSION, seq) not in asked:
            batch.session(key, execution_id, seq, command.queue, command.creation_timeout, command.execution_timeout)
            decision.sessions = [*(decision.sessions or ()), command.queue]
    elif (BEGUN_BY[_CLOSES_SESSION], seq) not in asked:
        batch.session_end(key)
        decision.sessions = decision.sessions or []


def _outcome(work: Work, run: Run) -> Outcome | None:
    try:
        return outcome_of(run) or history_cap(work.next_event_id, work.history_bytes)
    except Exception as error:
        _log.error("how execution %s ended cannot be written", work.execution_id, exc_info=error)
        return failed(Failure(type=type(error).__name__, message="how the workflow ended cannot be written as JSON"))


def blocked_delay(count: int) -> float:
    """Seconds until a blocked run is tried again: 1, 2, 4 … 60."""
    return float(min(60, 2 ** min(count - 1, 6)))


def block_code(error: HarvestError) -> str:
    """The code that pages and the API show for a block."""
    return PayloadDecodeError.slug if isinstance(error, PayloadDecodeError) else error.slug
