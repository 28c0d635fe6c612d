"""What comes to a run from outside: signals and updates, waiting until the code takes them or has a handler."""

from __future__ import annotations

from asyncio import CancelledError
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct

from harvest.errors import DefinitionError, HarvestError, PayloadDecodeError
from harvest.history import payload
from harvest.history.data import Failure, SignalReceived, UpdateAdmitted
from harvest.history.events import Event, encode_data
from harvest.history.kinds import EventKind
from harvest.replay.continuing import will_be_tried_again
from harvest.replay.failures import failure_of
from harvest.replay.handlers import QueryHandler, SignalHandler, UpdateHandler, block_if_disturbed, refusing
from harvest.replay.loop import WorkflowFuture
from harvest.replay.records import AnswerUpdate

if TYPE_CHECKING:
    from harvest.replay.state import RunState

ENDED = Failure(type="WorkflowEnded", message="the run ended before its handler had answered")


class Message(Struct, frozen=True):
    """A signal that nobody has taken: the event that brought it, its payload, and who sent it."""

    event_id: int
    payload: bytes
    actor: str


class Update(Struct):
    """An update that has not been answered; `begun` once its handler has it."""

    event_id: int
    at: datetime
    data: UpdateAdmitted
    begun: bool = False

    def answer(self, output: bytes | None, failure: Failure | None, *, rejected: bool = False) -> AnswerUpdate:
        """The command that answers it."""
        return AnswerUpdate(self.event_id, self.at, self.data.update_id, output, failure, rejected)


class Messages:
    """The signals, updates and handlers of one run."""

    __slots__ = ("_run", "admitted", "buffers", "late_cancel", "queries", "running", "signals", "updates", "waiters")

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.buffers: dict[str, deque[Message]] = {}
        self.waiters: dict[str, deque[tuple[WorkflowFuture, Any]]] = {}
        self.admitted: dict[int, Update] = {}
        self.signals: dict[str, SignalHandler] = {}
        self.updates: dict[str, UpdateHandler] = {}
        self.queries: dict[str, QueryHandler] = {}
        self.late_cancel: Event | None = None
        self.running = 0

    # Signals

    def received(self, event: Event) -> None:
        """A signal has come: to its handler, else to the first who waits for it, else kept."""
        data = event.data()
        name, value = data.name, bytes(data.payload)
        if not self._run.is_done:
            handler = self.signals.get(name)
            if handler is not None:
                self._handle(handler, value)
                return
            waiters = self.waiters.get(name)
            while waiters:
                future, as_type = waiters.popleft()
                if not future.done():
                    decoded = self.decode(name, value, as_type)
                    if self._run.blocked is None:
                        future.set_result(decoded)
                    return
        self.buffers.setdefault(name, deque()).append(Message(event.event_id, value, data.actor))

    def take(self, name: str, as_type: Any) -> Any:
        """The oldest signal of that name that has come."""
        buffer = self.buffers[name]
        value = self.decode(name, buffer.popleft().payload, as_type)
        if not buffer:
            del self.buffers[name]
        return value

    def wait(self, name: str, as_type: Any) -> WorkflowFuture:
        """A future of the next signal of that name that nobody else waits for."""
        future = self._run.loop.create_future()
        waiters = self.waiters.setdefault(name, deque())
        while waiters and waiters[0][0].done():
            waiters.popleft()
        waiters.append((future, as_type))
        return future

    def decode(self, name: str, data: bytes, as_type: Any) -> Any:
        """A signal's payload as the code declares it; one that does not fit blocks the run."""
        try:
            return payload.decode(data, as_type, what=f"signal {name!r}")
        except PayloadDecodeError as error:
            self._run.block(error)
            return None

    def on_signal(self, handler: SignalHandler) -> None:
        """From now on signals of that name go to the handler; those that have come first."""
        self.signals[handler.name] = handler
        for message in self.buffers.pop(handler.name, ()):
            self._handle(handler, message.payload)

    def _handle(self, handler: SignalHandler, value: bytes) -> None:
        try:
            arguments = handler.signature.decode(value)
        except HarvestError as error:
            self._run.block(error)
            return
        self._begin(handler.call(arguments), f"signal {handler.name}").add_done_callback(self._signal_handled)

    def _begin(self, coroutine: Any, name: str) -> Any:
        self.running += 1
        return self._run.loop.create_task(coroutine, name=name)

    def _signal_handled(self, task: Any) -> None:
        """What a signal handler raises fails the run, as if the workflow had raised it."""
        self.running -= 1
        if not task.cancelled() and (error := task.exception()) is not None:
            self._run.fail(error)

    # Updates

    def admit(self, event: Event) -> None:
        """An update has come."""
        update = Update(event.event_id, event.at, event.data())
        self.admitted[event.event_id] = update
        handler = self.updates.get(update.data.name)
        if handler is not None and not self._run.is_done:
            self._answer(update, handler)

    def on_update(self, handler: UpdateHandler) -> None:
        """From now on updates of that name go to the handler; those that have come first."""
        self.updates[handler.name] = handler
        for update in list(self.admitted.values()):
            if update.data.name == handler.name and not update.begun:
                self._answer(update, handler)

    def _answer(self, update: Update, handler: UpdateHandler) -> None:
        update.begun = True
        run = self._run
        # Validators and types may change from build to build: a replay goes by what was said when the code was live.
        failure = run.versions.rejections.get(update.event_id) if run.replaying else None
        if failure is None:
            try:
                arguments = handler.signature.decode(bytes(update.data.input))
            except PayloadDecodeError as error:
                if run.replaying:
                    run.block(error)
                    return
                failure = failure_of(error)
            else:
                failure = None if run.replaying else self._judged(handler, arguments)
                if run.blocked is not None:
                    return
        if failure is not None:
            self._reject(update, failure)
            return
        task = self._begin(handler.call(arguments), f"update {handler.name}")
        task.add_done_callback(lambda done: self._answered(update, handler, done))

    def _judged(self, handler: UpdateHandler, arguments: list[Any]) -> Failure | None:
        """Why the validator refuses, if it does."""
        if handler.validator is None:
            return None
        who = f"the validator of update {handler.name!r}"
        try:
            with refusing(self._run, who):
                handler.validator(*arguments)
        except (Exception, CancelledError, SystemExit, KeyboardInterrupt) as error:
            return failure_of(error)
        finally:
            block_if_disturbed(self._run, who)
        return None

    def _answered(self, update: Update, handler: UpdateHandler, task: Any) -> None:
        self.running -= 1
        if self._run.released or self._run.blocked is not None or update.event_id not in self.admitted:
            return
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            failure: Failure | None = Failure(type="CancelledError", message="the handler of the update was cancelled")
        else:
            failure = None if error is None else failure_of(error)
        output = None
        if failure is None:
            try:
                output = handler.signature.encode_result(task.result())
            except HarvestError as unencodable:
                failure = failure_of(unencodable)
        self._reply(update.answer(output, failure))

    def _reject(self, update: Update, failure: Failure) -> None:
        self._reply(update.answer(None, failure, rejected=True))

    def _reply(self, answer: AnswerUpdate) -> None:
        del self.admitted[answer.seq]
        self._run.asked.ask(answer)

    def at_rest(self) -> None:
        """The code had its chance: an update that has no handler is refused; at the run's end nobody answers any more.

        What has not begun when a run goes on as another, continued as new or tried again, is its successor's.
        """
        ended = self._run.is_done
        goes_on = ended and (self._run.continued is not None or will_be_tried_again(self._run))
        for update in list(self.admitted.values()):
            if ended and (update.begun or not goes_on):
                self._reply(update.answer(None, ENDED, rejected=not update.begun))
            elif not ended and not update.begun:
                self._reject(update, self._no_handler(update.data.name))

    def _no_handler(self, name: str) -> Failure:
        known = ", ".join(sorted(self.updates)) or "none"
        return Failure(
            type="UpdateHandlerMissing",
            message=f"the workflow has no handler for update {name!r}; it has {known}",
            non_retryable=True,
        )

    # At the end

    def unread(self) -> list[tuple[int, EventKind, bytes]]:
        """What nobody took, in order: signals, updates that have not begun, a cancel request that came too late."""
        left = [
            (message.event_id, EventKind.SIGNAL_RECEIVED, _signal_data(name, message))
            for name, buffer in self.buffers.items()
            for message in buffer
        ]
        left += [
            (update.event_id, EventKind.UPDATE_ADMITTED, encode_data(update.data))
            for update in self.admitted.values()
            if not update.begun
        ]
        if self.late_cancel is not None:
            left.append((self.late_cancel.event_id, EventKind.WORKFLOW_CANCEL_REQUESTED, self.late_cancel.payload))
        return sorted(left)

    def unhandled(self) -> int:
        """How many signals nobody took."""
        return sum(len(buffer) for buffer in self.buffers.values())

    def weight(self) -> int:
        """Rough bytes of memory."""
        buffered = sum(len(message.payload) for buffer in self.buffers.values() for message in buffer)
        return 1_000 + 300 * (len(self.signals) + len(self.updates) + len(self.queries)) + buffered

    def waiting_for(self) -> list[str]:
        """The names of the signals that the code waits for."""
        return [name for name, waiters in self.waiters.items() if any(not f.done() for f, _ in waiters)]

    def clear(self) -> None:
        """Forget everything; the run is let go."""
        for held in (self.buffers, self.waiters, self.admitted, self.signals, self.updates, self.queries):
            held.clear()


def refuse_second(name: str, handlers: dict[str, Any], kind: str) -> None:
    """Refuse a second handler of one name; raises DefinitionError."""
    if name in handlers:
        raise DefinitionError(f"there is a {kind} handler for {name!r} already; give one of them another name")


def _signal_data(name: str, message: Message) -> bytes:
    return encode_data(SignalReceived(name=name, payload=Raw(message.payload), actor=message.actor))
