"""What is known of one recorded run, in forms that can be compared: what it asks for, shows, answers and comes to."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from harvest.definitions.children import ChildPlacement
from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import QueryFailedError, QueryNotFoundError
from harvest.history.data import Failure
from harvest.history.events import Event
from harvest.history.ids import ExecutionId
from harvest.replay.commands import StartTimer
from harvest.replay.decision import Outcome, outcome_of
from harvest.replay.placing import Placed
from harvest.replay.records import AnswerUpdate
from harvest.replay.relations import StartChild
from harvest.replay.run import Run
from harvest.replay.state import Identity
from tests.replay.noting import NEW_BUILD, NotingContext, Trace

IDENTITY = Identity(ExecutionId(int=77), "play", "w-1", "default")
Asked = list[tuple[int, int, str]]


class State(Struct, frozen=True):
    """A moment at which a worker might have had to begin anew: how long history was, and how far it was decided.

    `answer` is what a query gave there, if one was asked.
    """

    events: int
    decided_through: int
    build: int = NEW_BUILD
    answer: str | None = None


class Decided(Struct, frozen=True):
    """One committed decision: the history it saw, what it asked for and showed, and the end if it was one."""

    saw: int
    decided_through: int
    build: int
    asked: Asked
    shown: str
    outcome: tuple[int, str] | None
    after: int


class Recording(Struct):
    """All that is known of one finished recording, and of the run that followed."""

    seed: int
    identity: Identity
    workflow: WorkflowDefinition[..., Any]
    events: list[Event]
    states: list[State] = []
    decisions: list[Decided] = []
    trace: Trace = []
    replays: int = 0
    successor: Recording | None = None

    @property
    def chain(self) -> list[Recording]:
        """This run and those that followed."""
        return [self, *(self.successor.chain if self.successor else [])]


def asked_by(run: Run) -> Asked:
    """What a run asks for, in a form that can be compared: kind, number, and what matters of the rest."""
    return [(int(command.kind), command.seq, _told(command)) for command in run.asked.values()]


def _told(command: Any) -> str:
    if isinstance(command, StartTimer):
        return f"{command.duration} {command.until}"
    if isinstance(command, AnswerUpdate):
        failure = command.failure and f"{command.failure.type}: {command.failure.message}"
        return f"{command.update_id} {command.output!r} {failure} {command.rejected}"
    if isinstance(command, StartChild):
        return f"{command.describe()} {command.digest} {command.child_id} {command.workflow_id}"
    if hasattr(command, "digest"):
        return f"{command.describe()} {command.digest}"
    return command.payload().decode() if hasattr(command, "payload") else ""


def shown_by(run: Run) -> str:
    """What a run has to show to people."""
    return f"{run.details!r} {run.upserts} {run.progress}"


NOTHING_SHOWN = "None {} []"


def end_of(run: Run) -> tuple[int, str] | None:
    """How a run ends, without the text of a traceback."""
    outcome: Outcome | None = outcome_of(run)
    if outcome is None:
        return None
    text = outcome.payload.decode()
    if outcome.failure is not None:
        failure = msgspec.json.decode(outcome.failure, type=Failure)
        text = f"{failure.type}: {failure.message}"
    if outcome.onward is not None:
        text += f" {outcome.onward.event().decode()} {outcome.onward.carried} {outcome.onward.delay}"
    return int(outcome.kind), text


def answer_of(run: Run) -> str:
    """What the program says of itself."""
    try:
        return run.query("look", b"null").decode()
    except (QueryNotFoundError, QueryFailedError) as error:
        return error.message


def refusal_of(run: Run, act: int) -> str:
    """What a query hears that tries to act."""
    try:
        return run.query("act", b"%d" % act).decode()
    except QueryFailedError as error:
        return error.message


def fresh(
    workflow: WorkflowDefinition[..., Any], identity: Identity = IDENTITY, build: int = NEW_BUILD
) -> tuple[Run, Trace]:
    """A run that nothing was delivered to, and its notes."""
    trace: Trace = []

    def place(placement: ChildPlacement, parent: ExecutionId, workflow_name: str, seq: int) -> Placed:
        assert not run.replaying, "where a child lives is not asked again"
        return Placed(seq % 3)

    run = Run(workflow, identity, lambda run: NotingContext(run, trace, build), place)
    live.append(run)
    return run, trace


def let_go_of_all() -> None:
    """Release what a test has left: collected as it is, its cleanup would run within somebody else's step."""
    for run in live:
        run.release()
    live.clear()


live: list[Run] = []
