"""Whether today's code still goes the way that a recorded history went. Pure: nothing is written and nobody is asked.

Only what was decided is looked at: beyond that the code may do whatever it likes.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from harvest.definitions.registry import Registry
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import HarvestError, HistoryDocumentError, NonDeterminismError, PayloadDecodeError
from harvest.history import payload
from harvest.history.data import WorkflowCompleted, WorkflowContinuedAsNew, WorkflowFailed
from harvest.history.document import HistoryDocument, events_of
from harvest.history.events import DATA_OF, Event, kind_word
from harvest.history.ids import ExecutionId
from harvest.history.kinds import TERMINAL, EventKind
from harvest.replay.context import WorkflowContext
from harvest.replay.decision import Outcome, outcome_of
from harvest.replay.locating import line_of
from harvest.replay.run import Run
from harvest.replay.state import Identity

NOTHING: Final = "nothing"
Finding = Literal["clean", "diverged", "not_registered", "undecodable", "erased"]

# What the code has no part in: ended from outside, or by a limit.
_FROM_OUTSIDE: Final = frozenset({EventKind.WORKFLOW_TERMINATED, EventKind.WORKFLOW_EXECUTION_TIMED_OUT})
_BY_LIMIT: Final = frozenset({"HistoryCapExceeded"})
_KINDS: Final = {
    EventKind.ACTIVITY_SCHEDULED: "ActivityScheduleMismatch",
    EventKind.ACTIVITY_CANCEL_REQUESTED: "ActivityScheduleMismatch",
    EventKind.LOCAL_ACTIVITY_SCHEDULED: "LocalActivityMismatch",
    EventKind.TIMER_STARTED: "TimerMismatch",
    EventKind.TIMER_CANCELLED: "TimerMismatch",
    EventKind.CHILD_WORKFLOW_STARTED: "ChildWorkflowMismatch",
    EventKind.CHILD_WORKFLOW_SPAWNED_DETACHED: "ChildWorkflowMismatch",
    EventKind.CHILD_CANCEL_REQUESTED: "ChildWorkflowMismatch",
    EventKind.SIDE_EFFECT_RECORDED: "SideEffectMismatch",
    EventKind.MARKER_RECORDED: "VersionMismatch",
    EventKind.UPDATE_COMPLETED: "UpdateMismatch",
    EventKind.UPDATE_FAILED: "UpdateMismatch",
    EventKind.EXTERNAL_SIGNAL_REQUESTED: "SignalMismatch",
    EventKind.EXTERNAL_CANCEL_REQUESTED: "ExternalMismatch",
    EventKind.EXTERNAL_AWAIT_REQUESTED: "ExternalMismatch",
    EventKind.SESSION_REQUESTED: "SessionMismatch",
    EventKind.SESSION_CLOSED: "SessionMismatch",
    EventKind.WORKFLOW_CONTINUED_AS_NEW: "ContinueAsNewMismatch",
}


class Divergence(Struct, frozen=True):
    """The first place where code and history part.

    `kind` is one of reference 7.3, such as ActivityScheduleMismatch. `expected` is what event `event_id` records,
    `actual` what the code does instead, and `line` where it does so, `file:line in function`.
    """

    kind: str
    event_id: int
    expected: str
    actual: str
    line: str


class Verdict(Struct, frozen=True, kw_only=True):
    """What became of one history.

    `not_registered`: there is no code of its workflow and version here. `undecodable`: the document, or a value in it,
    does not fit the types of today's code. `erased`: what the run was given and what it made is gone; nobody
    can tell. `events_replayed` counts the events that went the recorded way.
    """

    verdict: Finding
    workflow_name: str
    workflow_id: str
    version: int
    execution_id: str
    events_replayed: int = 0
    divergence: Divergence | None = None
    message: str

    @property
    def is_clean(self) -> bool:
        """Whether the code goes the recorded way."""
        return self.verdict == "clean"


def verify(document: HistoryDocument, code: Registry | WorkflowDefinition[..., Any]) -> Verdict:
    """Replay a history with the code of a registry, or with one workflow whatever its name and version.

    The code runs here and now, so that what it logs and what it calls beside its context happens again. Nothing is
    raised for what is found.
    """
    if document.erased_at is not None:
        gone = f"the payloads of this run were erased at {document.erased_at.isoformat(timespec='seconds')}"
        return _verdict(document, "erased", f"{gone}: it cannot be replayed")
    definition = (
        code if isinstance(code, WorkflowDefinition) else code.workflow(document.workflow_name, document.version)
    )
    if definition is None:
        missing = f"no workflow {document.workflow_name!r} of version {document.version} is declared"
        return _verdict(document, "not_registered", missing)
    try:
        events = _events(document)
    except HarvestError as error:
        return _verdict(document, "undecodable", error.message)
    if not events:
        return _verdict(document, "clean", "nothing of it was decided yet")
    identity = Identity(
        ExecutionId(int=document.execution_id.int), document.workflow_name, document.workflow_id, document.queue
    )
    run = Run(definition, identity, WorkflowContext)
    try:
        return _replayed(document, run, events)
    finally:
        run.release()


def _events(document: HistoryDocument) -> list[Event]:
    """What was decided. A run that ended by itself has decided everything. Raises HistoryDocumentError."""
    if document.payload_policy != "full":
        raise HistoryDocumentError(
            f"the history was exported with payload_policy={document.payload_policy}, which leaves out what the code "
            "was given; export it with payload_policy=full"
        )
    events = events_of(document)
    if not events or events[0].kind != EventKind.WORKFLOW_STARTED:
        raise HistoryDocumentError("the history does not begin with WorkflowStarted")
    if events[-1].kind in TERMINAL - _FROM_OUTSIDE:
        return events
    return events[: document.decided_through]


def _replayed(document: HistoryDocument, run: Run, events: list[Event]) -> Verdict:
    run.asked.locate = True
    run.replay(events, events[-1].event_id)
    error = run.blocked
    if isinstance(error, PayloadDecodeError):
        return _verdict(document, "undecodable", error.message, replayed=max(run.position - 1, 0))
    divergence = _at_command(run, events, error) if error is not None else _at_end(run, events[-1])
    if divergence is None:
        return _verdict(document, "clean", f"all {len(events):,} events replay", replayed=len(events))
    replayed = divergence.event_id - (divergence.expected != NOTHING)
    return _verdict(document, "diverged", _told(divergence, error), replayed=replayed, found=divergence)


def _verdict(
    document: HistoryDocument, verdict: Finding, message: str, *, replayed: int = 0, found: Divergence | None = None
) -> Verdict:
    return Verdict(
        verdict=verdict,
        workflow_name=document.workflow_name,
        workflow_id=document.workflow_id,
        version=document.version,
        execution_id=str(document.execution_id),
        events_replayed=replayed,
        divergence=found,
        message=message,
    )


def _told(divergence: Divergence, error: HarvestError | None) -> str:
    line = f", at {divergence.line}" if divergence.line else ""
    if error is not None:
        return f"{error.message}{line}"
    return f"event {divergence.event_id} records {divergence.expected}, but the code {divergence.actual}{line}"


def _at_command(run: Run, events: list[Event], error: HarvestError) -> Divergence:
    """What blocked the run: a command that is missing, too much or another."""
    line = line_of(run)
    if not isinstance(error, NonDeterminismError):
        return Divergence(error.slug, run.position, kind_word(events[run.position - 1].kind), error.message, line)
    event_id: int = error.fields.get("event_id", run.position)
    recorded, asked = (str(error.fields.get(side, "")) for side in ("recorded", "asked"))
    if recorded != NOTHING:
        kind: int = events[event_id - 1].kind
    elif run.asked:
        kind = next(iter(run.asked.values())).kind
    else:
        kind = EventKind.SIDE_EFFECT_RECORDED
    return Divergence(_KINDS[EventKind(kind)], event_id, recorded, asked, line)


def _at_end(run: Run, last: Event) -> Divergence | None:
    """Whether the run ended as its last event says, or is open as it was then."""
    outcome = outcome_of(run)
    if last.kind not in TERMINAL:
        if outcome is None:
            return None
        return _otherwise(run, last, "an open run", f"has ended: {_said(outcome)}", outcome)
    recorded = _said(Outcome(EventKind(last.kind), last.payload))
    if last.kind == EventKind.WORKFLOW_FAILED and last.data().failure.type in _BY_LIMIT:
        return None
    if outcome is None:
        return _otherwise(run, last, recorded, "goes on waiting", outcome)
    if _same_end(run, last, outcome):
        return None
    return _otherwise(run, last, recorded, f"ends otherwise: {_said(outcome)}", outcome)


def _otherwise(run: Run, last: Event, expected: str, actual: str, outcome: Outcome | None) -> Divergence:
    onward = EventKind.WORKFLOW_CONTINUED_AS_NEW
    is_onward = last.kind == onward or (outcome is not None and outcome.kind is onward)
    kind = _KINDS[onward] if is_onward else "OutcomeMismatch"
    return Divergence(kind, last.event_id, expected, actual, line_of(run))


def _same_end(run: Run, last: Event, outcome: Outcome) -> bool:
    if outcome.kind != last.kind:
        return False
    recorded, now = last.data(), msgspec.json.decode(outcome.payload, type=type(last.data()))
    if isinstance(recorded, WorkflowCompleted):
        return _same_result(run, bytes(recorded.output), bytes(now.output))
    if isinstance(recorded, WorkflowFailed):
        return bool(recorded.failure.type == now.failure.type)
    if isinstance(recorded, WorkflowContinuedAsNew):
        return (bytes(recorded.input), recorded.workflow_name) == (bytes(now.input), now.workflow_name)
    return True


def _same_result(run: Run, recorded: bytes, now: bytes) -> bool:
    """A result that grew a field with a default is the same one."""
    if recorded == now:
        return True
    decoder = run.definition.signature.result_decoder
    try:
        return payload.encode_canonical(decoder.decode(recorded)) == payload.encode_canonical(decoder.decode(now))
    except Exception:  # a type's own __post_init__ may raise anything
        return False


def _said(outcome: Outcome) -> str:
    """An end in words: `WorkflowCompleted with 3`."""
    word = outcome.kind.word
    data = msgspec.json.decode(outcome.payload, type=DATA_OF[outcome.kind])
    if isinstance(data, WorkflowCompleted):
        return f"{word} with {_short(bytes(data.output))}"
    if isinstance(data, WorkflowFailed):
        return f"{word} with {data.failure.type}: {data.failure.message[:200]}"
    if isinstance(data, WorkflowContinuedAsNew):
        return f"{word} with {_short(bytes(data.input))}" + (
            f" as {data.workflow_name!r}" if data.workflow_name else ""
        )
    return word


def _short(data: bytes) -> str:
    text = data[:200].decode(errors="replace")
    return text if len(data) <= 200 else f"{text}… ({len(data):,} bytes)"
