"""What one run knows and has asked for. `Run` drives it; the context and the handlers ask through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from harvest.definitions.workflow import WorkflowDefinition
from harvest.errors import ForbiddenInWorkflowError, HarvestError, LimitError
from harvest.history.data import WorkflowStarted
from harvest.history.ids import ExecutionId
from harvest.history.kinds import EventKind
from harvest.history.limits import PENDING_OF_A_KIND
from harvest.replay import unwinding
from harvest.replay.commands import CancelTimer, Command, StartTimer
from harvest.replay.continuing import ContinueAsNew, leaving_with
from harvest.replay.loop import WorkflowFuture, WorkflowLoop, WorkflowTimer
from harvest.replay.matching import Asked
from harvest.replay.messages import Messages
from harvest.replay.placing import Placer
from harvest.replay.resolving import Waiting
from harvest.replay.sessions import CloseSession, OpenSession
from harvest.replay.unwinding import AbandonStep
from harvest.replay.versions import Versions

SPARE_BEFORE_PRUNING: Final = 16
LONGEST_TIMER_SECONDS: Final = 100 * 366 * 86_400
_NOUNS: Final = {
    EventKind.ACTIVITY_SCHEDULED: "activities",
    EventKind.LOCAL_ACTIVITY_SCHEDULED: "local activities",
    EventKind.TIMER_STARTED: "timers",
    EventKind.CHILD_WORKFLOW_STARTED: "children",
    EventKind.SESSION_REQUESTED: "sessions",
}


class Identity(Struct, frozen=True):
    """Which execution a run belongs to."""

    execution_id: ExecutionId
    workflow_name: str
    workflow_id: str
    queue: str


class RunState:
    """One run between two events.

    `pending`, `locals`, `children`, `externals`, `sessions` and `timers` are what was asked for and has not ended, by
    number.
    """

    __slots__ = (
        "_abandoned", "_conditions", "_context", "_generators", "_held", "_main_context", "_messages", "_prune_above",
        "_versions", "asked", "blocked", "cancel_reason", "children", "decided_through", "definition", "details",
        "disturbed", "externals", "failure", "had_children", "held", "held_since", "identity", "locals", "loop",
        "main", "now_at", "only_looks", "pending", "placer", "position", "progress", "released", "replaying", "seed",
        "seen_through", "sequence", "sessions", "started", "started_at", "tasks", "timers", "upserts",
    )  # fmt: skip

    loop: WorkflowLoop
    started: WorkflowStarted
    started_at: datetime
    now_at: datetime

    def __init__(
        self,
        definition: WorkflowDefinition[..., Any],
        identity: Identity,
        make_context: Callable[[Any], Any],
        placer: Placer | None = None,
    ) -> None:
        self.definition = definition
        self.identity = identity
        self.placer = placer
        self.main: asyncio.Task[Any] | None = None
        self.asked = Asked()
        self._messages: Messages | None = None
        self._versions: Versions | None = None
        self.pending: Waiting = {}
        self.locals: Waiting = {}
        self.children: Waiting = {}
        self.externals: Waiting = {}
        self.sessions: Waiting = {}
        self.timers: dict[int, WorkflowTimer] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.blocked: HarvestError | None = None
        self.failure: BaseException | None = None
        self.cancel_reason: str | None = None
        self.only_looks = ""
        self.replaying = False
        self.released = False
        self.disturbed = False
        self.had_children = False
        self.held = timedelta(0)
        self.held_since: datetime | None = None
        self.position = 0
        self.seen_through = 0
        self.decided_through = 0
        self.sequence = 0
        self.seed = 0
        self.details: bytes | None = None
        self.upserts: dict[str, Any] = {}
        self.progress: list[bytes] = []
        self._conditions: list[tuple[Callable[[], bool], WorkflowFuture]] = []
        self._generators: list[Any] = []
        self._held = 0
        self._abandoned = 0
        self._prune_above = SPARE_BEFORE_PRUNING
        self._context = Context()
        self._main_context = make_context

    # Most runs have neither: a parked one is small.

    @property
    def messages(self) -> Messages:
        """Signals, updates and handlers."""
        if self._messages is None:
            self._messages = Messages(self)
        return self._messages

    @property
    def versions(self) -> Versions:
        """Versions of changes, and side effects."""
        if self._versions is None:
            self._versions = Versions(self)
        return self._versions

    def recorded_child(self, seq: int) -> ExecutionId | None:
        """The id that history has for the child of this number: known before its event is reached."""
        return None if self._versions is None else self._versions.children.pop(seq, None)

    # What the context asks for

    def next_sequence(self) -> int:
        """The number of the next command."""
        self.check_may_act()
        self.sequence += 1
        return self.sequence

    def check_usable(self) -> None:
        """Unwind code that goes on after its run was let go or blocked."""
        if self.released or self.blocked is not None:
            self._abandoned += 1
            if self._abandoned > unwinding.PATIENCE:
                unwinding.insist()
            raise AbandonStep

    def check_may_act(self) -> None:
        """As `check_usable`; and a query handler or a validator may only look."""
        self.check_usable()
        if self.only_looks:
            raise ForbiddenInWorkflowError(
                f"{self.only_looks} may only look at what the workflow knows: it runs at moments that no history "
                "records, so it can neither ask for anything nor change what a replay sees"
            )

    def block(self, error: HarvestError) -> None:
        """Stop this step: what it did is discarded, and the run waits for a repair."""
        self.blocked = self.blocked or error

    def fail(self, error: BaseException) -> None:
        """A handler's exception ends the run, as if the workflow had raised it."""
        if not self.released and self.blocked is None and not self.is_done:
            self.failure = error

    def ask(self, waiting: Waiting, command: Any, cancel: Command | None = None) -> WorkflowFuture:
        """Ask for something whose end is awaited. Turning away from it takes it back, or asks for `cancel`."""
        self.check_room(waiting, command.kind)
        future = self.loop.create_future()
        future.on_cancel = lambda: self._turn_away(waiting, command, cancel)
        self.asked.ask(command)
        waiting[command.seq] = (future, command)
        return future

    def check_room(self, waiting: dict[int, Any], kind: EventKind) -> None:
        """Raise LimitError when too much of one kind is under way."""
        if len(waiting) >= PENDING_OF_A_KIND:
            what = _NOUNS.get(kind, "messages to other workflows")
            raise LimitError(f"{PENDING_OF_A_KIND:,} {what} are pending; wait for some before asking for more")

    def _turn_away(self, waiting: Waiting, command: Command, cancel: Command | None) -> None:
        if waiting.pop(command.seq, None) is None or self.released:
            return
        if cancel is not None:
            self.asked.take_back(cancel)
        else:
            self.asked.vanish(command.key)

    def start_timer(self, duration: float, handle: WorkflowTimer, until: datetime | None = None) -> int:
        """Ask for a durable timer that runs `handle`; returns its number."""
        seq = self.next_sequence()
        if not duration <= LONGEST_TIMER_SECONDS:
            raise LimitError(f"a timer of {duration:g} s is too long; at most 100 years are allowed")
        self.check_room(self.timers, EventKind.TIMER_STARTED)
        self.asked.ask(StartTimer(seq, round(duration, 6), until))
        self.timers[seq] = handle
        return seq

    def cancel_timer(self, seq: int) -> None:
        """Drop a timer that has not fired."""
        if self.only_looks:
            self.check_may_act()
        if self.timers.pop(seq, None) is not None and not self.released:
            self.asked.take_back(CancelTimer(seq))

    def close_session(self, session: OpenSession) -> None:
        """End a session, if history has not, and turn away from what still runs in it."""
        if self.only_looks:
            self.check_may_act()
        if self.sessions.pop(session.seq, None) is None or self.released:
            return
        for future, command in list(self.pending.values()):
            if command.session is session:
                future.cancel()
        self.asked.take_back(CloseSession(session.seq))

    def wait_for(self, condition: Callable[[], bool]) -> WorkflowFuture:
        """A future that ends when `condition` holds at rest."""
        self.check_usable()
        future = self.loop.create_future()
        self._conditions.append((condition, future))
        return future

    # Facts

    def elapsed(self) -> float:
        """Seconds from the start of the run to the latest event delivered: the loop's time."""
        return (self.now_at - self.started_at).total_seconds()

    @property
    def deadline(self) -> datetime | None:
        """When the run is ended, by its own timeout or its chain's."""
        own = self.started.execution_timeout_seconds
        ends = [self.chain_deadline, self.started_at + timedelta(seconds=own) + self.held if own is not None else None]
        return min((end for end in ends if end is not None), default=None)

    @property
    def chain_deadline(self) -> datetime | None:
        """When the whole chain is ended: later by as long as this run was held than when it started."""
        ends = self.started.chain_deadline
        return None if ends is None else ends + self.held

    @property
    def is_done(self) -> bool:
        """Whether the workflow function has ended, or a handler has failed it."""
        return self.failure is not None or (self.main is not None and self.main.done())

    @property
    def continued(self) -> ContinueAsNew | None:
        """What the run goes on as, when its function ended by saying so."""
        if self.failure is not None or self.main is None or not self.main.done() or self.main.cancelled():
            return None
        return leaving_with(self.main.exception())

    def unhandled_signals(self) -> int:
        """How many signals nobody took."""
        return 0 if self._messages is None else self._messages.unhandled()

    def waiting_for(self) -> str | None:
        """What the code waits for beside activities and timers: a signal, a child, a condition (answers 13)."""
        if self._messages is not None and (names := self._messages.waiting_for()):
            return "signal " + ", ".join(sorted(names))
        if self.children:
            names = sorted({command.workflow_name for _, command in self.children.values()})
            return f"child workflow {', '.join(names[:3])}" + (", …" if len(names) > 3 else "")
        if self.externals:
            words: str = next(command.describe() for _, command in self.externals.values())
            return words
        if any(not future.done() for future, _ in self.sessions.values()):
            return "session"
        return "condition" if any(not future.done() for _, future in self._conditions) else None

    def weight(self) -> int:
        """Rough bytes of memory that the parked run takes."""
        waiting = sum(map(len, (self.pending, self.locals, self.children, self.externals, self.sessions)))
        messages = self._messages.weight() if self._messages is not None else 0
        return 4_000 + 700 * len(self.tasks) + 600 * waiting + messages
